"""Scripts that the README names exist, and results name their origin."""

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


def test_results_name_their_commit_machine_and_versions() -> None:
    folder = ROOT / "benchmarks" / "results"
    texts = [(path, path.read_text()) for path in sorted(folder.rglob("*.json"))]
    for path in sorted(folder.rglob("*.jsonl")):
        texts += [(path, line) for line in path.read_text().splitlines()]
    assert texts
    for path, text in texts:
        result = json.loads(text)
        assert re.fullmatch(r"[0-9a-f]{40}\+?", result["commit"]), path
        assert result["machine"]["cpu"], path
        assert result["versions"]["torch"], path
