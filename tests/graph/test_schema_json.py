"""graph.json: there and back, and every field that is refused."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopper.errors import GraphError
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, Labels, NodeType, Relation
from hopper.graph.columns import ColumnRange, FeatureColumn, RoundingError, find_column_difference
from hopper.graph.schema_json import check_schema, read_schema, schema_from_json, schema_to_json
from tests.docs.markdown_pages import read_code
from tests.graph.conftest import library_schema

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "graph-directory.md"
KNOWS = Relation("a", "knows", "a")
LIKES = Relation("a", "likes", "a")
RANGE = ColumnRange(0, 0.0, 9.0, 1.0, 2.0)
COLUMNS = (FeatureColumn("x", ("u", "v")), FeatureColumn("y", ranges=(RANGE,)))
TASKS = Labels("tasks", 5, (("s", Labels("class", 4)), ("t", Labels("float", 1))))
EVERYTHING = GraphSchema(
    "g",
    {"a": NodeType(4, 3, "int8", True, RoundingError(0.25, None), COLUMNS)},
    {KNOWS: EdgeType(5, 2, "int8", weighted=True, feature_error=RoundingError(0.25, 0.004)),
     LIKES: EdgeType(0)},
    KNOWS,
    {"a": TASKS, KNOWS: Labels("class", 2), LIKES: Labels("class", 2)},
    {"train": 2},
    also=(LIKES,),
)  # fmt: skip


def test_there_and_back():
    for schema in (library_schema(), EVERYTHING):
        data = json.loads(json.dumps(schema_to_json(schema)))
        assert schema_from_json(data, "here") == schema
    few = {"schema": 2, "name": "g", "node_types": {"a": {"count": 2}}, "relations": []}
    expected = GraphSchema("g", {"a": NodeType(2)}, {}, "a")
    assert schema_from_json(few | {"target": "a"}, "here") == expected
    column = schema_to_json(EVERYTHING)["node_types"]["a"]["columns"][0]
    assert column == {"name": "x", "categories": ["u", "v"]}


def test_the_documented_examples(tmp_path, monkeypatch):
    """The examples of docs/reference/graph-directory.md do what the page says."""
    schema, code = (read_code(PAGE, language)[0] for language in ("json", "python"))
    assert schema_to_json(schema_from_json(json.loads(schema), str(PAGE))) == json.loads(schema)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
    graph = GraphDirectory.open("library")
    assert graph.split("train").tolist() == [0, 4]
    assert graph.features("paper").shape == (5, 3)


ABSENT = object()
PAPER = ("node_types", "paper")
NAME = "expected a name of letters, digits"
REFUSED: list[tuple[tuple[Any, ...], Any, str]] = [
    (("schema",), 1, "schema: this version of Hopper reads schema 2, given 1"),
    (("target",), ABSENT, "target: missing field"),
    (("color",), "red", "color: unknown field"),
    ((*PAPER, "columns"), [{"name": "a"}], "columns: expected columns of feature_dim 3, given 1"),
    ((*PAPER, "columns"), [{"name": "a", "numbers": "x"}],
     "node_types.paper.columns[0].numbers: expected a valid integer"),
    ((*PAPER, "columns"), [{"name": "a", "numbers": 3, "fill": [1]}],
     "node_types.paper.columns: column 'a': fill, offset, divisor: expected 3 numbers each"),
    ((*PAPER, "feature_error"), {"absolute": -1, "relative": 0},
     "node_types.paper.feature_error.absolute: expected greater than or equal to 0, giv"),
    (("node_types",), {}, "node_types: expected at least one node type, given none"),
    ((*PAPER, "count"), -1, "types.paper.count: expected greater than or equal to 0, given -1"),
    ((*PAPER, "count"), 5.0, "node_types.paper.count: expected a valid integer, given 5.0"),
    ((*PAPER, "feature_dim"), None, "feature_dim and feature_dtype both or neither"),
    ((*PAPER, "feature_dtype"), "int4", "feature_dtype: expected 'float32', 'float16'"),
    *((("node_types", name), {"count": 1}, f"node_types: {NAME}") for name in ("a/b", "..", "")),
    (("relations", 0, "dst"), "editor", "relations: dst of paper/linked/editor: expected one of"),
    (("relations", 0, "rel"), "a#b", f"name of paper/a#b/paper: {NAME}"),
    (("relations", 1, "src"), "paper", "relations[1]: paper/linked/paper stands there twice"),
    (("relations", 2, "count"), ABSENT, "relations[2].count: missing field"),
    (("target",), "editor", "target: expected one of the node types"),
    (("target",), ["paper", "likes", "paper"], "target: expected one of the relations, given"),
    (("target",), ["paper"],
     "target: expected a node type, [src, rel, dst] or a list of these, given ['paper']"),
    (("labels", "editor"), {"kind": "class", "classes": 2},
     "labels: expected a node type or a relation, given 'editor'"),
    (("labels", "paper", "kind"), "rank", "labels.paper.kind: expected 'class', 'multi_hot'"),
    (("labels", "paper", "kind"), "tasks", 'paper.tasks: expected where kind is "tasks", and only'),
    (("splits", "a b"), 0, f"splits: {NAME}"),
]  # fmt: skip


def test_refused_fields(tmp_path):
    for path, value, text in REFUSED:
        data = copy.deepcopy(schema_to_json(library_schema()))
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        if value is ABSENT:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        with pytest.raises(GraphError, match=rf"^here: .*{re.escape(text)}[^\n]*$"):
            schema_from_json(data, "here")
    with pytest.raises(GraphError, match="here: top level: expected an object"):
        schema_from_json([], "here")
    # A schema made in Python is checked alike.
    changes: list[tuple[dict[str, Any], str]] = [
        ({"node_types": {"a": NodeType(-1)}}, "node_types.a.count: expected greater than"),
        ({"labels": {Relation("a", "x", "a"): Labels("class", 2)}}, "given 'a/x/a'"),
        ({"also": (KNOWS,)}, "target: a/knows/a stands there twice"),
        ({"labels": {"a": TASKS, KNOWS: Labels("class", 2)}},
         "of the same kind and width, or none; given none of a/likes/a and class of width 2 of"),
        ({"labels": {"a": replace(TASKS, classes=3)}, "also": ()}, "expected 5, of all tasks"),
    ]  # fmt: skip
    for change, text in changes:
        with pytest.raises(GraphError, match=re.escape(text)):
            check_schema(replace(EVERYTHING, **change), "here")
    for content, text in (
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON: nested too deeply"),
        ('{"name": 1, "name": 2}', "not valid JSON: field 'name' is given twice"),
        ("[]", "expected a JSON object, found list"),
    ):
        (tmp_path / "graph.json").write_text(content)
        with pytest.raises(GraphError, match=rf"graph\.json: {text}"):
            read_schema(tmp_path)


X, MATRIX = FeatureColumn("x"), FeatureColumn("", numbers=3)
SCALED = replace(X, scale="standard", offset=(2.0,), divisor=(0.5,))


@pytest.mark.parametrize(
    ("new", "old", "text"),
    [
        ([X], [X], ""),
        ([X, replace(X, name="y")], [X], "t: has the columns [x, y]; the run was trained with [x]"),
        ([SCALED], [X], "t: column 'x' is scaled by [standard, 2, 0.5]; the run was trained w"),
        ([MATRIX], [X, replace(X, name="y", scale="log")],
         "t: has numbers scaled by [nothing]; the run was trained with [log, nothing]"),
        ([MATRIX], [replace(MATRIX, numbers=4)], "t: its matrix holds lists of [3]; the run was"),
        ([replace(X, missing="mean", fill=(1.0,))], [X], ""),
        ([replace(X, missing="mean", fill=(1.0,))], [replace(X, missing="zero", fill=(0.0,))],
         "t: column 'x' has missing numbers filled with [1]; the run was trained with [0]"),
        ([replace(X, categories=tuple("abcdefgh"))], [replace(X, categories=tuple("abcdefgi"))],
         "t: column 'x' has the categories [..., h]; the run was trained with [..., i]"),
    ],
)  # fmt: skip
def test_differences_of_columns(new, old, text):
    found = find_column_difference({"t": tuple(old), "u": ()}, {"t": tuple(new)})
    assert found.startswith(text)
    assert bool(found) == bool(text)
