"""Learnable input rows of node types that have no features (Heta, sections 2.2 and 6).

Each row has one home, the rank that owns its node ("tied"): others fetch the rows that an iteration
reads and send their gradients back, and the owner updates every row that anybody has read, once an
iteration. So all exact engines train the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draw import LEARNABLE, key_of, mix, variate
from hopper.cluster import Cluster, owned_range
from hopper.errors import ConfigError
from hopper.hetero.row_storage import RowStorage
from hopper.partition import PartitionedGraph

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
    rows: by table, [n] ascending ids and [n, dim] their rows.
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
        self._ids = {name: ids for name, (ids, _) in rows.items()}
        self._rows = {
            name: found.detach().requires_grad_(name in learned)
            for name, (_, found) in rows.items()
        }

    def __contains__(self, node_type: str) -> bool:
        return node_type in self._tables

    def of(self, node_type: str, ids: Ids) -> Tensor:
        """[m, dim]: the rows of distinct nodes of a type that were asked for."""
        table = self._tables[node_type]
        places = np.searchsorted(self._ids[table], ids)
        rows = self._rows[table]
        return rows.index_select(0, torch.from_numpy(places).to(rows.device))

    def ids(self, table: str) -> Ids:
        """[n] ascending."""
        return self._ids[table]

    def gradient(self, table: str) -> Tensor:
        """[n, dim]: what was accumulated, zero where nothing was."""
        rows = self._rows[table]
        return torch.zeros_like(rows) if rows.grad is None else rows.grad


class SparseOptimizer(ABC):
    """Updates the rows of one table that were read, and leaves all else as it is.

    Parameters
    ----------
    table: [n, dim].
    storage: of its state, which is as large as the table.
    """

    def __init__(self, table: Tensor, learning_rate: float, storage: RowStorage) -> None:
        self._table = table
        self._rate = learning_rate
        self._make_state(lambda: storage.zeros(table.shape[0], table.shape[1], table.dtype))

    def _make_state(self, zeros: Callable[[], Tensor]) -> None:  # noqa: B027  # some have none
        """Make what is kept between updates; ``zeros`` makes a table like the rows'."""

    @abstractmethod
    def step(self, rows: Tensor, gradient: Tensor) -> None:
        """Update rows [n] int64, distinct, by their gradients [n, dim]; n may be 0."""

    def state(self) -> dict[str, Tensor]:
        """What the next update depends on besides the table; its own tensors."""
        return {}


class SparseAdam(SparseOptimizer):
    """``torch.optim.SparseAdam``: moments of rows that were not read stand still, the number of
    steps is that of all."""

    def _make_state(self, zeros: Callable[[], Tensor]) -> None:
        self._steps = torch.zeros(1, dtype=torch.int64)
        self._mean, self._square = zeros(), zeros()

    def state(self) -> dict[str, Tensor]:
        """See :class:`SparseOptimizer`."""
        return {"steps": self._steps, "mean": self._mean, "square": self._square}

    def step(self, rows: Tensor, gradient: Tensor) -> None:
        """See :class:`SparseOptimizer`."""
        self._steps += 1
        before = self._mean[rows]
        mean = before + (gradient - before) * (1 - 0.9)
        before = self._square[rows]
        square = before + (gradient * gradient - before) * (1 - 0.999)
        self._mean[rows], self._square[rows] = mean, square
        steps = int(self._steps)
        size = self._rate * (1 - 0.999**steps) ** 0.5 / (1 - 0.9**steps)
        self._table[rows] -= size * mean / (square.sqrt() + 1e-8)


class SparseAdagrad(SparseOptimizer):
    """``torch.optim.Adagrad`` on sparse gradients."""

    def _make_state(self, zeros: Callable[[], Tensor]) -> None:
        self._sum = zeros()

    def state(self) -> dict[str, Tensor]:
        """See :class:`SparseOptimizer`."""
        return {"sum": self._sum}

    def step(self, rows: Tensor, gradient: Tensor) -> None:
        """See :class:`SparseOptimizer`."""
        total = self._sum[rows] + gradient * gradient
        self._sum[rows] = total
        self._table[rows] -= self._rate * gradient / (total.sqrt() + 1e-10)


class SparseSGD(SparseOptimizer):
    """``torch.optim.SGD`` on sparse gradients."""

    def step(self, rows: Tensor, gradient: Tensor) -> None:
        """See :class:`SparseOptimizer`."""
        self._table[rows] -= self._rate * gradient


OPTIMIZERS: Final[dict[str, type[SparseOptimizer]]] = {
    "adam": SparseAdam,
    "adagrad": SparseAdagrad,
    "sgd": SparseSGD,
}


