"""What ranks send each other of the learnable rows of an iteration: one message a pair of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster, Exchange
from hopper.hetero.learnable.table import TableShare
from hopper.partition.placement import ByRank

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Routes:
    """Which rows of a table ranks read of each other.

    Attributes
    ----------
    share: what this rank owns of the table.
    wanted: the ids that this rank reads.
    asked: by rank, [m] int64, ascending: the places, among this rank's rows, of those it reads.
    """

    share: TableShare
    wanted: ByRank
    asked: list[Ids]


class Layout:
    """Where the rows of tables lie in a message: those of rank 0 first, of each rank one table
    behind another. A rank sends itself none.

    Parameters
    ----------
    counts: [tables, ranks]: the rows of each table and rank; those of rank ``own`` are passed over.
    """

    def __init__(self, counts: Sequence[Sequence[int]], world: int, own: int) -> None:
        sizes = np.array(counts, np.int64).reshape(len(counts), world)
        sizes[:, own] = 0
        by_rank = sizes.T
        self._starts = (np.cumsum(by_rank) - by_rank.ravel()).reshape(by_rank.shape)
        self._sizes = by_rank
        self.by_rank: list[int] = by_rank.sum(1).tolist()
        """by rank, all its rows"""
        self.total = int(sizes.sum())

    def part(self, table: int, rank: int) -> slice:
        """The rows of a table and a rank."""
        start = int(self._starts[rank, table])
        return slice(start, start + int(self._sizes[rank, table]))


class RowMessages:
    """The way of rows to their readers, and of their gradients back, in one iteration.

    What a rank reads lies in one tensor: the rows of others as they are received, then its own,
    which are sent nowhere, one table behind another. So does the gradient.

    Parameters
    ----------
    routes: of all tables, those that are learned first, of one dtype and width.
    learned: how many tables are.
    """

    def __init__(self, cluster: Cluster, routes: Sequence[Routes], learned: int) -> None:
        self._cluster, self._learned = cluster, learned
        world, own = cluster.world, cluster.rank
        wanted = [each.wanted.counts for each in routes]
        asked = [[places.size for places in each.asked] for each in routes]
        self._wanted, self._asked = Layout(wanted, world, own), Layout(asked, world, own)
        self._returning = Layout(asked[:learned], world, own)
        stored = routes[0].share.records.stored
        self._like = torch.empty(0, stored.shape[2], dtype=stored.dtype, device=cluster.device)
        self._own_starts = self._wanted.total + np.cumsum([0, *(each[own] for each in wanted)])

    def new_rows(self) -> Tensor:
        """[n, dim], uninitialised: for what is read."""
        return self._like.new_empty(int(self._own_starts[-1]), self._like.shape[1])

    def own_rows(self, table: int) -> slice:
        """Where this rank's own rows of a table lie in what is read."""
        return slice(int(self._own_starts[table]), int(self._own_starts[table + 1]))

    def places(self, table: int) -> Ids:
        """[n] int64: where the rows of a table that this rank reads, by rank, lie in what is
        read."""
        cluster = self._cluster
        parts = [self._wanted.part(table, rank) for rank in range(cluster.world)]
        parts[cluster.rank] = self.own_rows(table)
        return np.concatenate([np.arange(part.start, part.stop) for part in parts])

    def start_fetch(
        self, gather: Callable[[int, int, Tensor], None], where: str
    ) -> tuple[Tensor, Exchange | None]:
        """[n, dim]: all rows that this rank reads, those of others once the exchange has been
        waited for; None where there is no other rank. Every rank has to call it.

        Parameters
        ----------
        gather: copies the rows of a table (by number) that a rank reads of this one to a tensor.
        where: names the moment in errors.
        """
        cluster, rows, under_way = self._cluster, self.new_rows(), None
        if cluster.world > 1:
            sent = self._like.new_empty(self._asked.total, self._like.shape[1])
            for table in range(len(self._own_starts) - 1):
                for rank in range(cluster.world):
                    part = sent[self._asked.part(table, rank)]
                    if len(part):
                        gather(table, rank, part)
            under_way = cluster.start_exchange(
                *(sent, self._asked.by_rank, self._wanted.by_rank, "feature"),
                f"fetching learnable rows, {where}",
                into=rows[: self._wanted.total],
            )
        # Own rows are read while the others travel.
        for table in range(len(self._own_starts) - 1):
            gather(table, cluster.rank, rows[self.own_rows(table)])
        return rows, under_way

    def start_back(self, gradient: Tensor, where: str) -> Exchange | None:
        """Begin to send the gradient of others' rows back, but that of tables that are not learned;
        every rank has to call it. None where there is no other rank.

        Parameters
        ----------
        gradient: [n, dim], as :meth:`start_fetch` returned the rows; not to be changed before it
            arrived.
        """
        cluster = self._cluster
        if cluster.world == 1 or not self._learned:
            return None
        parts = [
            gradient[
                self._wanted.part(0, rank).start : self._wanted.part(self._learned - 1, rank).stop
            ]
            for rank in range(cluster.world)
        ]
        lengths = [len(part) for part in parts]
        is_all = sum(lengths) == self._wanted.total
        sent = gradient[: self._wanted.total] if is_all else torch.cat(parts)
        operation = f"sending gradients of learnable rows, {where}"
        return cluster.start_exchange(sent, lengths, self._returning.by_rank, "gradient", operation)

    def returned(self, table: int, gradient: Tensor, received: Tensor | None) -> list[Tensor]:
        """By rank, [m, dim]: the gradients of those rows of a table that it has read of this one.

        Parameters
        ----------
        gradient: as of :meth:`start_back`. received: what came of it.
        """
        cluster = self._cluster
        own = gradient[self.own_rows(table)]
        if received is None:
            return [own]
        parts = [received[self._returning.part(table, rank)] for rank in range(cluster.world)]
        parts[cluster.rank] = own
        return parts
