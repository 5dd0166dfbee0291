"""Import a folder of .npy files: ``meta.json`` beside edge lists, features, labels and splits.

The file is specified in docs/howto/import.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.arrays import TableReader, set_column
from hopper.graph.importers.source_files import (
    explain_errors,
    find_inside,
    load_csr,
    load_npy,
    require_file,
)
from hopper.graph.importers.tables import GraphTables, Table, array_features
from hopper.graph.json_file import read_json
from hopper.graph.layout import safe_name
from hopper.graph.schema import Labels

_MOST_CLASSES: Final = 2**31
_OF_NODES: Final = {"feat_file": "features", "time_file": "times"}
_OF_EDGES: Final = {"label_file": "labels", "weight_file": "weights", "time_file": "times"}
"""the column of a table that a field names the file of"""


def read_npy(source: Path) -> GraphTables:
    """Read such a folder; dense features, and files without a header, are mapped, other arrays are
    loaded."""
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
        what = f"edges of {src}/{rel}/{dst}"
        file, pairs = _array(source, entry, "file", what, place)
        reader.where = str(file)
        # Others have a row for each edge.
        pairs = pairs.T if pairs.ndim == 2 and pairs.shape[0] != 2 == pairs.shape[1] else pairs
        table = reader.add_edges((src, rel, dst), pairs, {}, {})
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
        place = f"{where}: splits.{name}"
        splits[name] = _array(source, entry, "file", f"split {name}", place)[1]
    tables.divide_splits(splits)
    return tables


def _add_columns(
    table: Table, source: Path, fields: Any, columns: Mapping[str, str], owner: object, place: str
) -> None:
    """Read the columns of a table whose files some fields name."""
    for key, column in columns.items():
        if fields.get(key) is None:
            continue
        what = f"{column} of {owner}"
        if column == "features" and str(fields[key]).endswith(".npz"):
            file = find_inside(source, _field(fields, key, str, place), f"{place}.{key}")
            table.features = array_features(load_csr(file, what))
            continue
        mode: Literal["r"] | None = "r" if column == "features" else None
        file, array = _array(source, fields, key, what, place, mode)
        set_column(table, column, array, f"{file}: {what}")


def _array(
    source: Path,
    fields: Any,
    key: str,
    what: str,
    place: str,
    mmap_mode: Literal["r"] | None = None,
) -> tuple[Path, NDArray[Any]]:
    """Read or map the .npy file that a field names, or map the file without a header."""
    where = f"{place}.{key}"
    if not isinstance(fields, dict) or not isinstance(fields.get(key), dict):
        file = find_inside(source, _field(fields, key, str, place), where)
        return file, load_npy(file, what, mmap_mode)
    described = fields[key]
    file = require_file(find_inside(source, _field(described, "file", str, where), where), what)
    shape = _field(described, "shape", list, where)
    if not shape or not all(type(size) is int and size >= 0 for size in shape):
        raise GraphError(f"{where}: shape: expected numbers of rows and columns, given {shape}")
    with explain_errors(f"{where}: dtype"):
        dtype = np.dtype(_field(described, "dtype", str, where))
    expected, size = dtype.itemsize * math.prod(shape), file.stat().st_size
    if dtype.kind not in "iuf":
        raise GraphError(f"{where}: dtype: expected integers or floats, given {dtype}")
    if size != expected:
        of = f"{expected:,} bytes of {dtype} of shape {shape}"
        raise GraphError(f"{file}: {what}: expected {of}, given {size:,}")
    array = np.memmap(file, dtype, "r", shape=tuple(shape)) if size else np.empty(shape, dtype)
    return file, array


def _optional(meta: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    return _field(meta, key, dict, where) if meta.get(key) is not None else {}


def _field(fields: Any, key: str, expected: type, where: str) -> Any:
    """Return the value of a field, which must be of the expected type."""
    if not isinstance(fields, dict) or key not in fields:
        raise GraphError(f"{where}: {key}: missing field")
    value = fields[key]
    # In Python, true and false are integers.
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise GraphError(f"{where}: {key}: expected {expected.__name__}, given {value!r:.200}")
    return value
