"""Draw a degree-corrected nested block model: edges row by row, classes and features.

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
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import below, key_of, mix, variate
from cache_server.kernel import kernel
from hopper.graph.topology import Ids

TURNS: Final = 24
TRIES: Final = 8
ROOM: Final = 4
"""A node that draws k edges chooses among at least this many times k candidates."""
_UNIT: Final = 1.0 / 9007199254740992.0
_SPREAD: Final = 37837.22
"""Standard deviation of the sum of four integers uniform on [0, 65536)."""


class Hierarchy(NamedTuple):
    """Nested communities on positions [0, nodes), and how edges spread over their levels."""

    nodes: int
    local_level: int
    """level of the communities within which edges stay that are in none of the preset's shares"""
    thresholds: NDArray[np.uint64]
    """[depth + 1] uint64: cumulative share of edges at levels 0..l, times 2**64"""
    secluded: NDArray[np.bool_]
    """[2 ** local_level]: local communities that take no part in level 0"""


class FarEnds(NamedTuple):
    """What a relation's edges may end in."""

    id_of: Ids
    """[far] int64: the node of the far type at each position"""
    sums: NDArray[np.uint64]
    """[far + 1] uint64: running sum of the far type's weights by position"""
    within: bool
    """whether the far type is the near one; then no node draws itself"""
    undirected: bool
    """whether each pair is drawn by one of its nodes only"""


def draw_hierarchy(
    key: int, count: int, depth: int, local_level: int, shares: tuple[float, ...], secluded: float
) -> Hierarchy:
    """Draw ``shares[l]`` of the edges at level l, and spread the rest evenly from ``local_level``
    to the depth."""
    share = np.zeros(depth + 1)
    share[: len(shares)] = shares
    share[local_level:] += (1.0 - math.fsum(shares)) / (depth + 1 - local_level)
    cumulative = np.minimum(np.cumsum(share), 1.0)
    # 2**53 steps are exact in float64; the last level takes the remaining edges.
    thresholds = (cumulative[:-1] * float((1 << 53) - 1)).astype(np.uint64) << np.uint64(11)
    order, _ = shuffle(key, 1 << local_level)
    is_secluded = order < round(secluded * order.size)
    return Hierarchy(count, local_level, np.append(thresholds, ~np.uint64(0)), is_secluded)


@kernel
def _community(position: int, level: int, count: int) -> int:
    """Return the community of a position at a level; community k starts at count * k >> level."""
    return (((position + 1) << level) - 1) // count


def communities(positions: Ids, level: int) -> Ids:
    """Return [count] int64: each position's community at a level."""
    return (((positions + 1) << level) - 1) // positions.size


@kernel(parallel=True)
def _variates(key: np.uint64, count: int) -> NDArray[np.uint64]:
    out = np.empty(count, np.uint64)
    for i in numba.prange(count):
        out[i] = variate(key, np.uint64(i))
    return out


def shuffle(key: int, count: int) -> tuple[Ids, Ids]:
    """Draw a permutation; return it and its inverse, each [count] int64."""
    order = np.argsort(_variates(np.uint64(key), count), kind="stable")
    return order, invert(order)


def invert(order: Ids) -> Ids:
    """Return the inverse of a permutation."""
    inverse = np.empty(order.size, np.int64)
    inverse[order] = np.arange(order.size)
    return inverse


def draw_classes(key: int, count: int, classes: int) -> Ids:
    """Draw each community's class: [count] int64; low classes have more than high ones, and each
    has one if there are enough communities."""
    order, _ = shuffle(key_of(key, 0), count)
    share = (_variates(np.uint64(key_of(key, 1)), count) >> np.uint64(11)) * _UNIT
    values = (classes * share * (1.0 + 2.0 * share) / 3.0).astype(np.int64)
    first = order[:classes]
    values[first] = np.arange(first.size)
    return values


@kernel(parallel=True)
def add_noise(key: np.uint64, clean: Ids, classes: int, noise: float) -> Ids:
    """Return [count] int64: each node's class, or with probability ``noise`` any class."""
    out = np.empty(clean.size, np.int64)
    for i in numba.prange(clean.size):
        out[i] = clean[i]
        if np.float64(variate(key, np.uint64(2 * i)) >> np.uint64(11)) * _UNIT < noise:
            out[i] = np.int64(below(variate(key, np.uint64(2 * i + 1)), np.uint64(classes)))
    return out


def draw_centroids(key: int, classes: int, dim: int, signal: float) -> NDArray[np.float32]:
    """Draw vectors of length ``signal`` in random directions: [classes, dim] float32."""
    signs = (_variates(np.uint64(key), classes * dim) >> np.uint64(63)).astype(np.float32) * 2 - 1
    return (signs * np.float32(signal / math.sqrt(dim))).reshape(classes, dim)


@kernel
def _bell(x: np.uint64) -> np.float32:
    """Return a nearly normal number of mean 0 and variance 1: a sum of a variate's 16-bit words."""
    low = np.uint64(0xFFFF)
    words = (x & low) + ((x >> np.uint64(16)) & low) + ((x >> np.uint64(32)) & low)
    return np.float32((np.float64(words + (x >> np.uint64(48))) - 131070.0) / _SPREAD)


