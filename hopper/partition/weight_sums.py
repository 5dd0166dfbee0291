"""Weights of edges as draws read them: whole numbers, summed up within each neighbour list."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel

_UNITS: Final = float(1 << 32)
"""of a relation's largest weight"""

Ids = NDArray[np.int64]


def units_of(weights: NDArray[np.float32], largest: float) -> Ids:
    """[n] int64: weights in whole units (docs/draws.md).

    Parameters
    ----------
    weights: [n] float32, positive. largest: of the relation.
    """
    shares = weights.astype(np.float64) / largest
    return np.maximum(1, np.floor(shares * _UNITS)).astype(np.int64)


@kernel
def add_up(weights: Ids, indptr: Ids, first: int, last: int, out: Ids) -> None:
    """Running sums of weights within the neighbour lists of some destinations.

    Parameters
    ----------
    weights: [edges of the destinations from ``first`` to ``last``] int64. out: [edges], written.
    """
    begin = indptr[first]
    for node in range(first, last):
        total = np.int64(0)
        for edge in range(indptr[node], indptr[node + 1]):
            total += weights[edge - begin]
            out[edge] = total
