"""How much memory a partitioning will need, told and checked before it starts.

The coefficients of METIS bound its peak resident memory from above on graphs of 0.1 to 1 million
nodes and mean degrees of 4 to 80, by up to a half (docs/partitions.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.balance import number_of_constraints
from hopper.partition.metis_process import Backend
from hopper.partition.refine import Refiner
from hopper.partition.streaming import number_of_blocks

# Bytes of any call, a node, a node and constraint, a stored end of an undirected edge.
_METIS: Final[Mapping[Backend, tuple[int, int, int, int]]] = {
    "dgl": (128 << 20, 60, 16, 64),
    "pymetis": (64 << 20, 60, 16, 124),
}
_LIBRARIES: Final = 256 << 20
_BUFFERS: Final = 64 << 20
# What the streaming method holds of a pair of blocks, and of the chunks that it reads.
_DENSE: Final = 64
_CHUNKS: Final = 128 << 20
_SAMPLE: Final = 2000


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of memory needed by each phase, of which the peak counts, and of the disk."""

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


def estimate_memory(
    graph: GraphDirectory,
    servers: int,
    method: str,
    backend: Backend | None = None,
    *,
    split: bool = False,
    balance: Sequence[str] = (),
    refiner: Refiner | None = None,
) -> MemoryEstimate:
    """Estimate the peak memory of partitioning a graph.

    Parameters
    ----------
    backend: which METIS, if that is the method.
    split: whether servers store some nodes' in-edges alone.
    balance: constraints of METIS by name; none are the usual ones.
    refiner: what moves nodes afterwards.

    Notes
    -----
    Maps of files are not counted: the kernel drops their pages when memory is short.
    """
    schema = graph.schema
    nodes = sum(kind.count for kind in schema.node_types.values())
    largest = max(kind.count for kind in schema.node_types.values())
    if backend is not None:
        phases = _metis_phases(graph, nodes, backend, balance)
    elif method == "stream":
        blocks = number_of_blocks(nodes, servers)
        # Labels, servers and classes of nodes (10), votes (8), classes being made (8), roots (8).
        phases = {"assign (stream)": nodes * 34 + _DENSE * blocks**2 + _CHUNKS}
    else:
        # What a partitioner of one's own takes, it alone knows.
        phases = {f"assign ({method})": nodes * 4 + largest * 40 + _BUFFERS}
    if refiner is not None:
        phases["refine"] = refiner.memory(schema, servers, balance) + _BUFFERS
    phases["check"] = check_bytes(graph.schema)
    # Server of every node (4), both maps (16), training roots (8).
    phases["write"] = nodes * 20 + largest * 24 + _BUFFERS
    if split:
        # The same, and which servers store the in-edges of a node, a bit each, at two hops.
        phases["divide the topology"] = nodes * (28 + 2 * ((servers + 7) // 8)) + _BUFFERS
    return MemoryEstimate({name: _LIBRARIES + size for name, size in phases.items()})


def check_bytes(schema: GraphSchema) -> int:
    """Bytes that the check of a graph directory takes: a bit an edge, and the degrees of sources,
    of a relation at a time."""
    found = [
        kind.count // 8 + 8 * schema.node_types[relation.src].count
        for relation, kind in schema.relations.items()
    ]
    return max(found, default=0) + _BUFFERS


def estimate_by_relation(graph: GraphDirectory, servers: int, *, cuts: bool) -> MemoryEstimate:
    """Estimate the peak memory of dividing a graph by relation; see :func:`estimate_memory`.

    Parameters
    ----------
    cuts: whether what is too large for a server is cut.
    """
    schema, phases = graph.schema, {"check": check_bytes(graph.schema)}
    # Of relations with weights or times, about 16 bytes a destination; an id and a root a node.
    drawn = [
        16 * schema.node_types[relation.dst].count
        for relation, kind in schema.relations.items()
        if kind.weighted or schema.is_timed(relation)
    ]
    target = max(schema.node_types[each].count for each in schema.root_types)
    phases["write"] = max(drawn, default=0) + 16 * target + _BUFFERS
    if schema.predicted == "link":
        # Which edges are kept, and the pairs that are not.
        most = max(kind.count for kind in schema.relations.values())
        phases["leave links out"] = most + 24 * schema.target_count + _BUFFERS
    if cuts:
        nodes = sum(kind.count for kind in schema.node_types.values())
        longest = max(kind.count for kind in schema.node_types.values())
        phases["cut"] = 2 * nodes * servers + 24 * longest + _BUFFERS
    return MemoryEstimate({name: _LIBRARIES + size for name, size in phases.items()})


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
    """The share of edges whose reverse is stored too, from evenly spaced samples.

    Decides how many distinct ends the undirected graph has without building it.
    """
    total = found = 0.0
    for relation, kind in graph.schema.relations.items():
        if kind.count == 0:
            continue
        reverse = [
            graph.topology(other)
            for other in graph.schema.relations
            if (other.src, other.dst) == (relation.dst, relation.src)
        ]
        total += kind.count
        found += kind.count * _reversed_share(graph, relation, reverse)
    return found / total if total else 0.0


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
        "use --method stream, which needs about 50 bytes a node whatever the edges, or a machine "
        "with more memory"
        if method == "metis"
        else "use a machine with more memory"
    )
    raise RequestError(
        f"partitioning by {method} needs about {format_bytes(estimate.peak)} of memory "
        f"({estimate.worst}), {format_bytes(allowed)} are {reason}; {advice}"
    )


def format_bytes(count: int) -> str:
    """A size for people, in powers of 1024."""
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
