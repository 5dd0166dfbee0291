"""Edges between two node types whose communities correspond, drawn node by node.

Both types stand on lines of positions that the same binary hierarchy divides: community k of a
level holds the k-th share of each type (see :mod:`hopper.graph.degree_corrected`, whose ways of
drawing are used).
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import below, mix, variate
from cache_server.kernel import kernel
from hopper.graph.degree_corrected import (
    ROOM,
    TURNS,
    Hierarchy,
    community,
    draw_level,
    keep_distinct,
    search,
)


@kernel
def _draw_far(
    stream: np.uint64,
    p: int,
    deepest: int,
    climb: int,
    near: Hierarchy,
    far: int,
    sums: NDArray[np.uint64],
) -> int:
    """The far end of one edge of position p of the near type."""
    level = max(0, min(draw_level(stream, p, near), deepest) - climb)
    own = community(p, level, near.nodes)
    first, last = (far * own) >> level, (far * (own + 1)) >> level
    low, width = sums[first], sums[last] - sums[first]
    return search(sums, first, last, low + below(variate(stream, np.uint64(2)), width))


@kernel(parallel=True)
def draw_between(
    key: np.uint64,
    indptr: NDArray[np.int64],
    position_of: NDArray[np.int64],
    far_id_of: NDArray[np.int64],
    near: Hierarchy,
    sums: NDArray[np.uint64],
    out: NDArray[np.int64],
) -> None:
    """Draw the far ends of all edges of one type's nodes.

    Parameters
    ----------
    indptr: [near + 1] int64, where each node's edges stand in ``out``; at most a quarter of the far
        type's number for any node.
    position_of: [near] int64, where the node of an id stands.
    far_id_of: [far] int64, the node at a position of the other type.
    sums: [far + 1] uint64, running sum of the far type's weights by position.
    out: [indptr[-1]] int64; each row ends up distinct and ascending.
    """
    far = far_id_of.size
    for node in numba.prange(indptr.size - 1):
        row = out[indptr[node] : indptr[node + 1]]
        p = position_of[node]
        own_key = mix(key ^ mix(np.uint64(p)))
        deepest = near.thresholds.size - 1
        while deepest > 0 and (far >> deepest) < ROOM * row.size:
            deepest -= 1
        kept, step = 0, np.uint64(0)
        for turn in range(TURNS):
            if kept == row.size:
                break
            for i in range(kept, row.size):
                row[i] = _draw_far(mix(own_key ^ step), p, deepest, turn // 2, near, far, sums)
                step += np.uint64(1)
            kept = keep_distinct(row)
        q = (far * community(p, deepest, near.nodes)) >> deepest
        while kept < row.size:
            q = (q + 1) % far
            place = np.searchsorted(row[:kept], q)
            if place == kept or row[place] != q:
                row[kept] = q
                kept += 1
                row[:kept].sort()
        for j in range(row.size):
            row[j] = far_id_of[row[j]]
        row.sort()
