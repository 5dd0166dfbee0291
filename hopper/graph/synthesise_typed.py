"""Write a typed preset's graph directory, a pure function of preset, scale and seed.

Nodes of all types are in two community structures at once, which agree in their coarse levels. A
relation follows one of them. A target's class depends on its communities in both, so no relation
alone reveals it. docs/reference/presets.md explains the choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from cache_server.available_memory import available_memory
from cache_server.draw import SYNTHESIS, key_of
from hopper.errors import RequestError
from hopper.graph.degree_corrected import (
    ROOM,
    Hierarchy,
    add_reverse_edges,
    apportion,
    cap_weights,
    cumulative_weights,
    draw_rows,
    level_thresholds,
    power_law_weights,
)
from hopper.graph.schema import EdgeType, GraphSchema, Labels, NodeType, Relation
from hopper.graph.synthetic_nodes import (
    class_centroids,
    community_classes,
    fill_features,
    noisy_classes,
    shuffle,
    split_counts,
    write_splits,
)
from hopper.graph.typed_edges import draw_between
from hopper.graph.typed_presets import TypedEdges, TypedPreset
from hopper.graph.write import GraphWriter

# The purpose of each key; part of the specification of a preset's graph.
_SHUFFLE, _FINE, _IN, _OUT, _EDGES, _CLASSES, _NOISE, _CENTROIDS, _FEATURES, _SPLITS = range(10)

_COARSE_LEVEL: Final = 3
"""Last level down to which both structures agree, so that up to eight servers can keep communities
of both whole; it is less deep where communities are few."""
_LABEL_LEVEL: Final = 8
"""Level of the communities that have one part of a class; it is less deep where they would be too
small for the edges of a relation."""
_LEAF: Final = 64
_SMALLEST: Final = 16
"""Fewest nodes of a type, if it was published with that many."""
_EXPONENT: Final = 2.3
"""Exponent of the power laws of degrees."""
_MOST_TIMES_MEAN: Final = 200.0
_CHUNK_VALUES: Final = 1 << 24


@dataclass(frozen=True)
class _Type:
    """A node type that is being made; arrays are for either structure.

    Attributes
    ----------
    position_of: [count] int64, the position of each node.
    id_of: [count] int64, the node at each position.
    classes: [count] int64, the part of a class that each node's community has.
    """

    hierarchy: Hierarchy
    position_of: tuple[NDArray[np.int64], NDArray[np.int64]]
    id_of: tuple[NDArray[np.int64], NDArray[np.int64]]
    classes: tuple[NDArray[np.int64], NDArray[np.int64]]


def make_typed(
    name: str,
    preset: TypedPreset,
    out: str | Path,
    *,
    scale: float,
    seed: int,
    bar: Progress,
) -> Path:
    """Write a typed preset's graph directory, like :func:`hopper.graph.synthesise.make`.

    Raises
    ------
    RequestError: too little memory or disk space; ``out`` is occupied.
    """
    key = key_of(SYNTHESIS, *name.encode(), seed)
    schema = _schema(name, preset, scale, f"synthetic, {scale=:g}, {seed=}; {preset.source}")
    _require_memory(schema)
    parts = _parts_per_structure(preset.classes)
    level = _label_level(preset, schema)
    with GraphWriter(out, schema) as writer:
        task = bar.add_task("nodes", total=None)
        types = {
            node_type: _make_type(
                key_of(key, *node_type.encode()), key, preset, kind.count, parts, level
            )
            for node_type, kind in schema.node_types.items()
        }
        labels = _draw_labels(key, preset, types[preset.target], parts)
        writer.labels(preset.target, labels)
        write_splits(key_of(key, _SPLITS), writer, labels.size)
        bar.remove_task(task)
        task = bar.add_task("edges", total=sum(kind.count for kind in schema.relations.values()))
        for edges in preset.relations:
            _write_relation(key, preset, edges, types, writer)
            bar.advance(task, 2 * schema.relations[_relation(edges)].count)
        for node_type, kind in schema.node_types.items():
            if kind.feature_dim is not None:
                _write_features(key, preset, node_type, types[node_type], parts, writer, bar)
    return Path(out)


def _relation(edges: TypedEdges) -> Relation:
    return Relation(edges.src, edges.rel, edges.dst)


def _reverse(relation: Relation) -> Relation:
    return Relation(relation.dst, f"rev_{relation.rel}", relation.src)


def _is_symmetrised(preset: TypedPreset, edges: TypedEdges) -> bool:
    return edges.src == edges.dst and preset.reverse == "cross-type"


def _parts_per_structure(classes: int) -> int:
    """Return the number of parts of a class in either structure; a part of each makes up a
    class."""
    return max(2, math.isqrt(classes - 1) + 1)


def _combine_parts(a: NDArray[np.int64], b: NDArray[np.int64], parts: int, classes: int) -> Any:
    """Return [n] int64: the class that two parts make up; of two classes, too, both parts
    decide."""
    return (a + b) % 2 if classes == 2 else (a * parts + b) % classes


def _schema(name: str, preset: TypedPreset, scale: float, source: str) -> GraphSchema:
    counts = {
        node_type: max(min(kind.count, _SMALLEST), round(kind.count * scale))
        for node_type, kind in preset.types.items()
    }
    relations: dict[Relation, EdgeType] = {}
    for edges in preset.relations:
        # A node has edges to at most a quarter of the other type.
        smaller, larger = sorted((counts[edges.src], counts[edges.dst]))
        count = min(max(1, round(edges.count * scale)), larger * max(1, smaller // 8))
        relation = _relation(edges)
        if _is_symmetrised(preset, edges):
            relations[relation] = EdgeType(2 * count)
        else:
            relations |= {relation: EdgeType(count), _reverse(relation): EdgeType(count)}
    return GraphSchema(
        name=name,
        node_types={
            node_type: NodeType(counts[node_type], kind.feature_dim, kind.feature_dtype)
            if kind.feature_dim is not None
            else NodeType(counts[node_type])
            for node_type, kind in preset.types.items()
        },
        relations=relations,
        target=preset.target,
        labels={preset.target: Labels("class", preset.classes)},
        splits=_split_counts(counts[preset.target], preset),
        source=source,
    )


def _split_counts(count: int, preset: TypedPreset) -> dict[str, int]:
    """Return the number of nodes of each split, with a few nodes a class at least.

    Published splits of some graphs are so small that a scaled one would be empty. The largest split
    gives up the nodes that the others gain.
    """
    least = min(count // (2 * len(preset.splits)), 4 * preset.classes)
    sizes = {name: max(size, least) for name, size in split_counts(count, preset.splits).items()}
    largest = max(sizes, key=lambda name: sizes[name])
    sizes[largest] -= max(0, sum(sizes.values()) - count)
    return sizes


def _require_memory(schema: GraphSchema) -> None:
    largest = max(kind.count for kind in schema.relations.values())
    nodes = sum(kind.count for kind in schema.node_types.values())
    required, available = 8 * (6 * largest + 10 * nodes), available_memory()
    if required > available:
        raise RequestError(
            f"too little memory: about {required / 2**30:.1f} GiB needed for the largest relation, "
            f"{available / 2**30:.1f} GiB available; choose a smaller --scale"
        )


def _label_level(preset: TypedPreset, schema: GraphSchema) -> int:
    """Return the level of the communities that have one part of a class."""
    room = [
        schema.node_types[edges.src].count
        * schema.node_types[edges.dst].count
        // (ROOM * schema.relations[_relation(edges)].count)
        for edges in preset.relations
    ]
    return max(2, min(_LABEL_LEVEL, min(room).bit_length() - 1))


def _make_type(
    type_key: int, key: int, preset: TypedPreset, count: int, parts: int, level: int
) -> _Type:
    thresholds = level_thresholds(count, _LEAF, (preset.scattered,), level)
    local_level = min(level, thresholds.size - 1)
    none_secluded = np.zeros(1 << local_level, np.bool_)
    hierarchy = Hierarchy(count, local_level, thresholds, none_secluded)
    id_of, position_of = shuffle(key_of(type_key, _SHUFFLE), count)
    # The second structure shuffles nodes again within every coarse community.
    order, _ = shuffle(key_of(type_key, _FINE), count)
    coarse = _communities(position_of[order], max(1, min(_COARSE_LEVEL, level - 4)))
    second_id_of = order[np.argsort(coarse, kind="stable")]
    second_position_of = np.empty(count, np.int64)
    second_position_of[second_id_of] = np.arange(count)
    classes = tuple(
        _community_parts(key, structure, positions, parts, level)
        for structure, positions in enumerate((position_of, second_position_of))
    )
    return _Type(
        hierarchy,
        (position_of, second_position_of),
        (id_of, second_id_of),
        (classes[0], classes[1]),
    )


def _community_parts(
    key: int, structure: int, positions: NDArray[np.int64], parts: int, level: int
) -> NDArray[np.int64]:
    """Return [count] int64: the part of a class that each node's community has, the same for all
    types."""
    communities = community_classes(key_of(key, _CLASSES, structure), 1 << level, parts)
    return communities[_communities(positions, level)]


def _communities(positions: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """Return [count] int64: each position's community at a level."""
    return (((positions + 1) << level) - 1) // positions.size


