"""Write a :class:`GraphSchema` as ``graph.json``, and read it back with every field checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final

import xxhash
from pydantic import ConfigDict, TypeAdapter

from hopper.errors import GraphError
from hopper.graph.columns import find_faults, to_plain
from hopper.graph.json_file import parse_json, read_json
from hopper.graph.layout import SCHEMA_FILE, check_name
from hopper.graph.schema import (
    Count,
    EdgeType,
    GraphSchema,
    LabelKind,
    Labelled,
    Labels,
    NodeType,
    Relation,
    Width,
)

SCHEMA_VERSION: Final = 2
_MOST_CLASSES: Final = 1 << 24
"""Limit for one of several tasks, because their classes are stored in float32."""
_FORBID: Final = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class _StoredLabels:
    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    kind: LabelKind
    classes: Width
    tasks: dict[str, _StoredLabels] = field(default_factory=dict)

    def labels(self) -> Labels:
        tasks = tuple((name, task.labels()) for name, task in self.tasks.items())
        return Labels(self.kind, self.classes, tasks)


@dataclass(frozen=True, kw_only=True)
class _StoredRelation(EdgeType):
    src: str
    rel: str
    dst: str
    labels: _StoredLabels | None = None


@dataclass(frozen=True)
class _StoredSchema:
    """The whole file."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    schema: int
    name: str
    node_types: dict[str, NodeType]
    relations: list[_StoredRelation]
    target: Any
    source: str = ""
    labels: dict[str, _StoredLabels] = field(default_factory=dict)
    splits: dict[str, Count] = field(default_factory=dict)


_FILE: Final = TypeAdapter(_StoredSchema)


def schema_to_json(schema: GraphSchema) -> dict[str, Any]:
    """Convert a schema to the content of ``graph.json``; inverts :func:`schema_from_json`."""
    labels = {owner: _labels_to_json(labels) for owner, labels in schema.labels.items()}
    relations = []
    for relation, kind in schema.relations.items():
        own_labels = {"labels": labels[relation]} if relation in labels else {}
        relations.append(relation._asdict() | _kind_to_json(kind) | own_labels)
    return {
        "schema": SCHEMA_VERSION,
        "name": schema.name,
        "source": schema.source,
        "node_types": {name: _kind_to_json(kind) for name, kind in schema.node_types.items()},
        "relations": relations,
        "target": target_to_json(schema),
        "labels": {owner: of for owner, of in labels.items() if isinstance(owner, str)},
        "splits": dict(schema.splits),
    }


def target_to_json(schema: GraphSchema) -> str | list[str] | list[list[str]]:
    """Convert the target to its form in ``graph.json``."""
    if isinstance(schema.target, str):
        return schema.target
    triples = [list(relation) for relation in schema.target_relations]
    return triples if schema.also else triples[0]


def _kind_to_json(kind: NodeType | EdgeType) -> dict[str, Any]:
    width = {"feature_dim": kind.feature_dim, "feature_dtype": kind.feature_dtype}
    return {"count": kind.count, **width, **to_plain(kind)}


def _labels_to_json(labels: Labels) -> dict[str, Any]:
    tasks = {name: _labels_to_json(task) for name, task in labels.tasks}
    return {"kind": labels.kind, "classes": labels.classes} | ({"tasks": tasks} if tasks else {})


def schema_fingerprint(schema: GraphSchema) -> str:
    """Return a checksum of the content of ``graph.json``, whatever its version."""
    content = schema_to_json(schema) | {"schema": 1}
    return xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())


def schema_from_json(data: object, where: str) -> GraphSchema:
    """Parse the content of ``graph.json``; ``where`` is the file, for errors."""
    if not isinstance(data, Mapping):
        raise GraphError(f"{where}: top level: expected an object, given {data!r:.100}")
    version = data.get("schema")
    if version != SCHEMA_VERSION:
        raise GraphError(
            f"{where}: schema: this version of Hopper reads schema 2, given {version!r}"
        )
    stored = parse_json(_FILE, data, where)
    relations: dict[Relation, EdgeType] = {}
    labels: dict[Labelled, Labels] = {name: of.labels() for name, of in stored.labels.items()}
    for number, entry in enumerate(stored.relations):
        relation = Relation(entry.src, entry.rel, entry.dst)
        if relation in relations:
            raise GraphError(f"{where}: relations[{number}]: {relation} stands there twice")
        relations[relation] = EdgeType(**{f.name: getattr(entry, f.name) for f in fields(EdgeType)})
        if entry.labels is not None:
            labels[relation] = entry.labels.labels()
    target, *also = _parse_target(stored.target, where)
    schema = GraphSchema(
        stored.name,
        stored.node_types,
        relations,
        target,
        labels,
        stored.splits,
        stored.source,
        tuple(also),
    )
    _check_references(schema, where)
    return schema


