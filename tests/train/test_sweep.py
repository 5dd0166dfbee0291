"""``hopper sweep``: lists become trials in a documented order, wrong sweeps are refused, and a run
of several trials writes, prints and resumes all of them."""

import json
import re
import shutil
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

import hopper
from hopper.bench.report import write_report
from hopper.cli.sweep import ranking_table
from hopper.config import make_config
from hopper.engines.trial_configs import trial_configs
from hopper.errors import ConfigError
from hopper.train.run_files import best_first
from hopper.train.sweep import make_sweep

DATA = {"data": {"partitioned": "parts"}}
SEEDS = {"train": {"seed": [7, 8]}}
HIDDEN = (4, 8, 6)
# Of 11 iterations an epoch, in the third one.
CHECKPOINT_EVERY = 25
LISTS = (f"--model.hidden={list(HIDDEN)}", "--hop.merge=adaptive")


def test_the_grid_is_in_order_of_keys_with_the_last_one_fastest():
    values = {
        "train": {"weight_decay": [0.0, 0.1], "learning_rate": [0.03, 0.01]},
        "model": {"dropout": 0.2, "hidden": [16, 8]},
    }
    config = make_sweep(DATA | values)
    keys = ("model.hidden", "train.learning_rate", "train.weight_decay")
    assert [tuple(trial) for trial in config.hop.trials] == [keys] * 8
    assert [tuple(trial.values()) for trial in config.hop.trials] == [
        (hidden, rate, decay) for hidden in (16, 8) for rate in (0.03, 0.01) for decay in (0.0, 0.1)
    ]
    assert (config.train.engine, config.hop.replicas) == ("hop", "independent")
    assert (config.model.hidden, config.train.learning_rate) == (16, 0.03)
    assert values["model"]["hidden"] == [16, 8], "the caller's values are unchanged"


@pytest.mark.parametrize(
    ("sections", "keys", "expected"),
    [
        ({"task": {"decoder": ["dot", "mlp"], "dim": [4, 8]}}, ("task.decoder", "task.dim"),
         [("dot", 4), ("dot", 8), ("mlp", 4), ("mlp", 8)]),
        # A list of seeds shares the draws of the first, unless each trial draws for itself.
        (SEEDS, ("train.seed", "train.own_seed"), [(7, 7), (7, 8)]),
        (SEEDS | {"hop": {"share_sampling": False}}, ("train.seed", "train.own_seed"),
         [(7, 7), (8, 8)]),
        # Trials with other fanouts do. A list of loggers is one value.
        ({
             "sampler": {"fanouts": [[5, 5, 5], [3, 2, 2]]},
             "train": {"loggers": ["tensorboard"]},
         }, ("sampler.fanouts", "train.loggers"),
         [([5, 5, 5], ["tensorboard"]), ([3, 2, 2], ["tensorboard"])]),
        # Models of several kinds keep layers and fanouts.
        ({"model": {"name": ["gcn", "deepgcn"]}}, ("model.name", "model.layers", "sampler.fanouts"),
         [("gcn", 3, [10, 10, 10]), ("deepgcn", 3, [10, 10, 10])]),
    ],
)  # fmt: skip
def test_each_trial_has_its_own_configuration(sections, keys, expected):
    trials = [trial.config for trial in trial_configs(make_sweep(DATA | sections), 2)]
    pairs = [key.split(".") for key in keys]
    values = [tuple(getattr(getattr(t, section), key) for section, key in pairs) for t in trials]
    assert values == expected


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, "neither lists nor hop.trials"),
        ({"model": {"hidden": [1, 2]}, "hop": {"trials": [{"model.hidden": 3}]}},
         "both lists and hop.trials"),
        ({"model": {"layers": [2, 3]}}, "model.layers: trials cannot differ in it"),
        ({"task": {"num_negatives": [1, 2]}}, "task.num_negatives: trials cannot differ in it"),
        ({"train": {"batch_size": [2, 3]}}, "train.batch_size: trials cannot differ in it"),
        ({"model": {"hidden": []}}, "model.hidden: expected distinct values, got []"),
        ({"model": {"hidden": [4, 4]}}, "model.hidden: expected distinct values, got [4, 4]"),
        ({"train": {"seed": [1, 2], "model_seed": [1, 2]}}, "train.seed: with train.model_seed"),
        ({"model": {"hidden": [4, "x"]}}, "hop.trials[1]: model.hidden: "),
        ({"model": {"dropout": [0.5, 1.5]}}, "hop.trials[1]: model.dropout: "),
        ({"sampler": {"fanouts": [[5, 5, 5], [3, 2, 2]]}, "hop": {"share_sampling": True}},
         "sampler.fanouts: all trials share their draws"),
        ({"model": {"hidden": [1, 2]}, "train": {"engine": "zero_hop"}},
         'needs train.engine = "hop"'),
        ({"model": {"hidden": [1, 2]}, "hop": {"merge": 1}}, "hop.merge: 1 time steps cannot"),
        ({"model": {"hidden": [1, 2]}, "train": {"record_gradients": [3]}},
         "train.record_gradients: expected no value"),
        ({"hop": {"trials": [{"train.epochs": 3}]}}, "train.epochs: trials cannot differ in it"),
        ({"hop": {"trials": [{"train.seed": 3}]}}, "use train.model_seed"),
        ({"hop": 3, "model": {"hidden": [1, 2]}}, "hop: "),
    ],
)  # fmt: skip
def test_wrong_sweeps_are_refused_with_the_key(sections, message):
    with pytest.raises(ConfigError) as caught:
        trial_configs(make_sweep(DATA | sections), 2)
    assert message in str(caught.value)


