"""A partitioned graph, a configuration that trains on it, and what ``hopper doctor`` finds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.doctor import Finding, examine

Look = Callable[..., list[Finding]]


@pytest.fixture(scope="module")
def addresses(parts, serve_partitions) -> list[str]:
    """The addresses of its feature servers, which are open to this machine."""
    return serve_partitions(parts, 2)


@pytest.fixture
def values(parts, tmp_path) -> dict[str, Any]:
    """The values of a configuration without faults."""
    return {
        "data": {"partitioned": str(parts)},
        "model": {"layers": 2, "hidden": 8},
        "sampler": {"fanouts": [4, 3]},
        "train": {"batch_size": 8, "device": "cpu", "run_dir": str(tmp_path / "run")},
    }


@pytest.fixture
def config(values, tmp_path) -> Path:
    """The path of the same configuration as a file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return path


@pytest.fixture
def look(config) -> Look:
    """A function that returns the findings of the configuration with overrides. Feature servers
    have 20 seconds to answer, or ``limit``."""

    def examine_all(*overrides: str, limit: float = 20.0, checksums: bool = False) -> list[Finding]:
        return list(examine(config, overrides, checksums=checksums, limit=limit))

    return examine_all


def find(findings: list[Finding], subject: str) -> Finding:
    """Return the worst finding of a subject, or of subjects that begin with it."""
    matching = [finding for finding in findings if finding.subject.startswith(subject)]
    assert matching, f"nothing was said of {subject}: {[finding.subject for finding in findings]}"
    return max(matching, key=lambda finding: ("fine", "warning", "wrong").index(finding.state))


def wrongs(findings: list[Finding]) -> list[str]:
    """Return what is wrong, a line for each finding."""
    return [f"{one.subject}: {one.found}" for one in findings if one.state == "wrong"]
