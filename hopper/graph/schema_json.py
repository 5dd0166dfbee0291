"""Write a :class:`GraphSchema` as ``graph.json``, and read it back with every field checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import xxhash

from cache_server.row_form import FEATURE_DTYPES
from hopper.errors import GraphError
from hopper.graph.columns import columns_from_json, columns_to_json
from hopper.graph.json_file import read_json
from hopper.graph.layout import SCHEMA_FILE, check_name
from hopper.graph.row_form import RoundingError
from hopper.graph.schema import (
    SCHEMA_VERSION,
    EdgeType,
    GraphSchema,
    LabelKind,
    Labelled,
    Labels,
    NodeType,
    Relation,
)

_MOST_CLASSES: Final = 1 << 24
"""Limit for one of several tasks, because their classes are stored in float32."""


def schema_to_json(schema: GraphSchema) -> dict[str, Any]:
    """Convert a schema to the content of ``graph.json``; inverts :func:`schema_from_json`."""
    return {
        "schema": SCHEMA_VERSION,
        "name": schema.name,
        "source": schema.source,
        "node_types": {
            name: {
                "count": kind.count,
                "feature_dim": kind.feature_dim,
                "feature_dtype": kind.feature_dtype,
                **({"timed": True} if kind.timed else {}),
                **_features_to_json(kind),
            }
            for name, kind in schema.node_types.items()
        },
        "relations": [
            {
                "src": relation.src,
                "rel": relation.rel,
                "dst": relation.dst,
                "count": kind.count,
                "feature_dim": kind.feature_dim,
                "feature_dtype": kind.feature_dtype,
                **({"weighted": True} if kind.weighted else {}),
                **({"timed": True} if kind.timed else {}),
                **_features_to_json(kind),
                **(
                    {"labels": _labels_to_json(schema.labels[relation])}
                    if relation in schema.labels
                    else {}
                ),
            }
            for relation, kind in schema.relations.items()
        ],
        "target": target_to_json(schema),
        "labels": {
            name: _labels_to_json(labels)
            for name, labels in schema.labels.items()
            if isinstance(name, str)
        },
        "splits": dict(schema.splits),
    }


def schema_fingerprint(schema: GraphSchema) -> str:
    """Return a checksum of the content of ``graph.json``, in hexadecimal."""
    return xxhash.xxh3_64_hexdigest(json.dumps(schema_to_json(schema), sort_keys=True).encode())


def schema_from_json(data: object, where: str) -> GraphSchema:
    """Parse the content of ``graph.json``.

    Parameters
    ----------
    where: the file, for errors.

    Raises
    ------
    GraphError: the schema version is unknown, or a field is missing, unknown or out of range.
    """
    fields = _object(data, where, "top level")
    version = fields.get("schema")
    if version != SCHEMA_VERSION:
        raise GraphError(
            f"{where}: schema: this version of Hopper reads schema {SCHEMA_VERSION}, "
            f"given {version!r}"
        )
    _expect_keys(
        fields,
        required=("schema", "name", "node_types", "relations", "target"),
        optional=("source", "labels", "splits"),
        where=where,
        field="",
    )
    target, *also = _parse_targets(fields["target"], where)
    relations, edge_labels = _parse_relations(fields["relations"], where)
    labels = _parse_all_labels(fields.get("labels", {}), where)
    labels.update(edge_labels)
    schema = GraphSchema(
        name=_text(fields["name"], where, "name"),
        node_types=_parse_node_types(fields["node_types"], where),
        relations=relations,
        target=target,
        also=tuple(relation for relation in also if isinstance(relation, Relation)),
        labels=labels,
        splits={
            name: _count(count, where, f"splits.{name}")
            for name, count in _object(fields.get("splits", {}), where, "splits").items()
        },
        source=_text(fields.get("source", ""), where, "source"),
    )
    check_schema(schema, where)
    return schema


def check_schema(schema: GraphSchema, where: str) -> None:
    """Check that a schema's names are safe, and that whatever it refers to exists.

    Raises
    ------
    GraphError: a field is wrong. The text names ``where``, the field, expected and given.
    """
    if not schema.node_types:
        raise GraphError(f"{where}: node_types: expected at least one node type, given none")
    for name, kind in schema.node_types.items():
        check_name(name, "node_types", where)
        _check_table(kind, where, f"node_types.{name}")
    for relation, edges in schema.relations.items():
        check_name(relation.rel, f"relations: name of {relation}", where)
        _check_ends(schema, relation, where, "relations")
        _check_table(edges, where, f"relations.{relation}")
    _check_target(schema, where)
    for owner, labels in schema.labels.items():
        if owner not in schema.node_types and owner not in schema.relations:
            raise GraphError(
                f"{where}: labels: expected a node type or a relation, given {str(owner)!r}"
            )
        if labels.kind not in get_args(LabelKind):
            raise GraphError(
                f"{where}: labels.{owner}.kind: expected one of {get_args(LabelKind)}, "
                f"given {labels.kind!r}"
            )
        if labels.classes < 1:
            raise GraphError(
                f"{where}: labels.{owner}.classes: expected at least 1, given {labels.classes}"
            )
        _check_tasks(labels, where, f"labels.{owner}")
    for name, count in schema.splits.items():
        check_name(name, "splits", where)
        _count(count, where, f"splits.{name}")


def read_schema(directory: Path) -> GraphSchema:
    """Read ``graph.json`` of a graph directory or of a partitioned directory.

    Raises
    ------
    GraphError: the file is missing, is not JSON, or :func:`schema_from_json` refuses it.
    """
    file = directory / SCHEMA_FILE
    data = read_json(file, f"missing file; {directory} is not a graph directory")
    return schema_from_json(data, str(file))


def write_schema(directory: Path, schema: GraphSchema) -> None:
    """Write ``graph.json`` into a directory that is being built."""
    text = json.dumps(schema_to_json(schema), indent=2, ensure_ascii=False)
    (directory / SCHEMA_FILE).write_text(text + "\n", encoding="utf-8")


def _check_table(kind: NodeType | EdgeType, where: str, field: str) -> None:
    _count(kind.count, where, f"{field}.count")
    if (kind.feature_dim is None) != (kind.feature_dtype is None):
        raise GraphError(
            f"{where}: {field}: expected feature_dim and feature_dtype both or neither, "
            f"given {kind.feature_dim!r} and {kind.feature_dtype!r}"
        )
    if kind.feature_dim is None:
        return
    if _count(kind.feature_dim, where, f"{field}.feature_dim") < 1:
        raise GraphError(f"{where}: {field}.feature_dim: expected at least 1, given 0")
    if kind.feature_dtype not in FEATURE_DTYPES:
        raise GraphError(
            f"{where}: {field}.feature_dtype: expected one of {FEATURE_DTYPES}, "
            f"given {kind.feature_dtype!r}"
        )


def _check_tasks(labels: Labels, where: str, field: str) -> None:
    """Check the labels of each task, and that their widths add up to that of all tasks."""
    if (labels.kind == "tasks") != bool(labels.tasks):
        raise GraphError(f'{where}: {field}.tasks: expected where kind is "tasks", and only there')
    for name, task in labels.tasks:
        check_name(name, f"{field}.tasks", where)
        is_known = task.kind in ("class", "multi_hot", "float")
        if not is_known or not 1 <= task.classes <= _MOST_CLASSES:
            raise GraphError(
                f"{where}: {field}.tasks.{name}: expected kind class, multi_hot or float, and 1 to "
                f"{_MOST_CLASSES:,} classes, given {task.kind!r} and {task.classes}"
            )
    total = sum(task.classes for _, task in labels.tasks)
    if labels.tasks and labels.classes != total:
        raise GraphError(
            f"{where}: {field}.classes: expected {total}, of all tasks together, given "
            f"{labels.classes}"
        )


def _check_ends(schema: GraphSchema, relation: Relation, where: str, field: str) -> None:
    for end, name in (("src", relation.src), ("dst", relation.dst)):
        if name not in schema.node_types:
            raise GraphError(
                f"{where}: {field}: {end} of {relation}: expected one of the node types "
                f"{sorted(schema.node_types)}, given {name!r}"
            )


def _check_target(schema: GraphSchema, where: str) -> None:
    target = schema.target
    if isinstance(target, str) and target not in schema.node_types:
        raise GraphError(
            f"{where}: target: expected one of the node types {sorted(schema.node_types)}, "
            f"given {target!r}"
        )
    for number, relation in enumerate(schema.target_relations):
        if relation not in schema.relations:
            raise GraphError(f"{where}: target: expected one of the relations, given {relation}")
        if relation in schema.target_relations[:number]:
            raise GraphError(f"{where}: target: {relation} stands there twice")
        if schema.labels.get(relation) != schema.target_labels:
            raise GraphError(
                f"{where}: target: expected edges of all target relations to have labels of the "
                f"same kind and width, or none; given {_describe_labels(schema, relation)} of "
                f"{relation} and {_describe_labels(schema, target)} of {target}"
            )


def _object(value: object, where: str, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GraphError(f"{where}: {field}: expected an object, given {value!r}")
    return value


def _text(value: object, where: str, field: str) -> str:
    if not isinstance(value, str):
        raise GraphError(f"{where}: {field}: expected text, given {value!r}")
    return value


def _count(value: object, where: str, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GraphError(f"{where}: {field}: expected an integer of at least 0, given {value!r}")
    return value


def _expect_keys(
    fields: dict[str, Any],
    *,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    where: str,
    field: str,
) -> None:
    prefix = f"{field}." if field else ""
    for key in required:
        if key not in fields:
            raise GraphError(f"{where}: {prefix}{key}: missing field")
    for key in fields:
        if key not in required and key not in optional:
            raise GraphError(
                f"{where}: {prefix}{key}: unknown field; expected {sorted(required + optional)}"
            )


def _parse_node_types(value: object, where: str) -> dict[str, NodeType]:
    result = {}
    for name, entry in _object(value, where, "node_types").items():
        field = f"node_types.{name}"
        fields = _object(entry, where, field)
        _expect_keys(
            fields,
            required=("count",),
            optional=("feature_dim", "feature_dtype", "feature_error", "columns", "timed"),
            where=where,
            field=field,
        )
        _check_flag(fields, "timed", where, field)
        result[name] = NodeType(**_parse_features(fields, where, field))
    return result


def _parse_relations(
    value: object, where: str
) -> tuple[dict[Relation, EdgeType], dict[Labelled, Labels]]:
    """Parse the relations, and the labels of their edges."""
    if not isinstance(value, list):
        raise GraphError(f"{where}: relations: expected a list, given {value!r}")
    result, labels = dict[Relation, EdgeType](), dict[Labelled, Labels]()
    for index, entry in enumerate(value):
        field = f"relations[{index}]"
        fields = dict(_object(entry, where, field))
        _expect_keys(
            fields,
            required=("src", "rel", "dst", "count"),
            optional=(
                *("feature_dim", "feature_dtype", "feature_error", "columns"),
                *("weighted", "timed", "labels"),
            ),
            where=where,
            field=field,
        )
        ends = (_text(fields.pop(key), where, f"{field}.{key}") for key in ("src", "rel", "dst"))
        relation = Relation(*ends)
        if relation in result:
            raise GraphError(f"{where}: {field}: {relation} stands there twice")
        if "labels" in fields:
            labels[relation] = _parse_labels(fields.pop("labels"), where, f"{field}.labels")
        _check_flag(fields, "weighted", where, field)
        _check_flag(fields, "timed", where, field)
        result[relation] = EdgeType(**_parse_features(fields, where, field))
    return result, labels


def _features_to_json(kind: NodeType | EdgeType) -> dict[str, Any]:
    """Convert what is told of a type's features only where it is known."""
    error, columns = kind.feature_error, columns_to_json(kind.columns)
    data = {} if error is None else {"feature_error": error._asdict()}
    return {**data, **({"columns": columns} if columns else {})}


