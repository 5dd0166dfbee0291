"""Import a folder of .npy files: ``meta.json`` beside edge lists, features, labels and splits.

The file is specified in docs/howto/import.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hopper.errors import GraphError
from hopper.graph.importers.read_arrays import (
    read_ends,
    read_labels,
    read_times,
    read_weights,
)
from hopper.graph.importers.source_files import find_inside, load_csr, load_npy
from hopper.graph.importers.tables import GraphTables, Table, array_features, read_relation
from hopper.graph.json_file import read_json
from hopper.graph.layout import safe_name

_MOST_CLASSES: Final = 2**31
_READERS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "label_file": ("labels", read_labels),
    "weight_file": ("weights", read_weights),
    "time_file": ("times", read_times),
}
"""The column of a table that a file has, and its reader."""


def read_npy(source: Path) -> GraphTables:
    """Read such a folder; dense features are mapped, other arrays are loaded."""
    meta = read_json(source / "meta.json", "missing file")
    where = str(source / "meta.json")
    target = safe_name(_field(meta, "target_type", str, where))
    node_types = _field(meta, "node_types", dict, where)
    tables = GraphTables(
        str(meta.get("name", source.name)), str(meta.get("source", "")), targets=(target,)
    )
    for name, entry in node_types.items():
        place = f"{where}: node_types.{name}"
        table = Table(_field(entry, "count", int, place))
        tables.nodes[safe_name(name)] = table
        if entry.get("feat_file") is not None:
            table.features = array_features(
                _load_features(_find(source, entry, "feat_file", place))
            )
        _add_columns(table, source, entry, ("time_file",), name, place)
    if len(tables.nodes) != len(node_types):
        raise GraphError(f"{where}: node_types: names are not distinct as parts of paths")
    for index, entry in enumerate(_field(meta, "edge_types", list, where)):
        _add_edges(tables, source, entry, where, f"{where}: edge_types[{index}]")
    labelled = _optional(meta, "labels", where)
    for name in labelled:
        file = _find(source, labelled, name, f"{where}: labels")
        if safe_name(name) not in tables.nodes:
            raise GraphError(f"{where}: labels.{name}: expected one of the node types")
        classes = _read_classes(meta, where) if safe_name(name) == target else None
        labels = read_labels(load_npy(file, f"labels of {name}"), str(file), classes)
        tables.nodes[safe_name(name)].labels = labels
    splits = {}
    for name, entry in _optional(meta, "splits", where).items():
        file = _find(source, entry, "file", f"{where}: splits.{name}")
        splits[name] = load_npy(file, f"split {name}")
    tables.divide_splits(splits)
    return tables


def _add_edges(tables: GraphTables, source: Path, entry: Any, where: str, place: str) -> None:
    """Add the table of an entry of ``edge_types``."""
    triple = [_field(entry, key, str, place) for key in ("src", "rel", "dst")]
    relation = read_relation(triple, tables.edges, where)
    file = _find(source, entry, "file", place)
    what = f"edges of {relation}"
    table = tables.edges[relation] = read_ends(load_npy(file, what), f"{file}: {what}")
    if "count" in entry and entry["count"] != table.count:
        raise GraphError(
            f"{file}: {what}: expected {entry['count']} edges, as meta.json says, given "
            f"{table.count}"
        )
    _add_columns(table, source, entry, tuple(_READERS), str(relation), place)


def _add_columns(
    table: Table, source: Path, entry: Any, keys: tuple[str, ...], owner: str, place: str
) -> None:
    """Read the files of labels, weights and times that an entry names."""
    for key in keys:
        if entry.get(key) is not None:
            column, read = _READERS[key]
            file = _find(source, entry, key, place)
            setattr(table, column, read(load_npy(file, f"{column} of {owner}"), str(file)))


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
