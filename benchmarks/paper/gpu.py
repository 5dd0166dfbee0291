"""Measures how busy a GPU is while engines train (HopGNN, section 7.6)."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.paper.cell_figures import cell_figures
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.grid import Job, run_grid
from benchmarks.paper.held import SPANS_FOLDER
from benchmarks.paper.result import gpu_name
from benchmarks.paper.tables import percent
from hopper.errors import RequestError
from hopper.run_log import OPENED

INTERVAL: Final = 0.25
"""seconds between samples (section 7.6)"""
_QUERY: Final = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


class Sample(NamedTuple):
    """The busiest GPU's utilisation, per cent, at a moment of the monotonic clock."""

    moment: float
    busy: float


def require_gpu() -> None:
    """Check that there is a GPU.

    Raises
    ------
    RequestError: says what is missing.
    """
    if gpu_name() is None:
        raise RequestError(
            "hopgnn-gpu-util: this machine has no GPU that torch can use "
            "(torch.cuda.is_available() is False); run it where there is one"
        )
    if shutil.which(_QUERY[0]) is None:
        raise RequestError("hopgnn-gpu-util: nvidia-smi is missing; it tells how busy the GPU is")


def run_on_gpu(job: Job) -> Iterator[dict[str, Any]]:
    """Run the grid, and sample the GPU's utilisation meanwhile.

    Yields
    ------
    Cells of result.json, with ``utilisation`` by side in ``extra``: peak and busy share.

    Raises
    ------
    RequestError: there is no GPU.
    """
    require_gpu()
    with _watch_gpu() as samples:

        def read_runs(runs: Mapping[str, Path]) -> dict[str, Any]:
            used = {role: utilisation(samples, *training_time(run)) for role, run in runs.items()}
            return {"utilisation": used}

        for record in run_grid(job, read_runs):
            yield cell_figures(record, job.experiment.comparisons)


def training_time(run: Path) -> tuple[float, float]:
    """Return when rank 0 of a run trained after its first epoch, on the monotonic clock."""
    opened, start, stop = 0.0, None, 0.0
    for line in (run / SPANS_FOLDER / "rank-0.jsonl").read_text().splitlines():
        span: dict[str, Any] = json.loads(line)
        if span.get("event") == OPENED:
            opened = float(span["monotonic"])
        elif "span" in span and span.get("epoch", 0) > 0:
            start = span["start"] if start is None else start
            stop = max(stop, span["start"] + span["seconds"])
    return opened + (start or 0.0), opened + stop


def utilisation(samples: Sequence[Sample], start: float, stop: float) -> dict[str, Any]:
    """Return the peak utilisation, and the share of samples in which the GPU did anything, in [0,
    1]."""
    shares = [sample.busy for sample in samples if start <= sample.moment <= stop]
    if not shares:
        return {"samples": 0, "peak": None, "busy": None}
    return {
        "samples": len(shares),
        "peak": max(shares) / 100,
        "busy": sum(value > 0 for value in shares) / len(shares),
    }


def utilisation_table(result: Result) -> Table:
    """Make a table of peak utilisation and busy share by side."""
    rows = [
        [cell["name"], role, percent(use["peak"]), percent(use["busy"]), str(use["samples"])]
        for cell in result["cells"]
        for role, use in cell["extra"]["utilisation"].items()
    ]
    headings = ("cell", "side", "peak utilisation", "busy time", "samples")
    note = f"A sample every {INTERVAL:g} s while the first timed run trained, first epoch left out."
    return Table("GPU utilisation", headings, rows, note)


@contextmanager
def _watch_gpu() -> Iterator[list[Sample]]:
    samples: list[Sample] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            done = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=30)
            values = [float(line) for line in done.stdout.split() if line.isdigit()]
            if values:
                samples.append(Sample(time.perf_counter(), max(values)))

    thread = threading.Thread(target=watch, name="watching the GPU")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
