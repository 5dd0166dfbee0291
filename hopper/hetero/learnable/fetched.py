"""The learnable rows of an iteration: fetched, their gradients summed at their owners, updated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.cluster import Cluster, Exchange
from hopper.hetero.learnable.leaf import Ids, Leaf, LeafRows
from hopper.hetero.learnable.messages import Routes, RowMessages
from hopper.hetero.learnable.table import IDS
from hopper.hetero.row_kernels import add_rows, merge_places
from hopper.hetero.sparse_optimizers import Factors

PREFIX: Final = "learnable."
"""what precedes a table's name among the names of parameters"""


class FetchedTable:
    """The rows of a table that any rank has read of this one in an iteration, to be learned."""

    def __init__(self, routes: Routes) -> None:
        self._share = routes.share
        self.learns = self._share.learns
        places, self._within = merge_places(routes.asked)
        self._lent = self._share.records.lend(places)
        self.total = self._new_rows(0)
        """[n, dim]: the gradient of each of these rows, once it was pushed"""

    def gather(self, rank: int, out: Tensor) -> None:
        """Copy the rows that a rank reads to [m, dim] ``out``."""
        self._lent.gather(self._within[rank], out)

    def add_up(self, gradients: Sequence[Tensor], scale: float) -> None:
        """Add ranks' gradients up, in order of rank.

        Parameters
        ----------
        gradients: by rank, [m, dim] of the rows that it reads; they may be altered.
        scale: what their sum is divided by.
        """
        count = self._lent.places.size
        given = [each for each in gradients if len(each)]
        if len(given) == 1 and len(given[0]) == count:
            # One rank alone reads these rows.
            self.total = given[0]
        else:
            self.total = self._new_rows(count).zero_()
            for within, gradient in zip(self._within, gradients, strict=True):
                add_rows(gradient, within, self.total)
        if scale != 1.0:
            self.total.div_(scale)

    def step(self, scale: float, factor: float) -> None:
        """See :class:`FetchedRows`."""
        self._share.update(self._lent, self.total, Factors(rate=factor, gradient=scale))

    def collect(self) -> dict[str, Tensor]:
        """See :class:`FetchedRows`."""
        share, name = self._share, f"{PREFIX}{self._share.name}"
        cluster, operation = share.cluster, f"collecting rows of {share.name}"
        places = self._lent.places
        told = cluster.all_gather(torch.tensor([places.size]), "control", operation)
        counts = told[:, 0].tolist() if cluster.rank == 0 else [0] * cluster.world
        rows = self._new_rows(places.size)
        self._lent.gather(None, rows)
        ids_key, ids = f"model.{name}{IDS}", torch.from_numpy(share.owned()[places])
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
    """The rows that an iteration fetches of all tables; every rank has to make it. Those of other
    ranks are waited for when rows are first read.

    Parameters
    ----------
    routes: of all tables, in the same order on every rank.
    tables: by name of a type in subgraphs, the table that is read there.
    where: names the moment in errors.
    waiting: makes what is entered while rows of other ranks are waited for.
    """

    def __init__(
        self,
        cluster: Cluster,
        routes: Sequence[Routes],
        tables: Mapping[str, str],
        where: str,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._cluster, self._where, self._waiting = cluster, where, waiting
        self._coming: Exchange | None = None
        self._pushes_early = False
        # What is learned stands first in messages, since its gradients go back and others' do not.
        routes = sorted(routes, key=lambda each: not each.share.learns)
        self._fetched = [FetchedTable(each) for each in routes]
        self._learned = [table for table in self._fetched if table.learns]
        self._on_their_way: tuple[Exchange | None] | None = None
        leaves = {}
        if routes:
            messages = RowMessages(cluster, routes, len(self._learned))
            rows, self._coming = messages.start_fetch(
                lambda table, rank, out: self._fetched[table].gather(rank, out), where
            )
            self._messages, self._gradient = messages, torch.empty_like(rows)
            leaves = {
                each.share.name: Leaf(
                    each.wanted.nodes,
                    rows,
                    each.share.learns,
                    messages.places(number),
                    self._gradient,
                )
                for number, each in enumerate(routes)
            }
        super().__init__(leaves, tables)

    def of(self, node_type: str, ids: Ids) -> Tensor:
        """See :class:`LeafRows`; waits for rows that are under way."""
        self.arrive()
        return super().of(node_type, ids)

    def arrive(self) -> None:
        """Wait for rows that are under way, if there are any."""
        coming, self._coming = self._coming, None
        if coming is not None:
            with self._waiting():
                coming.finish()
        if self._pushes_early:
            # Made now, it is met on the way back before what was computed until now: the gradients
            # leave before those of layers that need no learnable row are made.
            self._pushes_early = False
            reached: Tensor = _StartPush.apply(torch.empty(0, requires_grad=True), self)
            self._reach_through(reached)

    def push_early(self) -> None:
        """Let gradients leave as soon as they are complete, which they are after the one backward
        pass that will reach any of the rows."""
        self._pushes_early = bool(self._learned)

    def start_push(self) -> None:
        """Begin to send gradients to the rows' owners, to be waited for by :meth:`push`, unless
        that was begun; every rank has to call it, or none. Those of frozen rows stay away."""
        self.arrive()
        if not self._learned or self._on_their_way is not None:
            return
        for leaf in self._leaves.values():
            if leaf.learns:
                leaf.gradient()
        # The operation knows these rows, and they know it no more: what nobody needs goes at once.
        self._reach_through(torch.empty(0, requires_grad=True))
        self._on_their_way = (self._messages.start_back(self._gradient, self._where),)

    def push(self, scale: float = 1.0) -> None:
        """Send gradients to the rows' owners, who add them up in order of rank; every rank has to
        call it.

        Parameters
        ----------
        scale: what gradients are divided by.
        """
        if not self._learned:
            return
        self.start_push()
        assert self._on_their_way is not None
        (under_way,), self._on_their_way = self._on_their_way, None
        received = None if under_way is None else under_way.finish()
        for number, table in enumerate(self._learned):
            table.add_up(self._messages.returned(number, self._gradient, received), scale)

    def _reach_through(self, reached: Tensor) -> None:
        for leaf in self._leaves.values():
            leaf.reach_through(reached)

    def is_finite(self) -> bool:
        """Whether all gradients that were pushed to this rank are numbers."""
        return all(bool(table.total.isfinite().all()) for table in self._learned)

    def squares(self, operation: str) -> float:
        """The sum of squares of all pushed gradients, added up per row; every rank has to call it.

        Parameters
        ----------
        operation: names it in errors.
        """
        if not self._learned:
            return 0.0
        squares = sum(float(table.total.double().square().sum()) for table in self._learned)
        total = torch.tensor([squares], dtype=torch.float64)
        self._cluster.all_reduce(total, "control", operation)
        return float(total)

    def step(self, scale: float = 1.0, factor: float = 1.0) -> None:
        """Update every row that any rank has fetched.

        Parameters
        ----------
        scale: what gradients are multiplied by, as those of all parameters are.
        factor: what the learning rate is multiplied by, as that of all parameters is.
        """
        for table in self._learned:
            table.step(scale, factor)

    def collect(self) -> dict[str, Tensor]:
        """On rank 0, the rows that any rank has fetched and their pushed gradients; every rank has
        to call it.

        Returns
        -------
        For each table "t": "model.learnable.t", [n, dim] rows; "model.learnable.t.ids", [n] int64
        ascending, their global ids; and, where it is not frozen, "gradient.learnable.t", [n, dim].
        """
        collected: dict[str, Tensor] = {}
        for table in self._fetched:
            collected |= table.collect()
        return collected


class _StartPush(torch.autograd.Function):
    """What every read row was reached through: the way back meets it when all of their gradients
    are there."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, fetched: FetchedRows) -> Tensor:
        ctx.fetched = fetched
        return start.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[None, None]:
        ctx.fetched.start_push()
        return None, None
