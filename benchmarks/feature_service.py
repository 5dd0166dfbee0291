"""The feature service against the least that could carry the same bytes.

``python benchmarks/feature_service.py --out DIR`` asks one server for random rows of 600 float32
from a file of some hundred MB, 1 to 100,000 ids at once,

- over loopback, against a bare grpcio server stream of the same bytes (goal: 70 % of its rate);
- over a veth pair limited to 1 Gbit/s, against a plain TCP socket (goal: 90 %); needs root.

Calls of both sides alternate, and the ratio is taken pair by pair. A goal stands when the lower end
of the 95 % interval meets it. Writes ``DIR/feature_service.json`` and prints a table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from feature_service_peers import (
    DIM,
    RATE,
    ROOT,
    ROW_BYTES,
    grpc_caller,
    serve_grpc,
    serve_tcp,
    start_server,
    tcp_caller,
    two_hosts,
)
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from cache_server.client import FeatureClient
from cache_server.manifest import TableSpec, write_manifest
from cache_server.security import Security
from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result

# link -> ids in a call -> pairs of calls
PAIRS = {
    "loopback": {1: 400, 64: 400, 10_000: 60, 100_000: 30},
    "veth": {1: 400, 64: 400, 10_000: 20, 100_000: 10},
}
PEERS = {"loopback": "grpc", "veth": "tcp"}
GOALS = {"loopback": 0.70, "veth": 0.90}


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that this process and another one have used together."""
    times = [process.cpu_times() for process in (psutil.Process(), psutil.Process(pid))]
    return sum(t.user + t.system for t in times)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time the service and its peer call by call, in turns. Return seconds and CPU seconds by
    size."""
    client = FeatureClient([options.service], security=Security(insecure=True))
    client.wait_until_serving(30)
    rows = client.describe(0).tables[0].count
    peer = {"grpc": grpc_caller, "tcp": tcp_caller}[PEERS[options.link]](options.peer)

    def service(ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        client.fetch_rows("features", "paper", {0: ids}, out, {0: slice(None)})

    sides = {"service": service, "peer": peer}
    rng = np.random.default_rng(options.seed)
    results = {}
    for count, pairs in PAIRS[options.link].items():
        out = np.zeros((count, DIM), np.float32)
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for pair in range(-2, pairs):
            ids = rng.integers(0, rows, count)
            for side in sorted(sides, reverse=pair % 2 == 0):
                start = time.perf_counter()
                sides[side](ids, out)
                if pair >= 0:
                    seconds[side].append(time.perf_counter() - start)
        cpu = {}
        for side, pid in (("service", options.service_pid), ("peer", options.peer_pid)):
            cpu_before, calls = cpu_seconds(pid), max(2, pairs // 4)
            for _ in range(calls):
                sides[side](ids, out)
            cpu[side] = (cpu_seconds(pid) - cpu_before) / calls
        results[str(count)] = {"seconds": seconds, "cpu_seconds_per_call": cpu}
    client.close()
    return results


def make_table(directory: Path, megabytes: int, seed: int) -> None:
    """Write a partitioned directory of one server with one table of about ``megabytes`` MB."""
    rows = megabytes * 10**6 // ROW_BYTES
    folder = directory / "server-0"
    folder.mkdir()
    rng = np.random.default_rng(seed)
    table = np.lib.format.open_memmap(folder / "paper.npy", "w+", np.float32, (rows, DIM))
    for first in range(0, rows, 10_000):
        part = table[first : first + 10_000]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    table.flush()
    spec = TableSpec(
        kind="features",
        type="paper",
        file="paper.npy",
        first_id=0,
        count=rows,
        dim=DIM,
        dtype="float32",
    )
    write_manifest(folder, 0, 1, [spec])


def run_link(
    link: str, directory: Path, seed: int, host: str, server_prefix: list[str], prefix: list[str]
) -> dict[str, Any]:
    """Start service and peer, measure them from another process, and end all three.

    The prefixes are what runs a command on the servers' host and on the client's.
    """
    peer = PEERS[link]
    script = [sys.executable, str(Path(__file__).resolve())]
    service = [sys.executable, "-m", "cache_server", str(directory), "--server", "0"]
    follow = ["--die-with-parent", str(os.getpid()), "--insecure"]
    with ExitStack() as stack:
        served, address = stack.enter_context(
            start_server([*server_prefix, *service, "--listen", f"{host}:0", *follow])
        )
        peer_process, peer_address = stack.enter_context(
            start_server([*server_prefix, *script, "--role", peer, "--listen", f"{host}:0"])
        )
        measuring = ["--role", "measure", "--service", address, "--service-pid", str(served.pid)]
        measuring += ["--peer", peer_address, "--peer-pid", str(peer_process.pid)]
        measuring += ["--link", link, "--seed", str(seed)]
        done = subprocess.run(
            [*prefix, *script, *measuring], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
    return json.loads(done.stdout)


def summarise(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rates, percentiles and paired ratios (service / peer, of rates) by number of ids."""
    rows = []
    for count, sample in raw.items():
        row: dict[str, Any] = {"ids": int(count)}
        for side, values in sample["seconds"].items():
            p50, p99 = np.percentile(values, [50, 99])
            row[side] = {
                "rows_per_second": int(count) / p50,
                "p50_ms": 1e3 * p50,
                "p99_ms": 1e3 * p99,
                "cpu_ms": 1e3 * sample["cpu_seconds_per_call"][side],
            }
        logs = np.log(sample["seconds"]["peer"]) - np.log(sample["seconds"]["service"])
        half = 1.96 * logs.std(ddof=1) / math.sqrt(logs.size)
        row["ratio"] = math.exp(logs.mean())
        row["ratio_95"] = [math.exp(logs.mean() - half), math.exp(logs.mean() + half)]
        row["pairs"] = int(logs.size)
        rows.append(row)
    return rows


