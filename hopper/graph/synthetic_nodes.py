"""Draw the data of a synthetic graph's nodes: classes that follow communities, features, splits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import below, key_of, mix, variate
from cache_server.kernel import kernel
from hopper.graph.degree_corrected import community
from hopper.graph.write import GraphWriter

_UNIT = 1.0 / 9007199254740992.0
# Standard deviation of the sum of four integers uniform on [0, 65536).
_SPREAD = 37837.22


@kernel(parallel=True)
def _variates(key: np.uint64, count: int) -> NDArray[np.uint64]:
    out = np.empty(count, np.uint64)
    for i in numba.prange(count):
        out[i] = variate(key, np.uint64(i))
    return out


def shuffle(key: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw a permutation; return it and its inverse, each [count] int64."""
    order = np.argsort(_variates(np.uint64(key), count), kind="stable")
    inverse = np.empty(count, np.int64)
    inverse[order] = np.arange(count)
    return order, inverse


def write_splits(key: int, writer: GraphWriter, count: int) -> None:
    """Distribute ``count`` nodes among the schema's splits at random, and write the splits."""
    order, _ = shuffle(key, count)
    first = 0
    for name, size in writer.schema.splits.items():
        writer.split(name, order[first : first + size])
        first += size


def community_classes(key: int, communities: int, classes: int) -> NDArray[np.int64]:
    """Draw each community's class: [communities] int64; low classes have more than high ones.

    Every class has a community if there are enough of them.
    """
    order, _ = shuffle(key_of(key, 0), communities)
    share = (_variates(np.uint64(key_of(key, 1)), communities) >> np.uint64(11)) * _UNIT
    values = (classes * share * (1.0 + 2.0 * share) / 3.0).astype(np.int64)
    first = order[:classes]
    values[first] = np.arange(first.size)
    return values


@kernel
def _add_noise(key: np.uint64, i: int, clean: np.int64, classes: int, noise: float) -> np.int64:
    """Return node i's class ``clean``, or with probability ``noise`` any class."""
    if np.float64(variate(key, np.uint64(2 * i)) >> np.uint64(11)) * _UNIT < noise:
        return np.int64(below(variate(key, np.uint64(2 * i + 1)), np.uint64(classes)))
    return clean


@kernel(parallel=True)
def noisy_classes(
    key: np.uint64, clean: NDArray[np.int64], classes: int, noise: float
) -> NDArray[np.int64]:
    """Return [count] int64: each node's class, or with probability ``noise`` any class."""
    out = np.empty(clean.size, np.int64)
    for i in numba.prange(clean.size):
        out[i] = _add_noise(key, i, clean[i], classes, noise)
    return out


@kernel(parallel=True)
def node_classes(
    key: np.uint64,
    position_of: NDArray[np.int64],
    level: int,
    of_community: NDArray[np.int64],
    classes: int,
    noise: float,
) -> NDArray[np.int64]:
    """Return [count] int64: the class of each node's community, or with probability ``noise`` any
    class.

    Parameters
    ----------
    position_of: [count] int64, the position of each node.
    of_community: [communities] int64, the class of each community of ``level``.
    """
    out = np.empty(position_of.size, np.int64)
    for i in numba.prange(position_of.size):
        clean = of_community[community(position_of[i], level, position_of.size)]
        out[i] = _add_noise(key, i, clean, classes, noise)
    return out


@kernel
def _bell(x: np.uint64) -> np.float32:
    """Return a number of mean 0 and variance 1, nearly normal: the sum of a variate's 16-bit
    words."""
    low = np.uint64(0xFFFF)
    words = (x & low) + ((x >> np.uint64(16)) & low) + ((x >> np.uint64(32)) & low)
    return np.float32((np.float64(words + (x >> np.uint64(48))) - 131070.0) / _SPREAD)


def class_centroids(key: int, classes: int, dim: int, signal: float) -> NDArray[np.float32]:
    """Draw vectors of length ``signal`` in random directions: [classes, dim] float32."""
    signs = (_variates(np.uint64(key), classes * dim) >> np.uint64(63)).astype(np.float32) * 2 - 1
    return (signs * np.float32(signal / math.sqrt(dim))).reshape(classes, dim)


@kernel(parallel=True)
def fill_features(
    key: np.uint64,
    first: int,
    labels: NDArray[np.int64],
    centroids: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write the features of nodes ``first ..``: the centroid of a node's class plus noise.

    Parameters
    ----------
    labels: [n] int64, the classes of these nodes.
    centroids: [classes, dim] float32.
    out: [n, dim] float32, receives the features.
    """
    for i in numba.prange(labels.size):
        row = mix(key ^ mix(np.uint64(first + i)))
        for j in range(out.shape[1]):
            out[i, j] = centroids[labels[i], j] + _bell(variate(row, np.uint64(j)))


def split_counts(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return the number of nodes of each split, of ``count`` in all; shares are rounded."""
    edges, reached = [0], 0.0
    for share in shares.values():
        reached += share
        edges.append(min(count, round(count * reached)))
    return {name: high - low for name, low, high in zip(shares, edges[:-1], edges[1:], strict=True)}
