"""The examples of docs/reference/graph-directory.md do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hopper.graph import GraphDirectory
from hopper.graph.schema_json import schema_from_json, schema_to_json

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "graph-directory.md"


def blocks(language: str) -> list[str]:
    """The page's code blocks in a language."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_schema_example() -> None:
    example = json.loads(blocks("json")[0])
    assert schema_to_json(schema_from_json(example, str(PAGE))) == example


def test_writing_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    exec(compile(example, str(PAGE), "exec"), {})
    graph = GraphDirectory.open("library")
    assert graph.split("train").tolist() == [0, 4]
    assert graph.features("paper").shape == (5, 3)
