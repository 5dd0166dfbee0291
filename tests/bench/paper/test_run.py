"""A small grid is run from its experiment to summary.csv, interrupted, and continued."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import ab, command
from benchmarks.paper.experiment import Experiment, Grid, load_experiments
from benchmarks.paper.job import Job, Measured, make_rows, run_job
from benchmarks.paper.single import measure_localities
from benchmarks.paper.turns import measure_penalties, measure_seeds
from benchmarks.summary import SUMMARY_FILE, read
from hopper.bench import placement
from hopper.config import load_config
from hopper.errors import ClusterError

from .conftest import start_job

CELL = "graph-sage-8"
Finished = tuple[Job, dict[str, Any], list[str]]


def make_experiment(**changes: Any) -> Experiment:
    """Compare model_centric with hop, with and without adaptive merging, on two layers."""
    grid = Grid(graphs=(), models=("sage",), hidden=(8,), layers=2, fanouts=(4,), servers=(2,))
    sides = {"base": "model_centric", "+PG": "hop:merge=off", "All": "hop:merge={merge}"}
    values = {
        "name": "tiny",
        "title": "A tiny grid",
        "grid": grid,
        "sides": sides,
        "comparisons": {"base": ("All",)},
        "report": ("epoch seconds", "sent bytes", "feature bytes over bound", "over the fastest"),
        "rounds": 2,
        "epochs": 2,
        "iterations": 2,
        "auto": True,
    }
    return Experiment(**values | changes)


@pytest.fixture(scope="module")
def make_job(tiny_graph, tmp_path_factory) -> Callable[..., Job]:
    """Makes a job on the tiny graph, over two servers on loopback, whose graph is divided once."""
    return partial(
        start_job, graph=tiny_graph.path.parent / "graph", folder=tmp_path_factory.mktemp("paper")
    )


@pytest.fixture(scope="module")
def finished(make_job) -> Finished:
    """The job of the grid, the content of its only cell's file, and what the job told."""
    lines: list[str] = []
    job = make_job(make_experiment(), say=lines.append)
    job.check()
    job.prepare()
    (entry,) = run_job(job, ab.measure_ab)
    return job, entry, lines


def test_a_cell_holds_all_that_was_measured(finished):
    job, entry, lines = finished
    assert entry["problems"] == []
    record, values = entry["record"], entry["values"]
    assert record["nodes"] == 240
    dissolved = record["scout"]["dissolve"]
    assert record["labels"]["All"] == f"hop:merge={dissolved or 'off'}"
    assert {attempt["setting"] for attempt in record["auto"]["tries"]} >= {
        "cooperative",
        "zero_hop",
        "hop",
        "model_centric",
    }
    assert set(values) == {"", "base", "+PG", "All", "auto"}
    for side in ("base", "+PG", "All"):
        of_side = values[side]
        assert len(of_side["epoch seconds"]) == 2
        assert 0 <= of_side["largest gradient difference"] < 1e-5
        # Rows of 256 bytes, and ids, lengths and labels of roots on top.
        assert 1 <= of_side["feature bytes over bound"] < 1.6
        assert 0.99 < of_side["gradient bytes over bound"] < 1.1
        assert of_side["share of the graph that a batch reads"] > 0
        assert of_side["requests"] >= 1
        assert of_side["largest pass MiB"] > 0
        assert of_side["peak MiB"] > 50
    assert f"cell 1 of 1: {CELL}" in lines
    assert entry["commit"]
    assert entry["machine"]["cpu"]
    assert entry["versions"]["torch"]
    assert str(job.materials.work) not in json.dumps(record["results"]["config"])


def test_the_lines_of_the_summary_are_those_of_the_cell(finished):
    job, entry, _ = finished
    rows = read(job.out / SUMMARY_FILE)
    # Of a cell without a side there is how its graph is divided.
    assert {row.measure for row in rows if row.side} <= {*job.experiment.report}
    assert {row.measure for row in rows if not row.side} == {
        "edge cut",
        "micrograph locality",
        "subgraph locality",
    }
    (row,) = (row for row in rows if row.side == "All" and row.measure == "epoch seconds")
    assert (row.experiment, row.cell, row.baseline, row.rounds) == ("tiny", CELL, "base", 2)
    assert row.low is not None
    assert row.high is not None
    assert row.ratio is not None
    assert row.low <= row.ratio <= row.high
    assert row.bytes == round(entry["values"]["All"]["sent bytes"])
    assert row.date == entry["date"]
    assert row.commit[:12] == entry["commit"][:12]
    (count,) = (row for row in rows if row.side == "All" and row.measure == "sent bytes")
    assert (count.low, count.rounds) == (None, None)
    # What no comparison names has no ratio, nor has what is no cost.
    assert {row.baseline for row in rows if " over " in row.measure} == {""}
    assert {row.baseline for row in rows if row.side == "+PG"} == {""}


