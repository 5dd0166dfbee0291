"""Write a preset's graph directory, a pure function of preset, scale and seed.

A graph of one type is a graph of several that has one relation. Nodes of a graph of several types
are in two community structures at once, which agree in their coarse levels. A target's class
depends on its communities in both, so no relation alone reveals it. A graph of one type has one
structure, and its communities have whole classes. docs/reference/presets.md explains the model and
the choices behind it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress, TaskID

from cache_server.available_memory import available_memory
from cache_server.draws.counter import SYNTHESIS, key_of
from hopper.errors import RequestError
from hopper.graph import block_model
from hopper.graph.array_file import iter_pieces
from hopper.graph.block_model import Hierarchy, shuffle
from hopper.graph.memory_budget import row_ranges
from hopper.graph.presets import Preset, PresetEdges, find_preset
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, Labels, Relation
from hopper.graph.topology import Ids, Topology, build_topology
from hopper.graph.write import GraphWriter

# The purpose of each key; part of the specification of a preset's graph.
SHUFFLE, SECLUDED_OR_FINE, IN, OUT, EDGES, CLASSES, NOISE, CENTROIDS, FEATURES, SPLITS = range(10)

_SIGNAL: Final = 2.0
"""Distance of a community's centroid from the origin, in standard deviations of a feature."""
_SMALLEST: Final = 16
"""Fewest nodes of a type, if it was published with that many."""
_MOST_TIMES_MEAN: Final = 200.0
"""Largest weight, in means, where a preset names no largest degree."""
_COARSE_LEVEL: Final = 3
"""Last level down to which both structures agree, so that up to eight servers can keep communities
of both whole; it is less deep where communities are few."""


def make(
    preset: str,
    out: str | Path,
    *,
    scale: float = 1.0,
    seed: int = 0,
    feature_dim: int | None = None,
    progress: bool = False,
) -> Path:
    """Write a synthetic graph directory, and return ``out``; a RequestError tells what cannot be.

    Parameters
    ----------
    preset: a name in :data:`hopper.graph.presets.PRESETS`.
    scale: share of the published nodes and edges, in (0, 1]; the mean degree stays.
    seed: another seed is another graph of the same kind.
    feature_dim: width of the features, which does not change the topology; None = as published.
        Presets of several node types take none.
    """
    if not 0.0 < scale <= 1.0:
        raise RequestError(f"scale: expected more than 0 and at most 1, given {scale!r}")
    figures, width = find_preset(preset), ""
    if feature_dim is not None:
        if not figures.one_type:
            raise RequestError(
                f"feature dim: {preset} has several; expected none, given {feature_dim}"
            )
        if feature_dim < 1:
            raise RequestError(f"feature dim: expected at least 1, given {feature_dim}")
        types = {name: replace(of, feature_dim=feature_dim) for name, of in figures.types.items()}
        figures, width = replace(figures, types=types), f", {feature_dim=}"
    source = f"synthetic, {scale=:g}, {seed=}{width}; {figures.source}"
    schema = _make_schema(preset, figures, scale, source)
    _require_memory(figures, schema)
    bar = Progress(transient=True)
    with GraphWriter(out, schema) as writer, bar if progress else nullcontext():
        _Generator(figures, key_of(SYNTHESIS, *preset.encode(), seed), writer, bar).write()
    return Path(out)


def _make_schema(preset_name: str, preset: Preset, scale: float, source: str) -> GraphSchema:
    counts = {
        name: max(min(kind.count, _SMALLEST), round(kind.count * scale))
        for name, kind in preset.types.items()
    }
    count, smallest = counts[preset.target], preset.smallest_count()
    if preset.one_type and count < smallest:
        raise RequestError(
            f"scale: {preset_name} needs at least {smallest} nodes, that is a scale of "
            f"{smallest / preset.nodes:.2g} or more, given {scale:g} ({count} nodes)"
        )
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
    node_types = {name: replace(kind, count=counts[name]) for name, kind in preset.types.items()}
    labels: dict[Labelled, Labels] = {preset.target: Labels("class", preset.classes)}
    splits = _count_splits(counts[preset.target], preset)
    return GraphSchema(preset_name, node_types, relations, preset.target, labels, splits, source)


