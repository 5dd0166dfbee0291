"""The edges of an iteration: their labels, or what links are compared with and which edges may not
be drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.left_out import LeftOut, leave_out
from hopper.config.sections import Task
from hopper.graph.schema import Relation
from hopper.micrograph.pairs import Pairs
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.partition import PartitionedGraph
from hopper.tasks.fixed_negatives import open_fixed
from hopper.tasks.negatives import Negatives
from hopper.tasks.sides import sides_of
from hopper.tasks.training_links import TrainingLinks, VersionsAt

_KEPT: Final = 8
"""iterations whose edges are known; as many may be planned at a time"""

Ids = NDArray[np.int64]


class LinkBatches:
    """Turns the edges of a global batch into roots to sample and pairs to score.

    Parameters
    ----------
    links: those that are trained.
    schedule: which of them an iteration trains.
    seed: of the draws.
    versions_at: what frontiers hold of their ends.
    server: whose relations and lists ranks draw from, where these are divided; None = all.
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
        if server is not None and graph.holdings:
            self._drawn = graph.holdings[server].relations
        """whose edges may be left out"""
        self._table = links.table
        self._schedule = schedule
        self._negatives = Negatives(graph, task, self._table, seed)
        self._fixed = open_fixed(graph, task, "train")
        self._count = task.num_negatives if self._fixed is None else self._fixed.count
        self._topology = cache(lambda relation: graph.topology(relation, server))
        self._originals = cache(graph.original_ids)
        schema = graph.schema
        self._reverses = [graph.reverse_relations(each) for each in schema.target_relations]
        self.types: Sequence[str] = sorted(schema.root_types)
        """of the ends, in the order in which their rows stand"""
        self._versions_at = versions_at
        self.batch = lru_cache(_KEPT)(self._batch)
        self.left_out = lru_cache(_KEPT)(self._left_out)

    def pairs(self, roots: Ids, epoch: int, iteration: int) -> Pairs:
        """Some edges of an iteration with their labels, or with what they are compared with.

        Parameters
        ----------
        roots: [n] int64, places in the table of training links.
        """
        batch, table, own = self.batch((epoch, iteration)), self._table, self._task
        sides = sides_of(own) if table.labels is None else ()
        width = 1 + self._count * len(sides)
        ends = np.empty((2, roots.size, width), np.int64)
        types = np.empty((2, roots.size), np.int64)
        relations = table.relations[roots]
        for number, relation in enumerate(table.targets):
            chosen = np.flatnonzero(relations == number)
            if not chosen.size:
                continue
            places = roots[chosen]
            true = table.src[places], table.dst[places]
            ends[0, chosen], ends[1, chosen] = true[0][:, None], true[1][:, None]
            types[0, chosen] = self.types.index(relation.src)
            types[1, chosen] = self.types.index(relation.dst)
            for index, side in enumerate(sides):
                columns = slice(1 + index * self._count, 1 + (index + 1) * self._count)
                if self._fixed is None:
                    drawn = self._negatives.draw(batch, places, number, side)
                else:
                    drawn = self._fixed.of(places, number, side)
                ends[int(side == "tail"), chosen, columns] = drawn
        if table.labels is None:
            labels = np.zeros((roots.size, width), np.float32)
            # What was drawn may be the link itself.
            labels[np.all(ends == ends[:, :, :1], axis=0)] = -1.0
            labels[:, 0] = 1.0
        else:
            labels = table.labels[roots].reshape(roots.size, -1)
        versions, (heads, tails) = self._distinct(ends, types, roots)
        return Pairs(versions, heads, tails, relations, labels)

    def _distinct(self, ends: Ids, types: Ids, roots: Ids) -> tuple[dict[str, Ids], Ids]:
        """By type, the distinct versions among ends, ascending; and the place of each among all.

        Parameters
        ----------
        ends: [2, links, k] int64 global ids. types: [2, links], numbers of their types.
        roots: [links], places in the table of links.
        """
        versions, places, first = dict[str, Ids](), np.empty_like(ends), 0
        times = None
        if self._table.times is not None:
            times = np.broadcast_to(self._table.times[roots][:, None], ends.shape)
        for number, each in enumerate(self.types):
            own = types == number
            found = self._versions_at(
                each, ends[own].reshape(-1), None if times is None else times[own].reshape(-1)
            )
            versions[each], at = np.unique(found, return_inverse=True)
            places[own] = (at + first).reshape(-1, ends.shape[2])
            first += versions[each].size
        return versions, places

    def _batch(self, moment: tuple[int, int]) -> GlobalBatch:
        return self._schedule.batch(*moment)

    def _left_out(self, moment: tuple[int, int]) -> Mapping[Relation, LeftOut]:
        """By relation, the edges that tell the links of an iteration: those between their ends in
        their own relation, and turned round in its reverse relations."""
        table = self._table
        # That an edge with a label is there is no answer.
        if not self._task.exclude or table.labels is not None:
            return {}
        roots, found = self.batch(moment).roots, dict[Relation, list[tuple[Ids, Ids]]]()
        for number, relation in enumerate(table.targets):
            own = roots[table.relations[roots] == number]
            src, dst = table.src[own], table.dst[own]
            found.setdefault(relation, []).append((src, dst))
            for each in self._reverses[number]:
                found.setdefault(each, []).append((dst, src))
        return {
            each: leave_out(
                self._topology(each).indptr,
                self._topology(each).indices,
                self._originals(each.src),
                *(np.concatenate(ends) for ends in zip(*pairs, strict=True)),
            )
            for each, pairs in found.items()
            if each in self._drawn
        }
