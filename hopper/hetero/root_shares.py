"""Who aggregates and who finishes which roots, where relations are divided over servers.

Every root meets all root relations: one rank of every group of servers with the same relations (or
the same part of one's edges) aggregates them for it. One of these ranks finishes it: it combines
the groups' partials and makes the new row. All ranks derive the same answers from the holdings
alone: no communication.
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

from hopper.device_copies import to_device
from hopper.graph.schema import Relation
from hopper.partition.layouts import WHOLE, Holding, Part

Places = NDArray[np.int64]


class Route(NamedTuple):
    """Rows that every rank sends and receives.

    chosen: [n] int64, which of its rows this rank sends, those for rank 0 first. lengths, counts:
    rows for, and from, every rank.
    """

    chosen: Tensor
    lengths: list[int]
    counts: list[int]


@dataclass(frozen=True)
class RootPlan:
    """One rank's part of a batch; a place is a root's number in the batch.

    Attributes
    ----------
    mine: [m] places of the roots whose relations it aggregates.
    finishing: [f] places of those that it finishes.
    rows: [k] places of those whose own rows it reads: what it finishes, and, where aggregations
        read their destination, what it aggregates.
    mine_in_rows, finishing_in_rows: where they are among these; ``mine_in_rows`` is None where
        aggregations do not read.
    partials: the way of partials; chosen among ``mine``.
    by_group: per group, [f] int64, its partials among those received.
    finished: the way of finished rows; chosen among ``finishing``.
    rows_in: [k] int64, ``rows`` among the finished rows received.
    """

    mine: Places
    finishing: Places
    rows: Places
    mine_in_rows: Tensor | None
    finishing_in_rows: Tensor
    partials: Route
    by_group: list[Tensor]
    finished: Route
    rows_in: Tensor


class RootShares:
    """The division of the roots of a type.

    Parameters
    ----------
    holdings: by server.
    node_type: of the roots; None = all root relations lead to them. Where none does, every server
        finishes some.
    designated: whether one server finishes all roots (the designated worker of Heta, Algorithm 1),
        instead of every group an equal part of them.
    """

    def __init__(
        self,
        holdings: Sequence[Holding],
        ranks_per_server: int,
        node_type: str | None = None,
        *,
        designated: bool = False,
    ) -> None:
        self._per_server = ranks_per_server
        self._world = len(holdings) * ranks_per_server
        self._designated = designated
        by_roots: dict[tuple[tuple[Relation, ...], Part], list[tuple[int, int]]] = {}
        for server, held in enumerate(holdings):
            own = tuple(each for each in held.roots if node_type in (None, each.dst))
            if own:
                by_roots.setdefault((own, held.part), []).append((held.place, server))
        if not by_roots:
            by_roots[(), WHOLE] = [(server, server) for server in range(len(holdings))]
        self.groups = [[server for _, server in sorted(group)] for group in by_roots.values()]
        """servers with the same edges of the same root relations, in order of place"""
        self.relations = [relations for relations, _ in by_roots]
        """by group, its root relations"""
        self.parts = [part for _, part in by_roots]
        """by group, which part of their edges"""
        self._turn = math.lcm(*(len(group) for group in self.groups))

    def group_of(self, rank: int) -> int | None:
        """The group that a rank is in; None where its server aggregates nothing for these roots."""
        server, groups = rank // self._per_server, enumerate(self.groups)
        return next((index for index, group in groups if server in group), None)

    def deal(self, count: int) -> tuple[NDArray[np.int64], Places]:
        """[groups, count] the rank of every group that aggregates a root, and [count] the rank that
        finishes it."""
        turn, part = np.divmod(np.arange(count), self._per_server)
        ranks = np.stack(
            [np.array(group)[turn % len(group)] * self._per_server + part for group in self.groups]
        )
        if self._designated:
            return ranks, self.groups[0][0] * self._per_server + part
        # Whole turns of all replicas, so that each of them finishes some.
        chosen = turn // self._turn % len(self.groups)
        return ranks, ranks[chosen, np.arange(count)]

    def plan(self, rank: int, count: int, *, reads: bool, device: torch.device) -> RootPlan:
        """A rank's part of a batch of ``count`` roots.

        Parameters
        ----------
        reads: whether aggregations read the roots' own rows.
        """
        ranks, finisher = self.deal(count)
        finishing = np.flatnonzero(finisher == rank)

        def aggregated_by(other: int) -> NDArray[np.bool_]:
            group = self.group_of(other)
            return np.zeros(count, np.bool_) if group is None else ranks[group] == other

        def rows_of(other: int) -> Places:
            own = finisher == other
            if reads:
                own = own | aggregated_by(other)
            return np.flatnonzero(own)

        mine = np.flatnonzero(aggregated_by(rank))

        rows = rows_of(rank)
        # Partials come rank by rank, each rank's in order of place.
        senders = ranks[:, finishing]
        arrival = np.full(senders.shape, -1, np.int64)
        counts, at = [], 0
        for other in range(self._world):
            group = self.group_of(other)
            if group is None:
                counts.append(0)
                continue
            sent = np.flatnonzero(senders[group] == other)
            arrival[group, sent] = at + np.arange(sent.size)
            counts.append(int(sent.size))
            at += sent.size
        order = np.argsort(finisher[mine], kind="stable")
        partials = Route(_to(order, device), _counts(finisher[mine], self._world), counts)
        wanted = [np.flatnonzero(np.isin(finishing, rows_of(each))) for each in range(self._world)]
        finished = Route(
            _to(np.concatenate(wanted), device),
            [int(each.size) for each in wanted],
            _counts(finisher[rows], self._world),
        )
        from_whom = np.argsort(finisher[rows], kind="stable")
        rows_in = np.empty(rows.size, np.int64)
        rows_in[from_whom] = np.arange(rows.size)
        return RootPlan(
            mine,
            finishing,
            rows,
            _to(np.searchsorted(rows, mine), device) if reads else None,
            _to(np.searchsorted(rows, finishing), device),
            partials,
            [_to(each, device) for each in arrival],
            finished,
            _to(rows_in, device),
        )


def _counts(ranks: Places, world: int) -> list[int]:
    return [int(each) for each in np.bincount(ranks, minlength=world)]


def _to(places: Places, device: torch.device) -> Tensor:
    return to_device(np.ascontiguousarray(places, np.int64), device)
