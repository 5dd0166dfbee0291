"""Draw the edges of a degree-corrected nested block model, row by row.

Each node has a *position* on a line. A binary hierarchy of communities halves that line level by
level, so a community is a range of positions. Every edge draws a level from the preset's shares.
Then it draws its far end within the near end's community of that level, with probability
proportional to a power-law weight (Karrer and Newman, Phys. Rev. E 83, 2011, for the degree
correction; Peixoto, Phys. Rev. X 4, 2014, for the nesting). Between two node types, community k of
a level has the k-th share of each type.

Every number is a pure function of (key, position), and no step divides or rounds differently on
another processor. So a graph does not depend on threads, chunks or machines. Each row is drawn by
one node, so no list of all edges is ever sorted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import below, mix, variate
from cache_server.kernel import kernel

Ids = NDArray[np.int64]

TURNS = 24
TRIES = 8
# A node that draws k edges chooses among at least this many times k candidates.
ROOM = 4


class Hierarchy(NamedTuple):
    """Nested communities on positions [0, count), and how edges spread over their levels."""

    nodes: int
    local_level: int
    """level of the communities within which edges stay that are in none of the preset's shares"""
    thresholds: NDArray[np.uint64]
    """[depth + 1] uint64: cumulative share of edges at levels 0..l, times 2**64"""
    secluded: NDArray[np.bool_]
    """[2 ** local_level]: local communities that take no part in level 0"""


