"""Loggers for experiment trackers: TensorBoard, MLflow and Weights & Biases.

All of them log the same numbers. Their libraries are imported only once a run that names them has
begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hopper.train.callbacks import Callback, Running
from hopper.train.results import finite_mean

_NUMBERS: Final = ("loss", "train", "seconds", "evaluation_seconds", "sent_bytes")


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers to log for an epoch, by name.

    They are loss, seconds, bytes, the rates of iterations, roots and bytes, the mean norm of
    gradients if it is known, and the validation scores as ``val/<metric>``.
    """
    numbers = {name: float(record[name]) for name in _NUMBERS if record[name] is not None}
    numbers |= {f"val/{name}": float(score) for name, score in record["scores"].items()}
    numbers |= {f"bytes/{cause}": float(count) for cause, count in record["bytes"].items()}
    if record["seconds"]:
        numbers["iterations_per_second"] = record["measured_iterations"] / record["seconds"]
        numbers["roots_per_second"] = record["roots"] / record["seconds"]
        numbers["sent_bytes_per_second"] = record["sent_bytes"] / record["seconds"]
    if record["gradient_norms"]:
        numbers["gradient_norm"] = finite_mean(record["gradient_norms"])
    return numbers


class Tracker(Callback):
    """Base class of loggers that send numbers to a tracker, in a run of its own. Each of them says
    how in ``_log``."""

    def __init__(self, *, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._run: Any = None

    def epoch(self, run: Running, record: Mapping[str, Any]) -> None:
        """Log an epoch's numbers."""
        self._log(numbers_of(record), record["epoch"])

    def finish(self, run: Running) -> None:
        """Log the test scores of the best model."""
        scores = {f"test/{name}": s for name, s in run.summary["scores"]["test"].items()}
        self._log(scores, run.summary["best_epoch"] or 0)

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        raise NotImplementedError


class TensorBoard(Tracker):
    """Writes event files into the run's folder ``tensorboard``, for ``tensorboard --logdir``."""

    def start(self, run: Running) -> None:
        """Open the event file, and log the configuration as a text."""
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self._run = writer(str(self._run_dir / "tensorboard"))
        values = _flatten(run.config.model_dump(mode="json"))
        lines = [f"    {name} = {value}" for name, value in values.items()]
        self._run.add_text("configuration", "\n".join(lines))

    def close(self) -> None:
        """Close the event file, if it is open."""
        if self._run is not None:
            self._run.close()

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, number in numbers.items():
            self._run.add_scalar(name, number, epoch)
        self._run.flush()


class MLflow(Tracker):
    """Logs to MLflow, at the address in ``MLFLOW_TRACKING_URI``.

    Parameters
    ----------
    experiment: name of the experiment that the run belongs to.
    """

    def __init__(self, *, run_dir: Path, experiment: str = "hopper") -> None:
        super().__init__(run_dir=run_dir)
        self._experiment = experiment

    def start(self, run: Running) -> None:
        """Start a run, and log the configuration keys as parameters."""
        self._library = import_module("mlflow")
        self._library.set_experiment(self._experiment)
        self._run = self._library.start_run(run_name=self._run_dir.name)
        values = _flatten(run.config.model_dump(mode="json"))
        self._library.log_params({name: str(value) for name, value in values.items()})

    def close(self) -> None:
        """End the run, if it has begun."""
        if self._run is not None:
            self._library.end_run()

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._library.log_metrics(dict(numbers), step=epoch)


class WeightsAndBiases(Tracker):
    """Logs to Weights & Biases, by default into the run's folder; ``wandb sync`` then sends it.

    Parameters
    ----------
    project: name of the project that the run belongs to.
    mode: "offline", or "online", which needs an account and the network.
    """

    def __init__(self, *, run_dir: Path, project: str = "hopper", mode: str = "offline") -> None:
        super().__init__(run_dir=run_dir)
        self._where = {"project": project, "mode": mode}

    def start(self, run: Running) -> None:
        """Start a run with the configuration."""
        config, folder = run.config.model_dump(mode="json"), self._run_dir
        init = import_module("wandb").init
        self._run = init(**self._where, name=folder.name, dir=str(folder), config=config)

    def close(self) -> None:
        """Finish the run, if it has begun."""
        if self._run is not None:
            self._run.finish()

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._run.log({**numbers, "epoch": epoch})


TRACKERS: Final[Mapping[str, type[Tracker]]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
"""Trackers by the name of the package that they need."""


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested mapping by "section.key"."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        is_section = isinstance(value, Mapping)
        flat |= _flatten(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value}
    return flat
