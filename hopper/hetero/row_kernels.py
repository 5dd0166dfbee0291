"""The numba kernels of learnable rows.

They read rows from records, sum gradients, and merge the records that several ranks read. A row is
written by one thread, and its gradients are added in one order, so results depend neither on the
number of threads nor on their timing. Tensors on a device use torch's operations instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.device.copies import to_device
from hopper.device.kernel_threads import threads_for

Ids = NDArray[np.int64]
Array = NDArray[Any]


def gather_rows(records: Tensor, places: Ids, out: Tensor) -> None:
    """Copy the rows of records, which are their first part.

    Parameters
    ----------
    records: [records, parts, dim], contiguous.
    places: [n] int64, the indices of records, in any order.
    out: [n, dim], contiguous, of the records' dtype and device.
    """
    if out.device.type != "cpu":
        torch.index_select(records[:, 0], 0, to_device(places, out.device), out=out)
        return
    with threads_for(places.size):
        _gather(records.numpy(), places, out.numpy())


def put_rows(rows: Tensor, places: Ids, out: Tensor) -> None:
    """Set ``out[places] = rows`` for distinct places; arguments as in :func:`add_rows`."""
    if out.device.type != "cpu":
        out.index_copy_(0, to_device(places, out.device), rows)
        return
    with threads_for(places.size):
        _put(rows.contiguous().numpy(), places, out.numpy())


def add_rows(rows: Tensor, places: Ids, out: Tensor) -> None:
    """Add ``rows`` to ``out[places]`` for distinct places.

    Parameters
    ----------
    rows: [n, dim].
    places: [n] int64.
    out: [m, dim], contiguous, of the rows' dtype and device.
    """
    if out.device.type != "cpu":
        out.index_add_(0, to_device(places, out.device), rows)
        return
    with threads_for(places.size):
        _add(rows.contiguous().numpy(), places, out.numpy())


def zero_rows(places: Ids, out: Tensor) -> None:
    """Set ``out[places] = 0``; arguments as in :func:`add_rows`."""
    if out.device.type != "cpu":
        out.index_fill_(0, to_device(places, out.device), 0)
        return
    with threads_for(places.size):
        _zero(places, out.numpy())


def merge_places(groups: Sequence[Ids]) -> tuple[Ids, list[Ids]]:
    """Merge groups of places.

    Parameters
    ----------
    groups: arrays [n], int64, distinct and ascending.

    Returns
    -------
    The places [m], int64, ascending, that are in any group. And for each group, the indices [n],
    int64, of its places among these.
    """
    sizes = [group.size for group in groups]
    # Often only one rank reads a table's rows.
    for number, group in enumerate(groups):
        if group.size == sum(sizes):
            within = [np.empty(0, np.int64)] * len(groups)
            within[number] = np.arange(group.size)
            return group, within
    if not groups:
        return np.empty(0, np.int64), []
    stops = np.cumsum(sizes)
    places, within_all = _merge(np.concatenate(groups), stops)
    return places, np.split(within_all, stops[:-1])


def mark(flags: Tensor, places: Ids) -> None:
    """Set ``flags[places] = True`` for flags [rows], bool, on the CPU and places [n], int64."""
    _mark(flags.numpy(), places)


@kernel(parallel=True)
def _gather(records: Array, places: Ids, out: Array) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(out.shape[1]):
            out[i, j] = records[place, 0, j]


@kernel(parallel=True)
def _put(rows: Array, places: Ids, out: Array) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(out.shape[1]):
            out[place, j] = rows[i, j]


@kernel(parallel=True)
def _zero(places: Ids, out: Array) -> None:
    for i in numba.prange(places.size):
        out[places[i]] = 0


@kernel(parallel=True)
def _add(rows: Array, places: Ids, out: Array) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(out.shape[1]):
            out[place, j] += rows[i, j]


@kernel
def _merge(groups: Ids, stops: Ids) -> tuple[Ids, Ids]:
    places = np.empty(groups.size, np.int64)
    within = np.empty(groups.size, np.int64)
    heads = np.zeros(stops.size, np.int64)
    heads[1:] = stops[:-1]
    count = 0
    while True:
        smallest = np.iinfo(np.int64).max
        has_more = False
        for group in range(stops.size):
            if heads[group] < stops[group]:
                smallest = min(smallest, groups[heads[group]])
                has_more = True
        if not has_more:
            return places[:count].copy(), within
        for group in range(stops.size):
            head = heads[group]
            if head < stops[group] and groups[head] == smallest:
                within[head] = count
                heads[group] = head + 1
        places[count] = smallest
        count += 1


@kernel
def _mark(flags: NDArray[np.bool_], places: Ids) -> None:
    for i in range(places.size):
        flags[places[i]] = True