def _draw_labels(key: int, preset: TypedPreset, target: _Type, parts: int) -> NDArray[np.int64]:
    clean = _combine_parts(*target.classes, parts, preset.classes)
    return noisy_classes(np.uint64(key_of(key, _NOISE)), clean, preset.classes, preset.label_noise)


def _draw_weights(key: int, count: int, mean: float, most: int) -> NDArray[np.uint64]:
    """Return [count + 1] uint64: running sum of power-law weights, none worth more than ``most``
    edges."""
    largest = max(1.0, min(_MOST_TIMES_MEAN, most / max(mean, 1e-9)))
    return cumulative_weights(
        cap_weights(power_law_weights(np.uint64(key), count, _EXPONENT), largest)
    )


def _write_relation(
    key: int,
    preset: TypedPreset,
    edges: TypedEdges,
    types: dict[str, _Type],
    writer: GraphWriter,
) -> None:
    """Draw a relation's edges; write the relation and its reverse."""
    relation, structure = _relation(edges), edges.structure
    relation_key = key_of(key, *str(relation).encode())
    if relation.src == relation.dst:
        src, dst = _draw_within(relation_key, preset, edges, types[relation.src], writer)
    else:
        # The larger type draws, so that rows are short.
        source_draws = types[relation.src].hierarchy.nodes > types[relation.dst].hierarchy.nodes
        names = (relation.src, relation.dst) if source_draws else (relation.dst, relation.src)
        count = writer.schema.relations[relation].count
        near, far = _draw_between_types(
            relation_key, structure, count, *(types[name] for name in names)
        )
        src, dst = (near, far) if source_draws else (far, near)
    writer.topology(relation, src, dst)
    if not _is_symmetrised(preset, edges):
        writer.topology(_reverse(relation), dst, src)


