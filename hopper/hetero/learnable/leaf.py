"""Learnable rows that were read, and where their gradients are added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.hetero.row_kernels import add_rows, gather_rows, put_rows, zero_rows
from hopper.partition.id_index import Index

Ids = NDArray[np.int64]


class Leaf:
    """Rows of one table, and their gradient.

    Parameters
    ----------
    ids: [n] int64, distinct: whose.
    rows: [m, dim], contiguous: a tensor that has them.
    learns: whether gradients are wanted.
    places: [n] int64: where in ``rows`` they are; None = there are no others, in the ids' order.
    gradient: [m, dim], contiguous, uninitialised: where their gradient is added up; None = in a new
        tensor.
    """

    def __init__(
        self,
        ids: Ids,
        rows: Tensor,
        learns: bool,
        places: Ids | None = None,
        gradient: Tensor | None = None,
    ) -> None:
        self._index = Index(ids)
        self._rows = rows.detach()
        self._places = np.arange(ids.size) if places is None else places
        self._gradient = gradient
        self._is_begun = False
        """whether all of these rows' gradients are initialised"""
        self._reached = torch.empty(0, requires_grad=learns)
        self.learns = learns

    def of(self, ids: Ids) -> Tensor:
        """[m, dim]: the rows of some of the ids, which have to be distinct."""
        rows: Tensor = _ReadRows.apply(self._reached, self, self._places[self._index.find(ids)])
        return rows

    def reach_through(self, reached: Tensor) -> None:
        """Let an operation be met on the way back, once the gradients of all rows that are read
        from now on are there.

        Parameters
        ----------
        reached: its result, which says nothing.
        """
        if self.learns:
            self._reached = reached

    def gradient(self) -> Tensor:
        """[m, dim]: what was accumulated, or zero; of the tensor's other rows it says nothing."""
        gradient = self._room()
        if not self._is_begun:
            self._is_begun = True
            zero_rows(self._places, gradient)
        return gradient

    def gather(self, places: Ids) -> Tensor:
        """[k, dim]: a copy of the tensor's rows in some places."""
        out = self._rows.new_empty(places.size, self._rows.shape[1])
        gather_rows(self._rows[:, None], places, out)
        return out

    def accumulate(self, places: Ids, gradient: Tensor) -> None:
        """Add [k, dim] gradients of rows in distinct places."""
        if not self._is_begun and places.size == self._places.size:
            self._is_begun = True
            put_rows(gradient, places, self._room())
        else:
            add_rows(gradient, places, self.gradient())

    def _room(self) -> Tensor:
        if self._gradient is None:
            self._gradient = torch.empty_like(self._rows)
        return self._gradient


class _ReadRows(torch.autograd.Function):
    """Rows of a leaf, whose gradients are added where the leaf keeps them: torch would make a
    gradient of all its rows at each reading, and add these up."""

    @staticmethod
    def forward(ctx: Any, reached: Tensor, leaf: Leaf, places: Ids) -> Tensor:
        ctx.leaf, ctx.places = leaf, places
        return leaf.gather(places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.leaf.accumulate(ctx.places, gradient)
        # Of what it was reached through, which is on the CPU wherever the rows are.
        return torch.empty(0), None, None


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
        """[m, dim]: the rows of distinct nodes of a type, by its name in subgraphs."""
        return self._leaves[self._tables[node_type]].of(ids)