def _parse_features(fields: Mapping[str, Any], where: str, field: str) -> dict[str, Any]:
    """Check ``columns`` and ``feature_error`` of a type, and parse those that are there."""
    if "columns" in fields:
        place, width = f"{where}: {field}.columns", fields.get("feature_dim") or 0
        fields = {**fields, "columns": columns_from_json(fields["columns"], place, width)}
    error = fields.get("feature_error")
    if error is None:
        return dict(fields)
    names = RoundingError._fields
    if not isinstance(error, dict) or set(error) != set(names):
        raise GraphError(f"{where}: {field}.feature_error: expected {names}, given {error!r:.100}")
    for name in names:
        value = error[name]
        if value is None and name == "relative":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise GraphError(
                f"{where}: {field}.feature_error.{name}: expected a number >= 0, given "
                f"{value!r:.100}"
            )
    return {**fields, "feature_error": RoundingError(**error)}


def _check_flag(fields: dict[str, Any], key: str, where: str, field: str) -> None:
    if not isinstance(fields.get(key, False), bool):
        raise GraphError(f"{where}: {field}.{key}: expected true or false, given {fields[key]!r}")


def target_to_json(schema: GraphSchema) -> str | list[str] | list[list[str]]:
    """Convert the target to its form in ``graph.json``."""
    if isinstance(schema.target, str):
        return schema.target
    triples = [list(relation) for relation in schema.target_relations]
    return triples if schema.also else triples[0]


