"""A small grid is run from the request to its page, then resumed, and interrupted by errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import accuracy, grid
from benchmarks.paper.cells import Grid
from benchmarks.paper.convergence import equality_table
from benchmarks.paper.experiment import Experiment, Published
from benchmarks.paper.grid import CELLS_FOLDER, CONFIGS_FOLDER, Progress
from benchmarks.paper.hopgnn import ALL, BASE, PG, ZERO
from benchmarks.paper.job import make_job, run_job
from benchmarks.paper.options import Options
from benchmarks.paper.page import PAGE_FILE, PICTURE_FILE
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.paper.result import RESULT_FILE
from benchmarks.paper.tables import bytes_table, memory_table, rows_table, speed_table
from hopper.cli import main
from hopper.config import load_config
from hopper.errors import ClusterError
from hopper.partition import PartitionedGraph

CELL = "graph-sage-8"

pytestmark = pytest.mark.usefixtures("pymetis_alone")


@dataclass
class Messages:
    """What a job reported: lines, and the runs that it began."""

    lines: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    @property
    def progress(self) -> Progress:
        return Progress(self.lines.append, self.begun.append)


def make_experiment(models: tuple[str, ...] = ("sage",)) -> Experiment:
    """Compare model_centric with hop, with and without adaptive merging, on two layers."""
    return Experiment(
        name="tiny",
        title="A tiny grid",
        published=(Published("section 1", "something", "1 x"),),
        grid=Grid((), models, hidden=(8,), layers=2, fanouts=(4,)),
        tables=(speed_table, rows_table, bytes_table, memory_table),
        sides=(BASE, PG, ALL),
        comparisons=((ALL.role, BASE.role),),
        draw=EXPERIMENTS["hopgnn-fig13"].draw,
        rounds=1,
        epochs=2,
        lets_auto_choose=True,
    )


@pytest.fixture(scope="module")
def options(tiny_graph: PartitionedGraph, tmp_path_factory: pytest.TempPathFactory) -> Options:
    folder = tmp_path_factory.mktemp("paper")
    return Options(
        out=folder / "out",
        work=folder / "work",
        graphs=(str(tiny_graph.path.parent / "graph"),),
        batch_size=20,
        iterations=2,
        servers=2,
        emulated=False,
    )


@pytest.fixture(scope="module")
def finished(options: Options) -> tuple[dict[str, Any], Messages]:
    """The result and the messages of the grid's first run."""
    messages = Messages()
    result = run_job(make_job(make_experiment(), options, messages.progress))
    return result, messages


def test_a_finished_grid_leaves_all_its_files(
    finished: tuple[dict[str, Any], Messages], options: Options
) -> None:
    result, messages = finished
    out = options.out
    assert (out / PICTURE_FILE).stat().st_size > 0
    assert json.loads((out / RESULT_FILE).read_text()) == result
    assert (out / CELLS_FOLDER / f"{CELL}.json").is_file()
    (cell,) = result["cells"]
    # A line a cell, with all that it takes to repeat it and nothing of single epochs.
    lines = (out / RESULT_FILE).read_text().splitlines()
    assert sum(f'"name":"{CELL}"' in line for line in lines) == 1
    assert cell["config"] == (out / CONFIGS_FOLDER / f"{CELL}.toml").read_text()
    assert not any("epochs" in side for side in cell["sides"].values())
    assert result["commit"]
    assert result["machine"]["cpu"]
    assert result["versions"]["torch"]
    # An adaptive run, one of each side, and one that chooses its engine.
    job = make_job(make_experiment(), options, messages.progress)
    assert len(messages.begun) == job.total_runs == 5
    assert all(name.startswith(f"{CELL}: ") for name in messages.begun)


def test_a_cell_tells_what_it_measured(finished: tuple[dict[str, Any], Messages]) -> None:
    (cell,) = finished[0]["cells"]
    assert cell["problems"] == []
    assert cell["nodes"] == 240
    assert cell["scout"]["dissolve"] in (0, 1)
    assert len(cell["scout"]["decisions"]) == 4
    assert cell["sides"]["All"]["label"] == f"hop:merge={cell['scout']['dissolve'] or 'off'}"
    tries = cell["auto"]["tries"]
    assert {attempt["engine"] for attempt in tries} == {
        *("cooperative", "zero_hop", "hop", "model_centric")
    }
    # The other engines are compared with the chosen one. Which median is least may differ from
    # which ratio is, when the machine has other work.
    (chosen,) = (attempt for attempt in tries if attempt["times_as_long"] is None)
    assert cell["auto"]["engine"] == chosen["engine"]
    (ratio,) = cell["ratios"]
    assert ratio["mean"] > 0
    for parity in cell["parity"].values():
        assert 0 <= parity["gradient"] < 1e-5
    for side in cell["sides"].values():
        bounds = side["bounds"]
        # Rows of 256 bytes, and ids, lengths and labels of roots on top.
        assert 1 <= bounds["feature_over_bound"] < 1.6
        assert 0.99 < bounds["gradient_over_bound"] < 1.1
        assert 0 < side["input_share"] <= 1
        assert side["gathers"] >= 1
        assert side["pass_mib"] > 0
        assert side["peak_rss_mib"] > 50


