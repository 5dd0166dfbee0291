"""Tables of learnable rows: their nodes, their first rows, their training, and a rank's share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draws.counter import LEARNABLE, key_of, mix, variate
from cache_server.kernel import kernel
from hopper.cluster.cluster import Cluster
from hopper.graph.topology import Ids
from hopper.hetero.row_records import HeldRecords, LentRecords, RowRecords
from hopper.hetero.row_storage import MemoryStorage
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from hopper.partition.placement import Placement

IDS: Final = ".ids"
"""The suffix of a table's name in the name of its rows' ids."""
_ROWS_AT_ONCE: Final = 1 << 16
_UNIT: Final = 1.0 / 9007199254740992.0


@dataclass(frozen=True)
class LearnableTable:
    """A table with a learnable row for every node of a type, which may have features as well."""

    name: str
    """the type's name, unless places have tables of their own"""
    node_type: str
    """the type's name in the graph"""
    offsets: Ids
    """[servers + 1]: server s has the rows from ``offsets[s]`` to ``offsets[s + 1]``"""
    read_as: tuple[str, ...]
    """the names of the type, in subgraphs, that read this table"""
    initial: Path | None = None
    """a file of the first rows, [count, dim] by original id; None = random rows"""
    frozen: bool = False
    """whether training leaves the rows as they are"""
    deviation: float = 0.0
    """the standard deviation of random rows; 0 = one over the root of their width"""

    def first_rows(self, seed: int, original_ids: Ids, dim: int) -> NDArray[np.float64]:
        """Return the rows [n, dim], float64, with which training begins."""
        if self.initial is None:
            return first_rows(seed, self.name, original_ids, dim, self.deviation)
        initial = np.load(self.initial, mmap_mode="r", allow_pickle=False)
        rows: NDArray[np.float64] = initial[original_ids].astype(np.float64)
        return rows


@dataclass(frozen=True)
class Learning:
    """The way in which the rows of a run's tables are learned."""

    dim: int
    """the width of a row"""
    dtype: torch.dtype
    seed: int
    """of random rows, which also depend on the table's name and on original ids"""
    optimizer: str
    """a name in :data:`hopper.hetero.sparse_optimizers.OPTIMIZERS`"""
    learning_rate: float
    l2: float = 0.0
    """the factor of the row that an update adds to its gradient"""
    keeps: bool = False
    """whether :meth:`TableShare.keep` will be called"""


