"""A partitioner that moves nodes to the servers whose roots read them, after another method.

usage: hopper partition GRAPH --servers P --out DIR
           --method benchmarks.visit_partitioner:VisitPartitioner
           [--method-options '{fanouts = [15, 10, 5], epochs = 2, method = "stream"}']

Other methods weigh all edges alike, but training reads over some edges often and over others never.
Draws do not depend on the division, so the reads of each root are known before there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.hetero.presample import FIRST_EPOCH, VisitCounter
from hopper.micrograph.route import permute
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.partition.balance import balance_classes, room_of, training_roots
from hopper.partition.partitioner import Assigner
from hopper.partition.stacked_ids import split_by_type, type_slices
from hopper.timing.phases import Phases

Ids = NDArray[np.int64]
Homes = NDArray[np.int32]
BATCH: Final = 1024
"""The roots of an iteration. The reads of a root do not depend on it."""
_MOST_ROUNDS: Final = 8
_MOST_PASSES: Final = 8


class VisitPartitioner:
    """Moves nodes round by round, while this reduces the remote rows that roots read.

    A server pulls a node by the number of its roots that read the node. If the node is a root, the
    server also pulls it by the number of its rows that the root reads. No server gets more than 5 %
    above the mean of what METIS balances, of in-edges, or of the visits of its rows. Moves follow
    the counted epochs, and one more epoch measures whether they help.

    Parameters
    ----------
    fanouts: in-neighbours per relation, first hop first; -1 = all.
    epochs: the number of epochs of training roots that are counted.
    method, backend: what divides the nodes first.
    """

    def __init__(
        self,
        fanouts: Sequence[int] = (10, 10),
        epochs: int = 2,
        method: str = "metis",
        backend: str = "auto",
    ) -> None:
        self.fanouts, self.epochs, self.method, self.backend = fanouts, epochs, method, backend

    def assign(self, graph: GraphDirectory, servers: int, seed: int) -> dict[str, Homes]:
        """Choose the server of every node."""
        roots = training_roots(graph)
        if self.epochs < 1 or not roots.any():
            raise RequestError(
                f"visits are counted for training roots of at least one epoch; given {self.epochs} "
                f"epochs of graph {graph.schema.name!r}"
            )
        with TemporaryDirectory() as scratch:
            assigner = Assigner(self.method, roots, Phases(), Path(scratch), self.backend)
            homes = assigner.assign(graph, servers, seed)
        best = np.concatenate([homes[name] for name in graph.schema.node_types])
        reads = RootReads(graph, self.fanouts, self.epochs, seed)
        weights = np.column_stack([*_balanced(graph, roots), reads.visits()])
        pull, least = reads.run(best, servers)
        for _ in range(_MOST_ROUNDS):
            moved = best.copy()
            if not move_nodes(moved, pull, weights):
                break
            pull, read = reads.run(moved, servers)
            if read.remote >= least.remote:
                break
            best, least = moved, read
        return split_by_type(graph.schema, best)


def _balanced(graph: GraphDirectory, roots: Ids) -> list[Ids]:
    """Return, by stacked id, a mask of each class of nodes, and in-edges."""
    classes, ids_of = balance_classes(graph.schema, roots), type_slices(graph.schema)
    in_degrees = np.zeros(classes.size, np.int64)
    for relation in graph.schema.relations:
        in_degrees[ids_of[relation.dst]] += graph.topology(relation).in_degrees
    return [*((classes == group).astype(np.int64) for group in np.unique(classes)), in_degrees]


class Read(NamedTuple):
    """The rows that roots read, each row counted once for each root, with the root's own row."""

    rows: int
    remote: int
    """the rows among them whose server is not the root's"""