@pytest.mark.usefixtures("finished")
def test_a_finished_cell_is_run_again_only_if_something_else_is_asked(make_job):
    def refuse(*_: Any) -> Measured:
        raise AssertionError("a finished cell was run")

    lines: list[str] = []
    job = make_job(make_experiment(), say=lines.append)
    before = job.cell_file(job.cells[0]).read_text()
    assert len(list(run_job(job, refuse))) == 1
    assert job.cell_file(job.cells[0]).read_text() == before
    assert lines[0] == f"{CELL}: is there already"
    # What is reported does not change what was measured.
    (entry,) = run_job(make_job(make_experiment(report=("peak MiB",))), refuse)
    assert {row.measure for row in entry["rows"] if row.side} == {"peak MiB"}
    for changes in ({"rounds": 3}, {"words": ("--train.seed=1",)}, {"sides": {"a": "zero_hop"}}):
        other = make_job(make_experiment(comparisons={}, **changes))
        with pytest.raises(AssertionError, match="a finished cell was run"):
            list(run_job(other, refuse))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ClusterError])
def test_what_was_finished_stays_when_a_later_cell_fails_and_the_rest_goes_on(make_job, error):
    experiment = make_experiment(
        grid=Grid(graphs=(), models=("sage", "gcn"), hidden=(8,), layers=2, servers=(2,))
    )
    run: list[str] = []

    def measure(_: Job, cell: Any) -> Measured:
        run.append(cell.model)
        if len(run) == 2:
            raise error("in the second cell")
        return Measured({"base": {"epoch seconds": [1.0, 3.0]}}, {})

    job = make_job(experiment, out=error.__name__)
    with pytest.raises(error, match="in the second cell"):
        list(run_job(job, measure))
    assert [row.cell for row in read(job.out / SUMMARY_FILE)] == ["graph-sage-8"]
    list(run_job(job, measure))
    assert run == ["sage", "gcn", "gcn"]
    assert [(row.cell, row.median) for row in read(job.out / SUMMARY_FILE)] == [
        ("graph-gcn-8", 2.0),
        ("graph-sage-8", 2.0),
    ]


@pytest.mark.usefixtures("finished")
def test_the_command_goes_on_and_prints_what_was_measured(make_job, monkeypatch, capsys):
    job = make_job(make_experiment())
    published = (("section 1", "something", "1 x"),)
    experiment = make_experiment(paper="A paper", published=published)
    monkeypatch.setattr(command, "load_experiments", lambda: {"tiny": experiment})
    monkeypatch.setattr(ab, "run_ab", None)
    words = ["tiny", "--out", str(job.out), "--work", str(job.materials.work), "--loopback", "2"]
    words += ["--graphs", job.cells[0].graph, "--batch-size", "20"]
    assert command.main(words) == 0
    printed = capsys.readouterr().out
    for text in (f"{CELL}: is there already", "A paper, section 1: something: 1 x", "summary.csv"):
        assert text in printed.replace("\n", "")
    assert (job.out / "tiny.svg").read_text().count("<svg") == 1


def test_sides_that_differ_tell_no_ratio():
    values = {"base": {"epoch seconds": [1.0, 2.0]}, "All": {"epoch seconds": [0.5, 1.0]}}
    entry = {
        "experiment": "tiny",
        "cell": {"name": "a"},
        "date": "2026-01-01",
        "commit": "0" * 40 + "+",
        "values": values,
        "problems": [],
    }
    _, row = make_rows(make_experiment(), entry)
    assert (row.ratio, row.baseline, row.commit) == (2.0, "base", "0" * 12 + "+")
    rows = make_rows(make_experiment(), entry | {"problems": ["+PG: gradients differ"]})
    found = [(row.median, row.ratio, row.baseline) for row in rows]
    assert found == [(1.5, None, ""), (0.75, None, "")]


