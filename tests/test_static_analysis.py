"""What ruff's rules of bandit are told to let be stands in SECURITY.md."""

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("hopper", "cache_server")
EXCEPTION = re.compile(r"# noqa: (S\d{3})\b")


def test_every_exception_is_listed():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in settings["select"]
    exceptions = {
        (rule, "pyproject.toml") for rule in settings["ignore"] if re.fullmatch(r"S\d+", rule)
    }
    for package in PACKAGES:
        for file in (REPOSITORY / package).rglob("*.py"):
            for rule in EXCEPTION.findall(file.read_text()):
                exceptions.add((rule, str(file.relative_to(REPOSITORY))))
    listed = (REPOSITORY / "SECURITY.md").read_text().partition("## Static analysis")[2]
    rows = [
        set(re.findall(r"[\w./]+", row)) for row in listed.splitlines() if row.startswith("| S")
    ]
    missing = [
        exception for exception in exceptions if not any(set(exception) <= row for row in rows)
    ]
    assert missing == []
    assert {rule for row in rows for rule in row if re.fullmatch(r"S\d+", rule)} == {
        rule for rule, _ in exceptions
    }
