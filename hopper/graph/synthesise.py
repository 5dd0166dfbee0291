"""Write a preset's graph directory, a pure function of preset, scale and seed.

A graph of one type is a graph of several that has one relation. docs/reference/presets.md explains
the model and the choices behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cache_server.available_memory import available_memory
from cache_server.draw import SYNTHESIS, key_of
from hopper.errors import RequestError
from hopper.graph.block_model import (
    Ids,
    apportion,
    cap_weights,
    cumulative_weights,
    draw_rows,
    power_law_weights,
)
from hopper.graph.build_topology import build_topology
from hopper.graph.presets import Preset, PresetEdges, find_preset
from hopper.graph.schema import EdgeType, GraphSchema, Labels, NodeType, Relation
from hopper.graph.synthetic_nodes import (
    CENTROIDS,
    EDGES,
    FEATURES,
    IN,
    NOISE,
    OUT,
    SPLITS,
    Nodes,
    add_noise,
    combine_parts,
    count_parts,
    draw_centroids,
    fill_features,
    make_nodes,
    shuffle,
)
from hopper.graph.topology import Topology
from hopper.graph.write import GraphWriter

NODE: Final = "node"
EDGE: Final = Relation(NODE, "edge", NODE)
"""Node type and relation of presets with one type."""

_SMALLEST: Final = 16
"""Fewest nodes of one of several types, if it was published with that many."""
_MOST_TIMES_MEAN: Final = 200.0
"""Largest weight, in means, where a preset names no largest degree."""
_CHUNK_EDGES = 1 << 22
_CHUNK_VALUES = 1 << 24


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
    preset: a name in :data:`hopper.graph.presets.PRESETS`.
    out: the directory to write; it must not exist or be empty.
    scale: share of the published nodes and edges, in (0, 1]; the mean degree stays.
    seed: another seed is another graph of the same kind.
    feature_dim: width of the features, which does not change the topology; None = as published.
        Presets of several node types take none.
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
    figures = _set_feature_dim(preset, find_preset(preset), feature_dim)
    counts = _count_nodes(preset, figures, scale)
    width = "" if feature_dim is None else f", {feature_dim=}"
    source = f"synthetic, {scale=:g}, {seed=}{width}; {figures.source}"
    schema = _make_schema(preset, figures, counts, scale, source)
    _require_memory(figures, schema)
    with GraphWriter(out, schema) as writer, _progress(progress) as bar:
        _Generator(figures, key_of(SYNTHESIS, *preset.encode(), seed), writer, bar).write()
    return Path(out)


@contextmanager
def _progress(shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not shown, transient=True) as bar:
        yield bar


def _set_feature_dim(name: str, preset: Preset, feature_dim: int | None) -> Preset:
    """Return the preset with another width of features, unless that is None."""
    if feature_dim is None:
        return preset
    if not preset.one_type:
        raise RequestError(f"feature dim: {name} has several; expected none, given {feature_dim}")
    if feature_dim < 1:
        raise RequestError(f"feature dim: expected at least 1, given {feature_dim}")
    types = {name: replace(kind, feature_dim=feature_dim) for name, kind in preset.types.items()}
    return replace(preset, types=types)


def _count_nodes(name: str, preset: Preset, scale: float) -> dict[str, int]:
    """Return the number of nodes of each type at a scale."""
    counts = {node_type: round(kind.count * scale) for node_type, kind in preset.types.items()}
    if not preset.one_type:
        least = {node_type: min(kind.count, _SMALLEST) for node_type, kind in preset.types.items()}
        return {node_type: max(least[node_type], count) for node_type, count in counts.items()}
    count, smallest = counts[preset.target], preset.smallest_count()
    if count < smallest:
        raise RequestError(
            f"scale: {name} needs at least {smallest} nodes, that is a scale of "
            f"{smallest / preset.nodes:.2g} or more, given {scale:g} ({count} nodes)"
        )
    return counts


def _make_schema(
    name: str, preset: Preset, counts: dict[str, int], scale: float, source: str
) -> GraphSchema:
    relations: dict[Relation, EdgeType] = {}
    for edges in preset.relations:
        if preset.one_type:
            count = round(edges.published * counts[edges.src] / preset.nodes)
        else:
            # A node has edges to at most a quarter of the other type.
            smaller, larger = sorted((counts[edges.src], counts[edges.dst]))
            count = min(max(1, round(edges.published * scale)), larger * max(1, smaller // 8))
        stored = EdgeType(count * 2 if preset.is_symmetrised(edges) else count)
        relations |= dict.fromkeys(preset.stored_relations(edges), stored)
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
        splits=_count_splits(counts[preset.target], preset),
        source=source,
    )


def _count_splits(count: int, preset: Preset) -> dict[str, int]:
    """Return the number of nodes of each split.

    Published splits of some graphs of several types are so small that a scaled one would be empty.
    There each has a few nodes a class at least, which the largest split gives up.
    """
    bounds = np.cumsum([0.0, *preset.splits.values()]).tolist()
    ends = [min(count, round(count * bound)) for bound in bounds]
    sizes = {name: ends[i + 1] - ends[i] for i, name in enumerate(preset.splits)}
    if preset.one_type:
        return sizes
    least = min(count // (2 * len(sizes)), 4 * preset.classes)
    sizes = {name: max(size, least) for name, size in sizes.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    sizes[largest] -= max(0, sum(sizes.values()) - count)
    return sizes


def _require_memory(preset: Preset, schema: GraphSchema) -> None:
    """Refuse a graph whose largest relation memory does not hold while it is made."""
    most = 0
    for edges in preset.relations:
        # Four bytes for each end, edge id and place in the order of edges that is sorted.
        arrays = 6 if preset.is_symmetrised(edges) else 3 if preset.reverse == "none" else 5
        most = max(most, 4 * arrays * schema.relations[edges.relation].count)
    required = most + 80 * sum(kind.count for kind in schema.node_types.values())
    available = available_memory()
    if required > available:
        raise RequestError(
            f"too little memory: about {required / 2**30:.1f} GiB needed for the largest relation, "
            f"{available / 2**30:.1f} GiB available; choose a smaller --scale"
        )


class _Generator:
    """Draws a preset's graph, and writes it."""

    def __init__(self, preset: Preset, key: int, writer: GraphWriter, bar: Progress) -> None:
        self._preset, self._key = preset, key
        self._writer, self._bar = writer, bar

    def write(self) -> None:
        """Write everything that the schema lists."""
        writer, schema = self._writer, self._writer.schema
        task = self._bar.add_task("nodes", total=None)
        types = make_nodes(self._preset, schema, self._key)
        target, classes = self._preset.target, self._preset.classes
        clean, noise_key = combine_parts(types[target].parts, classes), key_of(self._key, NOISE)
        labels = add_noise(np.uint64(noise_key), clean, classes, self._preset.label_noise)
        writer.labels(target, labels)
        order, _ = shuffle(key_of(self._key, SPLITS), labels.size)
        first = 0
        for name, size in schema.splits.items():
            writer.split(name, order[first : first + size])
            first += size
        self._bar.remove_task(task)
        edges_drawn = sum(map(self._count_drawn, self._preset.relations))
        task = self._bar.add_task("edges", total=edges_drawn)
        for edges in self._preset.relations:
            self._write_relation(edges, types, task)
        for name, nodes in types.items():
            if schema.node_types[name].feature_dim is not None:
                self._write_features(name, nodes, labels)

    def _write_relation(self, edges: PresetEdges, types: dict[str, Nodes], task: TaskID) -> None:
        """Draw a relation's edges, and write the relation and its reverse."""
        relation, stored = edges.relation, self._preset.stored_relations(edges)
        near, far = types[relation.dst], types[relation.src]
        # The larger type draws, so that rows are short.
        if far.hierarchy.nodes > near.hierarchy.nodes:
            near, far, stored = far, near, stored[::-1]
        indptr, indices = self._draw_edges(edges, near, far, task)
        degrees = np.diff(indptr)
        if self._preset.is_symmetrised(edges):
            rows = _rows_of(degrees)
            ends = np.concatenate((indices, rows)), np.concatenate((rows, indices))
            csc = build_topology(*ends, degrees.size, degrees.size)
            csc = replace(csc, edge_ids=np.arange(csc.indices.size))
        else:
            # Rows of a CSR are the in-edges of one of the directions, in order of edge ids.
            out_degrees = np.bincount(indices, minlength=far.hierarchy.nodes)
            csc = Topology(indptr, indices, np.arange(indices.size), degrees, out_degrees)
        self._writer.topology_csc(stored[0], csc)
        for reverse in stored[1:]:
            self._writer.topology(reverse, _rows_of(degrees), indices)

    def _draw_edges(
        self, edges: PresetEdges, near: Nodes, far: Nodes, task: TaskID
    ) -> tuple[Ids, NDArray[np.int32]]:
        """Draw a relation as a CSR whose rows are the nodes of the near type."""
        preset, structure = self._preset, edges.structure
        key = self._key if preset.one_type else key_of(self._key, *str(edges.relation).encode())
        within, symmetrised = near is far, preset.is_symmetrised(edges)
        count = self._count_drawn(edges)
        near_count, far_count = near.hierarchy.nodes, far.hierarchy.nodes
        # A node has edges to at most a sixteenth of its own type, or a quarter of another.
        most, far_most = (near_count // 16,) * 2 if within else (far_count // 4, near_count // 4)
        sums = self._draw_weights(key, IN, near_count, count, most)
        indptr = np.zeros(near_count + 1, np.int64)
        positions = near.positions[structure]
        np.cumsum(apportion(sums, count)[positions], out=indptr[1:])
        if not symmetrised:
            sums = self._draw_weights(key, OUT, far_count, count, far_most)
        indices = np.empty(count, np.int32)
        for first, last in _divide_rows(indptr):
            draw_rows(
                np.uint64(key_of(key, EDGES)),
                indptr[first : last + 1],
                positions[first:last],
                far.id_of[structure],
                near.hierarchy,
                sums,
                within,
                symmetrised,
                indices[indptr[first] : indptr[last]],
            )
            self._bar.advance(task, int(indptr[last] - indptr[first]))
        return indptr, indices

    def _count_drawn(self, edges: PresetEdges) -> int:
        """Return how many edges of a relation are drawn; reverses are not."""
        stored = self._writer.schema.relations[edges.relation].count
        return stored // 2 if self._preset.is_symmetrised(edges) else stored

    def _draw_weights(
        self, key: int, end: int, nodes: int, edges: int, most: int
    ) -> NDArray[np.uint64]:
        """Return the running sum of power-law weights, none worth more than ``most`` edges."""
        preset = self._preset
        exponent = preset.in_exponent if end == IN else preset.out_exponent
        if preset.max_degree is not None:
            largest = min(preset.max_degree, most) / (preset.edges / preset.nodes)
        else:
            largest = max(1.0, min(_MOST_TIMES_MEAN, most / max(edges / nodes, 1e-9)))
        weights = power_law_weights(np.uint64(key_of(key, end)), nodes, exponent)
        return cumulative_weights(cap_weights(weights, largest))

    def _write_features(self, name: str, nodes: Nodes, labels: Ids) -> None:
        """Write a centroid for each node's communities, plus noise; the target's for the first."""
        preset, out = self._preset, self._writer.features(name)
        dim = out.shape[1]
        key = self._key if preset.one_type else key_of(self._key, *name.encode())
        if preset.one_type:
            classes = labels
            centroids = draw_centroids(key_of(key, CENTROIDS), preset.classes, dim, preset.signal)
        else:
            parts = count_parts(preset.classes)
            first, second = (
                draw_centroids(key_of(key, CENTROIDS, structure), parts, dim, preset.signal)
                for structure in (0, 1)
            )
            if name == preset.target:
                second = np.zeros_like(second)
            centroids = (first[:, None] + second[None]).reshape(parts * parts, dim)
            classes = nodes.parts[0] * parts + nodes.parts[1]
        task = self._bar.add_task(f"features of {name}", total=classes.size)
        rows = max(1, _CHUNK_VALUES // dim)
        feature_key = np.uint64(key_of(key, FEATURES))
        for start in range(0, classes.size, rows):
            chunk = classes[start : start + rows]
            values = np.empty((chunk.size, dim), np.float32)
            fill_features(feature_key, start, chunk, centroids, values)
            out[start : start + rows] = values
            self._bar.advance(task, chunk.size)


def _rows_of(degrees: Ids) -> NDArray[np.int32]:
    """Return the row of each edge of a CSR."""
    return np.repeat(np.arange(degrees.size, dtype=np.int32), degrees)


def _divide_rows(indptr: Ids) -> Iterator[tuple[int, int]]:
    """Divide rows into ranges of about as many edges each, to show progress between them."""
    marks = np.arange(0, indptr[-1], _CHUNK_EDGES)
    bounds = np.unique(np.append(np.searchsorted(indptr[:-1], marks), indptr.size - 1))
    bounds[0] = 0
    yield from zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