class TableShare:
    """The rows of a table that one rank owns.

    They are dealt to ranks by the rule of the placement of nodes, and stored in ``storage`` with
    the optimiser's state, as ``records``. ``originals`` are the original ids [nodes] of all nodes
    of the type. ``learns`` says whether training updates the rows.
    """

    def __init__(
        self,
        table: LearnableTable,
        learning: Learning,
        originals: Ids,
        placement: Placement,
        cluster: Cluster,
        storage: MemoryStorage,
    ) -> None:
        self.name, self.read_as, self.learns = table.name, table.read_as, not table.frozen
        self.cluster = cluster
        self.placement = placement.of_tables({table.name: table.offsets})
        self._originals = originals[self.owned_ids()]
        self._storage = storage
        optimizer_class = OPTIMIZERS[learning.optimizer]
        self._optimizer = optimizer_class(learning.learning_rate, learning.l2)
        rows, parts = self._originals.size, 1 + (optimizer_class.parts if self.learns else 0)
        stored = storage.zeros(rows, parts * learning.dim, learning.dtype)
        self.records = RowRecords(stored.view(rows, parts, learning.dim), cluster.device)
        for first in range(0, rows, _ROWS_AT_ONCE):
            chunk = slice(first, first + _ROWS_AT_ONCE)
            first_rows = table.first_rows(learning.seed, self._originals[chunk], learning.dim)
            self.records.rows[chunk] = torch.from_numpy(first_rows)
        self._keeps = learning.keeps and self.learns
        self._kept = storage.zeros(rows if self._keeps else 0, learning.dim, learning.dtype)

    def owned_ids(self) -> Ids:
        """Return the global ids [rows], int64, ascending, of this rank's rows."""
        return self.placement.owned(self.name, self.cluster.rank)

    def places_of(self, ids: Ids) -> Ids:
        """Return the indices [n], int64, of ids among this rank's rows."""
        return self.placement.place_of(self.name, ids)

    def update(
        self, lent: LentRecords, gradient: Tensor, scale: float = 1.0, factor: float = 1.0
    ) -> None:
        """Update records that :attr:`records` lent by the gradients [n, dim] of their rows, which
        are multiplied by ``scale``, and the learning rate by ``factor``."""
        self.records.update(lent, self._optimizer, gradient, scale, factor)

    def keep(self) -> None:
        """Keep a copy of the rows as they are now."""
        if self._keeps:
            self.records.write_back()
            self._kept.copy_(self.records.rows)

    def go_back(self) -> None:
        """Restore the rows that :meth:`keep` copied."""
        if self._keeps:
            self.records.write_back()
            self.records.rows.copy_(self._kept)
            self.records.read_again()

    def state(self, with_kept: bool) -> dict[str, Tensor]:
        """Return all tensors that training changes, by name, with the copies of :meth:`keep` if
        asked for. Filling them in place and calling :meth:`finish_restore` restores the table."""
        if not self.learns:
            return {}
        self.records.write_back()
        state = {f"records.{self.name}": self.records.stored}
        for key, value in self._optimizer.state().items():
            state[f"optimizer.{self.name}.{key}"] = value
        return state | ({f"kept.{self.name}": self._kept} if with_kept and self._keeps else {})

    def finish_restore(self) -> None:
        """Continue from the tensors of :meth:`state`, which the caller has filled."""
        self.records.read_again()

    def result(self) -> dict[str, Tensor]:
        """Return the rows by the table's name, and their original ids by the name with IDS."""
        self.records.write_back()
        return {f"{self.name}{IDS}": self.originals, self.name: self.records.rows}

    def fill(self, ids: Ids, rows: Tensor) -> int:
        """Overwrite those of some rows [n, dim], of distinct original ids [n], that are this
        rank's, and return their number."""
        places, is_owned = self.find(ids)
        stored = self.records.rows
        stored.index_copy_(0, places.to(stored.device), rows[is_owned].to(stored))
        return len(places)

    def find(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """Find those of some distinct original ids [n] that are of this rank's rows: return the
        indices [m] of these rows, and a mask [n] of their ids."""
        order = self._by_original
        if not order.size:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(ids.size, dtype=torch.bool)
        # Ascending ids are found much faster, since neighbours read the same memory.
        ascending, places = np.argsort(ids), np.empty(ids.size, np.int64)
        found = np.searchsorted(self._originals, ids[ascending], sorter=order)
        places[ascending] = order[np.minimum(found, order.size - 1)]
        is_owned = self._originals[places] == ids
        return torch.from_numpy(places[is_owned]), torch.from_numpy(is_owned)

    @property
    def originals(self) -> Tensor:
        """The original ids [rows], int64, of this rank's rows."""
        return torch.from_numpy(self._originals)

    @cached_property
    def _by_original(self) -> Ids:
        """The indices [rows], int64, of the rows in order of original id."""
        return np.argsort(self._originals)

    def hold(self, room: int, places: Ids | None) -> None:
        """Cache records in the device's memory from now on: those at ``places`` [n], for at most
        ``room`` of which there is room; None = those that were read last."""
        self.records = HeldRecords(self.records.stored, self.cluster.device, room, places)

    def write_out(self) -> None:
        """Write the records to their file, if there is one, and drop them from memory."""
        self._storage.write_out(self.records.stored)


def first_rows(
    seed: int, table: str, original_ids: Ids, dim: int, deviation: float = 0.0
) -> NDArray[np.float64]:
    """Return random rows [n, dim], float64, uniform, that depend on the arguments alone, and whose
    standard deviation is given; 0 = one over the root of ``dim``."""
    out = np.empty((original_ids.size, dim), np.float64)
    _fill(np.uint64(key_of(LEARNABLE, seed, *table.encode())), original_ids, out)
    return out * (3.0**0.5 * deviation if deviation else (3.0 / dim) ** 0.5)


@kernel
def _fill(key: np.uint64, ids: Ids, out: NDArray[np.float64]) -> None:
    for i in range(ids.size):
        row = mix(key ^ mix(np.uint64(ids[i])))
        for j in range(out.shape[1]):
            unit = np.float64(variate(row, np.uint64(j)) >> np.uint64(11)) * _UNIT
            out[i, j] = 2.0 * unit - 1.0
