"""The file of each array of a graph directory, and the names that may be part of a path.

The layout is specified in docs/reference/graph-directory.md.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from cache_server.feature_codec import CODECS, FeatureCodec
from cache_server.store.npy import ID_DTYPES
from hopper.errors import GraphError
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, Labels, NodeType, Relation

SCHEMA_FILE: Final = "graph.json"

TopologyArray = Literal["indptr", "indices", "edge_ids", "in_degrees", "out_degrees"]
StoredArray = TopologyArray | Literal["positions", "cumulative_weights", "times", "by_time"]
"""Arrays of a relation's topology in partitioned directories."""
TOPOLOGY_ARRAYS: Final[tuple[TopologyArray, ...]] = get_args(TopologyArray)

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.+-]+")


def check_name(name: object, what: str, where: str) -> str:
    """Return ``name`` if it is safe as one component of a path, or refuse it."""
    if isinstance(name, str) and name not in ("", ".", "..") and not _UNSAFE.search(name):
        return name
    raise GraphError(
        f"{where}: {what}: expected a name of letters, digits and _ . + - only, given {name!r}"
    )


def safe_name(text: str) -> str:
    """Replace every run of characters that names may not have by ``_``; importers use it.

    >>> safe_name("ontology#worksAt")
    'ontology_worksAt'
    """
    name = _UNSAFE.sub("_", text)
    return name if name not in ("", ".", "..") else "_"


def topology_file(root: Path, relation: Relation, array: StoredArray) -> Path:
    """Return the file of one array of a relation's CSC."""
    return root / "topology" / relation.src / relation.rel / relation.dst / f"{array}.npy"


def _part_file(part: str, root: Path, owner: Labelled) -> Path:
    """Return the file of a part of a node type's nodes or a relation's edges, or of a split."""
    if isinstance(owner, Relation):
        return root / f"edge_{part}" / owner.src / owner.rel / f"{owner.dst}.npy"
    return root / part / f"{owner}.npy"


features_file = partial(_part_file, "features")
times_file = partial(_part_file, "times")
labels_file = partial(_part_file, "labels")
split_file = partial(_part_file, "splits")


def links_file(root: Path, split: str, column: str = "") -> Path:
    """Return the file of a split's links, in a partitioned directory, or of their "times" or
    "labels"."""
    return _part_file("links", root, f"{split}_{column}" if column else split)


def label_names_file(root: Path, owner: Labelled, task: str = "") -> Path:
    """Return the optional file of the source's names of classes, of a task if there are several."""
    file = labels_file(root / "names", owner)
    return file.with_suffix("") / f"{task}.txt" if task else file.with_suffix(".txt")


def names_file(root: Path, node_type: str) -> Path:
    """Return the optional file of the source's names of a type's nodes, one line a node."""
    return root / "names" / f"{node_type}.txt"


def servers_file(root: Path, node_type: str) -> Path:
    """Return the optional file of the servers that a type's nodes are given to, [count] integers;
    ``hopper partition --method given`` reads it."""
    return root / "servers" / f"{node_type}.npy"


def id_dtype(count: int) -> np.dtype[Any]:
    """Return the dtype of ids, or of places or degrees, that are below a count."""
    return ID_DTYPES[count >= 1 << 31]


def topology_arrays(
    edges: int, sources: int, destinations: int
) -> dict[TopologyArray, tuple[np.dtype[Any], int]]:
    """Return dtypes and lengths of a relation's arrays: ids of edges are int32 where they fit."""
    wide = np.dtype(np.int64)
    return {
        "indptr": (wide, destinations + 1),
        "indices": (id_dtype(sources), edges),
        "edge_ids": (id_dtype(edges), edges),
        "in_degrees": (wide, destinations),
        "out_degrees": (wide, sources),
    }


def draw_arrays(schema: GraphSchema, relation: Relation) -> dict[StoredArray, np.dtype[Any]]:
    """Return names and dtypes of the arrays, [edges] each, that draws by weight and in time read.

    They stand beside the CSC in partitioned directories only.
    """
    names: list[StoredArray] = []
    if schema.relations[relation].weighted:
        names.append("cumulative_weights")
    if schema.is_timed(relation):
        names += ["times", "by_time"]
    return {name: stored_dtype(name) for name in names}


