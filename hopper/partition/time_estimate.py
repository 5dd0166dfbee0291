"""Estimate the time of a division before it starts.

The rates of this machine are measured for a fraction of a second: random reads of numbers, and
bytes written and summed up. The coefficients were fitted on graphs of 5 and 20 million edges
(docs/inside/partition-memory.md has the errors). Streaming may take less time, because passes may
settle early. METIS may take more or less, because its work depends on the graph's shape.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from hopper.graph.schema import GraphSchema

_READS: Final = 1 << 20
_NUMBERS: Final = 1 << 22
_BYTES: Final = 16 << 20
_TRIALS: Final = 3
_USUAL_BYTES: Final = 2e8
_START: Final = 1.5
"""Seconds until kernels are loaded."""
# Random reads that take as long as assigning a node, and an edge, by each method.
_OF_NODES: Final = {"random": 30.0, "stream": 30.0, "metis": 30.0}
_OF_EDGES: Final = {"random": 0.0, "stream": 100.0, "metis": 150.0}
# The same of an edge of the topology that is checked and written.
_OF_TOPOLOGY: Final = 10.0
# Times that a byte is written and summed up.
_OF_BYTES: Final = 1.5


@dataclass(frozen=True)
class Rates:
    """A machine's rates.

    Attributes
    ----------
    reads: random reads a second of an array that no cache holds.
    bytes: bytes a second that are written to the destination's disk and summed up.
    """

    reads: float
    bytes: float


_WRITTEN: Final = dict[int, float]()
"""Bytes a second of the disks that this process has measured, by number of the device."""


def probe_rates(parent: Path) -> Rates:
    """Measure this machine for a fraction of a second, and once a process.

    Parameters
    ----------
    parent: an existing folder on the disk of the destination.
    """
    try:
        return Rates(_probe_reads(), _probe_disk(parent))
    except OSError:
        # The check of the disk's space, which is made elsewhere, has a better error.
        return Rates(_probe_reads(), _USUAL_BYTES)


@cache
def _probe_reads() -> float:
    """Return the random reads a second of an array that no cache holds."""
    numbers = np.arange(_NUMBERS)
    places = np.random.default_rng(0).integers(0, numbers.size, _READS)
    return _READS / _measure_seconds(lambda: numbers[places])


def _probe_disk(folder: Path) -> float:
    """Return the bytes a second that are written to a folder's disk and summed up.

    Raises
    ------
    OSError: the folder cannot be written.
    """
    disk = folder.stat().st_dev
    if disk not in _WRITTEN:
        piece = np.zeros(_BYTES // 8, np.int64)

        def write() -> None:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(piece.data)
                file.flush()
                os.fsync(file.fileno())
                piece.sum()

        _WRITTEN[disk] = _BYTES / _measure_seconds(write)
    return _WRITTEN[disk]


def _measure_seconds(work: Callable[[], object]) -> float:
    """Return the shortest of a few times, because other processes may disturb some of them."""
    times = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return max(1e-9, min(times))


def estimate_seconds(schema: GraphSchema, method: str, disk: int, rates: Rates) -> float | None:
    """Estimate the seconds that dividing takes; None for a plug-in partitioner.

    Parameters
    ----------
    disk: number of bytes to write.
    """
    if method not in _OF_EDGES:
        return None
    nodes = sum(kind.count for kind in schema.node_types.values())
    edges = sum(kind.count for kind in schema.relations.values())
    reads = nodes * _OF_NODES[method] + edges * (_OF_EDGES[method] + _OF_TOPOLOGY)
    return _START + reads / rates.reads + disk * _OF_BYTES / rates.bytes