def _count_splits(count: int, preset: Preset) -> dict[str, int]:
    """Return the number of nodes of each split."""
    bounds = np.cumsum([0.0, *preset.splits.values()]).tolist()
    ends = [min(count, round(count * bound)) for bound in bounds]
    sizes = dict(zip(preset.splits, np.diff(ends).tolist(), strict=True))
    if not preset.one_type:
        # Some published splits are so small that a scaled one would be empty. Each has a few nodes
        # a class at least, which the largest one gives up.
        least = min(count // (2 * len(sizes)), 4 * preset.classes)
        sizes = {name: max(size, least) for name, size in sizes.items()}
        sizes[max(sizes, key=sizes.__getitem__)] -= max(0, sum(sizes.values()) - count)
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


class Structure(NamedTuple):
    """One of the community structures that the nodes of a type are in: [count] int64 each."""

    id_of: Ids
    """the node at each position"""
    positions: Ids
    """the position of each node"""
    parts: Ids
    """the part of a class that each node's community has; of one type the class"""


class Nodes(NamedTuple):
    """The nodes of a type that is being made."""

    hierarchy: Hierarchy
    structures: list[Structure]


def draw_nodes(preset: Preset, schema: GraphSchema, key: int) -> dict[str, Nodes]:
    """Draw the positions of all nodes, and the class or parts of classes of their communities."""
    counts = {name: kind.count for name, kind in schema.node_types.items()}
    level, types = preset.label_level, {}
    if not preset.one_type:
        pairs = (
            counts[edges.src] * counts[edges.dst] // schema.relations[edges.relation].count
            for edges in preset.relations
        )
        level = max(2, min(level, (min(pairs) // block_model.ROOM).bit_length() - 1))
    for name, count in counts.items():
        # The last level has communities of ``leaf`` nodes.
        depth = max(len(preset.shares), (count // preset.leaf).bit_length() - 1)
        level = min(level, depth) if preset.one_type else level
        hierarchy = block_model.draw_hierarchy(
            key_of(key, SECLUDED_OR_FINE),
            count,
            depth,
            min(level, depth),
            preset.shares,
            preset.secluded,
        )
        type_key = _key_of(preset, key, name)
        orders = [shuffle(key_of(type_key, SHUFFLE), count)]
        if not preset.one_type:
            # The second structure shuffles nodes again within every coarse community.
            order, _ = shuffle(key_of(type_key, SECLUDED_OR_FINE), count)
            coarse_level = max(1, min(_COARSE_LEVEL, level - 4))
            coarse = block_model.communities(orders[0][1][order], coarse_level)
            id_of = order[np.argsort(coarse, kind="stable")]
            orders.append((id_of, block_model.invert(id_of)))
        structures = []
        for number, (id_of, positions) in enumerate(orders):
            # The communities of all types have the same parts.
            class_key = key_of(key, CLASSES) if preset.one_type else key_of(key, CLASSES, number)
            part_of = block_model.draw_classes(class_key, 1 << level, preset.parts)
            parts = part_of[block_model.communities(positions, level)]
            structures.append(Structure(id_of, positions, parts))
        types[name] = Nodes(hierarchy, structures)
    return types


def combine_parts(preset: Preset, nodes: Nodes) -> Any:
    """Return [n] int64: the class that the parts make up; of two classes, too, both decide."""
    first, *second = (structure.parts for structure in nodes.structures)
    if not second:
        return first
    if preset.classes == 2:
        return (first + second[0]) % 2
    return (first * preset.parts + second[0]) % preset.classes


def _key_of(preset: Preset, key: int, name: str) -> int:
    """Derive the key of a type or relation, which that of the graph is where there is only one."""
    return key if preset.one_type else key_of(key, *name.encode())


class _Generator:
    """Draws a preset's graph, and writes it."""

    def __init__(self, preset: Preset, key: int, writer: GraphWriter, bar: Progress) -> None:
        self._preset, self._key, self._writer, self._bar = preset, key, writer, bar

    def write(self) -> None:
        """Write everything that the schema lists."""
        writer, schema, preset, key = self._writer, self._writer.schema, self._preset, self._key
        types = draw_nodes(preset, schema, key)
        clean = combine_parts(preset, types[preset.target])
        noise_key = np.uint64(key_of(key, NOISE))
        labels = block_model.add_noise(noise_key, clean, preset.classes, preset.label_noise)
        writer.labels(preset.target, labels)
        order, _ = shuffle(key_of(key, SPLITS), labels.size)
        bounds = np.cumsum([0, *schema.splits.values()]).tolist()
        for name, first, stop in zip(schema.splits, bounds, bounds[1:], strict=False):
            writer.split(name, order[first:stop])
        task = self._bar.add_task("edges", total=len(preset.relations))
        for edges in preset.relations:
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
        preset, key = self._preset, _key_of(self._preset, self._key, str(edges.relation))
        within, symmetrised = near is far, preset.is_symmetrised(edges)
        count = self._writer.schema.relations[edges.relation].count // (1 + symmetrised)
        near_count, far_count = near.hierarchy.nodes, far.hierarchy.nodes

        def draw_weights(end: int, nodes: int, most: int) -> NDArray[np.uint64]:
            """Draw the weights of one end, none worth more than ``most`` edges."""
            exponent = preset.in_exponent if end == IN else preset.out_exponent
            largest = max(1.0, min(_MOST_TIMES_MEAN, most / max(count / nodes, 1e-9)))
            if preset.max_degree is not None:
                largest = min(preset.max_degree, most) / (preset.edges / preset.nodes)
            return block_model.draw_weights(key_of(key, end), nodes, exponent, largest)

        # A node has edges to at most a sixteenth of its own type, or a quarter of another.
        most, far_most = (near_count // 16,) * 2 if within else (far_count // 4, near_count // 4)
        sums = draw_weights(IN, near_count, most)
        positions = near.structures[edges.structure].positions
        id_of = far.structures[edges.structure].id_of
        indptr, indices = np.zeros(near_count + 1, np.int64), np.empty(count, np.int32)
        np.cumsum(block_model.apportion(sums, count)[positions], out=indptr[1:])
        if not symmetrised:
            sums = draw_weights(OUT, far_count, far_most)
        ends = block_model.FarEnds(id_of, sums, within, symmetrised)
        edges_key = np.uint64(key_of(key, EDGES))
        for first, last in row_ranges(indptr, 0, near_count):
            bounds, out = indptr[first : last + 1], indices[indptr[first] : indptr[last]]
            block_model.draw_rows(
                edges_key, bounds, positions[first:last], near.hierarchy, ends, out
            )
            self._bar.advance(task, out.size / count)
        return indptr, indices

    def _write_features(self, name: str, nodes: Nodes, labels: Ids) -> None:
        """Write a centroid for each node's communities, plus noise; the target's for the first."""
        preset, out = self._preset, self._writer.features(name)
        key, parts = _key_of(preset, self._key, name), preset.parts
        structures = [()] if preset.one_type else [(0,), (1,)]
        centroids, *others = (
            block_model.draw_centroids(key_of(key, CENTROIDS, *of), parts, out.shape[1], _SIGNAL)
            for of in structures
        )
        classes = labels
        for second in others:
            added = np.zeros_like(second) if name == preset.target else second
            centroids = (centroids[:, None] + added[None]).reshape(parts * parts, -1)
            classes = nodes.structures[0].parts * parts + nodes.structures[1].parts
        task = self._bar.add_task(f"features of {name}", total=classes.size)
        features_key = np.uint64(key_of(key, FEATURES))
        for first, rows in iter_pieces(out):
            of_rows = classes[first : first + len(rows)]
            rows[:] = block_model.draw_features(features_key, first, of_rows, centroids)
            self._bar.advance(task, len(rows))


def _rows_of(degrees: Ids) -> NDArray[np.int32]:
    """Return the row of each edge of a CSR."""
    return np.repeat(np.arange(degrees.size, dtype=np.int32), degrees)