class LearnableRows:
    """One rank's share of the learnable rows; collective where it says so.

    Parameters
    ----------
    tables: what is learned.
    dim: width of a row.
    seed: rows begin as a function of it, of the type and of the original id.
    optimizer: a name in :data:`OPTIMIZERS`.
    storage: of rows and of the optimiser's state.
    keeps: whether :meth:`keep` will be called.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        cluster: Cluster,
        tables: Sequence[LearnableTable],
        dim: int,
        dtype: torch.dtype,
        seed: int,
        optimizer: str,
        learning_rate: float,
        storage: RowStorage,
        keeps: bool,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"learnable.optimizer: expected {', '.join(OPTIMIZERS)}; given {optimizer!r}"
            )
        self._cluster = cluster
        self._names = sorted(each.name for each in tables)
        self._read_as = {name: each.name for each in tables for name in each.read_as}
        self._dim = dim
        self._bounds: dict[str, Ids] = {}
        self._tables: dict[str, Tensor] = {}
        self._originals: dict[str, Tensor] = {}
        for described in tables:
            name = described.name
            ranges = [
                owned_range(described.offsets, cluster.ranks_per_server, rank)
                for rank in range(cluster.world)
            ]
            self._bounds[name] = np.array([0, *(stop for _, stop in ranges)], np.int64)
            first, stop = ranges[cluster.rank]
            originals = np.ascontiguousarray(graph.original_ids(described.node_type)[first:stop])
            self._originals[name] = torch.from_numpy(originals.copy())
            table = self._tables[name] = storage.zeros(originals.size, dim, dtype)
            given = None
            if described.initial is not None:
                given = np.load(described.initial, mmap_mode="r", allow_pickle=False)
            for start in range(0, originals.size, _ROWS_AT_ONCE):
                part = slice(start, start + _ROWS_AT_ONCE)
                if given is None:
                    rows = first_rows(seed, name, originals[part], dim, described.deviation)
                else:
                    rows = given[originals[part]].astype(np.float64)
                table[part] = torch.from_numpy(rows)
        self._learned = {each.name: self._tables[each.name] for each in tables if not each.frozen}
        self._optimizers = {
            name: OPTIMIZERS[optimizer](table, learning_rate, storage)
            for name, table in self._learned.items()
        }
        self._asked: dict[str, list[Tensor]] = {}
        self._read: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._kept = {
            name: storage.zeros(len(table), dim, dtype)
            for name, table in self._learned.items()
            if keeps
        }

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
        parts = {
            name: np.split(ids, np.searchsorted(ids, self._bounds[name][1:-1]))
            for name, ids in distinct_by_table(wanted, self._read_as).items()
        }
        sizes = torch.tensor([[part.size for part in parts[name]] for name in self._names])
        asked_of = cluster.all_gather(sizes, "control", f"asking for learnable rows, {where}")
        for index, name in enumerate(self._names):
            counts = asked_of[:, index, cluster.rank].tolist()
            first = int(self._bounds[name][cluster.rank])
            asked = cluster.exchange(
                [torch.from_numpy(part) for part in parts[name]],
                counts,
                "feature",
                f"asking for rows of {name}, {where}",
            )
            table = self._tables[name]
            mine = [(ids - first).to(table.device) for ids in asked]
            rows = cluster.exchange(
                [table.index_select(0, places).to(cluster.device) for places in mine],
                [part.size for part in parts[name]],
                "feature",
                f"fetching rows of {name}, {where}",
            )
            found[name] = np.concatenate(parts[name]), torch.cat(rows)
            if gradients:
                self._asked[name] = mine
        return FetchedRows(found, self._read_as, self._learned if gradients else ())

    def push(self, fetched: FetchedRows, where: str) -> None:
        """Send gradients to the rows' owners, who add them in order of rank; every rank has to
        call it, after :meth:`fetch`. Those of frozen rows stay away."""
        for name in self._names:
            self._read[name], places = torch.cat(self._asked[name]).unique(return_inverse=True)
            if name not in self._learned:
                continue
            cuts = np.searchsorted(fetched.ids(name), self._bounds[name][1:-1])
            parts = list(fetched.gradient(name).tensor_split(cuts.tolist()))
            asked = self._asked[name]
            received = self._cluster.exchange(
                parts,
                [len(places) for places in asked],
                "gradient",
                f"sending gradients of {name}, {where}",
            )
            total = self._tables[name].new_zeros(self._read[name].numel(), self._dim)
            gradient = torch.cat(received).to(total.device)
            self._sums[name] = total.index_add_(0, places, gradient)

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

    def step(self, scale: float = 1.0) -> None:
        """Update every row that any rank has read.

        Parameters
        ----------
        scale: what gradients are multiplied by, as those of all parameters are.
        """
        for name, gradient in self._sums.items():
            scaled = gradient if scale == 1.0 else gradient * scale
            self._optimizers[name].step(self._read[name], scaled)

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
            key, first = f"{PREFIX}{name}", int(self._bounds[name][self._cluster.rank])
            counts = self._counts(rows.numel(), name)
            found = self._gather(self._tables[name].index_select(0, rows), counts, name)
            ids = self._gather(rows + first, counts, name)
            if self._cluster.rank == 0:
                values |= {key: found, f"{key}{IDS}": ids}
            if name in self._sums:
                gradient = self._gather(self._sums[name], counts, name)
                if self._cluster.rank == 0:
                    gradients[key] = gradient
        return values, gradients

    def keep(self) -> None:
        """Remember the rows as they are."""
        for name, table in self._learned.items():
            self._kept[name].copy_(table)

    def go_back(self) -> None:
        """Make the rows what :meth:`keep` remembered."""
        for name, table in self._kept.items():
            self._tables[name].copy_(table)

    def state(self, with_kept: bool) -> dict[str, Tensor]:
        """All that this rank's training changes, by name; filling the tensors restores it.

        Parameters
        ----------
        with_kept: whether :meth:`keep` has been, or had been, called.
        """
        state = {f"table.{name}": table for name, table in self._learned.items()}
        for name, optimizer in self._optimizers.items():
            state |= {f"optimizer.{name}.{key}": own for key, own in optimizer.state().items()}
        if with_kept:
            state |= {f"kept.{name}": table for name, table in self._kept.items()}
        return state

    def shard(self) -> dict[str, Tensor]:
        """This rank's rows by type, and, with :data:`IDS` behind it, their original ids."""
        originals = {f"{name}{IDS}": ids for name, ids in self._originals.items()}
        return self._tables | originals

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
