"""The division of roots over ranks, where relations are divided over servers.

A group is the servers that store the same root relations, or the same part of one's edges. For
every root, one rank of each group aggregates the group's relations. One of these ranks finishes the
root: it combines the groups' partials and computes the new row. All ranks derive the same division
from what each server stores, without messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.copies import to_device
from hopper.graph.schema import Relation
from hopper.partition.description import WHOLE, Part, ServerPartition

Places = NDArray[np.int64]


class Route(NamedTuple):
    """The rows that a rank sends and receives."""

    chosen: Tensor
    """[n] int64, the indices of the rows to send, those for rank 0 first"""
    lengths: list[int]
    """the number of rows for every rank"""
    counts: list[int]
    """the number of rows from every rank"""


@dataclass(frozen=True)
class RootPlan:
    """One rank's part of a batch. A place is a root's number in the batch."""

    mine: Places
    """[m], the roots whose relations this rank aggregates"""
    finishing: Places
    """[f], the roots that this rank finishes"""
    rows: Places
    """[k], the roots whose own rows this rank reads: those that it finishes and, if aggregations
    read their destination, those that it aggregates"""
    mine_in_rows: Tensor | None
    """[m], the indices of ``mine`` in ``rows``; None if aggregations do not read their
    destination"""
    finishing_in_rows: Tensor
    """[f], the indices of ``finishing`` in ``rows``"""
    partials: Route
    """of partials; ``chosen`` are indices of ``mine``"""
    by_group: list[Tensor]
    """by group, [f], the indices of its partials among the received ones"""
    finished: Route
    """of finished rows; ``chosen`` are indices of ``finishing``"""
    rows_in: Tensor
    """[k], the indices of ``rows`` among the received finished rows"""


class RootShares:
    """The division of the roots of a type over ranks, from what each server stores.

    Without a type all root relations lead to the roots. If no relation leads to their type, every
    server finishes some roots. If ``designated``, one server finishes all roots (the designated
    worker of Heta, Algorithm 1), otherwise every group an equal part.
    """

    def __init__(
        self,
        partitions: Sequence[ServerPartition],
        ranks_per_server: int,
        node_type: str | None = None,
        *,
        designated: bool = False,
    ) -> None:
        self._per_server = ranks_per_server
        self._world = len(partitions) * ranks_per_server
        self._designated = designated
        by_roots: dict[tuple[tuple[Relation, ...], Part], list[tuple[int, int]]] = {}
        for server, partition in enumerate(partitions):
            roots = tuple(root for root in partition.roots if node_type in (None, root.dst))
            if roots:
                by_roots.setdefault((roots, partition.part), []).append((partition.place, server))
        if not by_roots:
            by_roots[(), WHOLE] = [(server, server) for server in range(len(partitions))]
        self.groups = [[server for _, server in sorted(group)] for group in by_roots.values()]
        """by group, its servers in order of ``ServerPartition.place``"""
        self.relations = [relations for relations, _ in by_roots]
        """by group, its root relations"""
        self.parts = [part for _, part in by_roots]
        """by group, which part of the edges of its relations it stores"""
        self._turn = math.lcm(*(len(group) for group in self.groups))

    def group_of(self, rank: int) -> int | None:
        """Return the group of a rank; None if its server aggregates nothing for these roots."""
        server, groups = rank // self._per_server, enumerate(self.groups)
        return next((index for index, group in groups if server in group), None)

    def deal(self, count: int) -> tuple[NDArray[np.int64], Places]:
        """Return the rank of every group that aggregates each root, [groups, count], and the rank
        that finishes it, [count]."""
        turn, part = np.divmod(np.arange(count), self._per_server)
        ranks = np.stack(
            [np.array(group)[turn % len(group)] * self._per_server + part for group in self.groups]
        )
        if self._designated:
            return ranks, self.groups[0][0] * self._per_server + part
        # A group finishes roots for a full round of all replicas, so that each replica finishes
        # some.
        chosen = turn // self._turn % len(self.groups)
        return ranks, ranks[chosen, np.arange(count)]

    def plan(self, rank: int, count: int, *, reads: bool, device: torch.device) -> RootPlan:
        """Return a rank's part of a batch of ``count`` roots, whose own rows aggregations read if
        ``reads``, with tensors on a device."""
        ranks, finisher = self.deal(count)
        finishing = np.flatnonzero(finisher == rank)

        def find_aggregated(other: int) -> NDArray[np.bool_]:
            group = self.group_of(other)
            return np.zeros(count, np.bool_) if group is None else ranks[group] == other

        def rows_of(other: int) -> Places:
            is_read = finisher == other
            if reads:
                is_read = is_read | find_aggregated(other)
            return np.flatnonzero(is_read)

        mine = np.flatnonzero(find_aggregated(rank))
        rows = rows_of(rank)
        counts, by_group = self._order_partials(ranks[:, finishing])
        order = np.argsort(finisher[mine], kind="stable")
        partials = Route(_to(order, device), _counts(finisher[mine], self._world), counts)
        wanted = [np.flatnonzero(np.isin(finishing, rows_of(r))) for r in range(self._world)]
        finished = Route(
            _to(np.concatenate(wanted), device),
            [int(indices.size) for indices in wanted],
            _counts(finisher[rows], self._world),
        )
        by_sender = np.argsort(finisher[rows], kind="stable")
        rows_in = np.empty(rows.size, np.int64)
        rows_in[by_sender] = np.arange(rows.size)
        return RootPlan(
            mine,
            finishing,
            rows,
            _to(np.searchsorted(rows, mine), device) if reads else None,
            _to(np.searchsorted(rows, finishing), device),
            partials,
            [_to(indices, device) for indices in by_group],
            finished,
            _to(rows_in, device),
        )

    def _order_partials(self, senders: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64]]:
        """Find where the partials of the roots that a rank finishes arrive, from the ranks of every
        group that aggregate them, [groups, f]: return the number of partials from every rank, and
        the indices of each group's among the received ones, [groups, f]."""
        # Partials arrive rank by rank, each rank's in the order of roots.
        arrival = np.full(senders.shape, -1, np.int64)
        counts, offset = [], 0
        for other in range(self._world):
            group = self.group_of(other)
            if group is None:
                counts.append(0)
                continue
            sent = np.flatnonzero(senders[group] == other)
            arrival[group, sent] = offset + np.arange(sent.size)
            counts.append(int(sent.size))
            offset += sent.size
        return counts, arrival


def _counts(ranks: Places, world: int) -> list[int]:
    return [int(count) for count in np.bincount(ranks, minlength=world)]


def _to(places: Places, device: torch.device) -> Tensor:
    return to_device(np.ascontiguousarray(places, np.int64), device)
