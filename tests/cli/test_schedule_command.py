"""``hopper inspect schedule``: the time steps of an iteration, without training anything."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.cli import main
from hopper.cli.inspect.schedule import format_schedule
from hopper.micrograph.merge import TimeSteps
from hopper.partition import partition_graph


@pytest.fixture(scope="module")
def config(community_graph, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("schedule")
    partition_graph(community_graph, folder / "parts", 3, "random")
    values: dict[str, Any] = {
        "data": {"partitioned": str(folder / "parts")},
        "train": {"engine": "hop", "batch_size": 8},
    }
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def count_roots(text: str) -> int:
    """Add up all numbers of roots in the table."""
    return sum(int(number) for number in re.findall(r"m\d+ \((\d+)\)", text.split("model 2 on")[0]))


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ([], 3),
        (["--dissolve", "1"], 2),
        (["--dissolve", "2", "--iteration", "1", "--epoch", "4"], 1),
    ],
)
def test_every_root_is_in_the_table(config, capsys, options, steps):
    assert main(["inspect", "schedule", *options, str(config)]) == 0
    text = capsys.readouterr().out
    assert f"24 roots, {steps} of 3 time steps" in " ".join(text.split())
    # The line that explains the table has an example.
    assert count_roots(text.replace("m2 (37)", "")) == 24


def test_json_has_the_models_and_roots_of_every_step(config, capsys):
    assert main(["inspect", "schedule", "--json", "--dissolve", "1", str(config)]) == 0
    schedule = json.loads(capsys.readouterr().out)
    steps = [step for rank in schedule["ranks"] for step in rank]
    assert (schedule["roots"], schedule["time_steps"], len(steps)) == (24, 2, 6)
    assert sum(trained["roots"] for step in steps for trained in step) == 24
    assert {trained["model"] for step in steps for trained in step} == {0, 1, 2}


def test_the_configuration_s_merging_is_shown(config, capsys):
    assert main(["inspect", "schedule", str(config), "--hop.merge", "1"]) == 0
    assert "2 of 3 time steps" in " ".join(capsys.readouterr().out.split())


def test_models_are_named_with_their_roots_in_order():
    steps = TimeSteps(
        ranks=np.array([[0, 1], [1, 1]]),
        groups=[[np.arange(3), np.arange(5)], [np.arange(0), np.arange(2)]],
    )
    assert format_schedule(steps) == [["m0 (3)", ""], ["m1 (0)", "m0 (5), m1 (2)"]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--dissolve", "3"], "--dissolve: expected 0 to 2 of the 3 steps, given 3"),
        (["--iteration", "99"], "--iteration: expected 0 to"),
    ],
)
def test_steps_and_iterations_out_of_range_are_refused(config, capsys, options, text):
    assert main(["inspect", "schedule", *options, str(config)]) == 1
    assert text in capsys.readouterr().err