@kernel(parallel=True)
def draw_features(
    key: np.uint64, first: int, classes: Ids, centroids: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Draw the features, [n, dim], of nodes ``first ..``: a class's centroid plus noise."""
    out = np.empty((classes.size, centroids.shape[1]), np.float32)
    for i in numba.prange(classes.size):
        row = mix(key ^ mix(np.uint64(first + i)))
        for j in range(out.shape[1]):
            out[i, j] = centroids[classes[i], j] + _bell(variate(row, np.uint64(j)))
    return out


@kernel(parallel=True)
def _power_law(key: np.uint64, count: int, exponent: float) -> NDArray[np.float64]:
    """Return [count] float64 >= 1: weights whose tail falls as w ** -exponent."""
    # Pareto's quantile function, interpolated linearly between powers of two. It adds and
    # multiplies only, so every processor computes the same bits.
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


def draw_weights(key: int, count: int, exponent: float, largest: float) -> NDArray[np.uint64]:
    """Draw power-law weights, capped at about ``largest`` times their mean; return their running
    sum in steps of 2**-16, from 0: [count + 1] uint64."""
    weights = _power_law(np.uint64(key), count, exponent)
    for _ in range(8):
        # The sum is taken in integers: a sum of floats depends on how a processor groups them.
        mean = int((weights * 65536.0).astype(np.uint64).sum()) / 65536.0 / count
        np.minimum(weights, largest * mean, out=weights)
    sums = np.zeros(count + 1, np.uint64)
    np.cumsum((weights * 65536.0).astype(np.uint64), out=sums[1:])
    return sums


def apportion(sums: NDArray[np.uint64], total: int) -> Ids:
    """Divide ``total`` in proportion to weights, of which ``sums`` is the running sum, each within
    one of its exact share: [count] int64."""
    marks = np.floor(sums.astype(np.float64) * (total / float(sums[-1]))).astype(np.int64)
    marks[-1] = total
    return np.diff(marks)


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
    return near.secluded[_community(p, near.local_level, near.nodes)]


@kernel
def _draw_level(stream: np.uint64, p: int, near: Hierarchy) -> int:
    """Draw the level of an edge of position p; secluded communities draw no level 0."""
    depth = near.thresholds.size - 1
    x = variate(stream, np.uint64(0))
    level = min(int(np.searchsorted(near.thresholds, x, side="right")), depth)
    if level == 0 and _is_secluded(p, near):
        spread = np.uint64(depth + 1 - near.local_level)
        return near.local_level + int(below(variate(stream, np.uint64(1)), spread))
    return level


@kernel
def _draw_one(stream: np.uint64, p: int, level: int, near: Hierarchy, far: FarEnds) -> int:
    """Draw the far end of an edge of position p; return -1 if no try gives one that p may draw."""
    k, count, sums = _community(p, level, near.nodes), far.id_of.size, far.sums
    first, last = (count * k) >> level, (count * (k + 1)) >> level
    low, width = sums[first], sums[last] - sums[first]
    for attempt in range(2, 2 + TRIES):
        x = low + below(variate(stream, np.uint64(attempt)), width)
        q = first + np.searchsorted(sums[first:last], x, side="right") - 1
        if not far.within:
            return q
        if _may_draw(p, q, far.undirected) and (level > 0 or not _is_secluded(q, near)):
            return q
    return -1


@kernel
def _draw_row(
    key: np.uint64, p: int, near: Hierarchy, far: FarEnds, row: NDArray[np.int32]
) -> None:
    """Fill ``row`` with distinct positions of the far type."""
    count, deepest = far.id_of.size, near.thresholds.size - 1
    while deepest > 0 and (count >> deepest) < ROOM * row.size:
        deepest -= 1
    distinct, step = 0, np.uint64(0)
    for turn in range(TURNS):
        for i in range(distinct, row.size):
            stream = mix(key ^ step)
            # Edges that a small community could not give are drawn in the larger ones around it.
            level = max(0, min(_draw_level(stream, p, near), deepest) - turn // 2)
            row[i] = _draw_one(stream, p, level, near, far)
            step += np.uint64(1)
        row.sort()
        distinct = 0
        for i in range(row.size):
            if row[i] >= 0 and (distinct == 0 or row[i] != row[distinct - 1]):
                row[distinct] = row[i]
                distinct += 1
        if distinct == row.size:
            return
    q = p if far.within else (count * _community(p, deepest, near.nodes)) >> deepest
    while distinct < row.size:
        q = (q + 1) % count
        place = np.searchsorted(row[:distinct], q)
        is_allowed = not far.within or _may_draw(p, q, far.undirected)
        if is_allowed and (place == distinct or row[place] != q):
            row[distinct] = q
            distinct += 1
            row[:distinct].sort()


@kernel(parallel=True)
def draw_rows(
    key: np.uint64, indptr: Ids, positions: Ids, near: Hierarchy, far: FarEnds, out: NDArray[Any]
) -> None:
    """Draw the edges of some nodes, at ``positions``, distinct in each row and ascending.

    ``indptr`` has the bounds of each node's edges in ``out``, [edges] int32, counted from
    indptr[0]. A node has at most a quarter as many edges as the far type has nodes.
    """
    for i in numba.prange(indptr.size - 1):
        p = positions[i]
        row = out[indptr[i] - indptr[0] : indptr[i + 1] - indptr[0]]
        if row.size > 0:
            _draw_row(mix(key ^ mix(np.uint64(p))), p, near, far, row)
            for j in range(row.size):
                row[j] = far.id_of[row[j]]
            row.sort()
