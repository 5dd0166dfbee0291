"""One rank's share of a table of learnable rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.hetero.learnable.description import LearnableTable, Learning
from hopper.hetero.row_kernels import mark
from hopper.hetero.row_records import HeldRecords, LentRecords, PickedRows, RowRecords
from hopper.hetero.row_storage import RowStorage
from hopper.hetero.sparse_optimizers import OPTIMIZERS, Factors
from hopper.partition.placement import Placement

IDS: Final = ".ids"
"""what follows a table's name in the name of its rows' ids"""
_ROWS_AT_ONCE: Final = 1 << 16
_UNCHANGED: Final = Factors()

Ids = NDArray[np.int64]


class TableShare:
    """The rows of a table that one rank owns.

    Parameters
    ----------
    originals: [nodes] int64: the original ids of all nodes of the type.
    placement: of nodes. The table's rows are dealt to ranks by the same rule.
    storage: makes what rows and the optimiser's state are kept in.

    Attributes
    ----------
    learns: whether the rows are updated.
    records: the rows, and the optimiser's state of each.
    """

    def __init__(
        self,
        table: LearnableTable,
        learning: Learning,
        originals: Ids,
        placement: Placement,
        cluster: Cluster,
        storage: RowStorage,
    ) -> None:
        self.name, self.read_as, self.learns = table.name, table.read_as, not table.frozen
        self.cluster = cluster
        self.placement = placement.of_tables({table.name: table.offsets})
        self._originals = originals[self.owned()]
        self._storage = storage
        self._l2 = learning.l2
        kind = OPTIMIZERS[learning.optimizer]
        self._optimizer = kind(learning.learning_rate)
        rows, parts = self._originals.size, 1 + (kind.parts if self.learns else 0)
        stored = storage.zeros(rows, parts * learning.dim, learning.dtype)
        self.records = RowRecords(stored.view(rows, parts, learning.dim), cluster.device)
        for first in range(0, rows, _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            begun = table.first_rows(learning.seed, self._originals[part], learning.dim)
            self.records.rows[part] = torch.from_numpy(begun)
        # Of each row: whether it changed since rows were saved; and since they were kept; and
        # whether the one that is kept changed since rows were saved.
        learned = rows if self.learns else 0
        kept = learned if learning.keeps else 0
        self._changed = torch.zeros(learned, dtype=torch.bool)
        self._changed_since_kept = torch.ones(kept, dtype=torch.bool)
        self._changed_in_kept = torch.zeros(kept, dtype=torch.bool)
        self._keeps = learning.keeps and self.learns
        self._kept = storage.zeros(kept, learning.dim, learning.dtype)

    def owned(self) -> Ids:
        """[rows] int64, ascending: the global ids of this rank's rows."""
        return self.placement.owned(self.name, self.cluster.rank)

    def places_of(self, ids: Ids) -> Ids:
        """[n] int64: the places of ids among this rank's rows."""
        return self.placement.place_of(self.name, ids)

    def update(self, lent: LentRecords, gradient: Tensor, factors: Factors = _UNCHANGED) -> None:
        """Update rows, and the optimiser's state of them.

        Parameters
        ----------
        lent: by :attr:`records`. gradient: [n, dim].
        factors: of the learning rate and of gradients; ``l2`` is the table's own.
        """
        lent.update(self._optimizer, gradient, replace(factors, l2=self._l2))
        self.records.take_back(lent)
        mark(self._changed, lent.places)
        if self._keeps:
            mark(self._changed_since_kept, lent.places)

    def keep(self) -> None:
        """Remember the rows as they are."""
        if not self._keeps:
            return
        self.records.write_back()
        for places in self._pieces_changed_since_kept():
            self._kept.index_copy_(0, places, self.records.rows.index_select(0, places))
        self._changed_in_kept |= self._changed_since_kept
        self._changed_since_kept.zero_()

    def go_back(self) -> None:
        """Make the rows what :meth:`keep` remembered."""
        if not self._keeps:
            return
        self.records.write_back()
        for places in self._pieces_changed_since_kept():
            self.records.write_rows(places, self._kept.index_select(0, places))
        self.records.read_again()
        self._changed |= self._changed_since_kept
        self._changed_since_kept.zero_()

    def state(self, with_kept: bool) -> dict[str, Tensor]:
        """All that training changes, by name; filling the tensors restores it, if :meth:`restored`
        is called then.

        Parameters
        ----------
        with_kept: whether :meth:`keep` has been, or had been, called.
        """
        if not self.learns:
            return {}
        self.records.write_back()
        state = {f"records.{self.name}": self.records.stored}
        for key, value in self._optimizer.state().items():
            state[f"optimizer.{self.name}.{key}"] = value
        return state | ({f"kept.{self.name}": self._kept} if with_kept and self._keeps else {})

    def changes(self, with_kept: bool) -> dict[str, Tensor | PickedRows]:
        """:meth:`state`, with those rows alone that changed since the last :meth:`saved`."""
        changed = {
            f"records.{self.name}": self._changed,
            f"kept.{self.name}": self._changed_in_kept,
        }
        return {
            key: PickedRows(value, changed[key].nonzero().squeeze(1).to(value.device))
            if key in changed
            else value
            for key, value in self.state(with_kept).items()
        }

    def saved(self) -> None:
        """Take note that changes were saved."""
        self._changed.zero_()
        self._changed_in_kept.zero_()

    def restored(self) -> None:
        """Take note that the tensors of :meth:`state` were filled."""
        self.records.read_again()
        self.saved()
        self._changed_since_kept.fill_(True)

    def count(self) -> int:
        """How many rows are learned."""
        return self._changed.numel()

    def count_changed(self) -> int:
        """How many changed since the last :meth:`saved`, or did so in what is kept; a row may count
        twice."""
        return int(self._changed.sum()) + int(self._changed_in_kept.sum())

    def result(self) -> dict[str, Tensor]:
        """The rows, and, with :data:`IDS` behind the table's name, their original ids."""
        self.records.write_back()
        return {f"{self.name}{IDS}": self.originals, self.name: self.records.rows}

    def fill(self, ids: Ids, rows: Tensor) -> int:
        """Make rows what they were elsewhere; returns how many of them are this rank's.

        Parameters
        ----------
        ids: [n] int64, distinct original ids. rows: [n, dim].
        """
        places, own = self.find(ids)
        self.records.write_rows(places, rows[own])
        return len(places)

    def find(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """Which of some original ids are of this rank's rows.

        Parameters
        ----------
        ids: [n] int64, distinct.

        Returns
        -------
        [m] int64, the places of those that are; [n] bool, which ones these are.
        """
        order = self._by_original
        if not order.size:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(ids.size, dtype=torch.bool)
        places = np.searchsorted(self._originals, ids, sorter=order)
        places = order[np.minimum(places, order.size - 1)]
        own = self._originals[places] == ids
        return torch.from_numpy(places[own]), torch.from_numpy(own)

    @property
    def originals(self) -> Tensor:
        """[rows] int64: the original ids of this rank's rows."""
        return torch.from_numpy(self._originals)

    @cached_property
    def _by_original(self) -> Ids:
        """[rows] int64: the rows' places in order of original id."""
        return np.argsort(self._originals)

    def hold(self, room: int, places: Ids | None) -> None:
        """Hold records in memory from now on, of rows that are stored elsewhere.

        Parameters
        ----------
        room: for how many. places: [n] int64 whose; None = of those that were read last.
        """
        self.records = HeldRecords(self.records.stored, self.cluster.device, room, places)

    def write_out(self) -> None:
        """Let the records be where they are stored, and nowhere else in memory."""
        self._storage.write_out(self.records.stored)

    def _pieces_changed_since_kept(self) -> tuple[Tensor, ...]:
        """[m] int64 each, where rows are kept: the places of those that changed since."""
        places = self._changed_since_kept.nonzero().squeeze(1)
        return places.to(self._kept.device).split(_ROWS_AT_ONCE)
