"""The README points at things that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_commands_name_scripts_that_exist() -> None:
    for name in re.findall(
        r"(?:\./|python )((?:scripts|benchmarks)/[\w/]+\.\w+)", README.read_text()
    ):
        assert (ROOT / name).is_file(), name


def test_results_say_where_they_come_from() -> None:
    folder = ROOT / "benchmarks" / "results"
    results = [(path, path.read_text()) for path in sorted(folder.rglob("*.json"))]
    for path in sorted(folder.rglob("*.jsonl")):
        results += [(path, line) for line in path.read_text().splitlines()]
    assert results
    for path, text in results:
        found = json.loads(text)
        assert re.fullmatch(r"[0-9a-f]{40}\+?", found["commit"]), path
        assert found["machine"]["cpu"], path
        assert found["versions"]["torch"], path