def test_the_page_shows_these_numbers(
    finished: tuple[dict[str, Any], Messages], options: Options
) -> None:
    page = (options.out / PAGE_FILE).read_text()
    (cell,) = finished[0]["cells"]
    assert f"{cell['ratios'][0]['mean']:.2f}" in page
    assert f"{cell['sides']['All']['rows']['remote_unique']:,.0f}" in page
    assert "all on loopback" in page
    assert "| section 1 | something | 1 x |" in page


def test_the_configuration_can_be_run_by_hand(
    finished: tuple[dict[str, Any], Messages], options: Options
) -> None:
    (file,) = (options.out / CONFIGS_FOLDER).iterdir()
    config = load_config(file)
    assert (options.work / config.data.partitioned / "partition.json").is_file()
    assert str(options.work) not in file.read_text()
    label = finished[0]["cells"][0]["sides"]["All"]["label"]
    sides = dict.fromkeys(("model_centric", "hop:merge=off", label))
    assert f"--engines {','.join(sides)} --rounds 1" in file.read_text()


@pytest.mark.usefixtures("finished")
def test_a_finished_cell_is_not_run_again(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a finished cell was run")

    monkeypatch.setattr(grid, "run_ab", refuse)
    before = (options.out / CELLS_FOLDER / f"{CELL}.json").read_text()
    messages = Messages()
    again = make_job(make_experiment(), options, messages.progress)
    result = run_job(again)
    assert (options.out / CELLS_FOLDER / f"{CELL}.json").read_text() == before
    assert messages.lines == [f"{CELL}: is there already"]
    assert len(messages.begun) == again.total_runs
    assert len(result["cells"]) == 1
    # Something else is asked: what is there does not answer it.
    other_job = make_job(make_experiment(), replace(options, iterations=3), messages.progress)
    with pytest.raises(AssertionError, match="a finished cell was run"):
        run_job(other_job)


@pytest.mark.usefixtures("finished")
def test_the_command_does_not_run_finished_cells_again(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "tiny", make_experiment())
    monkeypatch.setattr(grid, "run_ab", None)
    words = ["--out", str(options.out), "--work", str(options.work), "--batch-size", "20"]
    words += ["--graphs", *(options.graphs or ()), "--iterations", "2", "--loopback", "2"]
    assert main(["bench", "paper", "tiny", *words]) == 0
    printed = capsys.readouterr().out.replace("\n", "")
    assert f"{CELL}: is there already" in printed
    assert str(options.out / PAGE_FILE) in printed


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ClusterError])
def test_finished_cells_are_published_when_a_later_cell_fails(
    options: Options, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_: Any) -> Any:
        raise error("in the second cell")

    monkeypatch.setattr(grid, "run_ab", fail)
    # The adaptive run of the second cell is not what is tested here.
    monkeypatch.setattr(grid, "_look_for_merge", lambda *_: {"dissolve": 0})
    messages = Messages()
    with pytest.raises(error):
        run_job(make_job(make_experiment(("sage", "gcn")), options, messages.progress))
    assert "unfinished: 1 of 2 cells" in (options.out / PAGE_FILE).read_text()
    assert messages.lines[-1].startswith("1 of 2 cells are finished")
    # And the whole of the first grid again, for those that come after.
    run_job(make_job(make_experiment(), options, messages.progress))


