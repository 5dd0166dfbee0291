"""graph.json: there and back, and every field that is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.errors import GraphError
from hopper.graph import GraphSchema
from hopper.graph.schema_json import read_schema, schema_from_json, schema_to_json


def test_there_and_back(library: Path, friends: Path) -> None:
    for directory in (library, friends):
        schema = read_schema(directory)
        text = json.dumps(schema_to_json(schema))
        assert schema_from_json(json.loads(text), "here") == schema


def test_optional_fields_have_defaults() -> None:
    schema = schema_from_json(
        {
            "schema": 1,
            "name": "g",
            "node_types": {"a": {"count": 2}},
            "relations": [],
            "target": "a",
        },
        "here",
    )
    assert schema == GraphSchema("g", dict(schema.node_types), {}, "a")
    assert schema.node_types["a"].feature_dim is None


def set_field(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Set the value at a path of keys; the last item is the value."""

    def change(data: Any) -> None:
        *keys, last, value = path
        for key in keys:
            data = data[key]
        data[last] = value

    return change


BAD_FIELDS = [
    (set_field("schema", 2), "schema: this version of Hopper reads schema 1, given 2"),
    (set_field("schema", None), "schema: this version of Hopper reads schema 1, given None"),
    (lambda d: d.pop("target"), "target: missing field"),
    (set_field("color", "red"), "color: unknown field"),
    (set_field("name", 3), "name: expected text, given 3"),
    (
        set_field("node_types", "paper", "columns", [{"name": "a"}]),
        "node_types.paper.columns: expected columns of feature_dim 3, given 1",
    ),
    (
        set_field("node_types", "paper", "columns", [{"name": "a", "numbers": "x"}]),
        "node_types.paper.columns.0.numbers: Input should be a valid integer",
    ),
    (
        set_field("node_types", "paper", "columns", [{"name": "a", "numbers": 3, "fill": [1]}]),
        "node_types.paper.columns: column 'a': fill, offset, divisor: expected 3 numbers each",
    ),
    (set_field("node_types", []), "node_types: expected an object, given []"),
    (set_field("node_types", {}), "node_types: expected at least one node type, given none"),
    (
        set_field("node_types", "paper", "count", -1),
        "node_types.paper.count: expected an integer of at",
    ),
    (
        set_field("node_types", "paper", "count", True),
        "node_types.paper.count: expected an integer",
    ),
    (set_field("node_types", "paper", "count", 5.0), "node_types.paper.count: expected an integer"),
    (set_field("node_types", "paper", "width", 3), "node_types.paper.width: unknown field"),
    (
        set_field("node_types", "paper", "feature_dim", None),
        "feature_dim and feature_dtype both or neith",
    ),
    (
        set_field("node_types", "paper", "feature_dim", 0),
        "paper.feature_dim: expected at least 1, given",
    ),
    (set_field("node_types", "paper", "feature_dtype", "int4"), "feature_dtype: expected one of"),
    (
        set_field("node_types", "a/b", {"count": 1}),
        "node_types: expected a name of letters, digits",
    ),
    (set_field("node_types", "..", {"count": 1}), "node_types: expected a name of letters, digits"),
    (set_field("node_types", "", {"count": 1}), "node_types: expected a name of letters, digits"),
    (set_field("relations", {}), "relations: expected a list, given {}"),
    (
        set_field("relations", 0, "dst", "editor"),
        "relations: dst of paper/linked/editor: expected one of",
    ),
    (
        set_field("relations", 0, "rel", "a#b"),
        "name of paper/a#b/paper: expected a name of letters",
    ),
    (set_field("relations", 0, "src", 7), "relations[0].src: expected text, given 7"),
    (
        set_field("relations", 1, "src", "paper"),
        "relations[1]: paper/linked/paper stands there twice",
    ),
    (lambda d: d["relations"][2].pop("count"), "relations[2].count: missing field"),
    (set_field("target", "editor"), "target: expected one of the node types"),
    (
        set_field("target", ["paper", "likes", "paper"]),
        "target: expected one of the relations, given pa",
    ),
    (
        set_field("target", ["paper"]),
        "target: expected a node type, [src, rel, dst] or a list of these, given ['paper']",
    ),
    (
        set_field("labels", "editor", {"kind": "class", "classes": 2}),
        "labels: expected a node type or a relation, give",
    ),
    (set_field("labels", "paper", "kind", "rank"), "labels.paper.kind: expected one of"),
    (
        set_field("labels", "paper", "classes", 0),
        "labels.paper.classes: expected at least 1, given 0",
    ),
    (set_field("labels", "paper", "classes", "3"), "labels.paper.classes: expected an integer"),
    (set_field("splits", "train", -2), "splits.train: expected an integer of at least 0, given -2"),
    (set_field("splits", "a b", 0), "splits: expected a name of letters, digits"),
]


@pytest.mark.parametrize(("change", "text"), BAD_FIELDS)
def test_refused_fields(library: Path, change: Callable[[Any], Any], text: str) -> None:
    data = schema_to_json(read_schema(library))
    change(data)
    (library / "graph.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(GraphError, match=re.escape(text)) as error:
        read_schema(library)
    assert str(library / "graph.json") in str(error.value)


def test_top_level_must_be_an_object() -> None:
    with pytest.raises(GraphError, match="here: top level: expected an object"):
        schema_from_json([], "here")
