"""How long dividing will take, told before it starts.

This machine's rates are probed for a fraction of a second: random reads of numbers, and bytes
written and summed up. What the work takes of these was fitted on graphs of 5 and 20 million edges
(docs/partitions.md says how far off it is). How often passes settle early is not known before, so
streaming may take less, and METIS, whose work depends on the graph's shape, either.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
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
"""seconds until kernels are loaded"""
# Random reads that a node, and an edge, of each method's assignment are worth.
_OF_NODES: Final = {"random": 30.0, "stream": 30.0, "metis": 30.0}
_OF_EDGES: Final = {"random": 0.0, "stream": 100.0, "metis": 150.0}
# The same of an edge of the topology that is checked and written.
_OF_TOPOLOGY: Final = 10.0
# Times that a byte is written and summed up.
_OF_BYTES: Final = 1.5


@dataclass(frozen=True)
class Rates:
    """What a machine does in a second.

    Attributes
    ----------
    reads: random reads of an array that no cache holds.
    bytes: written to the destination's disk and summed up.
    """

    reads: float
    bytes: float


def probe_rates(parent: Path) -> Rates:
    """Measure this machine for a fraction of a second.

    Parameters
    ----------
    parent: an existing folder on the disk of the destination.
    """
    numbers = np.arange(_NUMBERS)
    places = np.random.default_rng(0).integers(0, numbers.size, _READS)
    piece = numbers[:1].repeat(_BYTES // 8)

    def write() -> None:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(piece.data)
            file.flush()
            piece.sum()

    reads = _READS / _seconds(lambda: numbers[places])
    try:
        return Rates(reads, _BYTES / _seconds(write))
    except OSError:
        # Whether the disk has room is checked elsewhere, and told better.
        return Rates(reads, _USUAL_BYTES)


def _seconds(work: Callable[[], object]) -> float:
    """The shortest of a few times, since others may be busy."""
    found = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return max(1e-9, min(found))


def estimate_seconds(schema: GraphSchema, method: str, disk: int, rates: Rates) -> float | None:
    """Seconds that dividing takes; None for a partitioner of one's own.

    Parameters
    ----------
    disk: bytes that are written.
    """
    if method not in _OF_EDGES:
        return None
    nodes = sum(kind.count for kind in schema.node_types.values())
    edges = sum(kind.count for kind in schema.relations.values())
    reads = nodes * _OF_NODES[method] + edges * (_OF_EDGES[method] + _OF_TOPOLOGY)
    return _START + reads / rates.reads + disk * _OF_BYTES / rates.bytes