def test_accuracy_is_taken_seed_by_seed(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainings: list[tuple[str, tuple[str, ...]]] = []

    def fake_training(
        name: str, config: Path, run_dir: Path, words: list[str], _: float
    ) -> dict[str, Any]:
        assert load_config(config, words).train.evaluate_every == 1
        assert not run_dir.exists()
        trainings.append((name, tuple(words)))
        seed = int(words[-1].rpartition("=")[2])
        score = 0.6 + seed / 100 - 0.05 * ("locality" in name)
        return {"scores": {"test": {"accuracy": score}}}

    monkeypatch.setattr(accuracy, "train_in_process", fake_training)
    messages = Messages()
    experiment = replace(EXPERIMENTS["hopgnn-table3"], grid=Grid((), ("gcn",), hidden=(8,)))
    job = make_job(experiment, replace(options, out=tmp_path / "out", seeds=3), messages.progress)
    result = run_job(job)
    assert len(trainings) == len(messages.begun) == job.total_runs == 12
    assert {words[-1] for _, words in trainings} == {f"--train.seed={seed}" for seed in range(3)}
    (cell,) = result["cells"]
    assert cell["sides"]["hop"]["drop"] == pytest.approx(0)
    assert cell["sides"]["locality"]["drop"] == pytest.approx(0.05)
    assert cell["sides"]["locality"]["drop_half_interval"] == pytest.approx(0, abs=1e-12)
    assert cell["sides"]["model-centric"]["mean"] == pytest.approx(0.61)
    page = (tmp_path / "out" / PAGE_FILE).read_text()
    assert "61.00 ± 1.00" in page
    assert "+5.00" in page
    run_job(make_job(experiment, job.options, messages.progress))
    assert len(trainings) == 12


def test_curves_are_those_of_real_runs(options: Options, tmp_path: Path) -> None:
    messages = Messages()
    experiment = replace(
        EXPERIMENTS["heta-fig16"],
        grid=Grid((), ("gcn",), hidden=(8,), layers=2, fanouts=(4,)),
        sides=(BASE, ZERO),
        epochs=2,
    )
    run_options = replace(options, out=tmp_path / "out", seeds=1)
    result = run_job(make_job(experiment, run_options, messages.progress))
    (cell,) = result["cells"]
    assert len(messages.begun) == 4
    (run,) = cell["sides"]["zero-hop"]["runs"]
    assert [point["epochs"] for point in run["points"]] == [1, 2]
    assert 0 < run["points"][0]["seconds"] < run["points"][1]["seconds"]
    # As many of 130 and 40 nodes are right under every exact engine.
    (row,) = [row for row in equality_table(result).rows if row[2] == "one, in float64"]
    assert row[3:] == ["2 of 2", "0.00", "2 of 2", "0.00"]
    assert "--train.score_training=true --train.seed=0" in cell["config"]
    assert (tmp_path / "out" / PICTURE_FILE).stat().st_size > 0
    # From the files: nothing is trained twice.
    again = run_job(make_job(experiment, run_options, messages.progress))
    assert again["cells"] == result["cells"]


def test_penalties_are_those_of_real_profiles(options: Options, tmp_path: Path) -> None:
    messages = Messages()
    experiment = replace(
        EXPERIMENTS["heta-fig7"],
        grid=Grid((), ("gcn",), hidden=(8,), layers=2, fanouts=(4,)),
        sides=EXPERIMENTS["heta-fig7"].sides[:1],
    )
    run_options = replace(options, out=tmp_path / "out", rounds=2)
    (cell,) = run_job(make_job(experiment, run_options, messages.progress))["cells"]
    assert len(messages.begun) == 2
    runs = cell["sides"]["rows of other servers"]["runs"]
    for run in runs:
        (node,) = run.values()
        assert (node["learned"], node["width"], node["row_bytes"]) == (False, 64, 256)
        assert len(node["penalties"]) == 2
        assert min(node["penalties"]) > 0
    # The second round finds the visits of the first, and measures anew.
    assert runs[0]["node"]["rows"] == runs[1]["node"]["rows"]
    assert runs[0]["node"]["penalties"] != runs[1]["node"]["penalties"]


def test_localities_are_measured(options: Options, tmp_path: Path) -> None:
    messages = Messages()
    experiment = EXPERIMENTS["hopgnn-table1"]
    small = replace(experiment, grid=replace(experiment.grid, servers=(2,)))
    run_options = replace(options, out=tmp_path / "out", servers=None)
    result = run_job(make_job(small, run_options, messages.progress))
    (cell,) = result["cells"]
    assert len(cell["localities"]) == len(messages.begun) == 4
    for locality in cell["localities"]:
        assert 0 <= locality["subgraph"] <= 1
        assert 0 < locality["micrograph"] <= 1
        assert locality["published"] is None
    shallow = next(locality for locality in cell["localities"] if locality["depth"] == "2L")
    assert shallow["micrograph"] > shallow["subgraph"]
    assert (tmp_path / "out" / PICTURE_FILE).stat().st_size > 0
    # From the files: nothing is measured twice.
    again = run_job(make_job(small, run_options, messages.progress))
    assert again["cells"] == result["cells"]
