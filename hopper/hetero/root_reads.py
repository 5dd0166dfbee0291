"""Counts which rows the roots of presampled epochs read, and from which servers.

Draws are keyed by original ids, so those of an undivided graph hold for any division of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.directory import GraphDirectory
from hopper.hetero.presample import FIRST_EPOCH, VisitCounter
from hopper.micrograph.route import permute
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.partition.stacked_ids import type_starts
from hopper.partition.training import training_roots
from hopper.timing.phases import Progress

Ids = NDArray[np.int64]

BATCH: Final = 1024
"""The roots of an iteration. The reads of a root do not depend on it."""


class Read(NamedTuple):
    """The rows that roots read, each row counted once for each root, with the root's own row."""

    rows: int
    remote: int
    """the rows among them whose server is not the root's"""

    @property
    def remote_share(self) -> float:
        """The share of remote rows, in [0, 1]."""
        return self.remote / self.rows if self.rows else 0.0


class RootReads:
    """Samples what training roots read, in epochs that no training reaches.

    Parameters
    ----------
    graph: the undivided graph. Where edges are predicted, roots are the destinations of training
        edges.
    fanouts: in-neighbours per relation, first hop first; -1 = all.
    epochs: the number of counted epochs. One more epoch is sampled to measure with.
    seed: the seed of the order of roots and of the draws.
    """

    def __init__(
        self, graph: GraphDirectory, fanouts: Sequence[int], epochs: int, seed: int
    ) -> None:
        schema = graph.schema
        self._starts = type_starts(schema)
        self._counts = {name: kind.count for name, kind in schema.node_types.items()}
        self._sampler = NeighborSampler(
            {relation: graph.topology(relation) for relation in schema.relations},
            {name: np.arange(count) for name, count in self._counts.items()},
            schema.target_type(),
            fanouts,
            seed,
        )
        self._roots = np.flatnonzero(training_roots(graph))
        self._epochs = epochs

    @property
    def iterations(self) -> int:
        """The number of iterations of one :meth:`run`."""
        return (self._epochs + 1) * -(-self._roots.size // BATCH)

    def visits(self) -> Ids:
        """Return in how many counted iterations each row is read: [nodes] int64, by stacked id."""
        counter = VisitCounter(self._counts)
        for subgraph, is_counted in self._subgraphs():
            if is_counted:
                counter.add(subgraph.nodes)
        stacked = np.zeros(sum(self._counts.values()), np.int64)
        for name, start in self._starts.items():
            ids, visits = counter.list_visited(name)
            stacked[start + ids] = visits
        return stacked

    def run(
        self, homes: NDArray[np.int32], servers: int, progress: Progress
    ) -> tuple[NDArray[np.int32], Read]:
        """Count what pulls nodes to servers, and what roots read under a division.

        Parameters
        ----------
        homes: [nodes] int32: the server of each stacked id.

        Returns
        -------
        The pull [nodes, servers], int32, over the counted epochs: how many roots of a server read a
        node, plus, if the node is a root, how many rows it reads there. And the rows that are read
        in the epoch that is not counted.
        """
        pull = np.zeros((homes.size, servers), np.int32)
        uncounted = np.empty((0, servers), np.int32)
        rows = remote = 0
        for subgraph, is_counted in self._subgraphs():
            read = self._count(subgraph, homes, pull if is_counted else uncounted)
            if not is_counted:
                rows, remote = rows + read[0], remote + read[1]
            progress.advance(1)
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

    def _count(
        self, subgraph: Subgraph, homes: NDArray[np.int32], pull: NDArray[np.int32]
    ) -> tuple[int, int]:
        """Count the rows that a batch's roots read and the remote ones, and add to ``pull``."""
        offsets, rows = {}, 0
        for name, nodes in subgraph.nodes.items():
            offsets[name] = rows
            rows += nodes.size
        stacked = np.concatenate([self._starts[t] + ids for t, ids in subgraph.nodes.items()])
        bounds = np.zeros((len(subgraph.hops), rows + 1), np.int64)
        sources = []
        for hop, drawn in enumerate(subgraph.hops):
            heads, tails = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            for relation, (indptr, indices, _) in drawn.items():
                counts = np.diff(indptr)
                heads.append(np.repeat(np.arange(counts.size) + offsets[relation.dst], counts))
                tails.append(indices + offsets[relation.src])
            into = np.concatenate(heads)
            np.cumsum(np.bincount(into, minlength=rows), out=bounds[hop, 1:])
            sources.append(np.concatenate(tails)[np.argsort(into, kind="stable")])
            bounds[hop] += sum(hop_sources.size for hop_sources in sources[:-1])
        first = offsets[subgraph.target]
        roots = np.arange(first, first + subgraph.num_roots)
        counts_of_rows: tuple[int, int] = _count_rows(
            bounds, np.concatenate(sources), roots, stacked, homes, pull
        )
        return counts_of_rows


@kernel
def _count_rows(
    bounds: Ids,
    sources: Ids,
    roots: Ids,
    ids: Ids,
    homes: NDArray[np.int32],
    pull: NDArray[np.int32],
) -> tuple[int, int]:
    """Walk the micrograph of each root within its batch's subgraph.

    Parameters
    ----------
    bounds: [hops, rows + 1] int64: the range of each row's drawn in-neighbours in ``sources``.
    ids: [rows] int64 stacked ids.
    """
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