def test_trials_need_independent_replicas():
    with pytest.raises(ConfigError, match=r"hop\.trials: they need replicas"):
        make_config(DATA | {"hop": {"trials": [{"model.hidden": 3}]}})


def test_the_best_comes_first_and_the_table_is_ranked():
    scores = {0: 0.5, 1: None, 2: 0.7, 3: float("nan"), 4: 0.5}
    assert best_first(scores, higher_is_better=True) == [2, 0, 4, 1, 3]
    assert best_first(scores, higher_is_better=False) == [0, 4, 2, 1, 3]
    trials = [
        {
            "trial": index,
            "overrides": {"model.hidden": 4 + index},
            "parameters": 10,
            "scores": {"val": {"accuracy": val}, "test": {}},
            "best_epoch": 1,
        }
        for index, val in enumerate((0.25, 0.75))
    ]
    table = ranking_table({"metric": "accuracy", "ranking": [1, 0], "trials": trials})
    columns = {str(column.header): list(column.cells) for column in table.columns}
    assert columns["trial"] == ["1", "0"]
    assert columns["hidden"] == ["5", "4"]
    assert columns["val accuracy"] == ["0.7500", "0.2500"]
    assert columns["test accuracy"] == ["-", "-"]


def sweep_to_end(runs: Any, name: str, **train: Any) -> Any:
    config = runs.config(name, checkpoint_every=CHECKPOINT_EVERY, **train)
    return runs.call_to_end(name, "sweep", str(config), *LISTS)


def trial_epochs(run: Any, trial: int) -> list[dict[str, Any]]:
    return list(run.read_lines(f"trial-{trial}/epochs.jsonl"))


@pytest.fixture(scope="module")
def sweep_run(runs) -> Any:
    return sweep_to_end(runs, "swept")


def test_a_sweep_writes_a_folder_per_trial_and_a_summary(sweep_run):
    summary, epochs = sweep_run.summary(), sweep_run.epochs()
    assert summary["epochs"] == epochs
    assert [t["overrides"] for t in summary["trials"]] == [{"model.hidden": n} for n in HIDDEN]
    scores = {trial["trial"]: trial["scores"]["val"]["accuracy"] for trial in summary["trials"]}
    assert summary["ranking"] == best_first(scores, higher_is_better=True)
    assert summary["scores"] == summary["trials"][summary["ranking"][0]]["scores"]
    by_trial = [trial_epochs(sweep_run, trial) for trial in range(3)]
    for trial, records in enumerate(by_trial):
        folder = sweep_run.run_dir / f"trial-{trial}"
        assert json.loads((folder / "summary.json").read_text())["epochs"] == records
        assert [record["epoch"] for record in records] == [0, 1, 2]
        assert scores[trial] == max(record["val"] for record in records)
        assert load_file(folder / "best.safetensors")
    for epoch, *records in zip(epochs, *by_trial, strict=True):
        assert epoch["loss"] == pytest.approx(sum(record["loss"] for record in records) / 3)
        assert epoch["bytes"]["model"] > 0 == epoch["bytes"]["gradient"]
        assert epoch["val"] == max(record["val"] for record in records)