def _draw_within(
    key: int, preset: TypedPreset, edges: TypedEdges, nodes: _Type, writer: GraphWriter
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw edges within a type; return their sources and destinations, [edges] int64 each."""
    symmetrised = _is_symmetrised(preset, edges)
    stored = writer.schema.relations[_relation(edges)].count
    count = stored // 2 if symmetrised else stored
    total = nodes.hierarchy.nodes
    mean = count / total
    sums = _draw_weights(key_of(key, _IN), total, mean, total // 16)
    indptr = np.zeros(total + 1, np.int64)
    np.cumsum(apportion(sums, count)[nodes.position_of[edges.structure]], out=indptr[1:])
    if not symmetrised:
        sums = _draw_weights(key_of(key, _OUT), total, mean, total // 16)
    indices = np.empty(count, np.int64)
    draw_rows(
        np.uint64(key_of(key, _EDGES)),
        0,
        indptr,
        nodes.position_of[edges.structure],
        nodes.id_of[edges.structure],
        nodes.hierarchy,
        sums,
        symmetrised,
        indices,
    )
    if symmetrised:
        indptr, indices = add_reverse_edges(indptr, indices)
    return indices, np.repeat(np.arange(total), np.diff(indptr))


def _draw_between_types(
    key: int, structure: int, count: int, near: _Type, far: _Type
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw edges between two types; return their near and far ends, [edges] int64 each."""
    near_count, far_count = near.hierarchy.nodes, far.hierarchy.nodes
    sums = _draw_weights(key_of(key, _IN), near_count, count / near_count, far_count // 4)
    indptr = np.zeros(near_count + 1, np.int64)
    np.cumsum(apportion(sums, count)[near.position_of[structure]], out=indptr[1:])
    indices = np.empty(count, np.int64)
    draw_between(
        np.uint64(key_of(key, _EDGES)),
        indptr,
        near.position_of[structure],
        far.id_of[structure],
        near.hierarchy,
        _draw_weights(key_of(key, _OUT), far_count, count / far_count, near_count // 4),
        indices,
    )
    return np.repeat(np.arange(near_count), np.diff(indptr)), indices


def _write_features(
    key: int,
    preset: TypedPreset,
    name: str,
    nodes: _Type,
    parts: int,
    writer: GraphWriter,
    bar: Progress,
) -> None:
    """Write features that depend on a node's communities, the target's on the first one only."""
    out = writer.features(name)
    dim, type_key = out.shape[1], key_of(key, *name.encode())
    first, second = (
        class_centroids(key_of(type_key, _CENTROIDS, structure), parts, dim, preset.signal)
        for structure in (0, 1)
    )
    if name == preset.target:
        second = np.zeros_like(second)
    centroids = (first[:, None] + second[None]).reshape(parts * parts, dim)
    classes = nodes.classes[0] * parts + nodes.classes[1]
    task = bar.add_task(f"features of {name}", total=classes.size)
    rows = max(1, _CHUNK_VALUES // dim)
    feature_key = np.uint64(key_of(type_key, _FEATURES))
    for start in range(0, classes.size, rows):
        chunk = classes[start : start + rows]
        values = np.empty((chunk.size, dim), np.float32)
        fill_features(feature_key, start, chunk, centroids, values)
        out[start : start + rows] = values
        bar.advance(task, chunk.size)
