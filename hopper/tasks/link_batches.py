"""The edges of an iteration: labelled edges, or links with their negatives.

Also tells which edges samplers must leave out, because they would reveal the links.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.spec import ExcludedEdges
from hopper.config import Task
from hopper.graph.schema import Relation
from hopper.micrograph.route import RootSchedule
from hopper.micrograph.subgraph import Pairs
from hopper.partition import PartitionedGraph
from hopper.tasks.negatives import Negatives
from hopper.tasks.target import sides_of
from hopper.tasks.training_links import TrainingLinks, VersionsAt

_KEPT: Final = 8
"""iterations whose edges are cached; as many may be planned at a time"""

Ids = NDArray[np.int64]


class LinkBatches:
    """Turns the edges of a global batch into roots to sample and pairs to score.

    Parameters
    ----------
    links: the edges to train.
    schedule: the edges of each iteration.
    seed: seed of the draws of negatives.
    versions_at: makes versions of the edges' ends.
    server: the server whose relations and lists ranks draw from, if these are divided; None = all.

    Attributes
    ----------
    types: node types of the ends, in the order in which their rows are concatenated.
    batch, excluded: cached functions of (epoch, iteration): the global batch, and by relation the
        edges to leave out.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        task: Task,
        links: TrainingLinks,
        schedule: RootSchedule,
        seed: int,
        versions_at: VersionsAt,
        server: int | None = None,
    ) -> None:
        self._task = task
        self._drawn: Collection[Relation] = graph.relations
        if server is not None and graph.partitions:
            self._drawn = graph.partitions[server].relations
        """the relations that ranks draw from"""
        self._table = links.table
        self._negatives = Negatives(graph, task, self._table, seed)
        self._topology = cache(lambda relation: graph.topology(relation, server))
        self._originals = cache(graph.original_ids)
        schema = graph.schema
        self._reverses = [graph.reverse_relations(relation) for relation in schema.target_relations]
        self.types: Sequence[str] = sorted(schema.root_types)
        self._versions_at = versions_at
        self.batch = lru_cache(_KEPT)(lambda moment: schedule.batch(*moment))
        self.excluded = lru_cache(_KEPT)(self._excluded)

    def pairs(self, roots: Ids, epoch: int, iteration: int) -> Pairs:
        """Return edges of an iteration with their labels, or links with their negatives.

        Parameters
        ----------
        roots: [n] int64, indices in the table of training links.
        """
        batch, table = self.batch((epoch, iteration)), self._table
        sides = sides_of(self._task) if table.labels is None else ()
        count = self._negatives.count
        width = 1 + count * len(sides)
        ends = np.empty((2, roots.size, width), np.int64)
        types = np.empty((2, roots.size), np.int64)
        relations = table.relations[roots]
        for number, relation in enumerate(table.targets):
            chosen_places = np.flatnonzero(relations == number)
            if not chosen_places.size:
                continue
            places = roots[chosen_places]
            true = table.src[places], table.dst[places]
            ends[0, chosen_places], ends[1, chosen_places] = true[0][:, None], true[1][:, None]
            types[0, chosen_places] = self.types.index(relation.src)
            types[1, chosen_places] = self.types.index(relation.dst)
            for index, side in enumerate(sides):
                columns = slice(1 + index * count, 1 + (index + 1) * count)
                negatives = self._negatives.draw(batch, places, number, side)
                ends[int(side == "tail"), chosen_places, columns] = negatives
        if table.labels is None:
            labels = np.zeros((roots.size, width), np.float32)
            # A negative that equals the link itself does not count.
            labels[np.all(ends == ends[:, :, :1], axis=0)] = -1.0
            labels[:, 0] = 1.0
        else:
            labels = table.label_rows[roots]
        versions, (heads, tails) = self._distinct(ends, types, roots)
        return Pairs(versions, heads, tails, relations, labels)

    def _distinct(self, ends: Ids, types: Ids, roots: Ids) -> tuple[dict[str, Ids], Ids]:
        """Find the distinct versions of ends, and the index of each end among them.

        Parameters
        ----------
        ends: [2, links, k] int64 global ids.
        types: [2, links] int64, numbers of their node types.
        roots: [links] int64, indices in the table of links.

        Returns
        -------
        By node type, the distinct versions, ascending; and [2, links, k] int64, indices in the
        concatenation of all of them.
        """
        versions, indices, first = dict[str, Ids](), np.empty_like(ends), 0
        times = None
        if self._table.times is not None:
            times = np.broadcast_to(self._table.times[roots][:, None], ends.shape)
        for number, node_type in enumerate(self.types):
            is_of_type = types == number
            end_versions = self._versions_at(
                node_type,
                ends[is_of_type].reshape(-1),
                None if times is None else times[is_of_type].reshape(-1),
            )
            versions[node_type], index = np.unique(end_versions, return_inverse=True)
            indices[is_of_type] = (index + first).reshape(-1, ends.shape[2])
            first += versions[node_type].size
        return versions, indices

    def _excluded(self, moment: tuple[int, int]) -> Mapping[Relation, ExcludedEdges]:
        """Return, by relation, the edges that would reveal the links of an iteration.

        These are the edges between their ends, in their own relation and in its reverse relations.
        """
        table = self._table
        # The existence of a labelled edge does not reveal its label.
        if not self._task.exclude or table.labels is not None:
            return {}
        roots, pairs = self.batch(moment).roots, dict[Relation, list[tuple[Ids, Ids]]]()
        for number, relation in enumerate(table.targets):
            links = roots[table.relations[roots] == number]
            src, dst = table.src[links], table.dst[links]
            pairs.setdefault(relation, []).append((src, dst))
            for reverse in self._reverses[number]:
                pairs.setdefault(reverse, []).append((dst, src))
        return {
            relation: self._topology(relation)
            .lists(self._originals(relation.src), self._originals(relation.dst))
            .exclude(*(np.concatenate(ends) for ends in zip(*of_relation, strict=True)))
            for relation, of_relation in pairs.items()
            if relation in self._drawn
        }