def test_localities_are_measured_by_sampling_and_depth(make_job):
    experiment = load_experiments()["hopgnn-table1"]
    grid = experiment.grid.model_copy(update={"servers": (2,)})
    job = make_job(experiment.model_copy(update={"grid": grid}), out="localities")
    (entry,) = run_job(job, measure_localities)
    assert len(entry["values"]) == 4
    for side in entry["values"].values():
        assert 0 <= side["subgraph locality"] <= 1
        assert 0 < side["micrograph locality"] <= 1
    shallow = entry["values"]["node-wise, 2L"]
    assert shallow["micrograph locality"] > shallow["subgraph locality"]
    assert len(entry["rows"]) == 8


def test_scores_are_taken_seed_by_seed(make_job, monkeypatch):
    trainings: list[tuple[str, Any]] = []

    def fake_training(
        name: str, config: Path, _run_dir: Path, words: list[str], _: float
    ) -> dict[str, Any]:
        configured = load_config(config, words)
        trainings.append((name, configured))
        seed, is_local = configured.train.seed, "local" in name
        epochs = [
            {"epoch": index, "seconds": 1.0 + index, "train": 0.5, "val": score}
            for index, score in enumerate((0.5, 0.6 if is_local else 0.8, 0.8))
        ]
        test = 0.6 + seed / 100 - 0.05 * is_local
        return {"epochs": epochs, "scores": {"test": {"accuracy": test}}}

    monkeypatch.setattr(placement, "train_in_process", fake_training)
    sides = {
        "base": "model_centric",
        "local": "locality",
        "zero": "zero_hop",
        "ClusterGCN": "benchmarks.cluster_gcn:ClusterBatches",
    }
    report = ("test accuracy", "* to 95 %", "float64: *", "accuracy lost in points")
    experiment = make_experiment(
        name="scores", measure="seeds", sides=sides, report=report, rounds=3, auto=False,
        comparisons={"base": ("local",)}, words=("--train.evaluate_every=1",),
    )  # fmt: skip
    (entry,) = run_job(make_job(experiment, out="scores"), measure_seeds)
    assert len(trainings) == 4 * (3 + 1)
    values = entry["values"]
    assert values["local"]["accuracy lost in points"] == pytest.approx([5.0] * 3)
    assert values["zero"]["accuracy lost in points"] == [0.0] * 3
    assert values["base"]["test accuracy"] == pytest.approx([0.6, 0.61, 0.62])
    assert values["base"]["epochs to 95 %"] == [2.0] * 3
    assert values["local"]["seconds to 95 %"] == [6.0] * 3
    assert values["base"]["epoch seconds"] == [2.5] * 3
    assert values["zero"]["float64: validation, largest difference, points"] == 0
    # Only exact sides are compared in float64.
    assert not any("float64" in name for name in values["local"])
    by_clusters = [config for name, config in trainings if "ClusterGCN" in name]
    assert [config.train.seed for config in by_clusters] == [0, 1, 2, 0]
    for config in by_clusters:
        assert config.sampler.fanouts == [-1, -1]
        assert Path(config.sampler.kind_options["clusters"]).is_file()
    others = [config for name, config in trainings if "ClusterGCN" not in name]
    assert all("Cluster" not in config.sampler.kind for config in others)


def test_penalties_are_those_of_real_profiles(make_job):
    experiment = load_experiments()["heta-fig7"]
    grid = make_experiment().grid.model_copy(update={"models": ("gcn",)})
    small = experiment.model_copy(update={"grid": grid, "rounds": 2, "iterations": 2}).of_sides(
        ("rows of other servers",)
    )
    (entry,) = run_job(make_job(small, out="penalties"), measure_penalties)
    ((side, values),) = entry["values"].items()
    assert side == "rows of other servers"
    by_byte, by_row = (
        next(value for name, value in values.items() if name.endswith(f"microseconds a {unit}"))
        for unit in ("byte", "row")
    )
    assert len(by_byte) == 2
    assert min(by_byte) > 0
    assert by_row == pytest.approx([256 * value for value in by_byte])
    # The second round measures anew.
    assert by_byte[0] != by_byte[1]


def test_an_engine_refuses_a_cell_before_any_of_them_runs(make_job):
    job = make_job(make_experiment(sides={"a": "model_centric", "b": "raf"}, comparisons={}))
    with pytest.raises(Exception, match="raf"):
        job.prepare()
    assert replace(job, cells=()).prepare() is None
