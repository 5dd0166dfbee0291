"""Draw the data of a synthetic graph's nodes: communities, the classes that follow them, features.

Nodes of a graph of several types are in two community structures at once, which agree in their
coarse levels. A target's class depends on its communities in both, so no relation alone reveals it.
A graph of one type has one structure, and its communities have whole classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import below, key_of, mix, variate
from cache_server.kernel import kernel
from hopper.graph.block_model import ROOM, Hierarchy, Ids, communities, find_depth, level_thresholds
from hopper.graph.presets import Preset
from hopper.graph.schema import GraphSchema

# The purpose of each key; part of the specification of a preset's graph.
SHUFFLE, SECLUDED_OR_FINE, IN, OUT, EDGES, CLASSES, NOISE, CENTROIDS, FEATURES, SPLITS = range(10)

_COARSE_LEVEL: Final = 3
"""Last level down to which both structures agree, so that up to eight servers can keep communities
of both whole; it is less deep where communities are few."""
_UNIT: Final = 1.0 / 9007199254740992.0
_SPREAD: Final = 37837.22
"""Standard deviation of the sum of four integers uniform on [0, 65536)."""


def find_label_level(preset: Preset, schema: GraphSchema) -> int:
    """Return the level of the communities that have one class, or one part of a class."""
    counts = {name: kind.count for name, kind in schema.node_types.items()}
    if preset.one_type:
        depth = find_depth(counts[preset.target], preset.leaf, preset.shares)
        return min(preset.label_level, depth)
    room = [
        counts[edges.src] * counts[edges.dst] // (ROOM * schema.relations[edges.relation].count)
        for edges in preset.relations
    ]
    return max(2, min(preset.label_level, min(room).bit_length() - 1))


@dataclass(frozen=True)
class Nodes:
    """The nodes of a type that is being made; lists have an entry for each structure.

    Attributes
    ----------
    positions: [count] int64, the position of each node.
    id_of: [count] int64, the node at each position.
    parts: [count] int64, the part of a class that each node's community has; of the only structure
        the class.
    """

    hierarchy: Hierarchy
    positions: list[Ids]
    id_of: list[Ids]
    parts: list[Ids]


def make_nodes(preset: Preset, schema: GraphSchema, key: int) -> dict[str, Nodes]:
    """Draw the positions of all nodes, and the class or parts of classes of their communities."""
    level = find_label_level(preset, schema)
    return {
        name: _make_type(preset, key, name, kind.count, level)
        for name, kind in schema.node_types.items()
    }


def _make_type(preset: Preset, key: int, name: str, count: int, level: int) -> Nodes:
    type_key = key if preset.one_type else key_of(key, *name.encode())
    depth = find_depth(count, preset.leaf, preset.shares)
    local_level = min(level, depth)
    order, _ = shuffle(key_of(key, SECLUDED_OR_FINE), 1 << local_level)
    hierarchy = Hierarchy(
        count,
        local_level,
        level_thresholds(depth, preset.shares, local_level),
        order < round(preset.secluded * order.size),
    )
    id_of, positions = shuffle(key_of(type_key, SHUFFLE), count)
    if preset.one_type:
        class_of = _community_classes(key_of(key, CLASSES), 1 << level, preset.classes)
        return Nodes(hierarchy, [positions], [id_of], [class_of[communities(positions, level)]])
    # The second structure shuffles nodes again within every coarse community.
    order, _ = shuffle(key_of(type_key, SECLUDED_OR_FINE), count)
    coarse = communities(positions[order], max(1, min(_COARSE_LEVEL, level - 4)))
    second_id_of = order[np.argsort(coarse, kind="stable")]
    structures = [positions, _invert(second_id_of)]
    parts = []
    for number, line in enumerate(structures):
        # The communities of all types have the same parts.
        class_key = key_of(key, CLASSES, number)
        part_of = _community_classes(class_key, 1 << level, count_parts(preset.classes))
        parts.append(part_of[communities(line, level)])
    return Nodes(hierarchy, structures, [id_of, second_id_of], parts)


def count_parts(classes: int) -> int:
    """Return the number of parts of a class in either structure; a part of each makes a class."""
    return max(2, math.isqrt(classes - 1) + 1)


def combine_parts(parts: list[Ids], classes: int) -> Any:
    """Return [n] int64: the class that the parts make up; of two classes, too, both decide."""
    if len(parts) == 1:
        return parts[0]
    a, b = parts
    return (a + b) % 2 if classes == 2 else (a * count_parts(classes) + b) % classes


def shuffle(key: int, count: int) -> tuple[Ids, Ids]:
    """Draw a permutation; return it and its inverse, each [count] int64."""
    order = np.argsort(_variates(np.uint64(key), count), kind="stable")
    return order, _invert(order)


def _invert(order: Ids) -> Ids:
    inverse = np.empty(order.size, np.int64)
    inverse[order] = np.arange(order.size)
    return inverse


def _community_classes(key: int, count: int, classes: int) -> Ids:
    """Draw each community's class: [count] int64; low classes have more than high ones.

    Every class has a community if there are enough of them.
    """
    order, _ = shuffle(key_of(key, 0), count)
    share = (_variates(np.uint64(key_of(key, 1)), count) >> np.uint64(11)) * _UNIT
    values = (classes * share * (1.0 + 2.0 * share) / 3.0).astype(np.int64)
    first = order[:classes]
    values[first] = np.arange(first.size)
    return values


def draw_centroids(key: int, classes: int, dim: int, signal: float) -> NDArray[np.float32]:
    """Draw vectors of length ``signal`` in random directions: [classes, dim] float32."""
    signs = (_variates(np.uint64(key), classes * dim) >> np.uint64(63)).astype(np.float32) * 2 - 1
    return (signs * np.float32(signal / math.sqrt(dim))).reshape(classes, dim)


@kernel(parallel=True)
def _variates(key: np.uint64, count: int) -> NDArray[np.uint64]:
    out = np.empty(count, np.uint64)
    for i in numba.prange(count):
        out[i] = variate(key, np.uint64(i))
    return out


@kernel(parallel=True)
def add_noise(key: np.uint64, clean: Ids, classes: int, noise: float) -> Ids:
    """Return [count] int64: each node's class, or with probability ``noise`` any class."""
    out = np.empty(clean.size, np.int64)
    for i in numba.prange(clean.size):
        out[i] = clean[i]
        if np.float64(variate(key, np.uint64(2 * i)) >> np.uint64(11)) * _UNIT < noise:
            out[i] = np.int64(below(variate(key, np.uint64(2 * i + 1)), np.uint64(classes)))
    return out


@kernel
def _bell(x: np.uint64) -> np.float32:
    """Return a number of mean 0 and variance 1, nearly normal: the sum of a variate's 16-bit
    words."""
    low = np.uint64(0xFFFF)
    words = (x & low) + ((x >> np.uint64(16)) & low) + ((x >> np.uint64(32)) & low)
    return np.float32((np.float64(words + (x >> np.uint64(48))) - 131070.0) / _SPREAD)


@kernel(parallel=True)
def fill_features(
    key: np.uint64,
    first: int,
    classes: Ids,
    centroids: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write the features, [n, dim], of nodes ``first ..``: a class's centroid plus noise."""
    for i in numba.prange(classes.size):
        row = mix(key ^ mix(np.uint64(first + i)))
        for j in range(out.shape[1]):
            out[i, j] = centroids[classes[i], j] + _bell(variate(row, np.uint64(j)))
