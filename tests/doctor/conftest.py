"""A divided graph, a configuration that trains it, and what the doctor finds of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.doctor import Finding, examine
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph

Look = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def parts(community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph divided over two servers."""
    folder = tmp_path_factory.mktemp("doctor") / "parts"
    partition_graph(community_graph, folder, 2, "random")
    return folder


@pytest.fixture(scope="module")
def addresses(parts: Path, serve_partitions: Callable[..., list[str]]) -> list[str]:
    """Of its feature servers, which are open to this machine."""
    return serve_partitions(parts, 2)


@pytest.fixture
def values(parts: Path, tmp_path: Path) -> dict[str, Any]:
    """A configuration that nothing is wrong with."""
    return {
        "data": {"partitioned": str(parts)},
        "model": {"layers": 2, "hidden": 8},
        "sampler": {"fanouts": [4, 3]},
        "train": {"batch_size": 8, "device": "cpu", "run_dir": str(tmp_path / "run")},
    }


@pytest.fixture
def config(values: dict[str, Any], tmp_path: Path) -> Path:
    """The same as a file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return path


@pytest.fixture
def look(config: Path) -> Look:
    """Findings of the configuration with overrides; servers have 20 seconds, or ``limit``."""

    def examine_all(*overrides: str, limit: float = 20.0, checksums: bool = False) -> list[Finding]:
        return list(examine(config, overrides, checksums=checksums, limit=limit))

    return examine_all


def find(findings: list[Finding], subject: str) -> Finding:
    """The worst finding of a subject, or of one that begins so."""
    own = [each for each in findings if each.subject.startswith(subject)]
    assert own, f"nothing was said of {subject}: {[each.subject for each in findings]}"
    return max(own, key=lambda each: ("fine", "warning", "wrong").index(each.state))


def wrongs(findings: list[Finding]) -> list[str]:
    """What is wrong, a line each."""
    return [f"{each.subject}: {each.found}" for each in findings if each.state == "wrong"]
