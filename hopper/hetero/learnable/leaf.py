"""Learnable rows that were read, with the sums of their gradients.

A row's gradients are added in one order, so results depend neither on the number of threads nor on
their timing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from cache_server.kernel import kernel
from hopper.device.copies import to_device
from hopper.device.kernel_threads import threads_for
from hopper.graph.topology import Ids
from hopper.micrograph.frontiers import HashTable
from hopper.ops import is_finite


class Leaf:
    """Rows of one table, and the sum of their gradients.

    ``rows``, [m, dim], contiguous, have the rows of the distinct ``ids`` [n] at ``places`` [n]
    (None = all rows, in the ids' order). If the table ``learns``, gradients are summed in
    ``gradient``, [m, dim], contiguous, of zeros (None = a new tensor, [0, dim] if nothing is
    summed).
    """

    def __init__(
        self,
        ids: Ids,
        rows: Tensor,
        learns: bool,
        places: Ids | None = None,
        gradient: Tensor | None = None,
    ) -> None:
        self._index = HashTable(ids)
        self._rows = rows.detach()
        self._places = np.arange(ids.size) if places is None else places
        if gradient is None:
            gradient = torch.zeros_like(self._rows if learns else self._rows[:0])
        self.gradient = gradient
        self._reached = torch.empty(0, requires_grad=learns)
        self.learns = learns

    def of(self, ids: Ids) -> Tensor:
        """Return the rows [m, dim] of some of the ids, which must be distinct."""
        rows: Tensor = _ReadRows.apply(self._reached, self, self._places[self._index.find(ids)])
        return rows

    def reach_through(self, reached: Tensor) -> None:
        """Make the backward pass run an operation after the gradients of all rows read from now on.
        Of its result, ``reached``, only the autograd graph matters."""
        if self.learns:
            self._reached = reached

    def is_finite(self) -> bool:
        """Return whether the summed gradients of these rows are finite."""
        return is_finite(self.gradient[torch.from_numpy(self._places)])

    def gather(self, places: Ids) -> Tensor:
        """Copy the tensor's rows [k, dim] in some places."""
        return self._rows.index_select(0, to_device(places, self._rows.device))

    def accumulate(self, places: Ids, gradient: Tensor) -> None:
        """Add gradients [k, dim] of rows in distinct places."""
        add_rows(gradient, places, self.gradient)


class _ReadRows(torch.autograd.Function):
    """Reads rows of a leaf, and adds their gradients to the leaf's sum in place. Plain indexing in
    torch would make a gradient of all the leaf's rows at each read, and add these up."""

    @staticmethod
    def forward(ctx: Any, reached: Tensor, leaf: Leaf, places: Ids) -> Tensor:
        """Copy rows of the leaf. ``reached`` only ties the read to autograd's graph."""
        ctx.leaf, ctx.places = leaf, places
        return leaf.gather(places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Add the gradient to the leaf's sum in place."""
        ctx.leaf.accumulate(ctx.places, gradient)
        # This is the gradient of ``reached``, which is on the CPU wherever the rows are.
        return torch.empty(0), None, None


class LeafRows:
    """Rows of any number of tables, given by table, and by name of a type in subgraphs the table
    that it reads."""

    def __init__(self, leaves: Mapping[str, Leaf], tables: Mapping[str, str]) -> None:
        self._leaves, self._tables = leaves, tables

    def of(self, node_type: str, ids: Ids) -> Tensor:
        """Return the rows [m, dim] of distinct nodes of a type, given its name in subgraphs."""
        return self._leaves[self._tables[node_type]].of(ids)


def add_rows(rows: Tensor, places: Ids, out: Tensor) -> None:
    """Add ``rows`` [n, dim] to ``out[places]``, for distinct places [n] in ``out`` [m, dim], which
    is contiguous and of the rows' dtype and device."""
    if out.device.type != "cpu":
        out.index_add_(0, to_device(places, out.device), rows)
        return
    with threads_for(places.size):
        # torch's index_add_ takes ten times as long on CPUs.
        _add(rows.contiguous().numpy(), places, out.numpy())


@kernel(parallel=True)
def _add(rows: NDArray[Any], places: Ids, out: NDArray[Any]) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(out.shape[1]):
            out[place, j] += rows[i, j]
