"""Fault injection disturbs real runs, servers and files, and judges how they end."""

import csv
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.faults import matrix
from benchmarks.faults.__main__ import divide, main
from benchmarks.faults.bad_requests import send_bad_requests
from benchmarks.faults.outcomes import WRONG, Outcome, write_outcomes
from benchmarks.faults.running import Limits, World, make_world
from benchmarks.rounds import Results
from benchmarks.summary import read
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph

EPOCHS = 2


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("faults")
    # Deadlines for machines that do more than this.
    with make_world(folder, *divide(folder), Limits(60.0, 60.0, 60.0), EPOCHS) as world:
        yield world


@pytest.fixture(scope="module")
def baseline(world) -> matrix.BaselineRun:
    return matrix.measure(world)


def test_a_lost_rank_ends_a_run_as_its_case_says(world, baseline):
    """A rank is killed after the first epoch. With restarts the run has to recover, and without
    them it has to name the rank."""
    cases = ("a rank is killed, restarts", "a rank is killed")
    trials = [matrix.Trial(i, case, "epochs", 1, 0.0, 1) for i, case in enumerate(cases)]
    recovered, named = (matrix.try_one(world, baseline, trial) for trial in trials)
    assert recovered.outcome == matrix.RECOVERED
    assert named.outcome.startswith(f"{matrix.ERROR}: ")
    assert "rank 1 (pid" in named.outcome


def test_a_run_that_ends_with_other_losses_is_wrong(world, baseline):
    trial = matrix.Trial(7, "connections are cut", "epochs", 0, 0.5, 0)
    outcome = matrix.try_one(world, replace(baseline, losses=[[1.0]]), trial)
    assert outcome.outcome == f"{WRONG}ended well with other losses"
    assert outcome.is_wrong


def test_a_server_answers_malformed_requests(world, tmp_path):
    graph, parts = GraphDirectory.open(world.parts.parent / "graph-0"), tmp_path / "parts"
    partition_graph(graph, parts, 2, "random", topology="partitioned")
    results = Results("faults", tmp_path)
    outcomes = list(send_bad_requests(parts, 400, 0, results, alone_seconds=0.5))
    assert [outcome for outcome in outcomes if outcome.is_wrong] == []
    assert {outcome.fault for outcome in outcomes} >= {"request: good", "request: bits flipped"}
    rows = read(tmp_path / "summary.csv")
    assert {row.side for row in rows} >= {"a valid client by itself", "the server after"}


def test_outcomes_replace_those_of_the_same_fault(tmp_path):
    for fault, outcome in (("a", "recovered"), ("b", "error"), ("a", f"{WRONG}why, of all")):
        write_outcomes(tmp_path, [Outcome(fault, "rank 1", "recovered", outcome, 1.0)])
    lines = list(csv.DictReader((tmp_path / "faults.csv").read_text().splitlines()))
    assert [(line["fault"], line["outcome"]) for line in lines] == [
        ("b", "error"), ("a", f"{WRONG}why, of all"),
    ]  # fmt: skip


def test_the_seed_draws_every_moment():
    first, again, other_seed = (matrix.draw_trials(40, ["a", "b"], 6, seed) for seed in (3, 3, 4))
    assert first == again != other_seed
    assert {trial.stage for trial in first} == set(matrix.STAGES)
    assert [trial.case for trial in first[:3]] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--cases", "a-rank-is-killed,rank"], "--cases: 'rank' is none; --list tells them"),
        (["--runs", "-1"], "--runs: expected a whole number from 0, below 2**63, given '-1'"),
        (["--at-once", "0"], "--at-once: expected at least 1, given 0"),
        (["--load", "nan"], "--load: expected a whole number from 0"),
        (["--train.epochs", "3"], "unrecognized arguments: --train.epochs"),
        ([], "--out: name a folder"),
    ],
)
def test_impossible_options_are_refused(words, text, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        main(["--out", str(out), *words] if words else [])
    assert text in capsys.readouterr().err
    assert not out.exists()
