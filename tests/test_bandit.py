"""bandit finds nothing, and what it is told to let be stands in SECURITY.md."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("hopper", "cache_server")
NOSEC = re.compile(r"# nosec\b:?((?: ?,?B\d+)*)")


@pytest.mark.skipif(importlib.util.find_spec("bandit") is None, reason="bandit is not installed")
def test_bandit_finds_nothing() -> None:
    words = [sys.executable, "-m", "bandit", "-c", "pyproject.toml", "-q", "-r", *PACKAGES]
    checked = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_is_let_be_is_listed() -> None:
    listed = (REPOSITORY / "SECURITY.md").read_text().partition("## Static analysis")[2]
    rows = [line for line in listed.splitlines() if line.startswith("| B")]
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    asked = {(rule, "pyproject.toml") for rule in settings["tool"]["bandit"]["skips"]}
    for package in PACKAGES:
        for file in (REPOSITORY / package).rglob("*.py"):
            for rules in NOSEC.findall(file.read_text()):
                assert rules.strip(), f"{file}: nosec without a rule"
                asked |= {(rule, str(file.relative_to(REPOSITORY))) for rule in rules.split()}
    missing = [each for each in asked if not any(set(each) <= _words(row) for row in rows)]
    assert missing == []
    told = {rule for row in rows for rule in re.findall(r"B\d+", row)}
    assert told == {rule for rule, _ in asked}


def _words(row: str) -> set[str]:
    return set(re.findall(r"[\w./]+", row))