def show(console: Console, links: dict[str, Any]) -> None:
    """Print a table for each link, and whether its goal is met."""
    for name, link in links.items():
        if "skipped" in link:
            console.print(f"{name}: skipped: {link['skipped']}")
            continue
        table = Table(title=f"{name}: service | {link['peer']}")
        for heading in ("ids", "rows/s", "p50 ms", "p99 ms", "CPU ms", "rate, service / peer"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in link["sizes"]:
            sides = [row["service"], row["peer"]]
            cells = [f"{row['ids']:,}", " | ".join(f"{s['rows_per_second']:,.0f}" for s in sides)]
            for key in ("p50_ms", "p99_ms", "cpu_ms"):
                cells.append(" | ".join(f"{side[key]:.2f}" for side in sides))
            low, high = row["ratio_95"]
            table.add_row(*cells, f"{row['ratio']:.2f} ({low:.2f}-{high:.2f})")
        console.print(table)
        low = link["sizes"][-1]["ratio_95"][0]
        verdict = "met" if low >= GOALS[name] else "missed"
        console.print(f"goal at 100,000 ids: at least {GOALS[name]:.0%} of the peer: {verdict}\n")


def run(out: Path, megabytes: int, seed: int) -> None:
    """Measure both links and write the results."""
    links: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hopper-feature-service-") as folder:
        directory = Path(folder)
        make_table(directory, megabytes, seed)
        raw = run_link("loopback", directory, seed, "127.0.0.1", [], [])
        links["loopback"] = {"peer": "a bare grpcio stream", "sizes": summarise(raw)}
        if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
            why = "a veth pair needs root and the programs ip and tc"
            links["veth"] = {"skipped": why}
        else:
            with two_hosts() as (server_prefix, prefix, host):
                raw = run_link("veth", directory, seed, host, server_prefix, prefix)
            links["veth"] = {"peer": "a plain TCP socket", "rate": RATE, "sizes": summarise(raw)}
    result = {
        "schema": 1,
        "benchmark": "feature_service",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions() | {"protobuf": version("protobuf")},
        "file_megabytes": megabytes,
        "row_bytes": ROW_BYTES,
        "goals": GOALS,
        "links": links,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / "feature_service.json"
    path.write_text(format_result(result))
    # The table must not be folded where the output is a file.
    console = Console(width=None if sys.stdout.isatty() else 130)
    show(console, links)
    console.print(f"written: {path}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line. The roles other than ``run`` are this script's own child processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for feature_service.json")
    parser.add_argument("--megabytes", type=int, default=600, help="size of the table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--role", choices=("run", "grpc", "tcp", "measure"), default="run")
    for name in ("listen", "service", "peer", "link"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name in ("service-pid", "peer-pid"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.role == "measure":
        print(json.dumps(measure(options)))
    elif options.role != "run":
        {"grpc": serve_grpc, "tcp": serve_tcp}[options.role](options.listen)
    elif options.out is None:
        parser.error("--out is required")
    else:
        run(options.out, options.megabytes, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
