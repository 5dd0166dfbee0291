"""``hopper train``, ``torchrun -m hopper.train`` and ``hopper serve``."""

import re
import shlex
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from hopper.cli import main
from hopper.config import load_config, make_config
from hopper.launch.run import write_config
from hopper.train import rank_process

# 83 training nodes, two ranks with two roots each.
ITERATIONS = 11


def test_ranks_get_absolute_folders(tmp_path):
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


def test_a_run_writes_its_results(reference):
    summary, epochs = reference.summary(), reference.epochs()
    assert summary["engine"] == "hop"
    assert summary["ranks"] == len(summary["peak_rss_mib"]) == 2
    assert summary["epochs"] == epochs
    assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2]
    for epoch in epochs:
        assert epoch["iterations"] == len(epoch["iteration_losses"]) == ITERATIONS
        assert epoch["loss"] == pytest.approx(sum(epoch["iteration_losses"]) / ITERATIONS)
        assert epoch["bytes"]["gradient"] > 0
        assert epoch["bytes"]["feature"] > 0
        assert epoch["stage_seconds"]["compute"] > 0
    best = max(epochs, key=lambda epoch: epoch["val"])
    assert summary["best_epoch"] == best["epoch"]
    assert summary["scores"]["val"]["accuracy"] == best["val"]
    # Six communities, told apart by features and neighbours.
    assert epochs[-1]["loss"] < 0.5 * epochs[0]["loss"]
    assert summary["scores"]["test"]["accuracy"] > 0.5
    tensors = load_file(reference.run_dir / "best.safetensors")
    assert sum(array.size for array in tensors.values()) == 270


def test_training_nodes_are_scored_with_score_training(reference, runs):
    """Scoring them changes nothing of the run."""
    epochs = runs.train_to_end("scores-training", score_training=True, evaluate_every=3).epochs()
    assert [epoch["iteration_losses"] for epoch in epochs] == reference.losses()
    assert [epoch["train"] is None for epoch in epochs] == [True, True, False]
    assert epochs[2]["val"] == reference.epochs()[2]["val"]
    # 83 nodes, of which no fraction is right.
    assert 83 * epochs[2]["train"] == pytest.approx(round(83 * epochs[2]["train"]))
    assert epochs[2]["train"] > 0.5
    assert all(epoch["train"] is None for epoch in reference.epochs())


def test_every_rank_writes_spans(reference):
    for rank in range(2):
        spans = reference.read_lines(f"spans/rank-{rank}.jsonl")
        computed_iterations = {
            (span["epoch"], span["iteration"]) for span in spans if span.get("span") == "compute"
        }
        assert computed_iterations == {(epoch, i) for epoch in range(3) for i in range(ITERATIONS)}
        assert all(span["seconds"] >= 0 for span in spans if "span" in span)


def test_a_run_prints_a_line_per_epoch(reference):
    lines = [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in reference.stdout.splitlines()]
    assert lines[0].startswith(
        f"engine hop: 2 ranks on 2 servers, {ITERATIONS} iterations an epoch"
    )
    assert [line.split()[:2] for line in lines[1:4]] == [["epoch", str(i)] for i in range(3)]
    assert lines[-1] == f"results in {reference.run_dir}"
    assert "\x1b" not in reference.stdout


def test_a_finished_run_is_not_overwritten(reference, runs, capsys):
    before = reference.epochs_file.read_bytes()
    assert main(["train", str(runs.config("reference"))]) == 1
    message = f"train.run_dir: {reference.run_dir} holds a finished run"
    assert message in capsys.readouterr().err
    assert reference.epochs_file.read_bytes() == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--train.batch_sise 3", "train.batch_sise: unknown key"),
        ("--train.engine naive", "train.engine: naive is a baseline, which only a checkout"),
        ("--data.partitioned /nowhere", "/nowhere"),
        ("--train.loss huber", "train.loss: expected auto, cross_entropy, "),
        ("--train.loss nowhere:Loss", "train.loss: nowhere:Loss: module 'nowhere' cannot be impor"),
        ("--train.metric lion:Lion", "train.metric: lion:Lion: expected a Metric (docs"),
        ("--train.optimizer lion:Tiger", "lion:Tiger: module 'lion' has no 'Tiger'"),
        ("--train.schedule step", "train.schedule_options.step_size: missing; step needs it"),
        ("--train.loggers='[\"lion:Lion\"]'", "lion:Lion: expected a subclass of hopper.train.cal"),
        ("--data.features='{page=\"a:B\"}'", "data.features.page: expected a node type: item"),
        ("--data.features='{item=\"lion:Lion\"}'", "item: lion:Lion: expected a RowSource"),
        ("--train.batch_size 9999 --train.last_batch drop", "leaves no iteration"),
    ],
)
def test_a_bad_configuration_is_refused_before_anything_starts(
    overrides, message, runs, tmp_path, capsys
):
    config = runs.config("refused", run_dir=str(tmp_path / "run"))
    assert main(["train", str(config), *shlex.split(overrides)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert not (tmp_path / "run").exists()


def test_words_that_are_no_overrides_are_refused(capsys):
    for words in (
        ["train", "config.toml", "epochs", "3"],
        ["inspect", "graph", "graph", "--data.place=3"],
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
    printed = capsys.readouterr().err
    assert "unrecognized arguments: epochs 3" in printed
    assert "--data.place=3: this command reads no configuration" in printed


def test_a_wrong_number_of_ranks_is_refused(runs, rank_pool, tmp_path):
    words, log = ("-m", "hopper.train", str(runs.config("lonely"))), tmp_path / "log"
    assert rank_pool.run(lambda _: words, 1, lambda _: (log, log)) == [1]
    text = "has 2 partitions; with cluster.ranks_per_server = 1 start 2 ranks, not 1"
    assert text in log.read_text()


def test_a_rank_without_a_configuration_prints_its_usage(capsys):
    assert rank_process.main([], pytest.fail) == 2
    assert capsys.readouterr().err.startswith("usage: torchrun")