def stored_dtype(array: StoredArray) -> np.dtype[Any]:
    """Return the dtype of an array of a relation's topology."""
    return np.dtype(np.int32 if array == "cumulative_weights" else np.int64)


def draw_bytes(schema: GraphSchema, relation: Relation) -> int:
    """Return the bytes that :func:`draw_arrays` take for an edge."""
    return sum(dtype.itemsize for dtype in draw_arrays(schema, relation).values())


class StoredFeatures(NamedTuple):
    """Columns, dtype and form of a stored table of features."""

    columns: int
    dtype: np.dtype[Any]
    form: FeatureCodec

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.columns * self.dtype.itemsize


def stored_features(kind: NodeType | EdgeType, dim: int | None = None) -> StoredFeatures | None:
    """Return how features are stored, of which a server may store ``dim`` numbers a row only."""
    if kind.feature_dim is None or kind.feature_dtype is None:
        return None
    form = CODECS[kind.feature_dtype]
    return StoredFeatures(form.columns(kind.feature_dim if dim is None else dim), form.dtype, form)


def label_format(labels: Labels, count: int) -> tuple[np.dtype[Any], list[tuple[int, ...]]]:
    """Return the dtype and the admissible shapes of the labels of ``count`` nodes."""
    shapes: list[tuple[int, ...]] = [(count,), (count, labels.columns)]
    if labels.kind == "class":
        shapes = shapes[:1]
    elif labels.kind != "float" or labels.classes != 1:
        shapes = shapes[1:]
    return np.dtype(labels.dtype), shapes


class ArraySpec(NamedTuple):
    """An array that a graph directory must have."""

    name: str
    """what it is, for errors"""
    file: Path
    """its file inside the directory"""
    dtypes: tuple[np.dtype[Any], ...]
    """those that readers take; writers write the first"""
    shapes: tuple[tuple[int, ...], ...]
    """those that it may have"""


def graph_arrays(schema: GraphSchema) -> dict[tuple[str, str], ArraySpec]:
    """Return all arrays of a graph directory by part ("indices", "features", ...) and owner.

    The owner is a node type, a relation as ``src/rel/dst``, or a split.
    """
    root, (narrow, wide) = Path(), ID_DTYPES
    arrays: dict[tuple[str, str], ArraySpec] = {}

    def add(part: str, owner: object, file: Path, dtype: Any, *shapes: tuple[int, ...]) -> None:
        dtypes: tuple[np.dtype[Any], ...] = (np.dtype(dtype),)
        if part in ("indices", "edge_ids"):
            dtypes = (narrow, wide) if dtype == narrow else (wide, narrow)
        name = f"{part} {owner}" if part == "split" else f"{part} of {owner}"
        arrays[part, str(owner)] = ArraySpec(name, file, dtypes, shapes)

    for relation, edges in schema.relations.items():
        counts = (schema.node_types[name].count for name in (relation.src, relation.dst))
        for array, (dtype, length) in topology_arrays(edges.count, *counts).items():
            add(array, relation, topology_file(root, relation, array), dtype, (length,))
        if edges.weighted:
            file = _part_file("weights", root, relation)
            add("weights", relation, file, np.float32, (edges.count,))
    for owner, kind in schema.kinds.items():
        features = stored_features(kind)
        if features is not None:
            shape = kind.count, features.columns
            add("features", owner, features_file(root, owner), features.dtype, shape)
        if kind.timed:
            add("times", owner, times_file(root, owner), wide, (kind.count,))
    for owner, labels in schema.labels.items():
        dtype, shapes = label_format(labels, schema.count_of(owner))
        add("labels", owner, labels_file(root, owner), dtype, *shapes)
    for split, count in schema.splits.items():
        add("split", split, split_file(root, split), wide, (count,))
    return arrays
