"""The learnable rows of an iteration, from fetching them to their update.

Ranks fetch rows from their owners, owners sum the gradients of all ranks, and update the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.cluster.cluster import Cluster, Exchange
from hopper.graph.topology import Ids
from hopper.hetero.learnable.leaf import Leaf, LeafRows, add_rows
from hopper.hetero.learnable.messages import Routes, RowMessages
from hopper.hetero.learnable.table import IDS
from hopper.ops import is_finite

PREFIX: Final = "learnable."
"""The prefix of a table's name among the names of parameters."""


class FetchedTable:
    """The rows of a table that any rank reads from this one in an iteration."""

    def __init__(self, routes: Routes) -> None:
        self._share = routes.share
        self.learns = self._share.learns
        places, self._within = merge_places(routes.asked)
        self._lent = self._share.records.lend(places)
        self.total = self._new_rows(0)
        """the gradients [n, dim] of these rows, summed over ranks by :meth:`add_up`"""

    def gather(self, rank: int, out: Tensor) -> None:
        """Copy the rows that a rank reads to ``out`` [m, dim]."""
        self._lent.gather(self._within[rank], out)

    def add_up(self, gradients: Sequence[Tensor], scale: float) -> None:
        """Sum the gradients [m, dim] of the rows that each rank reads, which may be changed, in
        order of rank, and divide the sum by ``scale``."""
        count = self._lent.places.size
        nonempty = [gradient for gradient in gradients if len(gradient)]
        if len(nonempty) == 1 and len(nonempty[0]) == count:
            # Only one rank reads these rows.
            self.total = nonempty[0]
        else:
            self.total = self._new_rows(count).zero_()
            for within, gradient in zip(self._within, gradients, strict=True):
                add_rows(gradient, within, self.total)
        if scale != 1.0:
            self.total.div_(scale)

    def step(self, scale: float, factor: float) -> None:
        """Update the rows by their summed gradients; arguments as in :meth:`FetchedRows.step`."""
        self._share.update(self._lent, self.total, scale, factor)

    def collect(self) -> dict[str, Tensor]:
        """Collect the table's rows on rank 0; returns as :meth:`FetchedRows.collect`."""
        share, name = self._share, f"{PREFIX}{self._share.name}"
        cluster, operation = share.cluster, f"collecting rows of {share.name}"
        places = self._lent.places
        sizes = cluster.all_gather(torch.tensor([places.size]), "control", operation)
        counts = sizes[:, 0].tolist() if cluster.rank == 0 else [0] * cluster.world
        rows = self._new_rows(places.size)
        self._lent.gather(None, rows)
        ids_key, ids = f"model.{name}{IDS}", torch.from_numpy(share.owned_ids()[places])
        tensors = {f"model.{name}": rows, ids_key: ids}
        if self.learns:
            tensors[f"gradient.{name}"] = self.total
        for key, tensor in tensors.items():
            sent = tensor.to(cluster.device)
            parts = [sent, *[sent[:0]] * (cluster.world - 1)]
            tensors[key] = torch.cat(cluster.exchange(parts, counts, "control", operation))
        order = tensors[ids_key].argsort()
        return {key: rows[order] for key, rows in tensors.items()} if cluster.rank == 0 else {}

    def _new_rows(self, count: int) -> Tensor:
        records = self._lent.records
        return records.new_empty(count, records.shape[2])


