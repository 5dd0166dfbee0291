"""Estimate the memory of a division, and check it before the work starts.

The coefficients of METIS bound its peak resident memory from above on graphs of 0.1 to 1 million
nodes and mean degrees of 4 to 80, by up to a half (docs/inside/partition-memory.md). Maps of files
are not counted: the kernel drops their pages when memory is short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from cache_server.available_memory import available_memory
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import LEAST_CHUNK, MOST_CHUNK, MemoryBudget, limit_memory
from hopper.graph.schema import GraphSchema
from hopper.partition.balance import number_of_constraints
from hopper.partition.metis import Backend
from hopper.partition.stacked_ids import count_nodes
from hopper.partition.streaming import DENSE_BYTES, number_of_blocks

# Bytes that METIS takes for any call, and for each stored end of an undirected edge.
_METIS: Final[Mapping[Backend, tuple[int, int]]] = {
    "dgl": (128 << 20, 72),
    "pymetis": (64 << 20, 132),
}
_LIBRARIES: Final = 256 << 20
# Pieces get a third of the room that libraries leave below a limit. Arrays by node get another.
_PIECES: Final = 8
_SHARES: Final = 3
# Bytes that torch takes, which measures locality.
_LOCALITY: Final = 160 << 20
_SAMPLE: Final = 2000


class MemoryEstimate(NamedTuple):
    """Bytes of memory of each phase, and bytes of disk space."""

    phases: dict[str, int]
    disk: int = 0

    @property
    def peak(self) -> int:
        """Bytes at the most demanding phase."""
        return max(self.phases.values())

    @property
    def worst(self) -> str:
        """The most demanding phase."""
        return max(self.phases, key=lambda name: self.phases[name])


OnEstimate = Callable[[MemoryEstimate, int], None]
"""Called with the memory estimate and the available bytes before the work starts."""


def choose_pieces(limit: int | None) -> MemoryBudget:
    """Choose the sizes of pieces that keep the work below a limit of memory; None = no limit."""
    if limit is None:
        return MemoryBudget()
    room = max(0, limit - _LIBRARIES)
    piece = max(LEAST_CHUNK, min(MOST_CHUNK, room // (_SHARES * _PIECES)))
    return MemoryBudget(piece, room // _SHARES)


def estimate_memory(
    graph: GraphDirectory,
    servers: int,
    method: str,
    backend: Backend | None = None,
    disk: int = 0,
    *,
    size: MemoryBudget | None = None,
) -> MemoryEstimate:
    """Estimate the peak memory of partitioning a graph; ``size`` is a result of
    :func:`choose_pieces`."""
    schema, size = graph.schema, size or MemoryBudget()
    nodes, pieces = count_nodes(schema), _PIECES * size.chunk
    largest = max(kind.count for kind in schema.node_types.values())
    roots = 8 * schema.node_types[schema.target_type()].count
    # Server of every node, training roots.
    homes, name = nodes * 4 + roots, f"assign ({method})"
    if method in ("stream", "random"):
        homes = min(size.resident, homes)
    if backend is not None:
        call, per_end = _METIS[backend]
        edges = sum(kind.count for kind in schema.relations.values())
        ends = int(edges * (2 - reciprocity(graph)))
        per_node = 84 + 16 * number_of_constraints(schema)
        phases = {f"METIS ({backend})": call + nodes * per_node + ends * per_end}
    elif method == "stream":
        with limit_memory(size):
            blocks = number_of_blocks(nodes, servers)
        # Labels (4), classes twice (2), votes and leads (8), who has in-neighbours (1).
        arrays = min(size.resident, nodes * 15 + roots)
        phases = {name: arrays + DENSE_BYTES * blocks**2 + pieces}
    elif method == "random":
        phases = {name: homes + min(largest * 64, max(pieces, size.resident // 8))}
    else:
        # Nothing is known of what a plug-in partitioner takes.
        phases = {name: nodes * 4 + largest * 40 + pieces}
    phases["write"] = homes + pieces
    return _finish(phases, schema, size, disk)


def estimate_by_relation(
    graph: GraphDirectory, servers: int, *, cuts: bool, size: MemoryBudget | None = None
) -> MemoryEstimate:
    """Estimate the peak memory of dividing a graph by relation, and cutting what is too large for a
    server (``cuts``)."""
    schema, size = graph.schema, size or MemoryBudget()
    # Of relations with weights or times, about 16 bytes a destination.
    drawn = [
        16 * schema.node_types[relation.dst].count
        for relation, kind in schema.relations.items()
        if kind.weighted or schema.is_timed(relation)
    ]
    phases = {"write": max(drawn, default=0) + _PIECES * size.chunk}
    if cuts:
        longest = max(kind.count for kind in schema.node_types.values())
        phases["cut"] = 2 * count_nodes(schema) * servers + 24 * longest + _PIECES * size.chunk
    return _finish(phases, schema, size)


def _finish(
    phases: dict[str, int], schema: GraphSchema, size: MemoryBudget, disk: int = 0
) -> MemoryEstimate:
    """Add the phases of every division, and libraries to all phases."""
    most_edges, pieces = 0, _PIECES * size.chunk
    phases["check"] = pieces
    for relation, kind in schema.relations.items():
        # A bit an edge, or the degrees of the sources, of one relation at a time.
        largest = max(kind.count // 8, 8 * schema.node_types[relation.src].count)
        phases["check"] = max(phases["check"], min(size.resident, largest) + pieces)
        most_edges = max(most_edges, kind.count)
    if schema.predicted == "link":
        # A flag for each edge, and the pairs to remove.
        phases["leave links out"] = most_edges + 24 * schema.target_count + pieces
    return MemoryEstimate({name: _LIBRARIES + nbytes for name, nbytes in phases.items()}, disk)


def locality_bytes(schema: GraphSchema) -> int:
    """Return the bytes of memory that measuring locality takes."""
    # Two numbers a target node among them.
    return _LIBRARIES + _LOCALITY + 16 * schema.node_types[schema.target_type()].count


def reciprocity(graph: GraphDirectory) -> float:
    """Return the share of edges whose reverse is stored too, from evenly spaced samples; it tells
    how many distinct ends the undirected graph has without building it."""
    relations, reversed_edges = graph.schema.relations, 0.0
    for relation, kind in relations.items():
        edges, ends = graph.topology(relation), (relation.dst, relation.src)
        reverse = [graph.topology(r) for r in relations if (r.src, r.dst) == ends]
        places = np.unique(np.linspace(0, kind.count - 1, min(kind.count, _SAMPLE)).astype(int))
        dst = np.searchsorted(edges.indptr, places, side="right") - 1
        hits = sum(
            any(v in other.indices[other.indptr[u] : other.indptr[u + 1]] for other in reverse)
            for u, v in zip(edges.indices[places], dst, strict=True)
        )
        reversed_edges += kind.count * hits / max(1, places.size)
    return reversed_edges / max(1, sum(kind.count for kind in relations.values()))


def require_memory(
    estimate: MemoryEstimate, limit: int | None, method: str, on_estimate: OnEstimate | None
) -> None:
    """Tell the estimate, and refuse work that needs more than the bytes that are free on the
    machine, or ``limit``; the error names what is needed, what there is, and what to do instead."""
    available = available_memory()
    if on_estimate is not None:
        on_estimate(estimate, available)
    allowed, reason = available, "available"
    if limit is not None and limit < available:
        allowed, reason = limit, "allowed by --memory-limit"
    if estimate.peak <= allowed:
        return
    advice = "use a machine with more memory"
    if method == "metis":
        advice = f"use --method stream, whose memory hardly grows with the graph, or {advice[4:]}"
    raise RequestError(
        f"partitioning by {method} needs about {format_bytes(estimate.peak)} of memory "
        f"({estimate.worst}), {format_bytes(allowed)} are {reason}; {advice}"
    )


def format_bytes(count: int) -> str:
    """Return a size for people, in powers of 1024."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
