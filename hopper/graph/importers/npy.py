"""Import a folder of .npy files: ``meta.json`` beside edge lists, features, labels and splits.

``meta.json`` holds ``name``, ``source``, ``node_types`` {type: {``count``, ``feat_file``}},
``edge_types`` [{``src``, ``rel``, ``dst``, ``file``}], ``target_type``, ``num_classes``,
``labels`` {type: file} and ``splits`` {name: {``file``}}. Edge files are int32 or int64 [2, edges],
sources first; features are .npy [n, d] or a SciPy CSR .npz, which is made dense chunk by chunk.
Specified in docs/graph-directory.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.tables import (
    ArrayFeatures,
    GraphTables,
    edge_ids_array,
    read_labels,
    read_relation,
)
from hopper.graph.layout import safe_name
from hopper.graph.schema import Relation


def read_npy(source: Path) -> GraphTables:
    """Read such a folder; dense features are mapped, the rest is loaded.

    Raises
    ------
    GraphError: a file or field is missing or wrong, named with what was expected and given.
    """
    meta = _read_meta(source / "meta.json")
    where = str(source / "meta.json")
    target = safe_name(_field(meta, "target_type", str, where))
    node_types = _field(meta, "node_types", dict, where)
    tables = GraphTables(
        name=str(meta.get("name", source.name)),
        source=str(meta.get("source", "")),
        target=target,
        counts={
            safe_name(name): _field(kind, "count", int, f"{where}: node_types.{name}")
            for name, kind in node_types.items()
        },
        edges=_read_edges(source, _field(meta, "edge_types", list, where), where),
    )
    if len(tables.counts) != len(node_types):
        raise GraphError(f"{where}: node_types: names are not distinct as parts of paths")
    for name, kind in node_types.items():
        if kind.get("feat_file") is not None:
            file = source / _field(kind, "feat_file", str, f"{where}: node_types.{name}")
            tables.features[safe_name(name)] = ArrayFeatures(_load_features(file))
    for name, file_name in meta.get("labels", {}).items():
        file = source / file_name
        classes = meta.get("num_classes") if safe_name(name) == target else None
        labels = read_labels(_load(file, f"labels of {name}"), str(file), classes)
        tables.labels[safe_name(name)] = labels
    for name, entry in meta.get("splits", {}).items():
        file = source / _field(entry, "file", str, f"{where}: splits.{name}")
        tables.splits[name] = _load(file, f"split {name}")
    return tables


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
        file = source / file_name
        ends = _load(file, f"edges of {relation}")
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


def _read_meta(file: Path) -> dict[str, Any]:
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GraphError(f"{file}: missing file") from None
    except (OSError, ValueError) as error:
        raise GraphError(f"{file}: not readable as JSON: {error}") from error
    if not isinstance(meta, dict):
        raise GraphError(f"{file}: expected an object, given {type(meta).__name__}")
    return meta


def _field(fields: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(fields, dict) or key not in fields:
        raise GraphError(f"{where}: {key}: missing field")
    if not isinstance(fields[key], kind):
        raise GraphError(f"{where}: {key}: expected {kind.__name__}, given {fields[key]!r}")
    return fields[key]


def _load(file: Path, what: str, mmap_mode: Any = None) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError:
        raise GraphError(f"{file}: {what}: missing file") from None
    except (OSError, ValueError, EOFError) as error:
        raise GraphError(f"{file}: {what}: not a readable .npy file: {error}") from error
    return array


def _load_features(file: Path) -> Any:
    """A map of a .npy file, or the CSR matrix of a .npz file."""
    if file.suffix != ".npz":
        features = _load(file, "features", mmap_mode="r")
    else:
        from scipy import sparse

        try:
            features = sparse.load_npz(file).tocsr()
        except FileNotFoundError:
            raise GraphError(f"{file}: features: missing file") from None
        except (OSError, ValueError, KeyError) as error:
            raise GraphError(f"{file}: features: not a SciPy sparse matrix: {error}") from error
    if features.ndim != 2:
        raise GraphError(f"{file}: features: expected shape [n, d], given {list(features.shape)}")
    return features