class RootReads:
    """Samples what training roots read, in epochs that no training reaches; one more epoch than
    ``epochs`` is sampled, to measure with."""

    def __init__(
        self, graph: GraphDirectory, fanouts: Sequence[int], epochs: int, seed: int
    ) -> None:
        schema = graph.schema
        self._ids, self._epochs = type_slices(schema), epochs
        self._counts = {name: kind.count for name, kind in schema.node_types.items()}
        self._sampler = NeighborSampler(
            {relation: graph.topology(relation) for relation in schema.relations},
            {name: np.arange(count) for name, count in self._counts.items()},
            schema.target_type(),
            fanouts,
            seed,
        )
        self._roots = np.flatnonzero(training_roots(graph))

    def visits(self) -> Ids:
        """Return in how many counted iterations each row is read: [nodes] int64, by stacked id."""
        counter = VisitCounter(self._counts)
        for subgraph, is_counted in self._subgraphs():
            if is_counted:
                counter.add(subgraph.nodes)
        stacked = np.zeros(sum(self._counts.values()), np.int64)
        for name, of_type in self._ids.items():
            ids, visits = counter.list_visited(name)
            stacked[of_type][ids] = visits
        return stacked

    def run(self, homes: Homes, servers: int) -> tuple[NDArray[np.int32], Read]:
        """Count what pulls nodes to servers, and what roots read, if stacked ids have these homes.

        The pull [nodes, servers], int32, over the counted epochs is how many roots of a server read
        a node, plus, if the node is a root, how many rows it reads there. The rows are those that
        are read in the epoch that is not counted.
        """
        pull = np.zeros((homes.size, servers), np.int32)
        rows = remote = 0
        for subgraph, is_counted in self._subgraphs():
            read = self._count(subgraph, homes, pull if is_counted else pull[:0])
            if not is_counted:
                rows, remote = rows + read[0], remote + read[1]
        return pull, Read(rows, remote)

    def _subgraphs(self) -> Iterator[tuple[Subgraph, bool]]:
        """Yield every iteration's subgraph, and whether its epoch is counted."""
        for epoch in range(self._epochs + 1):
            for iteration, first in enumerate(range(0, self._roots.size, BATCH)):
                positions = np.arange(first, min(first + BATCH, self._roots.size))
                moment = FIRST_EPOCH + epoch
                order = permute(self._sampler.seed, moment, self._roots.size, positions)
                subgraph = self._sampler.sample(self._roots[order], moment, iteration)
                yield subgraph, epoch < self._epochs

    def _count(self, subgraph: Subgraph, homes: Homes, pull: NDArray[np.int32]) -> tuple[int, int]:
        """Count the rows that a batch's roots read and the remote ones, and add to ``pull``."""
        offsets, rows = {}, 0
        for name, nodes in subgraph.nodes.items():
            offsets[name] = rows
            rows += nodes.size
        stacked = np.concatenate([self._ids[t].start + ids for t, ids in subgraph.nodes.items()])
        bounds = np.zeros((len(subgraph.hops), rows + 1), np.int64)
        sources = list[Ids]()
        for hop, drawn in enumerate(subgraph.hops):
            heads, tails = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            for relation, (indptr, indices, _) in drawn.items():
                counts = np.diff(indptr)
                heads.append(np.repeat(np.arange(counts.size) + offsets[relation.dst], counts))
                tails.append(indices + offsets[relation.src])
            into = np.concatenate(heads)
            np.cumsum(np.bincount(into, minlength=rows), out=bounds[hop, 1:])
            bounds[hop] += sum(hop_sources.size for hop_sources in sources)
            sources.append(np.concatenate(tails)[np.argsort(into, kind="stable")])
        roots = offsets[subgraph.target] + np.arange(subgraph.num_roots)
        edges = bounds, np.concatenate(sources)
        counted: tuple[int, int] = _count_rows(*edges, roots, stacked, homes, pull)
        return counted


def move_nodes(homes: Homes, pull: NDArray[np.int32], weights: Ids) -> int:
    """Move every node to the server that pulls it most, if that has room; return the number moved.

    Nodes that gain most move first. A server has room for 5 % above the mean of each weight. A
    server that has more already only loses nodes. The result does not depend on threads.

    Parameters
    ----------
    homes: [nodes] int32, updated.
    pull: [nodes, servers] int32, the gain of each node at each server.
    weights: [nodes, constraints] int64.
    """
    servers, before = pull.shape[1], homes.copy()
    gains = pull.max(axis=1) - pull[np.arange(homes.size), homes]
    movable = np.flatnonzero(gains)
    # A stable sort leaves nodes of equal gain in the order of their ids.
    order = movable[np.argsort(-gains[movable], kind="stable")]
    # With weights, bincount returns floats, in which sums below 2**53 are exact.
    columns = [np.bincount(homes, weights=column, minlength=servers) for column in weights.T]
    loads, room = np.stack(columns, 1).astype(np.int64), room_of(weights.sum(axis=0), servers)
    for _ in range(_MOST_PASSES):
        # Nodes that leave a server make room for others.
        if not _move_once(order, homes, pull, weights, loads, room):
            break
    return int((homes != before).sum())


@kernel
def _move_once(
    order: Ids, homes: Homes, pull: NDArray[np.int32], weights: Ids, loads: Ids, room: Ids
) -> int:
    """Move nodes, one after another, to the best server with room; return the number moved."""
    moved = 0
    for node in order:
        home = homes[node]
        best = home
        for server in range(pull.shape[1]):
            if pull[node, server] <= pull[node, best]:
                continue
            fits = True
            for k in range(room.size):
                weight = weights[node, k]
                fits &= weight == 0 or loads[server, k] + weight <= room[k]
            if fits:
                best = server
        if best != home:
            for k in range(room.size):
                loads[home, k] -= weights[node, k]
                loads[best, k] += weights[node, k]
            homes[node] = best
            moved += 1
    return moved


@kernel
def _count_rows(
    bounds: Ids, sources: Ids, roots: Ids, ids: Ids, homes: Homes, pull: NDArray[np.int32]
) -> tuple[int, int]:
    """Walk the micrograph of each root within its batch's subgraph, whose rows have stacked ``ids``
    and, by hop, ``bounds`` [hops, rows + 1] of their drawn in-neighbours in ``sources``."""
    root_of = np.full(ids.size, -1, np.int64)
    micrograph = np.empty(ids.size, np.int64)
    rows = remote = 0
    for root in roots:
        micrograph[0], root_of[root], size = root, root, 1
        for hop in range(bounds.shape[0]):
            for index in range(size):
                row = micrograph[index]
                for edge in range(bounds[hop, row], bounds[hop, row + 1]):
                    source = sources[edge]
                    if root_of[source] != root:
                        root_of[source] = root
                        micrograph[size] = source
                        size += 1
        root_id, home = ids[root], homes[ids[root]]
        rows += size
        for index in range(1, size):
            node = ids[micrograph[index]]
            remote += homes[node] != home
            if pull.shape[0]:
                pull[node, home] += 1
                pull[root_id, homes[node]] += 1
    return rows, remote