def _parse_target(value: Any, where: str) -> list[Any]:
    """Parse the target: one node type, or one relation and more."""
    if isinstance(value, str):
        return [value]
    is_list = isinstance(value, list) and value and isinstance(value[0], list)
    triples: list[Any] = value if is_list else [value]
    if all(isinstance(of, list) and [*map(type, of)] == [str] * 3 for of in triples):
        return [Relation(*triple) for triple in triples]
    raise GraphError(
        f"{where}: target: expected a node type, [src, rel, dst] or a list of these, given "
        f"{value!r}"
    )


def check_schema(schema: GraphSchema, where: str) -> None:
    """Check a schema that was made in Python as :func:`schema_from_json` checks one of a file."""
    _check_references(schema, where)
    schema_from_json(schema_to_json(schema), where)


def read_schema(directory: Path) -> GraphSchema:
    """Read ``graph.json`` of a graph directory or of a partitioned directory."""
    file = directory / SCHEMA_FILE
    return schema_from_json(
        read_json(file, f"missing file; {directory} is not a graph directory"), str(file)
    )


def write_schema(directory: Path, schema: GraphSchema) -> None:
    """Write ``graph.json`` into a directory that is being built."""
    text = json.dumps(schema_to_json(schema), indent=2, ensure_ascii=False)
    (directory / SCHEMA_FILE).write_text(text + "\n", encoding="utf-8")


def _check_references(schema: GraphSchema, where: str) -> None:
    """Check the names in a schema, and what depends on several of its fields."""
    for what, names in (
        ("node_types", schema.node_types),
        *((f"relations: name of {relation}", [relation.rel]) for relation in schema.relations),
        ("splits", schema.splits),
        *((f"labels.{owner}.tasks", dict(of.tasks)) for owner, of in schema.labels.items()),
    ):
        for name in names:
            check_name(name, what, where)
    # The first fault may cause the next ones.
    for fault in _find_faults(schema):
        raise GraphError(f"{where}: {fault}")


def _find_faults(schema: GraphSchema) -> Iterator[str]:
    """Yield the fields that contradict others."""
    types = f"expected one of the node types {sorted(schema.node_types)}"
    if not schema.node_types:
        yield "node_types: expected at least one node type, given none"
    for relation in schema.relations:
        for end, name in (("src", relation.src), ("dst", relation.dst)):
            if name not in schema.node_types:
                yield f"relations: {end} of {relation}: {types}, given {name!r}"
    for owner, kind in schema.kinds.items():
        where = f"{'relations' if isinstance(owner, Relation) else 'node_types'}.{owner}"
        dim, form = kind.feature_dim, kind.feature_dtype
        width = sum(column.width for column in kind.columns)
        if (dim is None) != (form is None):
            both = "expected feature_dim and feature_dtype both or neither"
            yield f"{where}: {both}, given {dim!r} and {form!r}"
        if kind.columns and width != dim:
            yield f"{where}.columns: expected columns of feature_dim {dim}, given {width}"
        yield from (f"{where}.columns: {fault}" for fault in find_faults(kind.columns))
    if isinstance(schema.target, str) and schema.target not in schema.node_types:
        yield f"target: {types}, given {schema.target!r}"
    for number, relation in enumerate(schema.target_relations):
        if relation not in schema.relations:
            yield f"target: expected one of the relations, given {relation}"
        if relation in schema.target_relations[:number]:
            yield f"target: {relation} stands there twice"
        if (labels := schema.labels.get(relation)) != schema.target_labels:
            kinds = (
                f"{kind.kind} of width {kind.classes} of {of}" if kind else f"none of {of}"
                for kind, of in ((labels, relation), (schema.target_labels, schema.target))
            )
            yield (
                "target: expected edges of all target relations to have labels of the same kind "
                f"and width, or none; given {' and '.join(kinds)}"
            )
    for owner, labels in schema.labels.items():
        if owner not in schema.kinds:
            yield f"labels: expected a node type or a relation, given {str(owner)!r}"
        total = sum(task.classes for _, task in labels.tasks)
        if (labels.kind == "tasks") != bool(labels.tasks):
            yield f'labels.{owner}.tasks: expected where kind is "tasks", and only there'
        elif labels.tasks and labels.classes != total:
            expected = f"expected {total}, of all tasks together, given {labels.classes}"
            yield f"labels.{owner}.classes: {expected}"
        for name, task in labels.tasks:
            if task.kind == "tasks" or task.classes > _MOST_CLASSES:
                yield (
                    f"labels.{owner}.tasks.{name}: expected kind class, multi_hot or float, and 1 "
                    f"to {_MOST_CLASSES:,} classes, given {task.kind!r} and {task.classes}"
                )
