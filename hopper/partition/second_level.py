"""The second level of a partition: deal a server's nodes to its ranks by locality.

As in DistDGLv2, section 4.1.2, the same partitioner divides each server's nodes again, by the edges
between them, with training nodes balanced. Nothing is copied: only the rank of every node among
those of its server is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.array_file import array_bytes, create_array, release_pages
from hopper.graph.memory_budget import row_ranges
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.balance import Balance
from hopper.partition.file_names import ranks_file
from hopper.partition.metis_process import Backend, assign_metis
from hopper.partition.neighbor_stream import NeighborStream
from hopper.partition.node_arrays import NodeArrays
from hopper.partition.placement import RANK_DTYPE
from hopper.partition.relabel import Relabelling
from hopper.partition.streaming import assign_stream
from hopper.partition.symmetrise import symmetrise, type_starts
from hopper.partition.whole_topology import open_indices, open_indptr
from hopper.phases import Phases

SECOND_LEVELS: Final = ("metis", "stream")
"""Methods that follow locality, and can divide a server's subgraph."""


def check_ranks(ranks: int, method: str) -> None:
    """Check the number of ranks and the method before the work starts.

    Raises
    ------
    RequestError: there are too few or too many ranks, or the method has no second level.
    """
    most = int(np.iinfo(RANK_DTYPE).max)
    if not 1 <= ranks <= most:
        raise RequestError(f"ranks per server: expected 1 to {most}, given {ranks}")
    if ranks > 1 and method not in SECOND_LEVELS:
        raise RequestError(
            f"ranks per server: {ranks} want a second level, which methods "
            f"{' and '.join(SECOND_LEVELS)} have; given method {method}"
        )


def rank_bytes(schema: GraphSchema, ranks: int) -> int:
    """Return the bytes on disk of the ranks of all nodes; 0 without a second level."""
    if ranks == 1:
        return 0
    return sum(array_bytes(RANK_DTYPE, (kind.count,)) for kind in schema.node_types.values())


@dataclass(frozen=True)
class SecondLevel:
    """Divides the nodes of every server over its ranks.

    Attributes
    ----------
    ranks: number of ranks of a server.
    method: one of :data:`SECOND_LEVELS`.
    seed: the method's seed.
    backend: which METIS; None for other methods.
    """

    ranks: int
    method: str
    seed: int
    backend: Backend | None

    def write(
        self,
        schema: GraphSchema,
        work: Path,
        maps: Mapping[str, Relabelling],
        balance: Balance,
        phases: Phases,
    ) -> None:
        """Divide every server's nodes, and write each node's rank by global id.

        The topology must have been written whole.

        Parameters
        ----------
        balance: the constraints of the whole graph, which a server's ranks balance too.

        Raises
        ------
        RequestError: METIS failed.
        """
        files = {
            name: create_array(ranks_file(work, name), RANK_DTYPE, (kind.count,))
            for name, kind in schema.node_types.items()
        }
        target = schema.target_type()
        servers = maps[target].offsets.size - 1
        for server in range(servers):
            sub_schema, topologies = _make_subgraph(schema, work, maps, server)
            first, stop = maps[target].offsets[server : server + 2]
            server_balance = balance.at(maps[target].original_ids[first:stop])
            stacked = self._divide(sub_schema, topologies, server_balance, phases, work)
            for name, start in type_starts(sub_schema).items():
                first, stop = maps[name].offsets[server : server + 2]
                files[name][first:stop] = stacked[start : start + stop - first]
        release_pages(*files.values())

    def _divide(
        self,
        schema: GraphSchema,
        topologies: Mapping[Relation, Topology],
        balance: Balance,
        phases: Phases,
        scratch: Path,
    ) -> NDArray[np.int32]:
        """Return [nodes] int32: the rank of every stacked id of one server's subgraph."""
        nodes = sum(kind.count for kind in schema.node_types.values())
        edges = sum(topology.indices.size for topology in topologies.values())
        if nodes <= self.ranks or not edges:
            # There is no locality to follow, and METIS refuses such graphs.
            return np.arange(nodes, dtype=np.int32) % np.int32(self.ranks)
        if self.method == "stream":
            stream = NeighborStream(schema, topologies)
            roots = balance.training
            arrays = NodeArrays(scratch)
            return assign_stream(schema, stream, self.ranks, self.seed, roots, phases, arrays)
        assert self.backend is not None
        with phases.phase(f"deal servers' nodes to ranks (METIS, {self.backend})"):
            adjacency = symmetrise(schema, topologies)
            weights = balance.weights(schema, topologies, adjacency, self.backend)
            return assign_metis(adjacency, weights, self.ranks, self.seed, self.backend, scratch)


def _make_subgraph(
    schema: GraphSchema, work: Path, maps: Mapping[str, Relabelling], server: int
) -> tuple[GraphSchema, dict[Relation, Topology]]:
    """Make the subgraph of one server's nodes, in local rows: its schema and topologies."""
    ranges = {name: ids.offsets[server : server + 2] for name, ids in maps.items()}
    topologies = {}
    for relation, kind in schema.relations.items():
        indptr = open_indptr(work, relation, maps[relation.dst].original_ids.size)
        indices = open_indices(work, relation, kind.count)
        topologies[relation] = _select_edges(
            indptr, indices, ranges[relation.src], ranges[relation.dst]
        )
    node_types = {
        name: replace(kind, count=int(np.diff(ranges[name])[0]))
        for name, kind in schema.node_types.items()
    }
    relations = {
        relation: replace(kind, count=topologies[relation].indices.size)
        for relation, kind in schema.relations.items()
    }
    return replace(schema, node_types=node_types, relations=relations), topologies


def _select_edges(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    sources: NDArray[np.int64],
    destinations: NDArray[np.int64],
) -> Topology:
    """Select the edges of a relation from one range of global ids to another, without edge ids.

    Ids in the result count from the beginning of each range.
    """
    (src_first, src_stop), (first, stop) = sources.tolist(), destinations.tolist()
    degrees = np.zeros(stop - first, np.int64)
    pieces = [np.empty(0, np.int64)]
    for start, end in row_ranges(indptr, first, stop):
        bounds = np.asarray(indptr[start : end + 1])
        neighbors = np.asarray(indices[bounds[0] : bounds[-1]])
        inside = (neighbors >= src_first) & (neighbors < src_stop)
        before = np.zeros(inside.size + 1, np.int64)
        np.cumsum(inside, out=before[1:])
        degrees[start - first : end - first] = np.diff(before[bounds - bounds[0]])
        pieces.append(neighbors[inside] - src_first)
        release_pages(indptr, indices)
    new_indptr = np.concatenate(([0], np.cumsum(degrees)))
    new_indices = np.concatenate(pieces)
    out_degrees = np.bincount(new_indices, minlength=src_stop - src_first)
    return Topology(new_indptr, new_indices, np.empty(0, np.int64), degrees, out_degrees)
