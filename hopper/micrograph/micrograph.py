"""The micrograph of one root, to print and test (HopGNN, section 4).

Training uses the subgraphs of whole groups, each the union of its roots' micrographs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.sample import NeighborSampler
from hopper.partition.placement import PartitionBook

Vertex = tuple[str, int]
"""node type and frontier row"""


class DrawnEdge(NamedTuple):
    """One drawn edge between two frontier rows."""

    hop: int
    relation: Relation
    dst: Vertex
    src: Vertex
    discovers: bool
    """whether the source is new to the frontier"""


class Micrograph:
    """The sampled k-hop computation graph of one root.

    Parameters
    ----------
    root: global id of a node of the sampler's target type.

    Raises
    ------
    RequestError: ``root`` is no such id.
    """

    def __init__(self, sampler: NeighborSampler, root: int, epoch: int, iteration: int) -> None:
        self.target, count = sampler.target, sampler.original_ids[sampler.target].size
        if not 0 <= root < count:
            raise RequestError(
                f"micrograph: expected a global id of {self.target!r} in [0, {count}), given {root}"
            )
        self.subgraph = sampler.sample(np.array([root], np.int64), epoch, iteration)
        """the subgraph that training this root alone would use, in global ids"""
        self.nodes: dict[str, Ids] = {
            t: sampler.original_ids[t][ids] for t, ids in self.subgraph.nodes.items()
        }
        """per node type: [n] int64 original ids in order of discovery, the root first"""
        self.root = int(self.nodes[self.target][0])
        """original id of the root"""

    def edges(self) -> list[dict[Relation, Ids]]:
        """Return the drawn edges per hop and relation.

        Returns
        -------
        [edges, 3] int64 each: original ids of source and destination, and the edge's position in
        the destination's neighbour list.
        """
        edges: list[dict[Relation, Ids]] = []
        for hop in self.subgraph.hops:
            edges.append({})
            for relation, drawn in hop.items():
                sources = self.nodes[relation.src][drawn.indices]
                destinations = self.nodes[relation.dst][drawn.destinations()]
                edges[-1][relation] = np.stack([sources, destinations, drawn.positions], axis=1)
        return edges

    def homes(self, book: PartitionBook) -> dict[str, Ids]:
        """Return, per node type, [n] int64: the server that stores each of :attr:`nodes`."""
        return {t: book.home(t, ids) for t, ids in self.subgraph.nodes.items()}

    def colocated_share(self, book: PartitionBook) -> float:
        """Return the share of vertices stored with the root, which counts in the denominator only.

        R_micro is the mean of this over roots (:mod:`hopper.micrograph.locality`).
        """
        homes = self.homes(book)
        with_root = sum(int((servers == homes[self.target][0]).sum()) for servers in homes.values())
        return (with_root - 1) / sum(servers.size for servers in homes.values())

    def text(self, book: PartitionBook | None = None) -> str:
        """Return a tree of original ids as text, with each node's server if ``book`` is given.

        A node is expanded at its first occurrence; later ones are marked by "*".
        """
        homes = self.homes(book) if book is not None else None
        draws: dict[Vertex, list[DrawnEdge]] = {}
        for edge in self.walk():
            draws.setdefault(edge.dst, []).append(edge)

        def name(node_type: str, row: int) -> str:
            server = f" @{homes[node_type][row]}" if homes is not None else ""
            return f"{node_type} {self.nodes[node_type][row]}{server}"

        def branches(vertex: Vertex, margin: str) -> Iterator[str]:
            for remaining, edge in reversed(list(enumerate(reversed(draws.get(vertex, []))))):
                corner, rail = ("├── ", "│   ") if remaining else ("└── ", "    ")
                mark = "" if edge.discovers else " *"
                draw = f"hop {edge.hop} {edge.relation.rel}"
                yield f"{margin}{corner}{draw}: {name(*edge.src)}{mark}"
                if edge.discovers:
                    yield from branches(edge.src, margin + rail)

        return "\n".join([name(self.target, 0), *branches((self.target, 0), "")])

    def walk(self) -> Iterator[DrawnEdge]:
        """Yield every drawn edge in the order of hops, relations and destinations."""
        seen = {(self.target, 0)}
        for number, hop in enumerate(self.subgraph.hops):
            for relation, edges in hop.items():
                heads, rows = edges.destinations().tolist(), edges.indices.tolist()
                for head, row in zip(heads, rows, strict=True):
                    src = (relation.src, row)
                    yield DrawnEdge(number, relation, (relation.dst, head), src, src not in seen)
                    seen.add(src)
