"""Fault injection disturbs real runs, and judges how they end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults.command import divide
from benchmarks.faults.matrix import (
    ERROR,
    RECOVERED,
    WRONG,
    Trial,
    Undisturbed,
    draw_trials,
    measure,
    try_one,
)
from benchmarks.faults.page import write_all
from benchmarks.faults.running import Limits, World, make_world
from benchmarks.faults.summary import summarise
from hopper.bench.machine import machine
from hopper.cli import bench
from hopper.errors import RequestError

EPOCHS = 2


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    options = parser.parse_args(["bench", "faults", *words])
    return int(options.run(options))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("faults")
    # Deadlines for machines that do more than this.
    with make_world(folder, *divide(folder), Limits(60.0, 60.0, 60.0), EPOCHS) as world:
        yield world


@pytest.fixture(scope="module")
def undisturbed(world: World) -> Undisturbed:
    return measure(world)


def test_a_lost_rank_ends_a_run_as_its_case_says(
    world: World, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A rank is killed after the first epoch. With restarts the run has to recover, and without
    them it has to name the rank."""
    cases = ("a rank is killed, restarts", "a rank is killed")
    trials = [Trial(i, case, "epochs", 1, 0.0, 1) for i, case in enumerate(cases)]
    for trial in trials:
        try_one(world, undisturbed, trial)
    assert [trial.why for trial in trials] == ["", ""]
    assert [trial.outcome for trial in trials] == [RECOVERED, ERROR]
    assert "rank 1 (pid" in trials[1].last_line
    header = {
        "date": "today",
        "commit": "0",
        "machine": machine(),
        "command": "hopper bench faults",
        "at_once": 1,
    }
    header |= {"busy": True}
    write_all(tmp_path, header | {"matrix": summarise(trials, 3, undisturbed, world.limits)})
    matrix = json.loads((tmp_path / "result.json").read_text())["matrix"]
    assert [(case["recovered"], case["errors"]) for case in matrix["cases"]] == [(0, 1), (1, 0)]
    page = (tmp_path / "README.md").read_text()
    assert "2 of 3 runs: 1 recovered, 1 ended in a named error" in page
    assert "seconds do not" in page


def test_a_run_that_ends_with_other_losses_is_wrong(world: World, undisturbed: Undisturbed) -> None:
    trial = Trial(7, "connections are cut", "epochs", 0, 0.5, 0)
    try_one(world, replace(undisturbed, losses=[[1.0]]), trial)
    assert (trial.outcome, trial.why) == (WRONG, "ended well with other losses")


def test_the_seed_draws_every_moment() -> None:
    first, again, other_seed = (draw_trials(40, ["a", "b"], 6, seed) for seed in (3, 3, 4))
    assert first == again != other_seed
    assert {trial.stage for trial in first} == {"start-up", "epochs", "shut-down"}
    assert [trial.case for trial in first[:3]] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--cases", "a-rank-is-killed,rank"], "--cases: 'rank' is none; --list tells them"),
        (["--runs", "-1"], "--runs: expected 0 or more, given -1"),
        (["--at-once", "0"], "--at-once: expected 1 or more, given 0"),
        (["--load", "nan"], "--load: expected seconds, given nan"),
        (["--train.epochs", "3"], "--train.epochs: runs have a configuration of their own"),
    ],
)
def test_impossible_options_are_refused(words: list[str], text: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RequestError) as caught:
        run_command("--out", str(out), *words)
    assert text in str(caught.value)
    assert not out.exists()


def test_a_folder_has_to_be_named() -> None:
    with pytest.raises(RequestError, match="--out: name a folder"):
        run_command("--runs", "1")
