"""Learnable input rows of node types that have no features (Heta, sections 2.2 and 6).

Each row has one home, the rank that owns its node ("tied"): others fetch the rows that an iteration
reads and send their gradients back, and the owner updates every row that anybody has read, once an
iteration. So all exact engines train the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draw import LEARNABLE, key_of, mix, variate
from hopper.cluster import Cluster
from hopper.device_copies import to_device
from hopper.errors import ConfigError
from hopper.features.cached import Lookups
from hopper.hetero.row_records import HeldRecords, PickedRows, RowRecords
from hopper.hetero.row_storage import RowStorage
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from hopper.partition import PartitionedGraph
from hopper.partition.placement import ByRank, Index, Placement

PREFIX: Final = "learnable."
"""of a type's rows among the names of parameters"""
IDS: Final = ".ids"
"""behind it, of their ids"""
_UNIT: Final = 1.0 / 9007199254740992.0
_ROWS_AT_ONCE: Final = 1 << 16

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LearnableTable:
    """Rows of the nodes of a type.

    Attributes
    ----------
    name: of the table; that of the type, where it has no other.
    node_type: as stored.
    offsets: [servers + 1] int64: whose rows each server has.
    read_as: names that the type has in subgraphs where it reads this table.
    initial: file of the rows to begin with, [count, dim] by original id; None = random ones.
    frozen: whether they stay what they are.
    deviation: standard deviation of random ones; 0 = one over the root of their width.
    """

    name: str
    node_type: str
    offsets: Ids
    read_as: tuple[str, ...]
    initial: Path | None = None
    frozen: bool = False
    deviation: float = 0.0


class FetchedRows:
    """The rows that an iteration reads, as leaves that gradients are accumulated in.

    Parameters
    ----------
    rows: by table, [n] distinct ids and [n, dim] their rows.
    tables: by name of a type in subgraphs, its table.
    learned: tables whose gradients are wanted.
    """

    def __init__(
        self,
        rows: Mapping[str, tuple[Ids, Tensor]],
        tables: Mapping[str, str],
        learned: Collection[str],
    ) -> None:
        self._tables = tables
        self._index = {name: Index(ids) for name, (ids, _) in rows.items()}
        self._rows = {
            name: found.detach().requires_grad_(name in learned)
            for name, (_, found) in rows.items()
        }

    def __contains__(self, node_type: str) -> bool:
        return node_type in self._tables

    def of(self, node_type: str, ids: Ids) -> Tensor:
        """[m, dim]: the rows of distinct nodes of a type that were asked for."""
        table = self._tables[node_type]
        places, rows = self._index[table].find(ids), self._rows[table]
        return rows.index_select(0, to_device(places, rows.device))

    def gradient(self, table: str) -> Tensor:
        """[n, dim], in the order of the ids given: what was accumulated, or zero."""
        rows = self._rows[table]
        return torch.zeros_like(rows) if rows.grad is None else rows.grad


