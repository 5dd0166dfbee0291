"""The declared experiments are sound, and requests that cannot be carried out are refused."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hopper
from benchmarks.paper import gpu, locality
from benchmarks.paper.cells import LEAST_BATCH, Cell, Grid
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.grid import Progress
from benchmarks.paper.job import make_job
from benchmarks.paper.materials import Materials
from benchmarks.paper.options import Options
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.paper.toml import write_toml
from benchmarks.peers.registry import PEERS
from hopper.cli import bench, bench_paper
from hopper.config import DEEP_MODELS, load_config
from hopper.errors import ConfigError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.synthesise import EDGE, make

NAMES = (
    *("table1", "bottleneck", "alpha", "fig7", "fig11", "fig12", "fig13", "missrate", "fig17"),
    *("fig18", "fig21"),
    *("large", "gpu-util", "fig22a", "fig22b", "fig23a", "fig23b", "table3"),
)
SILENT = Progress(lambda _: None, lambda _: None)
OPTIONS = Options(Path("out"), Path("work"))

each_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)


def run_command(*words: str) -> int:
    """Run ``hopper bench ...`` and return its exit code."""
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    options = parser.parse_args(["bench", *words])
    return int(options.run(options))


def test_without_a_checkout_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hopper, "__file__", str(tmp_path / "installed" / "hopper" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=r"benchmarks/paper, in \S+installed or .*clone it"):
        run_command("paper", "--list")
    (tmp_path / "benchmarks" / "paper").mkdir(parents=True)
    (tmp_path / "benchmarks" / "paper" / "command.py").touch()
    # What is found is imported by its name; here it has been imported from the checkout.
    monkeypatch.syspath_prepend(tmp_path)
    assert run_command("paper", "--list") == 0


def test_experiments_for_another_hopper_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, bench_paper.PLUG_IN, None)
    with pytest.raises(RequestError, match="paper needs another version of Hopper"):
        run_command("paper", "--list")


def test_all_experiments_are_registered() -> None:
    not_of_hopgnn = {"engines-2-hops", "engines-3-hops", "pipeline", "pipeline-typed", "lookahead"}
    not_of_hopgnn |= {"baselines", "baselines-typed"}
    not_of_hopgnn |= {f"hifuse-{name}" for name in ("fig7", "fig8", "fig9", "table3")}
    not_of_hopgnn |= {f"distdglv2-{name}" for name in ("fig8", "fig9", "table2")}
    not_of_hopgnn |= {
        f"distdglv2-{name}{kind}" for name in ("fig6", "fig10") for kind in ("", "-typed")
    }
    not_of_hopgnn |= {
        "merging",
        "merging-deep",
        *(f"heta-{name}" for name in ("section4", "fig9", "fig11", "fig14", "fig15", "hidden")),
    }
    not_of_hopgnn |= {"heta-fig7", "heta-fig16", "heta-fig18"}
    not_of_hopgnn |= {"heta-fig12", "heta-fig12-hop", "heta-fig12-zero-hop", "heta-fig12-raf"}
    assert set(EXPERIMENTS) == {f"hopgnn-{name}" for name in NAMES} | not_of_hopgnn


@each_experiment
def test_published_numbers_name_their_section_table_or_figure(experiment: Experiment) -> None:
    papers = ("hopgnn-", "heta-", "hifuse-", "distdglv2-")
    assert bool(experiment.published) == experiment.name.startswith(papers)
    for published in experiment.published:
        assert re.match(r"(section \d(\.\d)?|Table \d|Figure \d+)", published.place)
        assert published.what
        assert published.value


@each_experiment
def test_cells_and_sides_make_valid_configurations(experiment: Experiment, tmp_path: Path) -> None:
    cells = experiment.grid.cells(OPTIONS)
    assert len({cell.name for cell in cells}) == len(cells) > 0
    for cell in cells:
        assert re.fullmatch(r"[\w.-]+", cell.name)
        config = cell.config(Path("parts"), experiment.epochs, 4, experiment.words)
        layers = experiment.grid.layers or DEEP_MODELS.get(cell.model, 3)
        if isinstance(cell.fanout, tuple):
            layers = len(cell.fanout)
        assert config.model.layers == len(config.sampler.fanouts) == layers
        assert config.train.batch_size >= LEAST_BATCH
        for side in experiment.sides:
            assert side.contender(1).configure(config).train.engine == side.contender(1).engine
        write_toml(tmp_path / "c.toml", cell.values("parts", experiment.epochs, 4), ["a", "b c"])
        assert load_config(tmp_path / "c.toml", experiment.words) == config


@each_experiment
def test_comparisons_are_between_sides(experiment: Experiment) -> None:
    roles = [side.role for side in experiment.sides]
    labels = [side.label for side in experiment.sides]
    assert len(set(roles)) == len(roles)
    assert len(set(labels)) == len(labels)
    for faster, baseline in experiment.comparisons:
        assert faster in roles
        assert baseline in (*roles, *(PEERS[name].role for name in experiment.peers))
        assert faster != baseline


@each_experiment
def test_runs_are_counted_before_they_begin(experiment: Experiment, tmp_path: Path) -> None:
    job = make_job(experiment, replace(OPTIONS, out=tmp_path, emulated=False), SILENT)
    assert job.total_runs >= len(job.cells)


def test_the_batch_is_scaled_with_the_graph() -> None:
    grid = EXPERIMENTS["hopgnn-fig22a"].grid
    assert [cell.batch_size for cell in grid.cells(replace(OPTIONS, scale=0.25))] == [
        *(128, 256, 512, 1024, 2048, 4096)
    ]
    # What falls below the least is one cell, not several alike.
    assert [cell.batch_size for cell in grid.cells(replace(OPTIONS, scale=0.01))] == [
        *(16, 20, 41, 82, 164)
    ]
    assert [cell.batch_size for cell in grid.cells(replace(OPTIONS, batch_size=7))] == [7]


def test_pairs_are_run_unless_others_are_named() -> None:
    grid = Grid(("a", "b"), ("gcn", "gat"), pairs=(("a", "gcn"), ("b", "gat")))

    def names(**changes: tuple[str, ...]) -> list[str]:
        return [cell.name for cell in grid.cells(replace(OPTIONS, **changes))]

    assert names() == ["a-gcn-16", "b-gat-16"]
    assert names(models=("sage",)) == ["a-sage-16", "b-sage-16"]
    assert names(graphs=("b",)) == ["b-gcn-16", "b-gat-16"]


def test_a_graph_directory_has_no_scale(tmp_path: Path) -> None:
    grid = EXPERIMENTS["hopgnn-fig13"].grid
    (cell, *_) = grid.cells(replace(OPTIONS, graphs=(str(tmp_path),), scale=0.5))
    assert cell.scale is None
    assert cell.name.startswith(tmp_path.name)


def test_hosts_share_the_machine_evenly(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["hopgnn-fig23b"]
    job = make_job(experiment, replace(OPTIONS, out=tmp_path), SILENT)
    assert job.options.host_cpus is not None
    assert 0 < job.options.host_cpus * 8 <= torch.multiprocessing.cpu_count()
    assert {cell.servers for cell in job.cells} == {2, 4, 6, 8}
    with pytest.raises(RequestError, match="itself; expected one of 2, 4, 6, 8, or none; given 3"):
        make_job(experiment, replace(OPTIONS, out=tmp_path, servers=3), SILENT)
    job = make_job(experiment, replace(OPTIONS, out=tmp_path, servers=4), SILENT)
    assert {cell.servers for cell in job.cells} == {4}
    assert 0 < job.options.host_cpus * 8 <= torch.multiprocessing.cpu_count()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["hopgnn-fig99"], "experiment: expected one of hopgnn-table1, .*; given 'hopgnn-fig99'"),
        (["hopgnn-fig11", "--scale", "2"], "--scale: expected more than 0 and at most 1, given 2"),
        (["hopgnn-fig11", "--side", "x"], "--side: expected one of model-centric; .*given 'x'"),
        (["hopgnn-fig11", "--rounds", "0"], "--rounds: expected at least 1, given 0"),
        (["hopgnn-fig11", "--hidden", "x"], "--hidden: expected positive numbers"),
        (["hopgnn-fig11", "--graphs", "uk"], "preset: expected one of .*, given 'uk'"),
        (["hopgnn-fig11", "--graphs", "./no"], "--graphs: ./no: expected a preset or a graph"),
        (["hopgnn-fig11", "--emulate", "1"], "expected at least 2 servers, given 1"),
        (["hopgnn-fig11", "--link-rate", "fast"], "--link-rate: expected"),
        (["hopgnn-fig11", "--loopback", "--host-cpus", "1"], "--host-cpus: there are no hosts"),
        (["--loopback", "hopgnn-fig11", "--host-cpus", "1"], "--host-cpus: there are no hosts"),
        (["--loopback", "2", "hopgnn-fig11", "--host-cpus", "1"], "--host-cpus: there are no host"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_made(
    words: list[str], text: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(RequestError, match=text):
        run_command("paper", *words, "--out", str(out), "--work", str(tmp_path / "work"))
    assert not out.exists()
    assert not (tmp_path / "work").exists()


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    cell = EXPERIMENTS["hopgnn-fig11"].grid.cells(OPTIONS)[0]
    with pytest.raises(ConfigError, match=r"train\.epoch: unknown key"):
        cell.config(tmp_path, 2, 2, ("--train.epoch", "3"))


def test_a_key_that_one_model_does_not_take_is_refused_at_once(tmp_path: Path) -> None:
    words = ("--model.head=true",)
    with pytest.raises(ConfigError, match="head: an option of rgcn, rgat, not of 'hgt'"):
        make_job(EXPERIMENTS["heta-fig9"], replace(OPTIONS, out=tmp_path, words=words), SILENT)


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"experiment": "hopgnn-fig11"}))
    with pytest.raises(RequestError, match="holds the result of hopgnn-fig11; name another"):
        make_job(EXPERIMENTS["hopgnn-fig12"], replace(OPTIONS, out=tmp_path), SILENT)


def test_without_out_nothing_is_run() -> None:
    with pytest.raises(RequestError, match="--out DIR: name the folder"):
        run_command("paper", "hopgnn-fig11")


def test_gpu_utilisation_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "gpu_name", lambda: None)
    with pytest.raises(RequestError, match="hopgnn-gpu-util: this machine has no GPU"):
        run_command(
            *("paper", "hopgnn-gpu-util", "--out", str(tmp_path / "out")),
            *("--work", str(tmp_path / "work")),
        )


def test_gpu_utilisation_is_sampled_while_a_side_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ranks train on the CPU here, beside a command that tells a share as nvidia-smi does."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 37\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu, "gpu_name", lambda: "a GPU")
    monkeypatch.setattr(gpu, "INTERVAL", 0.01)
    out = tmp_path / "out"
    words = ("--loopback", "2", "--graphs", "arxiv-like", "--scale", "0.01", "--epochs", "3")
    status = run_command(
        *("paper", "hopgnn-gpu-util", "--out", str(out), "--work", str(tmp_path / "work")),
        *(*words, "--side", "model-centric", "--iterations", "2", "--train.device=cpu"),
    )
    assert status == 0
    (cell,) = json.loads((out / "result.json").read_text())["cells"]
    used = cell["extra"]["utilisation"]["model-centric"]
    assert used["samples"] > 0
    assert (used["peak"], used["busy"]) == (0.37, 1.0)


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("paper", "--list") == 0
    printed = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert name in printed


def test_table_1_is_read_by_row_and_column() -> None:
    assert locality.published_micrograph("node-wise", 2, "arxiv-like", "2L") == 0.75
    assert locality.published_micrograph("node-wise", 8, "products-like", "10L") == 0.68
    assert locality.published_micrograph("layer-wise", 16, "it-like", "2L") == 0.61
    assert locality.published_micrograph("node-wise", 3, "arxiv-like", "2L") is None
    assert locality.published_micrograph("node-wise", 2, "cora", "2L") is None
    assert locality.published_subgraph("layer-wise", 8) == 0.12


def test_another_feature_width_leaves_the_topology(tmp_path: Path) -> None:
    narrow = GraphDirectory.open(make("arxiv-like", tmp_path / "narrow", scale=0.01))
    wide = GraphDirectory.open(make("arxiv-like", tmp_path / "wide", scale=0.01, feature_dim=9))
    assert narrow.features("node").shape[1] == 128
    assert wide.features("node").shape == (narrow.features("node").shape[0], 9)
    assert (narrow.topology(EDGE).indices == wide.topology(EDGE).indices).all()
    assert (narrow.labels("node") == wide.labels("node")).all()
    assert "feature_dim=9" in wide.schema.source
    with pytest.raises(RequestError, match="feature dim: expected at least 1, given 0"):
        make("arxiv-like", tmp_path / "none", scale=0.01, feature_dim=0)


def test_commands_of_a_recipe_write_the_folders_of_the_experiment(tmp_path: Path) -> None:
    materials = Materials(tmp_path, lambda _: None)
    (cell, *_) = EXPERIMENTS["hopgnn-fig22b"].grid.cells(OPTIONS)
    make_command, partition_command = materials.recipe(cell)
    assert make_command == (
        "hopper dataset make products-like --scale 0.02 --seed 0 --feature-dim 64 "
        "--out graphs/products-like-0.02-dim-64"
    )
    assert partition_command.endswith(
        "--servers 4 --method metis --seed 0 --out parts/products-like-0.02-dim-64-metis-4"
    )


def test_toml_of_awkward_values_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = {"a": {"text": 'a "b" \\ c', "yes": True, "none": [], "x": 1e-5}, "b": {"n": [1, -1]}}
    write_toml(tmp_path / "x.toml", values, ["comment"])
    assert tomllib.loads((tmp_path / "x.toml").read_text()) == values
    with pytest.raises(TypeError, match="no TOML for None"):
        write_toml(tmp_path / "y.toml", {"a": {"b": None}}, [])
    assert not (tmp_path / "y.toml").exists()


def _cell() -> Cell:
    return EXPERIMENTS["hopgnn-fig11"].grid.cells(OPTIONS)[0]


def test_a_stored_result_answers_the_same_request_only(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["hopgnn-fig11"]
    options = replace(OPTIONS, out=tmp_path)
    job, cell = make_job(experiment, options, SILENT), _cell()
    job.keep(cell, {"found": 1})
    stored = job.read_result(cell, job.fingerprint(cell))
    assert stored is not None
    assert stored["found"] == 1
    for change in ({"rounds": 5}, {"emulated": False}, {"words": ("--train.seed=1",)}):
        other_job = make_job(experiment, replace(options, **change), SILENT)
        assert other_job.read_result(cell, other_job.fingerprint(cell)) is None
