"""Sums of gradients of learnable rows, and the merging of the rows that several ranks read.

A row's gradients are added in one order, so results depend neither on the number of threads nor on
their timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.device.copies import to_device
from hopper.device.kernel_threads import threads_for

Ids = NDArray[np.int64]
Array = NDArray[Any]


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
        # torch's index_add_ takes ten times as long on CPUs.
        _add(rows.contiguous().numpy(), places, out.numpy())


def merge_places(groups: Sequence[Ids]) -> tuple[Ids, list[Ids]]:
    """Merge groups of places.

    Parameters
    ----------
    groups: one array at least, [n] int64 each, distinct and ascending.

    Returns
    -------
    The places [m], int64, ascending, that are in any group. And for each group, the indices [n],
    int64, of its places among these.
    """
    joined = np.concatenate(groups)
    # A stable sort merges runs that ascend.
    order = np.argsort(joined, kind="stable")
    ordered = joined[order]
    is_new = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    within = np.empty(ordered.size, np.int64)
    within[order] = np.cumsum(is_new) - 1
    return ordered[is_new], np.split(within, np.cumsum([group.size for group in groups])[:-1])


@kernel(parallel=True)
def _add(rows: Array, places: Ids, out: Array) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(out.shape[1]):
            out[place, j] += rows[i, j]