class LearnableRows:
    """One rank's share of the learnable rows; collective where it says so.

    Parameters
    ----------
    placement: of nodes.
    tables: what is learned.
    dim: width of a row.
    seed: rows begin as a function of it, of the type and of the original id.
    optimizer: a name in :data:`OPTIMIZERS`.
    storage: of rows and of the optimiser's state.
    keeps: whether :meth:`keep` will be called.
    l2: times the row, is added to its gradient in an update.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        placement: Placement,
        cluster: Cluster,
        tables: Sequence[LearnableTable],
        dim: int,
        dtype: torch.dtype,
        seed: int,
        optimizer: str,
        learning_rate: float,
        storage: RowStorage,
        keeps: bool,
        l2: float = 0.0,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"learnable.optimizer: expected {', '.join(OPTIMIZERS)}; given {optimizer!r}"
            )
        self._cluster = cluster
        self._names = sorted(each.name for each in tables)
        self._read_as = {name: each.name for each in tables for name in each.read_as}
        self._dim = dim
        self._l2 = l2
        self._storage = storage
        self._placement = placement.of_tables({each.name: each.offsets for each in tables})
        self._originals: dict[str, Tensor] = {}
        self._optimizers = {
            each.name: OPTIMIZERS[optimizer](learning_rate) for each in tables if not each.frozen
        }
        self.records: dict[str, RowRecords] = {}
        """by table"""
        for described in tables:
            name = described.name
            owned = self._placement.owned(name, cluster.rank)
            originals = graph.original_ids(described.node_type)[owned]
            self._originals[name] = torch.from_numpy(originals)
            parts = 1 if described.frozen else 1 + OPTIMIZERS[optimizer].parts
            stored = storage.zeros(originals.size, parts * dim, dtype)
            stored = stored.view(originals.size, parts, dim)
            self.records[name] = RowRecords(stored, cluster.device)
            given = None
            if described.initial is not None:
                given = np.load(described.initial, mmap_mode="r", allow_pickle=False)
            for start in range(0, originals.size, _ROWS_AT_ONCE):
                part = slice(start, start + _ROWS_AT_ONCE)
                if given is None:
                    rows = first_rows(seed, name, originals[part], dim, described.deviation)
                else:
                    rows = given[originals[part]].astype(np.float64)
                stored[part, 0] = torch.from_numpy(rows)
        self._wanted: dict[str, ByRank] = {}
        self._asked: dict[str, list[Tensor]] = {}
        self._read: dict[str, Tensor] = {}
        self._in_read: dict[str, Tensor] = {}
        self._found: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._kept = {
            name: storage.zeros(len(self.records[name].stored), dim, dtype)
            for name in self._optimizers
            if keeps
        }

        def flags(names: Iterable[str], value: bool) -> dict[str, Tensor]:
            sizes = {each: len(self.records[each].stored) for each in names}
            return {each: torch.full((size,), value) for each, size in sizes.items()}

        # Of the rows of a table: since they were saved; since they were kept; and of those kept,
        # since these were saved.
        self._changed = flags(self._optimizers, False)
        self._changed_since_kept = flags(self._kept, True)
        self._changed_in_kept = flags(self._kept, False)

    def fetch(
        self, wanted: Mapping[str, Sequence[Ids]], where: str, gradients: bool = True
    ) -> FetchedRows:
        """Read rows from wherever they are; every rank has to call it.

        Parameters
        ----------
        wanted: by name of a type in subgraphs, ids in any number of groups; one may be missing, and
            types whose rows are not learned are passed over.
        where: names the moment in errors.
        gradients: whether :meth:`push` follows.
        """
        cluster, found = self._cluster, {}
        wanted_of, asked_of_me = self.ask(wanted, where)
        if gradients:
            self._wanted = wanted_of
        for name, asked in asked_of_me.items():
            rows, places = self._look_up(name, asked, gradients)
            received = cluster.exchange(
                [rows.index_select(0, to_device(each, rows.device)) for each in places],
                wanted_of[name].counts,
                "feature",
                f"fetching rows of {name}, {where}",
            )
            found[name] = wanted_of[name].nodes, torch.cat(received)
        return FetchedRows(found, self._read_as, self._optimizers if gradients else ())

    def ask(
        self, wanted: Mapping[str, Sequence[Ids]], where: str
    ) -> tuple[dict[str, ByRank], dict[str, list[Tensor]]]:
        """Tell rows' owners who reads them; every rank has to call it.

        Parameters
        ----------
        wanted, where: as of :meth:`fetch`.

        Returns
        -------
        By table: the ids that this rank reads, and, in a list by rank, [m] int64 ascending places,
        among this rank's own rows, of those that each reads of it.
        """
        cluster, told = self._cluster, {}
        dealt = {
            name: self._placement.deal(name, ids)
            for name, ids in distinct_by_table(wanted, self._read_as).items()
        }
        sizes = torch.tensor([dealt[name].counts for name in self._names])
        asked_of = cluster.all_gather(sizes, "control", f"asking for learnable rows, {where}")
        for index, name in enumerate(self._names):
            asked = cluster.exchange(
                [torch.from_numpy(part) for part in dealt[name].parts()],
                asked_of[:, index, cluster.rank].tolist(),
                "feature",
                f"asking for rows of {name}, {where}",
            )
            device = self.records[name].stored.device
            places = [self._placement.place_of(name, ids.numpy()) for ids in asked]
            told[name] = [torch.from_numpy(each).to(device) for each in places]
        return dealt, told

    def _look_up(
        self, name: str, asked: list[Tensor], gradients: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Rows of a table, and by rank the places among them of those that it asked for."""
        records = self.records[name]
        if not gradients:
            return records.read_rows(torch.cat(asked)), _counted(asked)
        # Each record once, for reading now and for the update.
        read, places = torch.cat(asked).unique(return_inverse=True)
        self._read[name], self._in_read[name] = read, places
        self._found[name], self._asked[name] = records.read(read), asked
        return self._found[name][:, 0], list(places.split([len(each) for each in asked]))

    def push(self, fetched: FetchedRows, where: str, scale: float = 1.0) -> None:
        """Send gradients to the rows' owners, who add them in order of rank; every rank has to
        call it, after :meth:`fetch`. Those of frozen rows stay away.

        Parameters
        ----------
        scale: times the gradient that is sent.
        """
        for name in self._names:
            if name not in self._optimizers:
                continue
            parts = list(fetched.gradient(name).split(self._wanted[name].counts))
            asked = self._asked[name]
            received = self._cluster.exchange(
                parts,
                [len(places) for places in asked],
                "gradient",
                f"sending gradients of {name}, {where}",
            )
            total = self._found[name].new_zeros(self._read[name].numel(), self._dim)
            gradient = torch.cat(received).to(total.device)
            places = to_device(self._in_read[name], total.device)
            self._sums[name] = total.index_add_(0, places, gradient)
            if scale != 1.0:
                self._sums[name].div_(scale)

    def is_finite(self) -> bool:
        """Whether all gradients that were pushed to this rank are numbers."""
        return all(bool(gradient.isfinite().all()) for gradient in self._sums.values())

    def squares(self, operation: str) -> float:
        """The sum of squares of all pushed gradients, added up per row; every rank has to call it.

        Parameters
        ----------
        operation: names it in errors.
        """
        own = sum(float(gradient.double().square().sum()) for gradient in self._sums.values())
        total = torch.tensor([own], dtype=torch.float64)
        self._cluster.all_reduce(total, "control", operation)
        return float(total)

    def step(self, scale: float = 1.0, factor: float = 1.0) -> None:
        """Update every row that any rank has read.

        Parameters
        ----------
        scale: what gradients are multiplied by, as those of all parameters are.
        factor: what the learning rate is multiplied by, as that of all parameters is.
        """
        for name, gradient in self._sums.items():
            scaled = gradient if scale == 1.0 else gradient * scale
            records = self._found[name]
            if self._l2:
                scaled = scaled + self._l2 * records[:, 0]
            self._optimizers[name].step(records, scaled, factor)
            self.records[name].write(self._read[name], records)
            places = self._read[name].cpu()
            self._changed[name][places] = True
            if name in self._changed_since_kept:
                self._changed_since_kept[name][places] = True

    def collect(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The rows that any rank has read and their pushed gradients, on rank 0; every rank has
        to call it.

        Returns
        -------
        By :data:`PREFIX` and type, [n, dim] rows, and, with :data:`IDS` behind it, [n] int64
        ascending global ids; and the gradients, [n, dim], of all but frozen rows. Empty on other
        ranks.
        """
        values: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        for name, rows in self._read.items():
            key, counts = f"{PREFIX}{name}", self._counts(rows.numel(), name)
            found = self._gather(self._found[name][:, 0].contiguous(), counts, name)
            owned = torch.from_numpy(self._placement.owned(name, self._cluster.rank))
            ids, order = self._gather(owned[rows.cpu()], counts, name).sort()
            if self._cluster.rank == 0:
                values |= {key: found[order], f"{key}{IDS}": ids}
            if name in self._sums:
                gradient = self._gather(self._sums[name], counts, name)
                if self._cluster.rank == 0:
                    gradients[key] = gradient[order]
        return values, gradients

    def keep(self) -> None:
        """Remember the rows as they are."""
        for name, kept in self._kept.items():
            records, changed = self.records[name], self._changed_since_kept[name]
            records.write_back()
            for places in _pieces(changed, kept.device):
                kept.index_copy_(0, places, records.rows.index_select(0, places))
            self._changed_in_kept[name] |= changed
            changed.zero_()

    def go_back(self) -> None:
        """Make the rows what :meth:`keep` remembered."""
        for name, kept in self._kept.items():
            records, changed = self.records[name], self._changed_since_kept[name]
            records.write_back()
            for places in _pieces(changed, kept.device):
                records.write_rows(places, kept.index_select(0, places))
            records.read_again()
            self._changed[name] |= changed
            changed.zero_()

    def state(self, with_kept: bool) -> dict[str, Tensor]:
        """All that this rank's training changes, by name; filling the tensors restores it, if
        :meth:`restored` is called then.

        Parameters
        ----------
        with_kept: whether :meth:`keep` has been, or had been, called.
        """
        state = {}
        for name, optimizer in self._optimizers.items():
            self.records[name].write_back()
            state[f"records.{name}"] = self.records[name].stored
            state |= {f"optimizer.{name}.{key}": own for key, own in optimizer.state().items()}
        if with_kept:
            state |= {f"kept.{name}": table for name, table in self._kept.items()}
        return state

    def changes(self, with_kept: bool) -> dict[str, Tensor | PickedRows]:
        """:meth:`state`, with those rows alone that changed since the last :meth:`saved`."""
        changed = {f"records.{name}": own for name, own in self._changed.items()}
        changed |= {f"kept.{name}": own for name, own in self._changed_in_kept.items()}
        return {
            name: PickedRows(value, changed[name].nonzero().squeeze(1).to(value.device))
            if name in changed
            else value
            for name, value in self.state(with_kept).items()
        }

    def saved(self) -> None:
        """Take note that changes were saved."""
        for changed in (*self._changed.values(), *self._changed_in_kept.values()):
            changed.zero_()

    def restored(self) -> None:
        """Take note that the tensors of :meth:`state` were filled."""
        for name in self._optimizers:
            self.records[name].read_again()
        self.saved()
        for changed in self._changed_since_kept.values():
            changed.fill_(True)

    def count(self) -> int:
        """This rank's rows that are learned."""
        return sum(changed.numel() for changed in self._changed.values())

    def count_changed(self) -> int:
        """Those that changed since the last :meth:`saved`, or that :meth:`keep` changed; a row may
        count twice."""
        changed = (*self._changed.values(), *self._changed_in_kept.values())
        return sum(int(each.sum()) for each in changed)

    def shard(self) -> dict[str, Tensor]:
        """This rank's rows by type, and, with :data:`IDS` behind it, their original ids."""
        shard = {f"{name}{IDS}": ids for name, ids in self._originals.items()}
        for name, records in self.records.items():
            records.write_back()
            shard[name] = records.rows
        return shard

    def hold(self, room: Mapping[str, int], places: Mapping[str, Ids] | None) -> None:
        """Hold records in memory from now on, of rows that are stored elsewhere.

        Parameters
        ----------
        room: by table, for how many. places: by table, [n] int64 whose, among this rank's own rows;
            None = of those that were read last.
        """
        for name, size in room.items():
            held = None if places is None else places[name]
            stored = self.records[name].stored
            self.records[name] = HeldRecords(stored, self._cluster.device, size, held)

    def write_out(self, table: str) -> None:
        """Let the records of a table be where they are stored, and nowhere else in memory."""
        self._storage.write_out(self.records[table].stored)

    def take_lookups(self) -> dict[str, Lookups]:
        """By table, how many records were looked for in memory since the last call; of tables
        that keep some there."""
        taken = {name: self.records[name].take_lookups() for name in self._names}
        return {name: found for name, found in taken.items() if found is not None}

    def _counts(self, own: int, name: str) -> list[int]:
        """What every rank has, on rank 0; nothing comes to the others."""
        counts = torch.tensor([own], dtype=torch.int64)
        told = self._cluster.all_gather(counts, "control", f"collecting rows of {name}")
        return told[:, 0].tolist() if self._cluster.rank == 0 else [0] * self._cluster.world

    def _gather(self, own: Tensor, counts: list[int], name: str) -> Tensor:
        own = own.to(self._cluster.device)
        parts = [own if rank == 0 else own[:0] for rank in range(self._cluster.world)]
        received = self._cluster.exchange(parts, counts, "control", f"collecting rows of {name}")
        return torch.cat(received)


def first_rows(
    seed: int, node_type: str, original_ids: Ids, dim: int, deviation: float = 0.0
) -> NDArray[np.float64]:
    """[n, dim] float64, uniform: the rows that learning begins with.

    Parameters
    ----------
    deviation: their standard deviation; 0 = one over the root of ``dim``.
    """
    out = np.empty((original_ids.size, dim), np.float64)
    _fill(np.uint64(key_of(LEARNABLE, seed, *node_type.encode())), original_ids, out)
    return out * (3.0**0.5 * deviation if deviation else (3.0 / dim) ** 0.5)


@numba.njit(cache=True, nogil=True)
def _fill(key: np.uint64, ids: Ids, out: NDArray[np.float64]) -> None:
    for i in range(ids.size):
        row = mix(key ^ mix(np.uint64(ids[i])))
        for j in range(out.shape[1]):
            unit = np.float64(variate(row, np.uint64(j)) >> np.uint64(11)) * _UNIT
            out[i, j] = 2.0 * unit - 1.0


def _pieces(chosen: Tensor, device: torch.device) -> tuple[Tensor, ...]:
    """[m] int64 each: the places that are chosen.

    Parameters
    ----------
    chosen: [rows] bool, on the CPU.
    """
    return chosen.nonzero().squeeze(1).to(device).split(_ROWS_AT_ONCE)


def _counted(groups: Sequence[Tensor]) -> list[Tensor]:
    """The places of groups that lie behind one another."""
    sizes = [len(each) for each in groups]
    return list(torch.arange(sum(sizes), device=groups[0].device).split(sizes))


def distinct_by_table(
    wanted: Mapping[str, Sequence[Ids]], tables: Mapping[str, str]
) -> dict[str, Ids]:
    """By table, in order of name, [n] ascending: the ids that any type that reads it wants.

    Parameters
    ----------
    wanted: by name of a type, ids in groups. tables: by name of a type, its table.
    """
    groups: dict[str, list[Ids]] = {each: [] for each in sorted(set(tables.values()))}
    for name, ids in wanted.items():
        if name in tables:
            groups[tables[name]] += ids
    return {each: distinct(found) for each, found in groups.items()}


def distinct(groups: Sequence[Ids]) -> Ids:
    """[n] ascending: the ids that are in any group."""
    return np.unique(np.concatenate(groups)) if len(groups) else np.empty(0, np.int64)
