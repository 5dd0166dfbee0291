"""Loggers for experiment trackers: TensorBoard, MLflow and Weights & Biases.

All of them log the same numbers. Their libraries are imported only if a run names them.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from hopper.errors import ConfigError
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


class Tracker(Callback, ABC):
    """Base class of loggers that send numbers to a tracker, whose library is ``_library``.

    ``package`` has to be installed, and ``library`` is the module of it that is imported.
    """

    package: ClassVar[str]
    library: ClassVar[str]

    def __init__(self, *, run_dir: Path) -> None:
        self.check()
        self._run_dir = run_dir
        self._library: Any = importlib.import_module(self.library)
        self._run: Any = None
        """the tracker's own run, once it has begun"""

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

    def start(self, run: Running) -> None:
        """Begin a run in the tracker, and log the configuration."""
        self._run = self._begin(run.config.model_dump(mode="json"))

    def epoch(self, run: Running, record: Mapping[str, Any]) -> None:
        """Log an epoch's numbers."""
        self._log(numbers_of(record), record["epoch"])

    def finish(self, run: Running) -> None:
        """Log the test scores of the best model."""
        scores = {f"test/{name}": s for name, s in run.summary["scores"]["test"].items()}
        self._log(scores, run.summary["best_epoch"] or 0)

    def close(self) -> None:
        """End the tracker's run, if it has begun."""
        if self._run is not None:
            self._end()

    @abstractmethod
    def _begin(self, config: Mapping[str, Any]) -> Any:
        """Begin a run with a configuration, as nested values of JSON."""

    @abstractmethod
    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log some numbers of an epoch."""

    @abstractmethod
    def _end(self) -> None:
        """End the run."""


class TensorBoard(Tracker):
    """Writes event files into the run's folder ``tensorboard``, for ``tensorboard --logdir``."""

    package: ClassVar[str] = "tensorboard"
    library: ClassVar[str] = "torch.utils.tensorboard"

    def _begin(self, config: Mapping[str, Any]) -> Any:
        writer = self._library.SummaryWriter(str(self._run_dir / "tensorboard"))
        lines = [f"    {name} = {value}" for name, value in _flatten(config).items()]
        writer.add_text("configuration", "\n".join(lines))
        return writer

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, number in numbers.items():
            self._run.add_scalar(name, number, epoch)
        self._run.flush()

    def _end(self) -> None:
        self._run.close()


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

    def _begin(self, config: Mapping[str, Any]) -> Any:
        self._library.set_experiment(self._experiment)
        run = self._library.start_run(run_name=self._run_dir.name)
        self._library.log_params({name: str(value) for name, value in _flatten(config).items()})
        return run

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._library.log_metrics(dict(numbers), step=epoch)

    def _end(self) -> None:
        self._library.end_run()


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
        self._where = {"project": project, "mode": mode}

    def _begin(self, config: Mapping[str, Any]) -> Any:
        folder = self._run_dir
        return self._library.init(
            **self._where, name=folder.name, dir=str(folder), config=dict(config)
        )

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._run.log({**numbers, "epoch": epoch})

    def _end(self) -> None:
        self._run.finish()


TRACKERS: Final[Mapping[str, type[Tracker]]] = {
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
