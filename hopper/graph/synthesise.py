"""Write a preset's graph directory, a pure function of preset, scale and seed.

The model and the choices behind it are explained in docs/reference/presets.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cache_server.available_memory import available_memory
from cache_server.draw import SYNTHESIS, key_of
from hopper.errors import RequestError
from hopper.graph.degree_corrected import (
    Hierarchy,
    add_reverse_edges,
    apportion,
    cap_weights,
    cumulative_weights,
    draw_rows,
    level_thresholds,
    power_law_weights,
)
from hopper.graph.presets import Preset, find_preset
from hopper.graph.schema import EdgeType, GraphSchema, Labels, NodeType, Relation
from hopper.graph.synthesise_typed import make_typed
from hopper.graph.synthetic_nodes import (
    class_centroids,
    community_classes,
    fill_features,
    node_classes,
    shuffle,
    split_counts,
    write_splits,
)
from hopper.graph.topology import Topology
from hopper.graph.typed_presets import TYPED_PRESETS
from hopper.graph.write import GraphWriter

NODE = "node"
EDGE = Relation(NODE, "edge", NODE)

# The purpose of each key; part of the specification of a preset's graph.
(
    _SHUFFLE,
    _SECLUDED,
    _IN,
    _OUT,
    _EDGES,
    _CLASSES,
    _NOISE,
    _CENTROIDS,
    _FEATURES,
    _SPLITS,
) = range(10)
_CHUNK_EDGES = 1 << 22
_CHUNK_VALUES = 1 << 24


@dataclass(frozen=True)
class _Nodes:
    """The nodes of a graph that is being made, and their positions in the hierarchy."""

    hierarchy: Hierarchy
    position_of: NDArray[np.int64]
    """[count] int64, the position of each node"""
    id_of: NDArray[np.int64]
    """[count] int64, the node at each position"""


def make(
    preset: str,
    out: str | Path,
    *,
    scale: float = 1.0,
    seed: int = 0,
    feature_dim: int | None = None,
    progress: bool = False,
) -> Path:
    """Write a synthetic graph directory.

    Parameters
    ----------
    preset: a name in :data:`hopper.graph.presets.PRESETS` or
        :data:`hopper.graph.typed_presets.TYPED_PRESETS`.
    out: the directory to write; it must not exist or be empty.
    scale: share of the published nodes and edges, in (0, 1]; the mean degree stays.
    seed: another seed is another graph of the same kind.
    feature_dim: width of the features, which does not change the topology; None = as published.
        Typed presets take none.
    progress: show a progress bar.

    Returns
    -------
    ``out``.

    Raises
    ------
    RequestError: there is no such preset, the scale is outside (0, 1] or too small for the preset,
        the width is below 1, memory or disk space is too small, or ``out`` is occupied.
    """
    if not (math.isfinite(scale) and 0.0 < scale <= 1.0):
        raise RequestError(f"scale: expected more than 0 and at most 1, given {scale!r}")
    if preset in TYPED_PRESETS:
        if feature_dim is not None:
            raise RequestError(
                f"feature dim: {preset} has several; expected none, given {feature_dim}"
            )
        with _progress(progress) as bar:
            return make_typed(preset, TYPED_PRESETS[preset], out, scale=scale, seed=seed, bar=bar)
    figures = _set_feature_dim(find_preset(preset), feature_dim)
    count, edges = _count_drawn(preset, figures, scale)
    _require_memory(figures, count, edges)
    key = key_of(SYNTHESIS, *preset.encode(), seed)
    width = "" if feature_dim is None else f", {feature_dim=}"
    source = f"synthetic, {scale=:g}, {seed=}{width}; after {figures.source}"
    schema = _schema(preset, figures, count, edges, source)
    with GraphWriter(out, schema) as writer, _progress(progress) as bar:
        task = bar.add_task("nodes", total=None)
        nodes = _make_nodes(key, figures, count)
        labels = _draw_labels(key, figures, nodes)
        writer.labels(NODE, labels)
        write_splits(key_of(key, _SPLITS), writer, count)
        bar.remove_task(task)
        writer.topology_csc(EDGE, _draw_topology(key, figures, edges, nodes, bar))
        _write_features(key, figures, labels, writer.features(NODE), bar)
    return Path(out)


def _set_feature_dim(preset: Preset, feature_dim: int | None) -> Preset:
    """Return the preset with another width of features, unless that is None."""
    if feature_dim is None:
        return preset
    if feature_dim < 1:
        raise RequestError(f"feature dim: expected at least 1, given {feature_dim}")
    return replace(preset, feature_dim=feature_dim)


def _count_drawn(name: str, preset: Preset, scale: float) -> tuple[int, int]:
    """Return the number of nodes and of drawn edges at a scale."""
    count = round(preset.nodes * scale)
    smallest = preset.smallest_count()
    if count < smallest:
        raise RequestError(
            f"scale: {name} needs at least {smallest} nodes, that is a scale of "
            f"{smallest / preset.nodes:.2g} or more, given {scale:g} ({count} nodes)"
        )
    return count, round(preset.edges * count / preset.nodes)


def required_memory(preset: Preset, count: int, edges: int) -> int:
    """Estimate the peak memory, in bytes, of making such a graph; features take none."""
    stored = edges * (2 if preset.undirected else 1)
    drawn_edges = edges if preset.undirected else 0
    return 8 * (2 * stored + drawn_edges + 10 * count)


def _require_memory(preset: Preset, count: int, edges: int) -> None:
    required, available = required_memory(preset, count, edges), available_memory()
    if required > available:
        raise RequestError(
            f"too little memory: about {required / 2**30:.1f} GiB needed for the topology, "
            f"{available / 2**30:.1f} GiB available; choose a smaller --scale"
        )


def _schema(name: str, preset: Preset, count: int, edges: int, source: str) -> GraphSchema:
    return GraphSchema(
        name=name,
        node_types={NODE: NodeType(count, preset.feature_dim, "float32")},
        relations={EDGE: EdgeType(edges * (2 if preset.undirected else 1))},
        target=NODE,
        labels={NODE: Labels("class", preset.classes)},
        splits=split_counts(count, preset.splits),
        source=source,
    )


def _make_nodes(key: int, preset: Preset, count: int) -> _Nodes:
    thresholds = level_thresholds(count, preset.leaf, preset.shares, preset.label_level)
    local_level = min(preset.label_level, thresholds.size - 1)
    communities = 1 << local_level
    order, _ = shuffle(key_of(key, _SECLUDED), communities)
    secluded = order < round(preset.secluded * communities)
    hierarchy = Hierarchy(count, local_level, thresholds, secluded)
    id_of, position_of = shuffle(key_of(key, _SHUFFLE), count)
    return _Nodes(hierarchy, position_of, id_of)


def _draw_labels(key: int, preset: Preset, nodes: _Nodes) -> NDArray[np.int64]:
    level = nodes.hierarchy.local_level
    class_of_community = community_classes(key_of(key, _CLASSES), 1 << level, preset.classes)
    noise_key = np.uint64(key_of(key, _NOISE))
    return node_classes(
        noise_key, nodes.position_of, level, class_of_community, preset.classes, preset.label_noise
    )


def _draw_topology(key: int, preset: Preset, edges: int, nodes: _Nodes, bar: Progress) -> Topology:
    count = nodes.hierarchy.nodes
    sums = _draw_weights(key_of(key, _IN), preset, count, preset.in_exponent)
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(apportion(sums, edges)[nodes.position_of], out=indptr[1:])
    if not preset.undirected:
        sums = _draw_weights(key_of(key, _OUT), preset, count, preset.out_exponent)
    indices = np.empty(edges, np.int64)
    _draw_edges(key_of(key, _EDGES), preset, nodes, sums, indptr, indices, bar)
    if preset.undirected:
        indptr, indices = add_reverse_edges(indptr, indices)
    in_degrees = np.diff(indptr)
    out_degrees = in_degrees if preset.undirected else np.bincount(indices, minlength=count)
    return Topology(indptr, indices, np.arange(indices.size), in_degrees, out_degrees)


def _draw_weights(key: int, preset: Preset, count: int, exponent: float) -> NDArray[np.uint64]:
    """Return [count + 1] uint64: running sum of power-law weights by position."""
    # A hub of a small graph has edges to at most a sixteenth of it.
    largest = min(preset.max_degree, count // 16) / preset.mean_degree()
    weights = power_law_weights(np.uint64(key), count, exponent)
    return cumulative_weights(cap_weights(weights, largest))


def _draw_edges(
    key: int,
    preset: Preset,
    nodes: _Nodes,
    sums: NDArray[np.uint64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    bar: Progress,
) -> None:
    task = bar.add_task("edges", total=indices.size)
    for first, last in _row_chunks(indptr):
        low, high = indptr[first], indptr[last]
        draw_rows(
            np.uint64(key),
            first,
            indptr[first : last + 1],
            nodes.position_of,
            nodes.id_of,
            nodes.hierarchy,
            sums,
            preset.undirected,
            indices[low:high],
        )
        bar.advance(task, int(high - low))


def _row_chunks(indptr: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Divide rows into ranges of about as many edges each, to show progress between them."""
    marks = np.arange(0, indptr[-1], _CHUNK_EDGES)
    bounds = np.unique(np.append(np.searchsorted(indptr[:-1], marks), indptr.size - 1))
    bounds[0] = 0
    yield from zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)


def _write_features(
    key: int, preset: Preset, labels: NDArray[np.int64], out: NDArray[np.float32], bar: Progress
) -> None:
    task: TaskID = bar.add_task("features", total=labels.size)
    centroids = class_centroids(
        key_of(key, _CENTROIDS), preset.classes, preset.feature_dim, preset.signal
    )
    rows = max(1, _CHUNK_VALUES // preset.feature_dim)
    for first in range(0, labels.size, rows):
        chunk = labels[first : first + rows]
        fill_features(
            np.uint64(key_of(key, _FEATURES)), first, chunk, centroids, out[first : first + rows]
        )
        bar.advance(task, chunk.size)


@contextmanager
def _progress(shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not shown, transient=True) as bar:
        yield bar