def _parse_targets(value: object, where: str) -> list[str | Relation]:
    """Parse the target: one node type, or one relation or more."""
    if isinstance(value, str):
        return [value]
    items = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    triples = [
        Relation(*item)
        for item in items
        if isinstance(item, list) and len(item) == 3 and all(isinstance(x, str) for x in item)
    ]
    if len(triples) < len(items):
        raise GraphError(
            f"{where}: target: expected a node type, [src, rel, dst] or a list of these, given "
            f"{value!r}"
        )
    return list(triples)


def _parse_all_labels(value: object, where: str) -> dict[Labelled, Labels]:
    entries = _object(value, where, "labels").items()
    return {name: _parse_labels(entry, where, f"labels.{name}") for name, entry in entries}


def _parse_labels(value: object, where: str, field: str) -> Labels:
    fields = dict(_object(value, where, field))
    _expect_keys(
        fields, required=("kind", "classes"), optional=("tasks",), where=where, field=field
    )
    _count(fields["classes"], where, f"{field}.classes")
    entries = _object(fields.pop("tasks", {}), where, f"{field}.tasks").items()
    tasks = {name: _parse_labels(entry, where, f"{field}.tasks.{name}") for name, entry in entries}
    return Labels(**fields, tasks=tuple(tasks.items()))


def _labels_to_json(labels: Labels) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": labels.kind, "classes": labels.classes}
    if labels.tasks:
        data["tasks"] = {name: _labels_to_json(task) for name, task in labels.tasks}
    return data


def _describe_labels(schema: GraphSchema, owner: Labelled) -> str:
    labels = schema.labels.get(owner)
    return "none" if labels is None else f"{labels.kind} of width {labels.classes}"
