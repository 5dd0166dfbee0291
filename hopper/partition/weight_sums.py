"""Convert weights of edges to the integer running sums that draws read."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel

_UNITS: Final = float(1 << 32)
"""Units of a relation's largest weight."""

Ids = NDArray[np.int64]


def to_units(weights: NDArray[np.float32], largest: float) -> Ids:
    """Convert weights to whole units (docs/inside/draws.md): [n] int64.

    Parameters
    ----------
    weights: [n] float32, positive.
    largest: the relation's largest weight.
    """
    shares = weights.astype(np.float64) / largest
    return np.maximum(1, np.floor(shares * _UNITS)).astype(np.int64)


@kernel
def add_up(weights: Ids, indptr: Ids, first: int, last: int, out: Ids) -> None:
    """Compute running sums of weights within the neighbour lists of some destinations.

    Parameters
    ----------
    weights: [edges of the destinations in [``first``, ``last``)] int64.
    out: [edges] int64, receives the sums.
    """
    begin = indptr[first]
    for node in range(first, last):
        total = np.int64(0)
        for edge in range(indptr[node], indptr[node + 1]):
            total += weights[edge - begin]
            out[edge] = total
