"""Import a folder of .npy files: ``meta.json`` beside edge lists, features, labels and splits.

``meta.json`` holds ``name``, ``source``, ``node_types`` {type: {``count``, ``feat_file``}},
``edge_types`` [{``src``, ``rel``, ``dst``, ``file``, ``weight_file``, ``time_file``,
``label_file``}], ``target_type``, ``num_classes``, ``labels`` {type: file} and ``splits`` {name:
{``file``}}; node types may have a ``time_file`` too. Edge files are int32 or int64 [2, edges],
sources first; features are .npy [n, d] or a SciPy CSR .npz, which is made dense chunk by chunk.
Specified in docs/howto/import.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.source_files import find_inside, load_csr, load_npy
from hopper.graph.importers.tables import (
    ArrayFeatures,
    GraphTables,
    edge_ids_array,
    read_labels,
    read_relation,
    read_times,
    read_weights,
)
from hopper.graph.json_file import read_json
from hopper.graph.layout import safe_name
from hopper.graph.schema import Relation

_MOST_CLASSES: Final = 2**31


def read_npy(source: Path) -> GraphTables:
    """Read such a folder; dense features are mapped, other arrays are loaded.

    Raises
    ------
    GraphError: a file or field is missing or wrong. The text names it, expected and given.
    """
    meta = read_json(source / "meta.json", "missing file")
    where = str(source / "meta.json")
    target = safe_name(_field(meta, "target_type", str, where))
    node_types = _field(meta, "node_types", dict, where)
    tables = GraphTables(
        name=str(meta.get("name", source.name)),
        source=str(meta.get("source", "")),
        target=target,
        counts={
            safe_name(name): _field(entry, "count", int, f"{where}: node_types.{name}")
            for name, entry in node_types.items()
        },
        edges=_read_edges(source, _field(meta, "edge_types", list, where), where),
    )
    if len(tables.counts) != len(node_types):
        raise GraphError(f"{where}: node_types: names are not distinct as parts of paths")
    for name, entry in node_types.items():
        _add_nodes(tables, source, name, entry, f"{where}: node_types.{name}")
    labelled = _optional(meta, "labels", where)
    for name in labelled:
        file = _find(source, labelled, name, f"{where}: labels")
        classes = _read_classes(meta, where) if safe_name(name) == target else None
        labels = read_labels(load_npy(file, f"labels of {name}"), str(file), classes)
        tables.labels[safe_name(name)] = labels
    for relation, entry in zip(tables.edges, meta["edge_types"], strict=True):
        _add_edges(tables, source, relation, entry, f"{where}: edge_types of {relation}")
    for name, entry in _optional(meta, "splits", where).items():
        file = _find(source, entry, "file", f"{where}: splits.{name}")
        tables.splits[name] = load_npy(file, f"split {name}")
    return tables


def _add_nodes(
    tables: GraphTables, source: Path, name: str, entry: dict[str, Any], where: str
) -> None:
    """Add the times and features that an entry of ``node_types`` names."""
    if entry.get("time_file") is not None:
        file = _find(source, entry, "time_file", where)
        tables.times[safe_name(name)] = read_times(load_npy(file, f"times of {name}"), str(file))
    if entry.get("feat_file") is not None:
        file = _find(source, entry, "feat_file", where)
        tables.features[safe_name(name)] = ArrayFeatures(_load_features(file))


def _add_edges(
    tables: GraphTables, source: Path, relation: Relation, entry: dict[str, Any], where: str
) -> None:
    """Add the labels, weights and times that an entry of ``edge_types`` names."""
    if entry.get("label_file") is not None:
        file = _find(source, entry, "label_file", where)
        labels = load_npy(file, f"labels of {relation}")
        tables.labels[relation] = read_labels(labels, str(file))
    if entry.get("weight_file") is not None:
        file = _find(source, entry, "weight_file", where)
        weights = load_npy(file, f"weights of {relation}")
        tables.weights[relation] = read_weights(weights, str(file))
    if entry.get("time_file") is not None:
        file = _find(source, entry, "time_file", where)
        times = load_npy(file, f"times of {relation}")
        tables.times[relation] = read_times(times, str(file))


def _find(source: Path, fields: Any, key: str, where: str) -> Path:
    """Find the file that a field names."""
    return find_inside(source, _field(fields, key, str, where), f"{where}.{key}")


def _optional(meta: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value: dict[str, Any] = _field(meta, key, dict, where) if meta.get(key) is not None else {}
    return value


def _read_classes(meta: dict[str, Any], where: str) -> int | None:
    if meta.get("num_classes") is None:
        return None
    classes: int = _field(meta, "num_classes", int, where)
    if not 0 < classes < _MOST_CLASSES:
        raise GraphError(f"{where}: num_classes: expected 1 to 2**31 - 1, given {classes}")
    return classes


def _read_edges(
    source: Path, entries: list[Any], where: str
) -> dict[Relation, tuple[NDArray[Any], NDArray[Any]]]:
    edges: dict[Relation, tuple[NDArray[Any], NDArray[Any]]] = {}
    for index, entry in enumerate(entries):
        field = f"{where}: edge_types[{index}]"
        src, rel, dst, file_name = (
            _field(entry, key, str, field) for key in ("src", "rel", "dst", "file")
        )
        relation = read_relation(src, rel, dst, edges, where)
        file = find_inside(source, file_name, f"{field}.file")
        ends = load_npy(file, f"edges of {relation}")
        if ends.ndim != 2 or ends.shape[0] != 2 or not np.issubdtype(ends.dtype, np.integer):
            raise GraphError(
                f"{file}: edges of {relation}: expected integers of shape [2, edges], "
                f"given {ends.dtype} of shape {list(ends.shape)}"
            )
        if "count" in entry and entry["count"] != ends.shape[1]:
            raise GraphError(
                f"{file}: edges of {relation}: expected {entry['count']} edges, as meta.json says, "
                f"given {ends.shape[1]}"
            )
        edges[relation] = (edge_ids_array(ends[0]), edge_ids_array(ends[1]))
    return edges


def _field(fields: Any, key: str, expected: type, where: str) -> Any:
    """Return the value of a field, which must be of the expected type."""
    if not isinstance(fields, dict) or key not in fields:
        raise GraphError(f"{where}: {key}: missing field")
    value = fields[key]
    # In Python, true and false are integers.
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise GraphError(f"{where}: {key}: expected {expected.__name__}, given {value!r:.200}")
    return value


def _load_features(file: Path) -> Any:
    """Map a .npy file, or load the CSR matrix of a .npz file."""
    if file.suffix == ".npz":
        return load_csr(file, "features")
    features = load_npy(file, "features", mmap_mode="r")
    if features.ndim != 2:
        raise GraphError(f"{file}: features: expected shape [n, d], given {list(features.shape)}")
    return features
