"""The edges of an iteration: labelled edges, or links with their negatives.

Also tells which edges samplers must leave out, because they would reveal the links.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np

from cache_server.draws.neighbor_lists import NeighborLists
from cache_server.draws.spec import ExcludedEdges
from hopper.config import Task
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.route import RootSchedule
from hopper.micrograph.subgraph import Pairs
from hopper.partition import PartitionedGraph
from hopper.tasks.links import TrainingLinks, VersionsAt
from hopper.tasks.negatives import Negatives
from hopper.tasks.target import sides_of

_KEPT: Final = 8
"""iterations whose edges are cached; as many may be planned at a time"""


class LinkBatches:
    """Turns the edges of a global batch into roots to sample and pairs to score.

    ``versions_at`` makes versions of the edges' ends. ``server`` is the server whose relations and
    lists ranks draw from, if these are divided; None = all. ``types`` are the node types of the
    ends, in the order in which their rows are concatenated. ``batch`` and ``excluded`` are cached
    functions of (epoch, iteration): the global batch, and by relation the edges to leave out.
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
        self._graph, self._task, self._server = graph, task, server
        self._table, self._versions_at = links.table, versions_at
        self._negatives = Negatives(graph, task, self._table, seed)
        self._lists = cache(self._open_lists)
        self.types: Sequence[str] = sorted(graph.schema.root_types)
        self.batch = lru_cache(_KEPT)(lambda moment: schedule.batch(*moment))
        self.excluded = lru_cache(_KEPT)(self._excluded)

    def pairs(self, roots: Ids, epoch: int, iteration: int) -> Pairs:
        """Return edges of an iteration with their labels, or links with their negatives, for
        ``roots``, [n] int64 indices in the table of training links."""
        batch, table = self.batch((epoch, iteration)), self._table
        sides = sides_of(self._task) if table.labels is None else ()
        count, width = self._negatives.count, 1 + self._negatives.count * len(sides)
        ends = np.empty((2, roots.size, width), np.int64)
        types = np.empty((2, roots.size), np.int64)
        relations = table.relations[roots]
        for number, relation in enumerate(table.targets):
            chosen_places = np.flatnonzero(relations == number)
            if not chosen_places.size:
                continue
            places = roots[chosen_places]
            for end, ids in enumerate((table.src, table.dst)):
                ends[end, chosen_places] = ids[places][:, None]
                types[end, chosen_places] = self.types.index((relation.src, relation.dst)[end])
            for index, side in enumerate(sides):
                columns = slice(1 + index * count, 1 + (index + 1) * count)
                negatives = self._negatives.draw(batch, places, number, side)
                ends[int(side == "tail"), chosen_places, columns] = negatives
        versions, (heads, tails) = self._distinct(ends, types, roots)
        if table.labels is not None:
            return Pairs(versions, heads[:, 0], tails[:, 0], relations, table.label_rows[roots])
        labels = np.zeros((roots.size, width), np.float32)
        # A negative that equals the link itself does not count.
        labels[np.all(ends == ends[:, :, :1], axis=0)] = -1.0
        labels[:, 0] = 1.0
        return Pairs(versions, heads, tails, relations, labels)

    def _distinct(self, ends: Ids, types: Ids, roots: Ids) -> tuple[dict[str, Ids], Ids]:
        """Find the distinct versions of ends, [2, links, k] global ids of node types [2, links], by
        type, ascending; and each end's index in the concatenation of all of them."""
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
        """Return, by relation, the edges in either direction that reveal an iteration's links."""
        table, graph = self._table, self._graph
        # The existence of a labelled edge does not reveal its label.
        if not self._task.exclude or table.labels is not None:
            return {}
        roots, pairs = self.batch(moment).roots, dict[Relation, list[tuple[Ids, Ids]]]()
        for number, relation in enumerate(table.targets):
            links = roots[table.relations[roots] == number]
            src, dst = table.src[links], table.dst[links]
            pairs.setdefault(relation, []).append((src, dst))
            for reverse in graph.reverse_relations(relation):
                pairs.setdefault(reverse, []).append((dst, src))
        drawn: Collection[Relation] = graph.relations
        if self._server is not None and graph.partitions:
            drawn = graph.partitions[self._server].relations
        return {
            relation: self._lists(relation).exclude(
                *(np.concatenate(ends) for ends in zip(*of_relation, strict=True))
            )
            for relation, of_relation in pairs.items()
            if relation in drawn
        }

    def _open_lists(self, relation: Relation) -> NeighborLists:
        src_ids, dst_ids = map(self._graph.original_ids, (relation.src, relation.dst))
        return self._graph.topology(relation, self._server).lists(src_ids, dst_ids)
