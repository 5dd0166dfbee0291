"""The README points at things that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert "@@" not in text
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_name_scripts_that_exist() -> None:
    for name in re.findall(
        r"(?:\./|python )((?:scripts|benchmarks)/[\w/]+\.\w+)", PAGES[0].read_text()
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
