"""graph.json: there and back, and every field that is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopper.errors import GraphError
from hopper.graph import EdgeType, GraphSchema, Labels, NodeType, Relation
from hopper.graph.columns import ColumnRange, FeatureColumn
from hopper.graph.row_form import RoundingError
from hopper.graph.schema_json import (
    check_schema,
    read_schema,
    schema_fingerprint,
    schema_from_json,
    schema_to_json,
)

KNOWS = Relation("a", "knows", "a")
RANGE = ColumnRange(0, 0.0, 9.0, 1.0, 2.0)
EVERYTHING = GraphSchema(
    "g",
    {
        "a": NodeType(
            *(4, 3, "int8", True, RoundingError(0.25, None)),
            (FeatureColumn("x", ("u", "v")), FeatureColumn("y", ranges=(RANGE,))),
        )
    },
    {KNOWS: EdgeType(5, weighted=True, timed=True)},
    KNOWS,
    {"a": Labels("tasks", 5, (("s", Labels("class", 4)), ("t", Labels("float", 1)))),
     KNOWS: Labels("class", 2)},
    {"train": 2},
)  # fmt: skip


def test_there_and_back(library: Path, friends: Path) -> None:
    for schema in (read_schema(library), read_schema(friends), EVERYTHING):
        data = json.loads(json.dumps(schema_to_json(schema)))
        assert schema_from_json(data, "here") == schema
        older = schema_from_json(data | {"schema": 1}, "here")
        assert schema_fingerprint(older) == schema_fingerprint(schema)
    column = schema_to_json(EVERYTHING)["node_types"]["a"]["columns"][0]
    assert column == {"name": "x", "categories": ["u", "v"]}


def test_optional_fields_have_defaults() -> None:
    few = {"schema": 1, "name": "g", "node_types": {"a": {"count": 2}}, "relations": []}
    assert schema_from_json(few | {"target": "a"}, "here") == GraphSchema(
        "g", {"a": NodeType(2)}, {}, "a"
    )
    with pytest.raises(GraphError, match="here: top level: expected an object"):
        schema_from_json([], "here")


ABSENT = object()
PAPER = ("node_types", "paper")
READS = "schema: this version of Hopper reads schemas 1 and 2, given"
NAME = "expected a name of letters, digits"
REFUSED: list[tuple[tuple[Any, ...], Any, str]] = [
    (("schema",), 3, f"{READS} 3"),
    (("schema",), None, f"{READS} None"),
    (("target",), ABSENT, "target: missing field"),
    (("color",), "red", "color: unknown field"),
    (("name",), 3, "name: expected text, given 3"),
    ((*PAPER, "columns"), [{"name": "a"}], "columns: expected columns of feature_dim 3, given 1"),
    ((*PAPER, "columns"), [{"name": "a", "numbers": "x"}],
     "node_types.paper.columns[0].numbers: expected a valid integer"),
    ((*PAPER, "columns"), [{"name": "a", "numbers": 3, "fill": [1]}],
     "node_types.paper.columns: column 'a': fill, offset, divisor: expected 3 numbers each"),
    ((*PAPER, "feature_error"), {"absolute": -1, "relative": 0},
     "node_types.paper.feature_error.absolute: expected at least 0.0, given -1"),
    (("node_types",), [], "node_types: expected an object, given []"),
    (("node_types",), {}, "node_types: expected at least one node type, given none"),
    ((*PAPER, "count"), -1, "node_types.paper.count: expected at least 0, given -1"),
    ((*PAPER, "count"), True, "node_types.paper.count: expected an integer, given True"),
    ((*PAPER, "count"), 5.0, "node_types.paper.count: expected an integer, given 5.0"),
    ((*PAPER, "width"), 3, "node_types.paper.width: unknown field"),
    ((*PAPER, "timed"), 1, "node_types.paper.timed: expected true or false, given 1"),
    ((*PAPER, "feature_dim"), None, "feature_dim and feature_dtype both or neither"),
    ((*PAPER, "feature_dim"), 0, "paper.feature_dim: expected at least 1, given 0"),
    ((*PAPER, "feature_dtype"), "int4", "feature_dtype: expected one of 'float32', 'float16'"),
    *((("node_types", name), {"count": 1}, f"node_types: {NAME}") for name in ("a/b", "..", "")),
    (("relations",), {}, "relations: expected a list, given {}"),
    (("relations", 0, "dst"), "editor", "relations: dst of paper/linked/editor: expected one of"),
    (("relations", 0, "rel"), "a#b", f"name of paper/a#b/paper: {NAME}"),
    (("relations", 0, "src"), 7, "relations[0].src: expected text, given 7"),
    (("relations", 1, "src"), "paper", "relations[1]: paper/linked/paper stands there twice"),
    (("relations", 2, "count"), ABSENT, "relations[2].count: missing field"),
    (("target",), "editor", "target: expected one of the node types"),
    (("target",), ["paper", "likes", "paper"], "target: expected one of the relations, given"),
    (("target",), ["paper"],
     "target: expected a node type, [src, rel, dst] or a list of these, given ['paper']"),
    (("labels", "editor"), {"kind": "class", "classes": 2},
     "labels: expected a node type or a relation, given 'editor'"),
    (("labels", "paper", "kind"), "rank", "labels.paper.kind: expected one of 'class'"),
    (("labels", "paper", "classes"), 0, "labels.paper.classes: expected at least 1, given 0"),
    (("labels", "paper", "classes"), "3", "labels.paper.classes: expected an integer, given '3'"),
    (("labels", "paper", "kind"), "tasks", 'paper.tasks: expected where kind is "tasks", and only'),
    (("splits", "train"), -2, "splits.train: expected at least 0, given -2"),
    (("splits", "a b"), 0, f"splits: {NAME}"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "text"), REFUSED)
def test_refused_fields(library: Path, path: tuple[Any, ...], value: Any, text: str) -> None:
    data = schema_to_json(read_schema(library))
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    (library / "graph.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(GraphError, match=re.escape(text)) as error:
        read_schema(library)
    assert str(library / "graph.json") in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"node_types": {"a": NodeType(-1)}}, "node_types.a.count: expected at least 0"),
        ({"labels": {Relation("a", "x", "a"): Labels("class", 2)}}, "given 'a/x/a'"),
        ({"also": (KNOWS,)}, "target: a/knows/a stands there twice"),
        ({"labels": {"a": Labels("tasks", 3, (("s", Labels("class", 4)),))}}, "expected 4"),
    ],
)  # fmt: skip
def test_a_schema_made_in_python_is_checked_alike(change: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=re.escape(text)):
        check_schema(replace(EVERYTHING, **change), "here")
