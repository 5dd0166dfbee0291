"""The second level of a partition: deal a server's nodes to its ranks by locality.

As in DistDGLv2, section 4.1.2, the same partitioner divides each server's nodes again, by the edges
between them. Nothing is copied: only the rank of every node among those of its server is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hopper.errors import RequestError
from hopper.graph.array_file import create_array, release_pages
from hopper.graph.memory_budget import row_ranges
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.description import ranks_file
from hopper.partition.partitioner import Assigner
from hopper.partition.placement import RANK_DTYPE
from hopper.partition.stacked_ids import count_nodes, split_by_type
from hopper.partition.write import BuildContext

SECOND_LEVELS: Final = ("metis", "stream")
"""Methods that follow locality, and can divide a server's subgraph."""


def check_ranks(ranks: int, method: str) -> None:
    """Refuse too few or too many ranks, or a method without a second level."""
    most, methods = int(np.iinfo(RANK_DTYPE).max), " and ".join(SECOND_LEVELS)
    if not 1 <= ranks <= most:
        raise RequestError(f"ranks per server: expected 1 to {most}, given {ranks}")
    if ranks > 1 and method not in SECOND_LEVELS:
        text = f"want a second level, which methods {methods} have; given method {method}"
        raise RequestError(f"ranks per server: {ranks} {text}")


@dataclass(frozen=True)
class _Subgraph:
    """The nodes of one server, by local row, and the edges between them."""

    schema: GraphSchema
    topologies: dict[Relation, Topology]

    def topology(self, relation: Relation) -> Topology:
        return self.topologies[relation]


def write_ranks(context: BuildContext, assigner: Assigner, ranks: int, seed: int) -> None:
    """Divide every server's nodes over its ranks, and write each node's rank by global id; the
    topology must have been written whole, and the whole graph's constraints are balanced."""
    schema, target = context.graph.schema, context.graph.schema.target_type()
    files = {
        name: create_array(ranks_file(context.work, name), RANK_DTYPE, (kind.count,))
        for name, kind in schema.node_types.items()
    }
    for server in range(context.servers):
        subgraph = _make_subgraph(context, server)
        nodes = count_nodes(subgraph.schema)
        if nodes <= ranks or not any(t.indices.size for t in subgraph.topologies.values()):
            # There is no locality to follow, and METIS refuses such graphs.
            of_nodes = split_by_type(subgraph.schema, np.arange(nodes, dtype=np.int32) % ranks)
        else:
            own_targets = context.map(target, "original_ids")[context.own(target, server)]
            of_server = replace(assigner, balance=assigner.balance.at(own_targets))
            of_nodes = dict(of_server.assign(subgraph, ranks, seed))
        for name, file in files.items():
            file[context.own(name, server)] = of_nodes[name]
    release_pages(*files.values())


def _make_subgraph(context: BuildContext, server: int) -> _Subgraph:
    schema = context.graph.schema
    topologies = {r: _select_edges(context, r, server) for r in schema.relations}
    node_types = {
        name: replace(kind, count=int(np.diff(context.offsets[name])[server]))
        for name, kind in schema.node_types.items()
    }
    relations = {
        relation: replace(kind, count=topologies[relation].indices.size)
        for relation, kind in schema.relations.items()
    }
    return _Subgraph(replace(schema, node_types=node_types, relations=relations), topologies)


def _select_edges(context: BuildContext, relation: Relation, server: int) -> Topology:
    """Select the edges of a relation between a server's nodes, by local row, without edge ids."""
    sources, own = context.own(relation.src, server), context.own(relation.dst, server)
    indptr, indices = (context.whole(relation, name) for name in ("indptr", "indices"))
    degrees, pieces = np.zeros(own.stop - own.start, np.int64), [np.empty(0, np.int64)]
    for start, end in row_ranges(indptr, own.start, own.stop):
        bounds = np.asarray(indptr[start : end + 1])
        neighbors = np.asarray(indices[bounds[0] : bounds[-1]])
        inside = (neighbors >= sources.start) & (neighbors < sources.stop)
        before = np.concatenate(([0], np.cumsum(inside)))
        degrees[start - own.start : end - own.start] = np.diff(before[bounds - bounds[0]])
        pieces.append(neighbors[inside] - sources.start)
        release_pages(indptr, indices)
    kept = np.concatenate(pieces)
    out_degrees = np.bincount(kept, minlength=sources.stop - sources.start)
    new_indptr = np.concatenate(([0], np.cumsum(degrees)))
    return Topology(new_indptr, kept, np.empty(0, np.int64), degrees, out_degrees)
