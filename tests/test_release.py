"""Checks before a release: metadata, contents and notes."""

import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import hopper
from scripts.check_distribution import find_problems, main

REPOSITORY = Path(__file__).resolve().parents[1]
METADATA = """Metadata-Version: 2.4
Name: hopper-gnn
Version: 1.2.3
Summary: Trains.
License-Expression: Apache-2.0
Requires-Python: >=3.11
Description-Content-Type: text/markdown

# Hopper
"""
MODULES = {"hopper/__init__.py": '__version__ = "1.2.3"\n', "cache_server/__init__.py": ""}


def write_release(folder: Path, wheel: dict[str, str], sdist: dict[str, str]) -> Path:
    with zipfile.ZipFile(folder / "hopper_gnn-1.2.3-py3-none-any.whl", "w") as archive:
        for name, text in wheel.items():
            archive.writestr(name, text)
    with tarfile.open(folder / "hopper_gnn-1.2.3.tar.gz", "w:gz") as tar:
        for name, text in sdist.items():
            member = tarfile.TarInfo(f"hopper_gnn-1.2.3/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return folder


def wheel(**changes: str) -> dict[str, str]:
    return MODULES | {"hopper_gnn-1.2.3.dist-info/METADATA": METADATA} | changes


def sdist(**changes: str) -> dict[str, str]:
    return MODULES | {"PKG-INFO": METADATA, "README.md": "# Hopper\n"} | changes


def test_a_good_release_has_no_problems(tmp_path):
    assert list(find_problems(write_release(tmp_path, wheel(), sdist()))) == []
    assert main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("in_wheel", "in_sdist", "problem"),
    [
        ({}, {"benchmarks/results/a.json": "{}"}, "benchmarks/results/a.json has no place there"),
        ({}, {"hopper/kernel.nbc": ""}, "hopper/kernel.nbc has no place there"),
        ({}, {"hopper/forgotten.css": ""}, "hopper/forgotten.css is missing"),
        ({"tests/test_a.py": ""}, {}, "tests is no part of the packages"),
        (
            {"hopper_gnn-1.2.3.dist-info/METADATA": METADATA.replace("1.2.3", "1.2.4")},
            {},
            "version 1.2.4, in hopper/__init__.py 1.2.3",
        ),
        ({}, {"PKG-INFO": METADATA.replace("Summary: Trains.\n", "")}, "Summary is missing"),
        ({}, {"PKG-INFO": METADATA.replace("markdown", "plain")}, "not declared as text/markdown"),
        ({}, {"PKG-INFO": METADATA.replace("# Hopper\n", "")}, "the description is empty"),
    ],
)
def test_problems_of_a_release_are_named(tmp_path, capsys, in_wheel, in_sdist, problem):
    write_release(tmp_path, wheel(**in_wheel), sdist(**in_sdist))
    assert main([str(tmp_path)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line for line in errors if problem in line]


def test_a_release_is_one_wheel_and_one_source_archive(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert "expected one wheel and one .tar.gz, found 0 and 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "changelog", "problem"),
    [
        ([], "# Changelog\n", "no section ## 1.2.3 (DATE)"),
        ([], "## 1.2.3 (unreleased)\n- New.\n", "expected the date of 1.2.3 as YYYY-MM-DD"),
        ([], "## 1.2.3 (2026-12-01)\n\n## 1.2.2 (2026-11-01)\n- Old.\n", "1.2.3 is empty"),
        (["--rehearse"], "## 1.2.30 (unreleased)\n- New.\n", "no section ## 1.2.3 (DATE)"),
        (["--rehearse"], "## 1.2.3 (unreleased)\n- New.\n", "expected an empty folder, or none"),
    ],
)
def test_a_release_needs_its_notes_first(tmp_path, words, changelog, problem):
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "release.sh", tmp_path / "scripts")
    (tmp_path / "hopper").mkdir()
    (tmp_path / "hopper" / "__init__.py").write_text(MODULES["hopper/__init__.py"])
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    release = subprocess.run(
        ["bash", "scripts/release.sh", *words, "python", "scripts"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert release.returncode == 1
    assert release.stderr.startswith("error: ")
    assert problem in release.stderr


def test_the_version_has_a_section_in_the_changelog():
    assert f"## {hopper.__version__} (" in (REPOSITORY / "CHANGELOG.md").read_text()
