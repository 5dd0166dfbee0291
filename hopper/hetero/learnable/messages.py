"""Messages with the learnable rows of an iteration, one for each pair of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hopper.cluster.cluster import Cluster, Exchange
from hopper.graph.topology import Ids
from hopper.hetero.learnable.leaf import Leaf
from hopper.hetero.learnable.table import TableShare


@dataclass(frozen=True)
class Routes:
    """The rows of a table that ranks read from each other."""

    share: TableShare
    wanted: Sequence[Ids]
    """by owner, the ids that this rank reads"""
    asked: list[Ids]
    """by rank, [m], ascending: the indices of this rank's rows that the other rank reads"""


class Layout:
    """The order of rows in a message: by rank, and within a rank by table. ``counts`` are the rows
    of each table and rank, [tables, ranks]; a rank sends none to itself."""

    def __init__(self, counts: Sequence[Sequence[int]], world: int, rank: int) -> None:
        sizes = np.array(counts, np.int64).reshape(len(counts), world)
        sizes[:, rank] = 0
        by_rank = sizes.T
        self._starts = (np.cumsum(by_rank) - by_rank.ravel()).reshape(by_rank.shape)
        self._sizes = by_rank
        self.by_rank: list[int] = by_rank.sum(1).tolist()
        """the number of rows of each rank"""
        self.total = int(sizes.sum())

    def part(self, table: int, rank: int) -> slice:
        """Return the range of the rows of a table and a rank."""
        start = int(self._starts[rank, table])
        return slice(start, start + int(self._sizes[rank, table]))


class RowMessages:
    """Sends rows to their readers, and gradients back, in one iteration.

    One tensor holds all rows that a rank reads: first those that it receives from other ranks, then
    its own, table by table. The gradient has the same order. ``learned`` is the number of tables
    that are learned, whose routes come first. All have one dtype and width.
    """

    def __init__(self, cluster: Cluster, routes: Sequence[Routes], learned: int) -> None:
        self._cluster, self._learned = cluster, learned
        world, rank = cluster.world, cluster.rank
        wanted = [[ids.size for ids in route.wanted] for route in routes]
        asked = [[places.size for places in route.asked] for route in routes]
        self._wanted, self._asked = Layout(wanted, world, rank), Layout(asked, world, rank)
        self._returning = Layout(asked[:learned], world, rank)
        stored = routes[0].share.records.stored
        self._like = torch.empty(0, stored.shape[2], dtype=stored.dtype, device=cluster.device)
        own_counts = [counts[rank] for counts in wanted]
        self._own_starts = self._wanted.total + np.cumsum([0, *own_counts])

    def own_rows(self, table: int) -> slice:
        """Return the range, among the rows that this rank reads, of its own rows of a table."""
        return slice(int(self._own_starts[table]), int(self._own_starts[table + 1]))

    def _places(self, table: int) -> Ids:
        """Return the indices [n] of a table's rows among all rows that this rank reads, in the
        order of the ranks that own them."""
        cluster = self._cluster
        parts = [self._wanted.part(table, rank) for rank in range(cluster.world)]
        parts[cluster.rank] = self.own_rows(table)
        return np.concatenate([np.arange(part.start, part.stop) for part in parts])

    def make_leaves(
        self, routes: Sequence[Routes], rows: Tensor, gradient: Tensor | None = None
    ) -> dict[str, Leaf]:
        """Make the leaf of each table, by name, from the constructor's routes and the rows of
        :meth:`start_fetch`. ``gradient``, [n, dim] zeros, will have the sum of the gradients of all
        rows; None = no rows are learned."""
        leaves = {}
        for number, route in enumerate(routes):
            ids, places = np.concatenate(route.wanted), self._places(number)
            learns = gradient is not None and route.share.learns
            leaves[route.share.name] = Leaf(ids, rows, learns, places, gradient)
        return leaves

    def start_fetch(
        self, gather: Callable[[int, int, Tensor], None], where: str
    ) -> tuple[Tensor, Exchange | None]:
        """Begin to fetch all rows that this rank reads; every rank must call it. ``gather`` copies
        the rows of a table (by number) that a rank reads from this one to a tensor.

        Return the rows [n, dim], and the exchange after which those of other ranks are complete;
        None if there is no other rank.
        """
        cluster, exchange = self._cluster, None
        rows = self._like.new_empty(int(self._own_starts[-1]), self._like.shape[1])
        if cluster.world > 1:
            sent = self._like.new_empty(self._asked.total, self._like.shape[1])
            for table in range(len(self._own_starts) - 1):
                for rank in range(cluster.world):
                    part = sent[self._asked.part(table, rank)]
                    if len(part):
                        gather(table, rank, part)
            exchange = cluster.start_exchange(
                sent,
                self._asked.by_rank,
                self._wanted.by_rank,
                "feature",
                f"fetching learnable rows, {where}",
                into=rows[: self._wanted.total],
            )
        # This rank's own rows are read while those of others travel.
        for table in range(len(self._own_starts) - 1):
            gather(table, cluster.rank, rows[self.own_rows(table)])
        return rows, exchange

    def start_back(self, gradient: Tensor, where: str) -> Exchange | None:
        """Begin to send gradients, [n, dim] in the order of :meth:`start_fetch`, to the owners of
        learned rows; every rank must call it. Return the exchange, before whose end the gradients
        must not change; None if there is no other rank."""
        cluster = self._cluster
        if cluster.world == 1 or not self._learned:
            return None
        first, last = (partial(self._wanted.part, table) for table in (0, self._learned - 1))
        parts = [gradient[first(rank).start : last(rank).stop] for rank in range(cluster.world)]
        lengths = [len(part) for part in parts]
        is_all = sum(lengths) == self._wanted.total
        sent = gradient[: self._wanted.total] if is_all else torch.cat(parts)
        operation = f"sending gradients of learnable rows, {where}"
        return cluster.start_exchange(sent, lengths, self._returning.by_rank, "gradient", operation)

    def split_returned(self, table: int, gradient: Tensor, received: Tensor | None) -> list[Tensor]:
        """Return the gradients [m, dim] of a table's rows, by the rank that read them, from the
        argument of :meth:`start_back` and what its exchange, if any, received."""
        cluster = self._cluster
        own_gradient = gradient[self.own_rows(table)]
        if received is None:
            return [own_gradient]
        parts = [received[self._returning.part(table, rank)] for rank in range(cluster.world)]
        parts[cluster.rank] = own_gradient
        return parts
