"""Import a dataset of GraphBolt: the folder of an ``OnDiskDataset``, as its user has composed it.

Its metadata.yaml is specified in
https://www.dgl.ai/dgl_docs/stochastic_training/ondisk-dataset-specification.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hopper.errors import GraphError, RequestError, cannot_import
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.arrays import (
    EDGES,
    NODE,
    TableReader,
    as_array,
    set_column,
    split_triple,
)
from hopper.graph.importers.source_files import (
    explain_errors,
    find_inside,
    load_npy,
    load_table,
    require_file,
)
from hopper.graph.importers.tables import Features, GraphTables, Table, array_features
from hopper.graph.json_file import parse_json
from hopper.graph.layout import safe_name

_SPLITS: Final = {"train": "train_set", "val": "validation_set", "test": "test_set"}
_SEEDS: Final = ("seeds", "seed_nodes")


@dataclass(frozen=True)
class _Nodes:
    num: int
    type: str | None = None


@dataclass(frozen=True)
class _File:
    """An array in a file; ``type`` is a node type, or src:rel:dst."""

    path: str
    format: str
    type: str | None = None
    name: str = ""
    domain: str = "node"


@dataclass(frozen=True)
class _Graph:
    nodes: tuple[_Nodes, ...]
    edges: tuple[_File, ...]


@dataclass(frozen=True)
class _Set:
    data: tuple[_File, ...]
    type: str | None = None


@dataclass(frozen=True)
class _Task:
    name: str = ""
    num_classes: int | None = None
    train_set: tuple[_Set, ...] = ()
    validation_set: tuple[_Set, ...] = ()
    test_set: tuple[_Set, ...] = ()


@dataclass(frozen=True)
class _Metadata:
    graph: _Graph
    dataset_name: str = "graph"
    feature_data: tuple[_File, ...] | None = ()
    tasks: tuple[_Task, ...] | None = ()


def read_graphbolt(source: Path) -> GraphTables:
    """Read such a folder; features in .npy files are mapped, other arrays are loaded.

    A node type or relation may have several features, which are joined by name. The first task is
    read, and others are told.
    """
    file = require_file(source / "metadata.yaml", "metadata")
    try:
        import yaml
    except ImportError as error:
        raise RequestError(cannot_import("import graphbolt", "pyyaml", error)) from error
    with explain_errors(f"{file}: not valid YAML"):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if isinstance(content, dict) and "graph_topology" in content:
        raise GraphError(
            f"{file}: expected a dataset as its user composed it, with edges under graph, given "
            "one that GraphBolt has preprocessed; give the folder above"
        )
    metadata = parse_json(TypeAdapter(_Metadata), content, str(file))
    reader = TableReader(metadata.dataset_name, f"GraphBolt {source.name}", str(file))
    for nodes in metadata.graph.nodes:
        reader.add_nodes(nodes.type or NODE, {}, {}, nodes.num)
    for edges in metadata.graph.edges:
        triple = split_triple(edges.type or ":".join(EDGES), f"{file}: graph.edges")
        what = f"{file}: edges of {edges.type or EDGES}"
        ends = load_table(find_inside(source, edges.path, what), edges.format, what)
        # Tables of CSV have a row for each edge, and no header.
        reader.add_edges(triple, ends if edges.format == "numpy" else ends.T, {}, {})
    tables = {str(owner): table for owner, table in reader.tables.all.items()}
    by_owner: dict[str, list[_File]] = {}
    for features in metadata.feature_data or ():
        by_owner.setdefault(_owner(features.type, features.domain), []).append(features)
    for owner, files in by_owner.items():
        if owner not in tables:
            raise GraphError(f"{file}: feature_data: expected a type of the graph, given {owner!r}")
        table = tables[owner]
        table.features, table.columns = _read_features(source, files, owner, file)
    tasks = metadata.tasks or ()
    for task in tasks[:1]:
        _read_task(source, task, reader.tables, file)
    reader.tables.notes += [f"task {task.name!r} left out" for task in tasks[1:]]
    if not reader.tables.targets:
        reader.tables.choose_target(str(file), follows=True)
    return reader.tables


def _owner(name: str | None, domain: str = "node") -> str:
    """Return how a node type or a relation is called here."""
    if name is None:
        return NODE if domain == "node" else str(EDGES)
    return "/".join(map(safe_name, name.split(":")))


def _read_array(source: Path, file: _File, where: str) -> NDArray[Any]:
    """Read or map the array of a file, or return it as it is."""
    path = find_inside(source, file.path, where)
    if file.format == "numpy":
        return load_npy(path, where, "r")
    if file.format != "torch":
        raise GraphError(f"{where}: expected format numpy or torch, given {file.format!r}")
    require_file(path, where)
    with explain_errors(f"{path}: not a tensor of torch.save"):
        return as_array(torch.load(path, weights_only=True, mmap=True), where)


def _read_features(
    source: Path, files: Sequence[_File], owner: str, where: Path
) -> tuple[Features, tuple[FeatureColumn, ...]]:
    """Read the features of a type side by side, with a column of their name each."""
    parts: list[NDArray[Any]] = []
    for file in files:
        place = f"{where}: feature_data: {file.name} of {owner}"
        array = _read_array(source, file, place)
        if array.ndim not in (1, 2) or len(array) != len(parts[0] if parts else array):
            raise GraphError(f"{place}: expected [n, d], given {list(array.shape)}")
        parts.append(array[:, None] if array.ndim == 1 else array)
    columns = tuple(
        FeatureColumn(file.name, numbers=part.shape[1])
        for file, part in zip(files, parts, strict=True)
    )
    return array_features(*parts), columns if len(parts) > 1 else ()


def _read_task(source: Path, task: _Task, tables: GraphTables, where: Path) -> None:
    """Read the splits and the labels of a task on nodes of a type."""
    place = f"{where}: tasks.{task.name}"
    splits = dict[str, NDArray[Any]]()
    labels: NDArray[Any] | None = None
    target: Table | None = None
    for split, name in _SPLITS.items():
        for of_type in getattr(task, name):
            owner = _owner(of_type.type)
            arrays = {
                file.name: _read_array(source, file, f"{place}.{name}: {file.name}")
                for file in of_type.data
            }
            seeds = next((arrays[key] for key in _SEEDS if key in arrays), None)
            if owner not in tables.nodes or seeds is None or seeds.ndim != 1:
                tables.notes.append(
                    f"task {task.name!r} left out: expected seeds that are nodes of a type; edges "
                    "are predicted with --target and --split"
                )
                return
            if target is not None and target is not tables.nodes[owner]:
                raise GraphError(f"{place}: expected seeds of one node type, given several")
            target, tables.targets = tables.nodes[owner], (owner,)
            ids = np.asarray(seeds, np.int64)
            if ids.size and not 0 <= ids.min() <= ids.max() < target.count:
                raise GraphError(
                    f"{place}.{name}: seeds: expected ids in [0, {target.count}), given "
                    f"{ids.min()} to {ids.max()}"
                )
            splits[split] = ids
            if "labels" in arrays:
                given = arrays["labels"]
                if len(given) != ids.size:
                    raise GraphError(
                        f"{place}.{name}: labels: expected {ids.size}, given {len(given)}"
                    )
                if labels is None:
                    missing = np.nan if given.dtype.kind == "f" else -1 if given.ndim == 1 else 0
                    labels = np.full((target.count, *given.shape[1:]), missing, given.dtype)
                labels[ids] = given
    if target is not None:
        target.splits = splits
        set_column(target, "labels", labels, place)
