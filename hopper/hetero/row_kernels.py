"""The numba kernels of learnable rows: reading rows out of records, adding gradients up, and which
records several ranks read.

Threads write only rows of their own, and a row's gradients are added in one order, so results
depend neither on the number of threads nor on their timing. Tensors on a device take torch's
operations instead.
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
from hopper.device_copies import to_device
from hopper.kernel_threads import threads_for

Ids = NDArray[np.int64]
Array = NDArray[Any]


def gather_rows(records: Tensor, places: Ids, out: Tensor) -> None:
    """Copy the first part of records, their row, in any places.

    Parameters
    ----------
    records: [records, parts, dim]. places: [n] int64. out: [n, dim] of the records' dtype.
        All but ``places`` are on one device, and contiguous.
    """
    if out.device.type != "cpu":
        torch.index_select(records[:, 0], 0, to_device(places, out.device), out=out)
        return
    with threads_for(places.size):
        _gather(records.numpy(), places, out.numpy())


def put_rows(rows: Tensor, places: Ids, out: Tensor) -> None:
    """``out[places] = rows``, in distinct places; shapes and devices as of :func:`add_rows`."""
    if out.device.type != "cpu":
        out.index_copy_(0, to_device(places, out.device), rows)
        return
    with threads_for(places.size):
        _put(rows.contiguous().numpy(), places, out.numpy())


def add_rows(rows: Tensor, places: Ids, out: Tensor) -> None:
    """``out[places] += rows``, in distinct places.

    Parameters
    ----------
    rows: [n, dim]. places: [n] int64. out: [m, dim] of the rows' dtype and device, contiguous.
    """
    if out.device.type != "cpu":
        out.index_add_(0, to_device(places, out.device), rows)
        return
    with threads_for(places.size):
        _add(rows.contiguous().numpy(), places, out.numpy())


def zero_rows(places: Ids, out: Tensor) -> None:
    """``out[places] = 0``; shapes and devices as of :func:`add_rows`."""
    if out.device.type != "cpu":
        out.index_fill_(0, to_device(places, out.device), 0)
        return
    with threads_for(places.size):
        _zero(places, out.numpy())


def merge_places(groups: Sequence[Ids]) -> tuple[Ids, list[Ids]]:
    """The distinct places of several groups.

    Parameters
    ----------
    groups: [n] int64 each, distinct and ascending.

    Returns
    -------
    [m] int64, ascending: the places that are in any group; and, for each group, [n] int64: where
    its places are among these.
    """
    sizes = [group.size for group in groups]
    # Often one rank alone reads a table's rows.
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
    """``flags[places] = True``: [rows] bool on the CPU and [n] int64."""
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
    found = 0
    while True:
        smallest = np.iinfo(np.int64).max
        is_left = False
        for group in range(stops.size):
            if heads[group] < stops[group]:
                smallest = min(smallest, groups[heads[group]])
                is_left = True
        if not is_left:
            return places[:found].copy(), within
        for group in range(stops.size):
            head = heads[group]
            if head < stops[group] and groups[head] == smallest:
                within[head] = found
                heads[group] = head + 1
        places[found] = smallest
        found += 1


@kernel
def _mark(flags: NDArray[np.bool_], places: Ids) -> None:
    for i in range(places.size):
        flags[places[i]] = True
