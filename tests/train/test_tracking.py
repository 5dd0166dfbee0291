"""The numbers of a run that trackers of experiments get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopper
from hopper.train.loggers import check_loggers
from hopper.train.tracking import TRACKERS, Tracker, numbers_of


def report_run(reference: Any, tracker: Tracker) -> None:
    """Make the calls that a tracker gets from a finished run."""
    config = hopper.RunResult.open(reference.run_dir).config
    tracker.start(config.model_dump(mode="json"))
    for record in reference.epochs():
        tracker.epoch(record)
    tracker.finish(reference.summary())
    tracker.close()


def test_numbers_of_an_epoch(reference: Any) -> None:
    record = reference.epochs()[1]
    numbers = numbers_of(record)
    assert numbers["loss"] == record["loss"]
    assert numbers["val/accuracy"] == record["val"]
    assert numbers["bytes/feature"] == record["bytes"]["feature"]
    assert numbers["iterations_per_second"] > 0
    assert record["roots"] == 83
    assert numbers["roots_per_second"] == pytest.approx(83 / record["seconds"])
    assert "gradient_norm" not in numbers
    assert numbers_of(record | {"gradient_norms": [1.0, 3.0]})["gradient_norm"] == 2.0


def test_tensorboard(reference: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report_run(reference, TRACKERS["tensorboard"](run_dir=tmp_path))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx([record["loss"] for record in reference.epochs()])
    [test] = events.Scalars("test/accuracy")
    assert test.value == pytest.approx(reference.summary()["scores"]["test"]["accuracy"])


def test_mlflow(reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    report_run(reference, TRACKERS["mlflow"](run_dir=tmp_path, experiment="own"))
    [run] = mlflow.search_runs(experiment_names=["own"], output_format="list")
    assert run.data.params["model.hidden"] == "8"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [record.value for record in history] == [record["loss"] for record in reference.epochs()]


def test_weights_and_biases(reference: Any, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    report_run(reference, TRACKERS["wandb"](run_dir=tmp_path))
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_unknown_and_uninstalled_trackers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {"data": {"partitioned": "p"}, "train": {"loggers": ["notepad"]}}
    with pytest.raises(hopper.ConfigError, match="loggers: expected tensorboard, mlflow, wandb or"):
        hopper.make_config(values)
    values["train"] = {"loggers": ["wandb"], "loggers_options": [{"projekt": "mine"}]}
    with pytest.raises(hopper.ConfigError, match="wandb takes project, mode; got 'projekt'"):
        check_loggers(hopper.make_config(values))
    monkeypatch.setattr(TRACKERS["mlflow"], "package", "no_such_package")
    values["train"] = {"loggers": ["mlflow"]}
    with pytest.raises(hopper.ConfigError, match="no_such_package is not installed: pip install"):
        check_loggers(hopper.make_config(values))
