"""``hopper schedule``: the time steps of an iteration, without training anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hopper.cli import main
from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph


@pytest.fixture(scope="module")
def config(community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schedule")
    partition_graph(community_graph, folder / "parts", 3, "random")
    values: dict[str, Any] = {
        "data": {"partitioned": str(folder / "parts")},
        "train": {"engine": "hop", "batch_size": 8},
    }
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def roots_in(text: str) -> int:
    """The sum of all numbers of roots in the table."""
    return sum(int(number) for number in re.findall(r"m\d+ \((\d+)\)", text.split("model 2 on")[0]))


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], 3),
        (["--dissolve", "1"], 2),
        (["--dissolve", "2", "--iteration", "1", "--epoch", "4"], 1),
    ],
)
def test_every_root_is_in_the_table(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], steps: int
) -> None:
    assert main(["schedule", *words, str(config)]) == 0
    text = capsys.readouterr().out
    assert f"24 roots, {steps} of 3 time steps" in " ".join(text.split())
    # The line that explains the table has an example.
    assert roots_in(text.replace("m2 (37)", "")) == 24


def test_the_configuration_s_merging_is_shown_and_a_picture_drawn(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["schedule", "--out", str(tmp_path / "s.png"), str(config), "--hop.merge", "1"]
    assert main(words) == 0
    assert "2 of 3 time steps" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--dissolve", "3"], "--dissolve: expected 0 to 2 of the 3 steps, given 3"),
        (["--iteration", "99"], "--iteration: expected 0 to"),
    ],
)
def test_what_there_is_not_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["schedule", *words, str(config)]) == 1
    assert text in capsys.readouterr().err
