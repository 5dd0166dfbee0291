"""Draw edges between two node types whose communities correspond, node by node.

Nodes of each type have positions on a line, and edges are drawn, as in
:mod:`hopper.graph.degree_corrected`. The same binary hierarchy divides both lines: community k of a
level has the k-th share of each type.
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
    """Draw the far end of an edge of position p of the near type."""
    level = max(0, min(draw_level(stream, p, near), deepest) - climb)
    k = community(p, level, near.nodes)
    first, last = (far * k) >> level, (far * (k + 1)) >> level
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
    indptr: [near + 1] int64, bounds of each node's edges in ``out``. A node has at most a quarter
        as many edges as the far type has nodes.
    position_of: [near] int64, the position of each node.
    far_id_of: [far] int64, the node of the far type at each position.
    sums: [far + 1] uint64, running sum of the far type's weights by position.
    out: [indptr[-1]] int64, receives node ids, distinct and ascending in each row.
    """
    far = far_id_of.size
    for node in numba.prange(indptr.size - 1):
        row = out[indptr[node] : indptr[node + 1]]
        p = position_of[node]
        node_key = mix(key ^ mix(np.uint64(p)))
        deepest = near.thresholds.size - 1
        while deepest > 0 and (far >> deepest) < ROOM * row.size:
            deepest -= 1
        distinct, step = 0, np.uint64(0)
        for turn in range(TURNS):
            if distinct == row.size:
                break
            for i in range(distinct, row.size):
                row[i] = _draw_far(mix(node_key ^ step), p, deepest, turn // 2, near, far, sums)
                step += np.uint64(1)
            distinct = keep_distinct(row)
        q = (far * community(p, deepest, near.nodes)) >> deepest
        while distinct < row.size:
            q = (q + 1) % far
            place = np.searchsorted(row[:distinct], q)
            if place == distinct or row[place] != q:
                row[distinct] = q
                distinct += 1
                row[:distinct].sort()
        for j in range(row.size):
            row[j] = far_id_of[row[j]]
        row.sort()
