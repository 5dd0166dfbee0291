"""``hopper sweep`` on two servers: what it prints and writes, and that resuming changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

import hopper
from hopper.bench.report import write_report
from hopper.train.run_files import best_first

LISTS = ("--model.hidden=[4, 8, 6]", "--hop.merge=adaptive")


def sweep_to_end(runs: Any, name: str, **train: Any) -> Any:
    run = runs.call(name, "sweep", str(runs.config(name, **train)), *LISTS)
    assert run.code == 0, run.stdout + run.stderr
    return run


def trial_epochs(run: Any, trial: int) -> list[dict[str, Any]]:
    lines = (run.run_dir / f"trial-{trial}" / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def sweep_run(runs: Any) -> Any:
    return sweep_to_end(runs, "swept")


def test_a_sweep_writes_a_folder_per_trial_and_a_summary(sweep_run: Any) -> None:
    summary, epochs = sweep_run.summary(), sweep_run.epochs()
    assert summary["epochs"] == epochs
    assert [trial["overrides"] for trial in summary["trials"]] == [
        {"model.hidden": hidden} for hidden in (4, 8, 6)
    ]
    scores = {trial["trial"]: trial["scores"]["val"]["accuracy"] for trial in summary["trials"]}
    assert summary["ranking"] == best_first(scores, higher_is_better=True)
    assert summary["scores"] == summary["trials"][summary["ranking"][0]]["scores"]
    for trial in range(3):
        records = trial_epochs(sweep_run, trial)
        folder = sweep_run.run_dir / f"trial-{trial}"
        assert json.loads((folder / "summary.json").read_text())["epochs"] == records
        assert [record["epoch"] for record in records] == [0, 1, 2]
        assert scores[trial] == max(record["val"] for record in records)
        assert load_file(folder / "best.safetensors")
    curves = [[record["loss"] for record in trial_epochs(sweep_run, trial)] for trial in range(3)]
    for epoch, *own_losses in zip(epochs, *curves, strict=True):
        assert epoch["loss"] == pytest.approx(sum(own_losses) / 3)
        assert epoch["bytes"]["model"] > 0 == epoch["bytes"]["gradient"]
        assert epoch["val"] == max(
            trial_epochs(sweep_run, t)[epoch["epoch"]]["val"] for t in range(3)
        )


def test_the_result_of_a_sweep_loads_every_trial(sweep_run: Any) -> None:
    result, summary = hopper.RunResult.open(sweep_run.run_dir), sweep_run.summary()
    assert [vars(epoch) for epoch in result.epochs] == sweep_run.epochs()
    assert result.ranking == summary["ranking"]
    for index, (trial, hidden) in enumerate(zip(result.trials, (4, 8, 6), strict=True)):
        assert trial.overrides == {"model.hidden": hidden}
        for split, scores in summary["trials"][index]["scores"].items():
            assert trial.metrics["accuracy"][split] == scores["accuracy"]
        assert trial.best_epoch == summary["trials"][index]["best_epoch"]
        assert [vars(epoch) for epoch in trial.epochs] == trial_epochs(sweep_run, index)
        model = trial.load_model()
        stored = load_file(trial.model_file)
        assert {n: list(v.shape) for n, v in model.state_dict().items()} == {
            n: list(v.shape) for n, v in stored.items()
        }
    best = result.trials[result.ranking[0]]
    assert result.metrics == best.metrics
    assert result.model_file == best.model_file
    expected = best.load_model().state_dict()
    for name, value in result.load_model().state_dict().items():
        assert torch.equal(value, expected[name])


def test_a_sweep_prints_its_trials_first_and_their_ranking_last(sweep_run: Any) -> None:
    before, _, after = sweep_run.stdout.partition(
        "engine hop, independent replicas: 3 trials, 2 ranks"
    )
    assert "hidden" in before
    assert after.index("results in") < after.index("by validation score")
    rows = [line.split("│")[1:3] for line in after.splitlines() if line.startswith("│")]
    hidden = ("4", "8", "6")
    ranking = sweep_run.summary()["ranking"]
    assert [[cell.strip() for cell in row] for row in rows] == [
        [str(trial), hidden[trial]] for trial in ranking
    ]


def test_the_reports_of_a_sweep_rank_its_trials_and_of_a_trial_show_it(sweep_run: Any) -> None:
    sweep_page = write_report(sweep_run.run_dir).read_text()
    ranking = sweep_run.summary()["ranking"]
    cells = re.findall(r'<th scope="row">trial (\d)</th>', sweep_page)
    assert [int(number) for number in cells] == ranking
    assert f"hidden {(4, 8, 6)[ranking[0]]}" in sweep_page
    assert "hidden 8" in write_report(sweep_run.run_dir / "trial-1").read_text()


def test_spans_name_the_model_that_a_rank_trained(sweep_run: Any) -> None:
    for rank in range(2):
        lines = (sweep_run.run_dir / "spans" / f"rank-{rank}.jsonl").read_text().splitlines()
        spans = [json.loads(line) for line in lines]
        visits = {
            (span["model"], span["step"])
            for span in spans
            if span.get("span") == "compute" and "roots" in span
        }
        assert visits == {(trial, (rank - trial) % 2) for trial in range(3)}


def test_a_resumed_sweep_has_the_same_bits(sweep_run: Any, runs: Any) -> None:
    # Of 11 iterations an epoch, in the third one.
    train = {"checkpoint_every": 25}
    whole = sweep_to_end(runs, "sweep-halted", **train)
    before = {path: path.read_bytes() for path in whole.run_dir.glob("trial-*/best.safetensors")}
    whole.halt_after(25)
    resumed = sweep_to_end(runs, "sweep-halted", **train, resume=True)
    assert len(before) == 3
    for trial in range(3):
        assert trial_epochs(resumed, trial) == trial_epochs(sweep_run, trial)
    assert resumed.summary()["trials"] == sweep_run.summary()["trials"]
    assert all(path.read_bytes() == content for path, content in before.items())
    assert resumed.losses() == sweep_run.losses()
    assert '"resumed"' in (resumed.run_dir / "spans" / "rank-0.jsonl").read_text()


def test_a_key_that_cannot_be_swept_is_refused_before_the_start(runs: Any, tmp_path: Path) -> None:
    config = str(runs.config("sweep-refused"))
    refused = runs.call("sweep-refused", "sweep", config, "--model.layers=[1, 2]")
    assert refused.code == 1
    assert "model.layers: trials cannot differ in it" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not refused.run_dir.exists()