class FetchedRows(LeafRows):
    """The rows of all tables that an iteration fetches, by their routes in the same order on every
    rank. Every rank must construct it. The first read waits for the rows of other ranks, in a
    context that ``waiting`` makes. ``where`` is the moment, for errors."""

    def __init__(
        self,
        cluster: Cluster,
        routes: Sequence[Routes],
        tables: Mapping[str, str],
        where: str,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._cluster, self._where, self._waiting = cluster, where, waiting
        self._arriving: Exchange | None = None
        self._pushes_early = False
        # Learned tables come first in messages, because only their gradients are sent back.
        routes = sorted(routes, key=lambda route: not route.share.learns)
        self._fetched = [FetchedTable(route) for route in routes]
        self._learned = [table for table in self._fetched if table.learns]
        self._on_their_way: tuple[Exchange | None] | None = None
        leaves: dict[str, Leaf] = {}
        if routes:
            messages = RowMessages(cluster, routes, len(self._learned))
            rows, self._arriving = messages.start_fetch(
                lambda table, rank, out: self._fetched[table].gather(rank, out), where
            )
            self._messages, self._gradient = messages, torch.zeros_like(rows)
            leaves = messages.make_leaves(routes, rows, self._gradient)
        super().__init__(leaves, tables)

    def of(self, node_type: str, ids: Ids) -> Tensor:
        """Wait for rows of other ranks, and return those [m, dim] of distinct nodes of a type."""
        self.arrive()
        return super().of(node_type, ids)

    def arrive(self) -> None:
        """Wait for the rows of other ranks, if they have not arrived yet."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            with self._waiting():
                arriving.finish()
        if self._pushes_early:
            # The backward pass runs operations in reverse order. It therefore meets this one, which
            # sends the gradients, before the layers that were computed without learnable rows.
            self._pushes_early = False
            reached: Tensor = _StartPush.apply(torch.empty(0, requires_grad=True), self)
            self._reach_through(reached)

    def push_early(self) -> None:
        """Send gradients as soon as they are complete, during the next backward pass. Only that
        backward pass may make gradients of the rows."""
        self._pushes_early = bool(self._learned)

    def start_push(self) -> None:
        """Begin to send gradients of learned rows to their owners, unless that has begun. Every
        rank must call it, or none. :meth:`push` waits for the gradients."""
        self.arrive()
        if not self._learned or self._on_their_way is not None:
            return
        # Drop the reference to the operation, which refers to these rows, to free memory at once.
        self._reach_through(torch.empty(0, requires_grad=True))
        self._on_their_way = (self._messages.start_back(self._gradient, self._where),)

    def push(self, scale: float = 1.0) -> None:
        """Send gradients to the owners of the rows, and sum them there in order of rank, divided by
        ``scale``; every rank must call it."""
        if not self._learned:
            return
        self.start_push()
        assert self._on_their_way is not None
        (exchange,), self._on_their_way = self._on_their_way, None
        received = None if exchange is None else exchange.finish()
        for number, table in enumerate(self._learned):
            table.add_up(self._messages.split_returned(number, self._gradient, received), scale)

    def _reach_through(self, reached: Tensor) -> None:
        for leaf in self._leaves.values():
            leaf.reach_through(reached)

    def is_finite(self) -> bool:
        """Return whether all sums of gradients that this rank owns are finite."""
        return all(is_finite(table.total) for table in self._learned)

    def own_is_finite(self) -> bool:
        """Return whether all gradients that this rank has made are finite."""
        return all(leaf.is_finite() for leaf in self._leaves.values() if leaf.learns)

    def squares(self, operation: str) -> float:
        """Return the sum of squares of all rows' summed gradients; every rank must call it. Errors
        name the operation."""
        if not self._learned:
            return 0.0
        squares = sum(float(table.total.double().square().sum()) for table in self._learned)
        total = torch.tensor([squares], dtype=torch.float64)
        self._cluster.all_reduce(total, "control", operation)
        return float(total)

    def step(self, scale: float = 1.0, factor: float = 1.0) -> None:
        """Update every row of this rank that any rank has fetched. Gradients are multiplied by
        ``scale`` and the learning rate by ``factor``, as those of all other parameters are."""
        for table in self._learned:
            table.step(scale, factor)

    def collect(self) -> dict[str, Tensor]:
        """Collect, on rank 0, all fetched rows and their gradients; every rank must call it.

        Rank 0 gets, for each table "t", "model.learnable.t", the rows [n, dim],
        "model.learnable.t.ids", their global ids [n], ascending, and, unless the table is frozen,
        "gradient.learnable.t" [n, dim]. Other ranks get nothing.
        """
        collected: dict[str, Tensor] = {}
        for table in self._fetched:
            collected |= table.collect()
        return collected


class _StartPush(torch.autograd.Function):
    """Sends gradients of learnable rows during the backward pass.

    All reads of rows depend on it, so its backward runs when the gradients of all rows are there.
    """

    @staticmethod
    def forward(ctx: Any, start: Tensor, fetched: FetchedRows) -> Tensor:
        """Return an empty token on which all reads of rows depend."""
        ctx.fetched = fetched
        return start.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[None, None]:
        """Begin to send the gradients to the rows' owners."""
        ctx.fetched.start_push()
        return None, None


def merge_places(groups: Sequence[Ids]) -> tuple[Ids, list[Ids]]:
    """Merge groups of places, one at least, [n] each, distinct and ascending: return the places
    [m], ascending, that are in any group, and the indices [n] of each group's among these."""
    joined = np.concatenate(groups)
    # A stable sort merges runs that ascend.
    order = np.argsort(joined, kind="stable")
    ordered = joined[order]
    is_new = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    within = np.empty(ordered.size, np.int64)
    within[order] = np.cumsum(is_new) - 1
    return ordered[is_new], np.split(within, np.cumsum([group.size for group in groups])[:-1])
