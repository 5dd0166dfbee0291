"""Estimate the memory of a division, and check it before the work starts.

The coefficients of METIS bound its peak resident memory from above on graphs of 0.1 to 1 million
nodes and mean degrees of 4 to 80, by up to a half (docs/inside/partition-memory.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import LEAST_CHUNK, MOST_CHUNK, MemoryBudget, limit_memory
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.balance import number_of_constraints
from hopper.partition.metis_process import Backend
from hopper.partition.refine import Refiner
from hopper.partition.streaming import DENSE_BYTES, number_of_blocks

# Bytes that METIS takes for any call, for each node, for each node and constraint, and for each
# stored end of an undirected edge.
_METIS: Final[Mapping[Backend, tuple[int, int, int, int]]] = {
    "dgl": (128 << 20, 60, 16, 64),
    "pymetis": (64 << 20, 60, 16, 124),
}
_LIBRARIES: Final = 256 << 20
# Pieces get a third of the room that libraries leave below a limit. Arrays by node get another.
_PIECES: Final = 8
_SHARES: Final = 3
# Bytes that torch takes, which measures locality.
_LOCALITY: Final = 160 << 20
_SAMPLE: Final = 2000


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of memory of each phase, bytes of disk space, and seconds if they can be estimated."""

    phases: dict[str, int]
    disk: int = 0
    seconds: float | None = None

    @property
    def peak(self) -> int:
        """Bytes at the most demanding phase."""
        return max(self.phases.values())

    @property
    def worst(self) -> str:
        """The most demanding phase."""
        return max(self.phases, key=lambda name: self.phases[name])


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
    *,
    split: bool = False,
    balance: Sequence[str] = (),
    refiner: Refiner | None = None,
    size: MemoryBudget | None = None,
) -> MemoryEstimate:
    """Estimate the peak memory of partitioning a graph.

    Parameters
    ----------
    backend: which METIS, if that is the method.
    split: whether topology is partitioned.
    balance: names of METIS's constraints; empty = the default ones.
    refiner: moves nodes after the method; None = nothing moves.
    size: result of :func:`choose_pieces`; None = no limit.

    Notes
    -----
    Maps of files are not counted: the kernel drops their pages when memory is short.
    """
    schema, size = graph.schema, size or MemoryBudget()
    nodes = sum(kind.count for kind in schema.node_types.values())
    largest = max(kind.count for kind in schema.node_types.values())
    pieces = _PIECES * size.chunk
    roots = schema.node_types[schema.target_type()].count * 8
    if backend is not None:
        phases = _metis_phases(graph, nodes, backend, balance)
    elif method == "stream":
        with limit_memory(size):
            blocks = number_of_blocks(nodes, servers)
        # Labels (4), classes twice (2), votes and leads (8), who has in-neighbours (1).
        arrays = min(size.resident, nodes * 15 + roots)
        phases = {
            "assign (stream)": arrays + DENSE_BYTES * blocks**2 + pieces,
        }
    elif method == "random":
        arrays = min(size.resident, nodes * 4 + roots)
        sorting = min(largest * 64, max(pieces, size.resident // 8))
        phases = {"assign (random)": arrays + sorting}
    else:
        # Nothing is known of what a plug-in partitioner takes.
        phases = {f"assign ({method})": nodes * 4 + largest * 40 + pieces}
    if refiner is not None:
        phases["refine"] = refiner.memory(schema, servers, balance) + pieces
    phases["check"] = check_bytes(graph.schema, size)
    in_memory = size.resident if method in ("stream", "random") else nodes * 20
    # Server of every node, training roots.
    phases["write"] = min(in_memory, nodes * 4 + roots) + pieces
    if split:
        # Besides, the set of servers that store the in-edges of each node, at two hops.
        phases["divide the topology"] = phases["write"] + nodes * (1 + 2 * ((servers + 7) // 8))
    if schema.predicted == "link":
        phases["leave links out"] = _links_bytes(schema) + pieces
    return MemoryEstimate({name: _LIBRARIES + nbytes for name, nbytes in phases.items()})


def check_bytes(schema: GraphSchema, size: MemoryBudget) -> int:
    """Return the bytes of memory that the check of a graph directory takes.

    They are a bit an edge, or the degrees of the sources, of one relation at a time.
    """
    by_relation = [
        max(kind.count // 8, 8 * schema.node_types[relation.src].count)
        for relation, kind in schema.relations.items()
    ]
    return min(size.resident, max(by_relation, default=0)) + _PIECES * size.chunk


def locality_bytes(schema: GraphSchema) -> int:
    """Return the bytes of memory that measuring locality takes: libraries, and two numbers a target
    node."""
    return _LIBRARIES + _LOCALITY + 16 * schema.node_types[schema.target_type()].count


def _links_bytes(schema: GraphSchema) -> int:
    """Return the bytes of memory that removing links takes: a flag for each edge, and the pairs to
    remove."""
    most = max(kind.count for kind in schema.relations.values())
    return most + 24 * schema.target_count


def estimate_by_relation(
    graph: GraphDirectory, servers: int, *, cuts: bool, size: MemoryBudget | None = None
) -> MemoryEstimate:
    """Estimate the peak memory of dividing a graph by relation; see :func:`estimate_memory`.

    Parameters
    ----------
    cuts: whether what is too large for a server is cut.
    """
    schema, size = graph.schema, size or MemoryBudget()
    phases, pieces = {"check": check_bytes(schema, size)}, _PIECES * size.chunk
    # Of relations with weights or times, about 16 bytes a destination.
    drawn = [
        16 * schema.node_types[relation.dst].count
        for relation, kind in schema.relations.items()
        if kind.weighted or schema.is_timed(relation)
    ]
    phases["write"] = max(drawn, default=0) + pieces
    if schema.predicted == "link":
        phases["leave links out"] = _links_bytes(schema) + pieces
    if cuts:
        nodes = sum(kind.count for kind in schema.node_types.values())
        longest = max(kind.count for kind in schema.node_types.values())
        phases["cut"] = 2 * nodes * servers + 24 * longest + pieces
    return MemoryEstimate({name: _LIBRARIES + nbytes for name, nbytes in phases.items()})


def _metis_phases(
    graph: GraphDirectory, nodes: int, backend: Backend, balance: Sequence[str]
) -> dict[str, int]:
    edges = sum(kind.count for kind in graph.schema.relations.values())
    ends = int(edges * (2 - reciprocity(graph)))
    constraints = number_of_constraints(graph.schema, balance)
    call, per_node, per_constraint, per_end = _METIS[backend]
    metis = call + nodes * (per_node + per_constraint * constraints) + ends * per_end
    return {
        "make symmetric": 16 * edges + 32 * nodes,
        f"METIS ({backend})": 8 * ends + 24 * nodes + metis,
    }


def reciprocity(graph: GraphDirectory) -> float:
    """Return the share of edges whose reverse is stored too, from evenly spaced samples.

    Decides how many distinct ends the undirected graph has without building it.
    """
    total = reversed_edges = 0.0
    for relation, kind in graph.schema.relations.items():
        if kind.count == 0:
            continue
        reverse = [
            graph.topology(other)
            for other in graph.schema.relations
            if (other.src, other.dst) == (relation.dst, relation.src)
        ]
        total += kind.count
        reversed_edges += kind.count * _reversed_share(graph, relation, reverse)
    return reversed_edges / total if total else 0.0


def require_memory(
    estimate: MemoryEstimate, available: int, limit: int | None, method: str
) -> None:
    """Refuse work that would not fit.

    Parameters
    ----------
    available: bytes free on the machine.
    limit: bytes that the user allows, or None.

    Raises
    ------
    RequestError: naming what is needed, what there is, and what to do instead.
    """
    allowed, reason = available, "available"
    if limit is not None and limit < available:
        allowed, reason = limit, "allowed by --memory-limit"
    if estimate.peak <= allowed:
        return
    advice = (
        "use --method stream, whose memory hardly grows with the graph, or a machine with more "
        "memory"
        if method == "metis"
        else "use a machine with more memory"
    )
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


def _reversed_share(graph: GraphDirectory, relation: Relation, reverse: list[Topology]) -> float:
    edges = graph.topology(relation)
    count = edges.indices.size
    places = np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64))
    destinations = np.searchsorted(edges.indptr, places, side="right") - 1
    hits = 0
    for u, v in zip(edges.indices[places], destinations, strict=True):
        for other in reverse:
            row = other.indices[other.indptr[u] : other.indptr[u + 1]]
            place = int(np.searchsorted(row, v))
            if place < row.size and row[place] == v:
                hits += 1
                break
    return hits / places.size
