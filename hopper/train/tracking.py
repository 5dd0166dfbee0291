"""Loggers for experiment trackers: TensorBoard, MLflow and Weights & Biases.

All of them log the same numbers. Their libraries are imported only if a run names them.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from hopper.errors import ConfigError
from hopper.train.results import finite_mean

_NUMBERS: Final = ("loss", "train", "seconds", "evaluation_seconds", "sent_bytes")


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers to log for an epoch, by name.

    They are loss, seconds, bytes, the rates of iterations, roots and bytes, the mean norm of
    gradients if it is known, and the validation scores as ``val/<metric>``.

    Parameters
    ----------
    record: the epoch's line in epochs.jsonl.
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


class Tracker(ABC):
    """Base class of loggers that send numbers to a tracker.

    Parameters
    ----------
    run_dir: the run's folder.
    """

    package: ClassVar[str]
    """Name of the package that the tracker needs."""
    library: ClassVar[str]
    """Name of the module that it uses."""

    def __init__(self, *, run_dir: Path) -> None:
        self.check()
        self._run_dir = run_dir
        self._library: Any = importlib.import_module(self.library)

    @classmethod
    def check(cls) -> None:
        """Check that the package is installed.

        Raises
        ------
        ConfigError: it is not; says what to install.
        """
        if importlib.util.find_spec(cls.package) is None:
            raise ConfigError(
                f"train.loggers: {cls.package} is not installed: pip install {cls.package}"
            )

    @abstractmethod
    def start(self, config: Mapping[str, Any]) -> None:
        """Begin a run in the tracker and log the configuration."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Log an epoch's numbers."""
        self._log(numbers_of(record), int(record["epoch"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the test scores of the best model."""
        epoch = summary["best_epoch"] or 0
        scores = {f"test/{name}": score for name, score in summary["scores"]["test"].items()}
        self._log(scores, epoch)

    @abstractmethod
    def close(self) -> None:
        """End the tracker's run, if it has begun."""

    @abstractmethod
    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log some numbers of an epoch."""


class TensorBoard(Tracker):
    """Writes event files into the run's folder ``tensorboard``, for ``tensorboard --logdir``."""

    package: ClassVar[str] = "tensorboard"
    library: ClassVar[str] = "torch.utils.tensorboard"

    def start(self, config: Mapping[str, Any]) -> None:
        """Open the event file and log the configuration as a text."""
        self._writer = self._library.SummaryWriter(str(self._run_dir / "tensorboard"))
        lines = [f"    {name} = {value}" for name, value in _flatten(config).items()]
        self._writer.add_text("configuration", "\n".join(lines))

    def close(self) -> None:
        """Close the event file."""
        if hasattr(self, "_writer"):
            self._writer.close()

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, epoch)
        self._writer.flush()


class MLflow(Tracker):
    """Logs to MLflow, at the address in ``MLFLOW_TRACKING_URI``.

    Parameters
    ----------
    experiment: name of the experiment that the run belongs to.
    """

    package: ClassVar[str] = "mlflow"
    library: ClassVar[str] = "mlflow"

    def __init__(self, *, run_dir: Path, experiment: str = "hopper") -> None:
        super().__init__(run_dir=run_dir)
        self._experiment = experiment

    def start(self, config: Mapping[str, Any]) -> None:
        """Start a run and log the configuration keys as parameters."""
        self._library.set_experiment(self._experiment)
        self._run = self._library.start_run(run_name=self._run_dir.name)
        self._library.log_params({name: str(value) for name, value in _flatten(config).items()})

    def close(self) -> None:
        """End the run."""
        if hasattr(self, "_run"):
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

    package: ClassVar[str] = "wandb"
    library: ClassVar[str] = "wandb"

    def __init__(self, *, run_dir: Path, project: str = "hopper", mode: str = "offline") -> None:
        super().__init__(run_dir=run_dir)
        self._project, self._mode = project, mode

    def start(self, config: Mapping[str, Any]) -> None:
        """Start a run with the configuration."""
        self._run = self._library.init(
            project=self._project,
            name=self._run_dir.name,
            dir=str(self._run_dir),
            mode=self._mode,
            config=dict(config),
        )

    def close(self) -> None:
        """Finish the run."""
        if hasattr(self, "_run"):
            self._run.finish()

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._run.log({**numbers, "epoch": epoch})


TRACKERS: Final[Mapping[str, Callable[..., Tracker]]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested mapping by "section.key"."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            values |= _flatten(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value
    return values
