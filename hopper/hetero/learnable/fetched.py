"""Learnable rows that were read, their gradients, and the gradients' way back to the owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.device_copies import to_device
from hopper.hetero.learnable.table import IDS, TableShare
from hopper.partition.id_index import Index
from hopper.partition.placement import ByRank

PREFIX: Final = "learnable."
"""what precedes a table's name among the names of parameters"""

Ids = NDArray[np.int64]


class Leaf:
    """Rows of one table.

    Parameters
    ----------
    ids: [n] int64, distinct: whose. rows: [n, dim].
    learns: whether gradients are wanted.
    """

    def __init__(self, ids: Ids, rows: Tensor, learns: bool) -> None:
        self._index = Index(ids)
        self._rows = rows.detach().requires_grad_(learns)
        self.learns = learns

    def of(self, ids: Ids) -> Tensor:
        """[m, dim]: the rows of some of the ids."""
        places = to_device(self._index.find(ids), self._rows.device)
        return self._rows.index_select(0, places)

    def gradient(self) -> Tensor:
        """[n, dim], in the order of the ids: what was accumulated, or zero."""
        rows = self._rows
        return torch.zeros_like(rows) if rows.grad is None else rows.grad


class LeafRows:
    """Rows of any number of tables.

    Parameters
    ----------
    leaves: by table.
    tables: by name of a type in subgraphs, the table that is read there.
    """

    def __init__(self, leaves: Mapping[str, Leaf], tables: Mapping[str, str]) -> None:
        self._leaves = leaves
        self._tables = tables

    def of(self, node_type: str, ids: Ids) -> Tensor:
        """[m, dim]: the rows of nodes of a type, by its name in subgraphs."""
        return self._leaves[self._tables[node_type]].of(ids)


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
    asked: list[Tensor]

    def send(self, rows: Tensor, where: str) -> Tensor:
        """[n, dim]: the rows that this rank reads; every rank has to call it.

        Parameters
        ----------
        rows: [m, dim]: those that are read of this rank, by rank 0 first.
        where: names the moment in errors.
        """
        parts = rows.split([len(places) for places in self.asked])
        operation = f"fetching rows of {self.share.name}, {where}"
        cluster = self.share.cluster
        return torch.cat(cluster.exchange(parts, self.wanted.counts, "feature", operation))

    def send_back(self, gradient: Tensor, where: str) -> Tensor:
        """[m, dim]: gradients on the way back of :meth:`send`; every rank has to call it."""
        parts, counts = gradient.split(self.wanted.counts), [len(places) for places in self.asked]
        operation = f"sending gradients of {self.share.name}, {where}"
        return torch.cat(self.share.cluster.exchange(parts, counts, "gradient", operation))


class FetchedTable(Leaf):
    """The rows of a table that an iteration has fetched; every rank has to make it.

    Parameters
    ----------
    where: names the moment in errors.
    """

    def __init__(self, routes: Routes, where: str) -> None:
        self._routes, share = routes, routes.share
        # Each record is read once, for handing it out now and for its update.
        self._places, within = torch.cat(routes.asked).unique(return_inverse=True)
        self._records = share.records.read(self._places)
        self._within = to_device(within, self._records.device)
        rows = routes.send(self._records[:, 0].index_select(0, self._within), where)
        super().__init__(routes.wanted.nodes, rows, share.learns)
        self.total = rows[:0]
        """[m, dim]: the gradient of each row of this rank that is read, once it was pushed"""

    def push(self, where: str, scale: float) -> None:
        """See :class:`FetchedRows`."""
        received = self._routes.send_back(self.gradient(), where)
        count, _, dim = self._records.shape
        total = self._records.new_zeros(count, dim)
        self.total = total.index_add_(0, self._within, received.to(total.device))
        if scale != 1.0:
            total.div_(scale)

    def step(self, scale: float, factor: float) -> None:
        """See :class:`FetchedRows`."""
        gradient = self.total if scale == 1.0 else self.total * scale
        self._routes.share.update(self._places, self._records, gradient, factor)

    def collect(self) -> dict[str, Tensor]:
        """See :class:`FetchedRows`."""
        share, name = self._routes.share, f"{PREFIX}{self._routes.share.name}"
        cluster, operation = share.cluster, f"collecting rows of {share.name}"
        told = cluster.all_gather(torch.tensor([len(self._places)]), "control", operation)
        counts = told[:, 0].tolist() if cluster.rank == 0 else [0] * cluster.world
        ids_key, ids = f"model.{name}{IDS}", torch.from_numpy(share.owned())[self._places.cpu()]
        tensors = {f"model.{name}": self._records[:, 0], ids_key: ids}
        if self.learns:
            tensors[f"gradient.{name}"] = self.total
        for key, tensor in tensors.items():
            sent = tensor.to(cluster.device)
            parts = [sent, *[sent[:0]] * (cluster.world - 1)]
            tensors[key] = torch.cat(cluster.exchange(parts, counts, "control", operation))
        order = tensors[ids_key].argsort()
        return {key: rows[order] for key, rows in tensors.items()} if cluster.rank == 0 else {}


class FetchedRows(LeafRows):
    """The rows that an iteration has fetched of all tables.

    Parameters
    ----------
    fetched, tables: as of :class:`LeafRows`, in an order that is the same on every rank.
    """

    def __init__(
        self, cluster: Cluster, fetched: Mapping[str, FetchedTable], tables: Mapping[str, str]
    ) -> None:
        super().__init__(fetched, tables)
        self._cluster = cluster
        self._fetched = list(fetched.values())
        self._learned = [table for table in self._fetched if table.learns]

    def push(self, where: str, scale: float = 1.0) -> None:
        """Send gradients to the rows' owners, who add them up in order of rank; every rank has to
        call it. Those of frozen rows stay away.

        Parameters
        ----------
        scale: what gradients are divided by.
        """
        for table in self._learned:
            table.push(where, scale)

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