def find_depth(count: int, leaf: int, shares: tuple[float, ...]) -> int:
    """Return the last level whose communities have ``leaf`` nodes."""
    return max(len(shares), (count // leaf).bit_length() - 1)


def level_thresholds(depth: int, shares: tuple[float, ...], local_level: int) -> NDArray[np.uint64]:
    """Return [depth + 1] uint64: cumulative share of edges by level, times 2**64.

    ``shares[l]`` of the edges are drawn at level l. The remaining edges are spread evenly over the
    levels from ``local_level`` to the depth.
    """
    share = np.zeros(depth + 1)
    share[: len(shares)] = shares
    share[local_level:] += (1.0 - math.fsum(shares)) / (depth + 1 - local_level)
    cumulative = np.minimum(np.cumsum(share), 1.0)
    # 2**53 steps are exact in float64; the last level takes the remaining edges.
    thresholds = (cumulative[:-1] * float((1 << 53) - 1)).astype(np.uint64) << np.uint64(11)
    return np.append(thresholds, np.uint64(0xFFFFFFFFFFFFFFFF))


@kernel
def community(position: int, level: int, count: int) -> int:
    """Return the community of a position at a level; community k starts at count * k >> level."""
    return (((position + 1) << level) - 1) // count


def communities(positions: Ids, level: int) -> Ids:
    """Return [count] int64: each position's community at a level."""
    return (((positions + 1) << level) - 1) // positions.size


@kernel(parallel=True)
def power_law_weights(key: np.uint64, count: int, exponent: float) -> NDArray[np.float64]:
    """Return [count] float64 >= 1: weights whose tail falls as w ** -exponent.

    This is Pareto's quantile function, with logarithm and power interpolated linearly between
    powers of two. It adds and multiplies only, so every processor computes the same bits.
    """
    out = np.empty(count, np.float64)
    for p in numba.prange(count):
        x = variate(key, np.uint64(p)) | np.uint64(1)
        zeros = 0
        while x < np.uint64(0x8000000000000000):
            x <<= np.uint64(1)
            zeros += 1
        fraction = np.float64((x << np.uint64(1)) >> np.uint64(11)) / 9007199254740992.0
        power = (zeros + (1.0 - fraction)) / (exponent - 1.0)
        whole = int(power)
        out[p] = np.float64(1 << whole) * (1.0 + (power - whole))
    return out


def cap_weights(weights: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    """Cap the weights in place at about ``largest`` times their mean, and return them."""
    for _ in range(8):
        # The sum is taken in integers: a sum of floats depends on how a processor groups them.
        mean = int((weights * 65536.0).astype(np.uint64).sum()) / 65536.0 / weights.size
        np.minimum(weights, largest * mean, out=weights)
    return weights


def cumulative_weights(weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return [count + 1] uint64: running sum of the weights in steps of 2**-16, from 0."""
    sums = np.empty(weights.size + 1, np.uint64)
    sums[0] = 0
    np.cumsum((weights * 65536.0).astype(np.uint64), out=sums[1:])
    return sums


def apportion(sums: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """Divide ``total`` in proportion to weights, each within one of its exact share: [count] int64.

    Parameters
    ----------
    sums: [count + 1] uint64, running sum of the weights.
    """
    marks = np.floor(sums.astype(np.float64) * (total / float(sums[-1]))).astype(np.int64)
    marks[-1] = total
    return np.diff(marks)


@kernel
def search(sums: NDArray[np.uint64], low: int, high: int, x: np.uint64) -> int:
    """Return the p in [low, high) with ``sums[p] <= x < sums[p + 1]``."""
    while high - low > 1:
        centre = (low + high) >> 1
        if sums[centre] <= x:
            low = centre
        else:
            high = centre
    return low


@kernel
def _may_draw(p: int, q: int, undirected: bool) -> bool:
    """Return whether p may draw the edge {p, q} of their type.

    Only one end of an undirected pair may: the lower position if their sum is even, else the higher
    one. So every node may draw half of its pairs, and no pair comes up twice.
    """
    if p == q:
        return False
    return not undirected or (((p + q) & 1) == 0) == (p < q)


@kernel
def _is_secluded(p: int, near: Hierarchy) -> bool:
    return near.secluded[community(p, near.local_level, near.nodes)]


@kernel
def _draw_level(stream: np.uint64, p: int, near: Hierarchy) -> int:
    """Draw the level of an edge of position p; secluded communities draw no level 0."""
    x = variate(stream, np.uint64(0))
    level = 0
    while level < near.thresholds.size - 1 and x >= near.thresholds[level]:
        level += 1
    if level == 0 and _is_secluded(p, near):
        spread = np.uint64(near.thresholds.size - near.local_level)
        return near.local_level + int(below(variate(stream, np.uint64(1)), spread))
    return level


@kernel
def _draw_one(
    stream: np.uint64,
    p: int,
    deepest: int,
    climb: int,
    near: Hierarchy,
    sums: NDArray[np.uint64],
    within: bool,
    undirected: bool,
) -> int:
    """Draw the far end of an edge of position p; return -1 if no try gives one that p may draw."""
    level = max(0, min(_draw_level(stream, p, near), deepest) - climb)
    k, far = community(p, level, near.nodes), sums.size - 1
    first, last = (far * k) >> level, (far * (k + 1)) >> level
    low, width = sums[first], sums[last] - sums[first]
    for attempt in range(2, 2 + TRIES):
        q = search(sums, first, last, low + below(variate(stream, np.uint64(attempt)), width))
        if not within:
            return q
        if _may_draw(p, q, undirected) and (level > 0 or not _is_secluded(q, near)):
            return q
    return -1


@kernel
def _keep_distinct(row: NDArray[np.int32]) -> int:
    """Sort a row, move its distinct non-negative values to the front, and return their number."""
    row.sort()
    distinct = 0
    for i in range(row.size):
        if row[i] >= 0 and (distinct == 0 or row[i] != row[distinct - 1]):
            row[distinct] = row[i]
            distinct += 1
    return distinct


@kernel
def _draw_row(
    key: np.uint64,
    p: int,
    near: Hierarchy,
    sums: NDArray[np.uint64],
    within: bool,
    undirected: bool,
    row: NDArray[np.int32],
) -> None:
    """Fill ``row`` with distinct positions of the far type."""
    far, deepest = sums.size - 1, near.thresholds.size - 1
    while deepest > 0 and (far >> deepest) < ROOM * row.size:
        deepest -= 1
    distinct, step = 0, np.uint64(0)
    for turn in range(TURNS):
        # Edges that a small community could not give are drawn in the larger ones around it.
        climb = turn // 2
        for i in range(distinct, row.size):
            row[i] = _draw_one(mix(key ^ step), p, deepest, climb, near, sums, within, undirected)
            step += np.uint64(1)
        distinct = _keep_distinct(row)
        if distinct == row.size:
            return
    q = p if within else (far * community(p, deepest, near.nodes)) >> deepest
    while distinct < row.size:
        q = (q + 1) % far
        place = np.searchsorted(row[:distinct], q)
        is_allowed = not within or _may_draw(p, q, undirected)
        if is_allowed and (place == distinct or row[place] != q):
            row[distinct] = q
            distinct += 1
            row[:distinct].sort()


@kernel(parallel=True)
def draw_rows(
    key: np.uint64,
    indptr: Ids,
    positions: Ids,
    far_id_of: Ids,
    near: Hierarchy,
    sums: NDArray[np.uint64],
    within: bool,
    undirected: bool,
    out: NDArray[np.int32],
) -> None:
    """Draw the edges of some nodes, distinct in each row and ascending.

    Parameters
    ----------
    indptr: [rows + 1] int64, bounds of each node's edges in ``out``, counted from indptr[0]. A node
        has at most a quarter as many edges as the far type has nodes.
    positions: [rows] int64, the positions of these nodes.
    far_id_of: [far] int64, the node of the far type at each position.
    sums: [far + 1] uint64, running sum of the far type's weights by position.
    within: whether the far type is the near one; then no node draws itself.
    undirected: whether each pair is drawn by one of its nodes only.
    out: [indptr[-1] - indptr[0]] int32, receives node ids.
    """
    for i in numba.prange(indptr.size - 1):
        p = positions[i]
        row = out[indptr[i] - indptr[0] : indptr[i + 1] - indptr[0]]
        if row.size > 0:
            node_key = mix(key ^ mix(np.uint64(p)))
            _draw_row(node_key, p, near, sums, within, undirected, row)
            for j in range(row.size):
                row[j] = far_id_of[row[j]]
            row.sort()
