"""``hopper train``, ``torchrun -m hopper.train`` and ``hopper serve``."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hopper.cli import main
from hopper.config import load_config, make_config
from hopper.launch.run import write_config

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 120.0
# 83 training nodes, two ranks with two roots each.
ITERATIONS = 11


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, cwd=REPOSITORY)


def run_hopper(*words: str) -> subprocess.CompletedProcess[str]:
    return run_command(sys.executable, "-m", "hopper.cli", *words)


def test_ranks_get_absolute_folders(tmp_path: Path) -> None:
    """Ray starts ranks in another directory."""
    values = {
        "data": {"partitioned": "parts"},
        "train": dict.fromkeys(("init_from", "checkpoint_copy", "replay"), "folder"),
        "learnable": dict.fromkeys(("folder", "initial"), "folder"),
    }
    config = load_config(write_config(make_config(values), tmp_path, []))
    folder = str(Path("folder").absolute())
    assert {config.train.init_from, config.train.checkpoint_copy, config.train.replay} == {folder}
    assert {config.learnable.folder, config.learnable.initial} == {folder}
    values["train"] = {"checkpoint_copy": "s3://bucket/folder"}
    config = load_config(write_config(make_config(values), tmp_path, []))
    assert config.train.checkpoint_copy == "s3://bucket/folder"


def test_a_run_writes_its_results(reference: Any) -> None:
    summary, epochs = reference.summary(), reference.epochs()
    assert summary["engine"] == "hop"
    assert summary["ranks"] == len(summary["peak_rss_mib"]) == 2
    assert summary["epochs"] == epochs
    assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2]
    for epoch in epochs:
        assert epoch["iterations"] == len(epoch["iteration_losses"]) == ITERATIONS
        assert epoch["loss"] == pytest.approx(sum(epoch["iteration_losses"]) / ITERATIONS)
        assert epoch["bytes"]["model"] > 0
        assert epoch["bytes"]["feature"] > 0
        assert epoch["stage_seconds"]["compute"] > 0
    best = max(epochs, key=lambda epoch: epoch["val"])
    assert summary["best_epoch"] == best["epoch"]
    assert summary["scores"]["val"]["accuracy"] == best["val"]
    # Six communities, told apart by features and neighbours.
    assert epochs[-1]["loss"] < 0.5 * epochs[0]["loss"]
    assert summary["scores"]["test"]["accuracy"] > 0.5


def test_training_nodes_are_scored_with_score_training(reference: Any, runs: Any) -> None:
    """Scoring them changes nothing of the run."""
    epochs = runs.train_to_end("scores-training", score_training=True, evaluate_every=3).epochs()
    assert [epoch["iteration_losses"] for epoch in epochs] == reference.losses()
    assert [epoch["train"] is None for epoch in epochs] == [True, True, False]
    assert epochs[2]["val"] == reference.epochs()[2]["val"]
    # 83 nodes, of which no fraction is right.
    assert 83 * epochs[2]["train"] == pytest.approx(round(83 * epochs[2]["train"]))
    assert epochs[2]["train"] > 0.5
    assert all(epoch["train"] is None for epoch in reference.epochs())


def test_a_run_writes_its_best_model_as_safetensors(reference: Any) -> None:
    tensors = load_file(reference.run_dir / "best.safetensors")
    assert sorted({array.dtype.name for array in tensors.values()}) == ["float32"]
    assert sum(array.size for array in tensors.values()) == 270


def test_every_rank_writes_spans(reference: Any) -> None:
    for rank in range(2):
        lines = (reference.run_dir / "spans" / f"rank-{rank}.jsonl").read_text().splitlines()
        spans = [json.loads(line) for line in lines]
        computed_iterations = {
            (span["epoch"], span["iteration"]) for span in spans if span.get("span") == "compute"
        }
        assert computed_iterations == {(epoch, i) for epoch in range(3) for i in range(ITERATIONS)}
        assert all(span["seconds"] >= 0 for span in spans if "span" in span)


def test_a_run_prints_a_line_per_epoch(reference: Any) -> None:
    lines = [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in reference.stdout.splitlines()]
    assert lines[0].startswith(
        f"engine hop: 2 ranks on 2 servers, {ITERATIONS} iterations an epoch"
    )
    assert [line.split()[:2] for line in lines[1:4]] == [["epoch", str(i)] for i in range(3)]
    assert lines[-1] == f"results in {reference.run_dir}"
    assert "\x1b" not in reference.stdout


def test_a_finished_run_is_not_overwritten(
    reference: Any, runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = reference.epochs_file.read_bytes()
    assert main(["train", str(runs.config("reference"))]) == 1
    message = f"train.run_dir: {reference.run_dir} holds a finished run"
    assert message in capsys.readouterr().err
    assert reference.epochs_file.read_bytes() == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--train.batch_sise 3", "train.batch_sise: unknown key"),
        ("--train.batch_size 0", "train.batch_size: "),
        ("--train.engine naive", "train.engine: naive is a baseline, which only a checkout"),
        ("--model.layers 3", "sampler.fanouts: expected one fanout per layer (3)"),
        ("--train.seed", "--train.seed: a value is missing"),
        ("--data.partitioned /nowhere", "/nowhere"),
        ("--model.name rgcn --model.bases 2 --model.diagonal_blocks 2", "bases: excludes"),
        ("--train.loss huber", "train.loss: expected auto, cross_entropy, "),
        ("--train.loss nowhere:Loss", "train.loss: nowhere:Loss: module 'nowhere' cannot be impor"),
        (
            "--train.metric lion:Lion",
            "train.metric: lion:Lion: expected a Metric (docs",
        ),
        ("--train.optimizer lion:Tiger", "lion:Tiger: module 'lion' has no 'Tiger'"),
        ("--train.schedule step", "train.schedule_options.step_size: missing; step needs it"),
        ("--train.loggers='[\"lion:Lion\"]'", "lion:Lion: expected a subclass of hopper.train.cal"),
        ("--data.features='{page=\"a:B\"}'", "data.features.page: expected a node type: item"),
        ("--data.features='{item=\"lion:Lion\"}'", "item: lion:Lion: expected a RowSource"),
        ("--train.batch_size 9999 --train.last_batch drop", "leaves no iteration"),
    ],
)
def test_a_bad_configuration_is_refused_before_anything_starts(
    overrides: str,
    message: str,
    runs: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = runs.config("refused", run_dir=str(tmp_path / "run"))
    assert main(["train", str(config), *shlex.split(overrides)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert not (tmp_path / "run").exists()


def test_words_that_are_no_overrides_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["train", "config.toml", "epochs", "3"],
        ["dataset", "info", "graph", "--data.place=3"],
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
    printed = capsys.readouterr().err
    assert "unrecognized arguments: epochs 3" in printed
    assert "--data.place=3: this command reads no configuration" in printed


def test_overrides_may_stand_before_the_configuration(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(runs.config("anywhere"))
    assert main(["schedule", "--train.batch_size", "3", config, "--dissolve", "1"]) == 0
    assert "1 of 2 time steps" in " ".join(capsys.readouterr().out.split())


def test_a_missing_configuration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "/nowhere/config.toml"]) == 1
    message = "error: /nowhere/config.toml: cannot read the configuration"
    assert capsys.readouterr().err.startswith(message)


def test_a_wrong_number_of_ranks_is_refused(runs: Any) -> None:
    config = runs.config("lonely")
    refused = run_command(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
        *("-m", "hopper.train", str(config)),
    )
    assert refused.returncode != 0
    assert "has 2 partitions; with cluster.ranks_per_server = 1 start 2 ranks, not 1" in (
        refused.stderr
    )


def test_a_rank_without_a_configuration_prints_its_usage() -> None:
    misused = run_command(sys.executable, "-m", "hopper.train")
    assert misused.returncode == 2
    assert misused.stderr.startswith("usage: torchrun")


def test_serve_is_the_feature_server(partitioned: Path) -> None:
    help_run = run_hopper("serve", "--help")
    assert help_run.returncode == 0
    assert "--port-file" in help_run.stdout
    refused = run_hopper("serve", str(partitioned), "--server", "2", "--listen", "127.0.0.1:0")
    assert refused.returncode == 2
    assert "server-2" in refused.stderr
