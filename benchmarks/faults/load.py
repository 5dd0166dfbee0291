"""One feature server under the load of many clients: rate, latencies, memory, fairness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.faults.serving import serving
from hopper.errors import RequestError

PROCESSES: Final = 4
IDS: Final = 256
_CLIENTS: Final = (32, 128)
_END_SECONDS: Final = 60.0
_LEAST_FAIR: Final = 0.1
"""of the requests of the client that got most, the least that any client must get"""
_ROOT: Final = Path(__file__).resolve().parents[2]


def load_server(
    folder: Path,
    partitioned: Path,
    seconds: float,
    seed: int,
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Load server 0 of a partitioned directory with 32 clients, then 128, without TLS and with it.

    Parameters
    ----------
    report: called after each of the four with the result so far: ``cells``, one of each, and
        ``wrong``, a line each.
    """
    certificates = _issue(folder)
    cells, wrong = list[dict[str, Any]](), list[str]()
    for tls in (False, True):
        words = [f"--{key}={file}" for key, file in certificates.items()] if tls else []
        authority = str(folder / "ca.pem") if tls else ""
        for clients in _CLIENTS:
            port_file = folder / "loaded.json"
            with serving(partitioned, 0, port_file, *words) as (process, address):
                watched = psutil.Process(process.pid)
                before = watched.memory_info().rss / 2**20
                reports = _ask(folder, partitioned, address, clients, seconds, seed, authority)
                after = watched.memory_info().rss / 2**20
            cell = _sum_up(clients, tls, seconds, reports) | {
                "rss_mib": [round(before, 1), round(after, 1)]
            }
            cells.append(cell)
            what = f"{clients} clients{', TLS' if tls else ''}"
            wrong += [f"{what}: {line}" for report in reports for line in report["wrong"]]
            if cell["fairness"] < _LEAST_FAIR:
                wrong.append(f"{what}: fairness {cell['fairness']:.2f}, expected {_LEAST_FAIR}")
            report({
                "seconds": seconds, "processes": PROCESSES, "ids": IDS,
                "row_bytes": reports[0]["row_bytes"], "cells": cells, "wrong": wrong,
            })  # fmt: skip


def _ask(
    folder: Path,
    partitioned: Path,
    address: str,
    clients: int,
    seconds: float,
    seed: int,
    authority: str,
) -> list[dict[str, Any]]:
    """Start the clients. Return the report of each of their processes, with its latencies."""
    processes = []
    for number in range(PROCESSES):
        request = {
            "partitioned": str(partitioned), "address": address, "clients": clients // PROCESSES,
            "seconds": seconds, "seed": seed * PROCESSES + number, "ids": IDS, "tls_ca": authority,
            "out": str(folder / f"latencies-{number}.npy"),
        }  # fmt: skip
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.faults.load_clients", json.dumps(request)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
                env=os.environ | {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
            )
        )  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RequestError("bench faults: clients of the load did not start")
        # All processes begin before the first output is awaited.
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=seconds + _END_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            with suppress(OSError):
                process.kill()
            process.wait()
    return [
        json.loads(output) | {"latencies": np.load(folder / f"latencies-{number}.npy")}
        for number, output in enumerate(outputs)
    ]


def _sum_up(
    clients: int, tls: bool, seconds: float, reports: list[dict[str, Any]]
) -> dict[str, Any]:
    latencies = np.concatenate([report["latencies"] for report in reports])
    counts = [count for report in reports for count in report["counts"]]
    names = ("p50_ms", "p99_ms", "p999_ms")
    percentiles = np.percentile(latencies, (50, 99, 99.9)) * 1e3 if latencies.size else [0.0] * 3
    return {
        "clients": clients,
        "tls": tls,
        "requests": int(latencies.size),
        "requests_per_second": round(latencies.size / seconds, 1),
        **{name: round(float(value), 2) for name, value in zip(names, percentiles, strict=True)},
        "fairness": round(min(counts) / max(*counts, 1), 3),
    }


def _issue(folder: Path) -> dict[str, Path]:
    """Issue a certificate for this machine. Return the authority and the certificate.

    Raises
    ------
    RequestError: what makes them is not installed.
    """
    try:
        import trustme
    except ImportError as error:
        raise RequestError(
            "bench faults: --load needs trustme for its certificates: pip install trustme"
        ) from error
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    files = {key: folder / f"{key}.pem" for key in ("tls-certificate", "tls-key")}
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(files["tls-key"])
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(files["tls-certificate"], append=number > 0)
    return files
