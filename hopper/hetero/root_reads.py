"""Which rows the roots of presampled epochs read, and on which servers these lie.

Draws are keyed by original ids, so those of an undivided graph are those of any division of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import permute
from cache_server.kernel import kernel
from hopper.graph.directory import GraphDirectory
from hopper.hetero.presample import FIRST_EPOCH, VisitCounter
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.partition.symmetrise import type_starts
from hopper.partition.training import training_roots
from hopper.phases import Progress

Ids = NDArray[np.int64]

BATCH: Final = 1024
"""roots an iteration; what a root reads does not depend on it"""


class Read(NamedTuple):
    """Rows that roots read, each row once a root, the root's own among them."""

    rows: int
    remote: int
    """of them, rows whose server is not the root's"""

    @property
    def remote_share(self) -> float:
        """In [0, 1]."""
        return self.remote / self.rows if self.rows else 0.0


class RootReads:
    """The rows that every training root reads in some epochs which no training has.

    Parameters
    ----------
    graph: undivided. Where edges are predicted, roots are the destinations of training edges.
    fanouts: in-neighbours per relation, first hop first; -1 = all.
    epochs: that are counted; one more is left to measure by.
    seed: of the order of roots and of the draws.
    """

    def __init__(
        self, graph: GraphDirectory, fanouts: Sequence[int], epochs: int, seed: int
    ) -> None:
        schema = graph.schema
        self._starts = type_starts(schema)
        self._counts = {name: kind.count for name, kind in schema.node_types.items()}
        self._sampler = NeighborSampler(
            {each: graph.topology(each) for each in schema.relations},
            {name: np.arange(count) for name, count in self._counts.items()},
            schema.target_type(),
            fanouts,
            seed,
        )
        self._roots = np.flatnonzero(training_roots(graph))
        self._epochs = epochs

    @property
    def iterations(self) -> int:
        """Of one :meth:`run`."""
        return (self._epochs + 1) * -(-self._roots.size // BATCH)

    def visits(self) -> Ids:
        """[nodes] int64, by stacked id: in how many counted iterations each row is read."""
        counter = VisitCounter(self._counts)
        for subgraph, is_counted in self._subgraphs():
            if is_counted:
                counter.add(subgraph.nodes)
        found = np.zeros(sum(self._counts.values()), np.int64)
        for name, start in self._starts.items():
            ids, visits = counter.visited(name)
            found[start + ids] = visits
        return found

    def run(
        self, homes: NDArray[np.int32], servers: int, progress: Progress
    ) -> tuple[NDArray[np.int32], Read]:
        """What pulls nodes to servers, and what is read under a division.

        Parameters
        ----------
        homes: [nodes] int32: the server of each stacked id.

        Returns
        -------
        [nodes, servers] int32, of the counted epochs: how many roots of a server read a node, and,
        if it is a root, how many rows it reads there; and what is read in the epoch that is not
        counted.
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
        """Every iteration's subgraph, and whether its epoch is counted."""
        for epoch in range(self._epochs + 1):
            for iteration, first in enumerate(range(0, self._roots.size, BATCH)):
                places = np.arange(first, min(first + BATCH, self._roots.size))
                moment = FIRST_EPOCH + epoch
                order = permute(self._sampler.seed, moment, self._roots.size, places)
                subgraph = self._sampler.sample(self._roots[order], moment, iteration)
                yield subgraph, epoch < self._epochs

    def _count(
        self, subgraph: Subgraph, homes: NDArray[np.int32], pull: NDArray[np.int32]
    ) -> tuple[int, int]:
        """Rows that a batch's roots read, and how many of them are remote; ``pull`` is added to."""
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
            bounds[hop] += sum(each.size for each in sources[:-1])
        first = offsets[subgraph.target]
        roots = np.arange(first, first + subgraph.num_roots)
        found: tuple[int, int] = _count_rows(
            bounds, np.concatenate(sources), roots, stacked, homes, pull
        )
        return found


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
    bounds: [hops, rows + 1] int64: where in ``sources`` each row's drawn in-neighbours are.
    ids: [rows] int64 stacked ids.
    """
    met = np.full(ids.size, -1, np.int64)
    micrograph = np.empty(ids.size, np.int64)
    rows = remote = 0
    for root in roots:
        micrograph[0], met[root], size = root, root, 1
        for hop in range(bounds.shape[0]):
            for place in range(size):
                row = micrograph[place]
                for edge in range(bounds[hop, row], bounds[hop, row + 1]):
                    source = sources[edge]
                    if met[source] != root:
                        met[source] = root
                        micrograph[size] = source
                        size += 1
        own, home = ids[root], homes[ids[root]]
        rows += size
        for place in range(1, size):
            node = ids[micrograph[place]]
            remote += homes[node] != home
            if pull.shape[0]:
                pull[node, home] += 1
                pull[own, homes[node]] += 1
    return rows, remote