def test_the_result_of_a_sweep_loads_every_trial(sweep_run):
    result, summary = hopper.RunResult.open(sweep_run.run_dir), sweep_run.summary()
    assert [vars(epoch) for epoch in result.epochs] == sweep_run.epochs()
    assert result.ranking == summary["ranking"]
    for index, (trial, hidden) in enumerate(zip(result.trials, HIDDEN, strict=True)):
        assert trial.overrides == {"model.hidden": hidden}
        for split, scores in summary["trials"][index]["scores"].items():
            assert trial.metrics["accuracy"][split] == scores["accuracy"]
        assert trial.best_epoch == summary["trials"][index]["best_epoch"]
        assert [vars(epoch) for epoch in trial.epochs] == trial_epochs(sweep_run, index)
        stored = load_file(trial.model_file)
        assert {n: list(v.shape) for n, v in trial.load_model().state_dict().items()} == {
            n: list(v.shape) for n, v in stored.items()
        }
    best = result.trials[result.ranking[0]]
    assert (result.metrics, result.model_file) == (best.metrics, best.model_file)
    expected = best.load_model().state_dict()
    for name, value in result.load_model().state_dict().items():
        assert torch.equal(value, expected[name])


def test_a_sweep_prints_its_trials_first_and_their_ranking_last(sweep_run):
    before, _, after = sweep_run.stdout.partition(
        "engine hop, independent replicas: 3 trials, 2 ranks"
    )
    assert "hidden" in before
    assert after.index("results in") < after.index("by validation score")
    rows = [line.split("│")[1:3] for line in after.splitlines() if line.startswith("│")]
    ranking = sweep_run.summary()["ranking"]
    assert [[cell.strip() for cell in row] for row in rows] == [
        [str(trial), str(HIDDEN[trial])] for trial in ranking
    ]
    sweep_page = write_report(sweep_run.run_dir).read_text()
    cells = re.findall(r'<th scope="row">trial (\d)</th>', sweep_page)
    assert [int(number) for number in cells] == ranking
    assert f"hidden {HIDDEN[ranking[0]]}" in sweep_page
    assert "hidden 8" in write_report(sweep_run.run_dir / "trial-1").read_text()


def test_spans_name_the_model_that_a_rank_trained(sweep_run):
    for rank in range(2):
        visits = {
            (span["model"], span["step"])
            for span in sweep_run.read_lines(f"spans/rank-{rank}.jsonl")
            if span.get("span") == "compute" and "roots" in span
        }
        assert visits == {(trial, (rank - trial) % 2) for trial in range(3)}


def test_a_resumed_sweep_has_the_same_bits(sweep_run, runs):
    copy = type(sweep_run)(sweep_run.run_dir.with_name("sweep-halted"), sweep_run.run_dir.parent)
    shutil.copytree(sweep_run.run_dir, copy.run_dir)
    copy.halt_after(CHECKPOINT_EVERY)
    resumed = sweep_to_end(runs, "sweep-halted", resume=True)
    for trial in range(3):
        assert trial_epochs(resumed, trial) == trial_epochs(sweep_run, trial)
    assert resumed.summary()["trials"] == sweep_run.summary()["trials"]
    models = list(sweep_run.run_dir.glob("trial-*/best.safetensors"))
    assert len(models) == 3
    for model in models:
        again = resumed.run_dir / model.relative_to(sweep_run.run_dir)
        assert again.read_bytes() == model.read_bytes()
    assert resumed.losses() == sweep_run.losses()
    assert '"resumed"' in (resumed.run_dir / "spans" / "rank-0.jsonl").read_text()
