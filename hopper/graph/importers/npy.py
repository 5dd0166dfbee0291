"""Import a folder of .npy files: ``meta.json`` beside edge lists, features, labels and splits.

The file is specified in docs/howto/import.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hopper.errors import GraphError
from hopper.graph.importers.arrays import TableReader, set_column
from hopper.graph.importers.source_files import find_inside, load_csr, load_npy
from hopper.graph.importers.tables import GraphTables, Table, array_features
from hopper.graph.json_file import read_json
from hopper.graph.layout import safe_name
from hopper.graph.schema import Labels

_MOST_CLASSES: Final = 2**31
_OF_NODES: Final = {"feat_file": "features", "time_file": "times"}
_OF_EDGES: Final = {"label_file": "labels", "weight_file": "weights", "time_file": "times"}
"""the column of a table that a field names the file of"""


def read_npy(source: Path) -> GraphTables:
    """Read such a folder; dense features are mapped, other arrays are loaded."""
    meta = read_json(source / "meta.json", "missing file")
    where = str(source / "meta.json")
    target = safe_name(_field(meta, "target_type", str, where))
    node_types = _field(meta, "node_types", dict, where)
    title, from_where = str(meta.get("name", source.name)), str(meta.get("source", ""))
    reader = TableReader(title, from_where, where)
    tables, tables.targets = reader.tables, (target,)
    for name, entry in node_types.items():
        place = f"{where}: node_types.{name}"
        table = reader.add_nodes(name, {}, {}, _field(entry, "count", int, place))
        _add_columns(table, source, entry, _OF_NODES, name, place)
    for index, entry in enumerate(_field(meta, "edge_types", list, where)):
        place = f"{where}: edge_types[{index}]"
        src, rel, dst = (_field(entry, key, str, place) for key in ("src", "rel", "dst"))
        file, what = _find(source, entry, "file", place), f"edges of {src}/{rel}/{dst}"
        reader.where = str(file)
        table = reader.add_edges((src, rel, dst), load_npy(file, what), {}, {})
        if "count" in entry and entry["count"] != table.count:
            raise GraphError(
                f"{file}: {what}: expected {entry['count']} edges, as meta.json says, given "
                f"{table.count}"
            )
        _add_columns(table, source, entry, _OF_EDGES, what, place)
    labelled = _optional(meta, "labels", where)
    for name in labelled:
        if safe_name(name) not in tables.nodes:
            raise GraphError(f"{where}: labels.{name}: expected one of the node types")
        table, place = tables.nodes[safe_name(name)], f"{where}: labels"
        _add_columns(table, source, labelled, {name: "labels"}, name, place)
        classes = meta.get("num_classes")
        if classes is not None and safe_name(name) == target:
            if not 0 < _field(meta, "num_classes", int, where) < _MOST_CLASSES:
                raise GraphError(f"{where}: num_classes: expected 1 to 2**31 - 1, given {classes}")
            if table.labels is not None and table.labels[0].kind == "class":
                table.labels = Labels("class", classes), table.labels[1]
    splits = {}
    for name, entry in _optional(meta, "splits", where).items():
        file = _find(source, entry, "file", f"{where}: splits.{name}")
        splits[name] = load_npy(file, f"split {name}")
    tables.divide_splits(splits)
    return tables


def _add_columns(
    table: Table, source: Path, fields: Any, columns: Mapping[str, str], owner: object, place: str
) -> None:
    """Read the columns of a table whose files some fields name."""
    for key, column in columns.items():
        if fields.get(key) is None:
            continue
        file = _find(source, fields, key, place)
        if column != "features":
            set_column(table, column, load_npy(file, f"{column} of {owner}"), str(file))
        elif file.suffix == ".npz":
            table.features = array_features(load_csr(file, column))
        else:
            set_column(table, column, load_npy(file, column, "r"), f"{file}: {column}")


def _find(source: Path, fields: Any, key: str, where: str) -> Path:
    """Find the file that a field names."""
    return find_inside(source, _field(fields, key, str, where), f"{where}.{key}")


def _optional(meta: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value: dict[str, Any] = _field(meta, key, dict, where) if meta.get(key) is not None else {}
    return value


def _field(fields: Any, key: str, expected: type, where: str) -> Any:
    """Return the value of a field, which must be of the expected type."""
    if not isinstance(fields, dict) or key not in fields:
        raise GraphError(f"{where}: {key}: missing field")
    value = fields[key]
    # In Python, true and false are integers.
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise GraphError(f"{where}: {key}: expected {expected.__name__}, given {value!r:.200}")
    return value
