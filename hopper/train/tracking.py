"""Loggers for experiment trackers: TensorBoard, MLflow and Weights & Biases.

All are told the same numbers of an epoch. Their libraries are imported when a run names them.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from hopper.errors import ConfigError

_NUMBERS: Final = ("loss", "train", "seconds", "evaluation_seconds", "sent_bytes")


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """What is told of an epoch: loss, seconds, iterations, roots and bytes a second, bytes, the
    mean norm of gradients where it is known, and the validation scores as ``val/<metric>``.

    Parameters
    ----------
    record: as of :meth:`hopper.train.loggers.Logger.epoch`.
    """
    found = {name: float(record[name]) for name in _NUMBERS if record[name] is not None}
    found |= {f"val/{name}": float(score) for name, score in record["scores"].items()}
    found |= {f"bytes/{cause}": float(count) for cause, count in record["bytes"].items()}
    if record["seconds"]:
        found["iterations_per_second"] = record["measured_iterations"] / record["seconds"]
        found["roots_per_second"] = record["roots"] / record["seconds"]
        found["sent_bytes_per_second"] = record["sent_bytes"] / record["seconds"]
    if record["gradient_norms"]:
        found["gradient_norm"] = sum(record["gradient_norms"]) / len(record["gradient_norms"])
    return found


class Tracker(ABC):
    """A logger that hands numbers on.

    Parameters
    ----------
    run_dir: the run's folder.
    """

    package: ClassVar[str]
    """that it needs"""
    library: ClassVar[str]
    """the module of it that is used"""

    def __init__(self, *, run_dir: Path) -> None:
        self.check()
        self._run_dir = run_dir
        self._library: Any = importlib.import_module(self.library)

    @classmethod
    def check(cls) -> None:
        """Refuse to log without the library, before a run starts.

        Raises
        ------
        ConfigError: says what to install.
        """
        if importlib.util.find_spec(cls.package) is None:
            raise ConfigError(
                f"train.loggers: {cls.package} is not installed: pip install {cls.package}"
            )

    @abstractmethod
    def start(self, config: Mapping[str, Any]) -> None:
        """See :class:`hopper.train.loggers.Logger`."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """See :class:`hopper.train.loggers.Logger`."""
        self._tell(numbers_of(record), int(record["epoch"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """See :class:`hopper.train.loggers.Logger`: the test scores of the best model."""
        epoch = summary["best_epoch"] or 0
        scores = {f"test/{name}": score for name, score in summary["scores"]["test"].items()}
        self._tell(scores, epoch)

    @abstractmethod
    def close(self) -> None:
        """See :class:`hopper.train.loggers.Logger`."""

    @abstractmethod
    def _tell(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Hand numbers of an epoch on."""


class TensorBoard(Tracker):
    """Event files in the folder ``tensorboard`` of the run, for ``tensorboard --logdir``."""

    package: ClassVar[str] = "tensorboard"
    library: ClassVar[str] = "torch.utils.tensorboard"

    def start(self, config: Mapping[str, Any]) -> None:
        """See :class:`Tracker`: the configuration is a text."""
        self._writer = self._library.SummaryWriter(str(self._run_dir / "tensorboard"))
        lines = [f"    {name} = {value}" for name, value in _flat(config).items()]
        self._writer.add_text("configuration", "\n".join(lines))

    def close(self) -> None:
        """See :class:`Tracker`."""
        if hasattr(self, "_writer"):
            self._writer.close()

    def _tell(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, epoch)
        self._writer.flush()


class MLflow(Tracker):
    """A run of MLflow, where ``MLFLOW_TRACKING_URI`` says.

    Parameters
    ----------
    experiment: that it belongs to.
    """

    package: ClassVar[str] = "mlflow"
    library: ClassVar[str] = "mlflow"

    def __init__(self, *, run_dir: Path, experiment: str = "hopper") -> None:
        super().__init__(run_dir=run_dir)
        self._experiment = experiment

    def start(self, config: Mapping[str, Any]) -> None:
        """See :class:`Tracker`: configuration keys are parameters."""
        self._library.set_experiment(self._experiment)
        self._run = self._library.start_run(run_name=self._run_dir.name)
        self._library.log_params({name: str(value) for name, value in _flat(config).items()})

    def close(self) -> None:
        """See :class:`Tracker`."""
        if hasattr(self, "_run"):
            self._library.end_run()

    def _tell(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._library.log_metrics(dict(numbers), step=epoch)


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, kept in the run's folder: ``wandb sync`` sends it.

    Parameters
    ----------
    project: that it belongs to.
    mode: "offline", or "online", which needs an account and the network.
    """

    package: ClassVar[str] = "wandb"
    library: ClassVar[str] = "wandb"

    def __init__(self, *, run_dir: Path, project: str = "hopper", mode: str = "offline") -> None:
        super().__init__(run_dir=run_dir)
        self._project, self._mode = project, mode

    def start(self, config: Mapping[str, Any]) -> None:
        """See :class:`Tracker`."""
        self._run = self._library.init(
            project=self._project,
            name=self._run_dir.name,
            dir=str(self._run_dir),
            mode=self._mode,
            config=dict(config),
        )

    def close(self) -> None:
        """See :class:`Tracker`."""
        if hasattr(self, "_run"):
            self._run.finish()

    def _tell(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._run.log({**numbers, "epoch": epoch})


TRACKERS: Final[Mapping[str, Callable[..., Tracker]]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by "section.key"."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
