"""What a run leaves in its folder, as values: epochs, scores, files, and the trained model."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from hopper.config import Config, load_config
from hopper.engines.assemble import make_model_of_schema
from hopper.engines.trial_configs import trial_name
from hopper.errors import RequestError
from hopper.graph.json_file import read_json
from hopper.graph.schema import GraphSchema
from hopper.hetero.learnable import IDS
from hopper.train.checkpoint import BEST_MODEL_FILE, load_model
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.results import (
    EPOCHS_FILE,
    SUMMARY_FILE,
    EpochRecord,
    TrialRecord,
    learned_rows_file,
    spans_file,
)
from hopper.train.run_description import read_run_schema
from hopper.train.run_files import CONFIG_FILE
from hopper.train.tensor_file import read_tensors

_Record = TypeVar("_Record", EpochRecord, TrialRecord)


@dataclass(frozen=True)
class _Trained:
    """What runs and trials have in common: a folder with one summary.

    Attributes
    ----------
    run_dir: the folder.
    summary: ``summary.json`` of the folder, as it stands.
    """

    run_dir: Path
    summary: dict[str, Any]

    @property
    def metric(self) -> str:
        """The name of what was scored: "accuracy", "micro_f1", "rmse", or that of a
        :class:`~hopper.Metric` of one's own."""
        return str(self.summary["metric"])

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """By metric, the one that selected the model first, the score of each split, "val" and
        "test", of the model that :meth:`load_model` returns. A split that was not scored is left
        out."""
        return self._by_metric("scores")

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """The same of one answer for all nodes: the largest class of training nodes, for each of
        several labels what most of them have, or their mean."""
        return self._by_metric("baselines")

    def _by_metric(self, key: str) -> dict[str, dict[str, float]]:
        if key not in self.summary:
            raise RequestError(
                f"{self.run_dir / SUMMARY_FILE}: written by another version of Hopper: no {key!r}"
            )
        found: dict[str, dict[str, float]] = {self.metric: {}}
        for split, scores in self.summary[key].items():
            for name, score in scores.items():
                found.setdefault(name, {})[split] = score
        return found

    @property
    def best_epoch(self) -> int | None:
        """The epoch with the best validation score, counted from 0; None where none was scored."""
        best: int | None = self.summary["best_epoch"]
        return best

    @property
    def config(self) -> Config:
        """The configuration as the ranks read it: with addresses of servers, which are gone.

        Raises
        ------
        ConfigError: the folder has none, or one of another version of Hopper.
        """
        return load_config(self.run_dir / CONFIG_FILE)

    @property
    def model_file(self) -> Path:
        """The parameters of the best model by validation score, or of the last one where no epoch
        was scored: safetensors."""
        return self.run_dir / BEST_MODEL_FILE

    def _load_model(self, schema: GraphSchema) -> nn.Module:
        model = make_model_of_schema(self.config, schema)
        load_model(self.model_file, model)
        return model.eval()

    def _records(self, kind: type[_Record]) -> list[_Record]:
        known = {field.name for field in fields(kind)}
        try:
            return [
                kind(**{name: value for name, value in record.items() if name in known})
                for record in self.summary["epochs"]
            ]
        except TypeError as error:
            raise RequestError(
                f"{self.run_dir / SUMMARY_FILE}: written by another version of Hopper: {error}"
            ) from error


@dataclass(frozen=True)
class TrialResult(_Trained):
    """One of the models that a run trained at once (docs/sweeps.md).

    Attributes
    ----------
    run_dir: the folder of the trial.
    summary: ``summary.json`` of that folder, as it stands.
    """

    @property
    def overrides(self) -> dict[str, str | int | float]:
        """What the trial replaces in the run's configuration, by "section.key"."""
        return dict(self.summary["overrides"])

    @property
    def epochs(self) -> list[TrialRecord]:
        """The losses and scores of each epoch. What epochs cost is known for the run alone."""
        return self._records(TrialRecord)

    def load_model(self) -> nn.Module:
        """The trained model of this trial; as :meth:`RunResult.load_model`."""
        return self._load_model(read_run_schema(self.run_dir.parent, self.config))


@dataclass(frozen=True)
class RunResult(_Trained):
    """A finished run.

    Attributes
    ----------
    run_dir: the folder of the run.
    summary: ``summary.json`` of that folder, as it stands.
    """

    @classmethod
    def open(cls, run_dir: str | os.PathLike[str]) -> Self:
        """Read the folder of a run that finished earlier, here or on another machine.

        Raises
        ------
        RequestError: there is no summary: the run has not finished, or it is not a run's folder.
        GraphError: the summary is not readable.
        """
        folder = Path(run_dir)
        if not (folder / SUMMARY_FILE).is_file():
            raise RequestError(f"{folder}: expected the folder of a finished run; it has no "
                               f"{SUMMARY_FILE}")  # fmt: skip
        return cls(folder, read_json(folder / SUMMARY_FILE, "no such file"))

    @property
    def engine(self) -> str:
        """The engine that trained; with ``train.engine = "auto"``, the one that was chosen."""
        return str(self.summary["engine"])

    @property
    def is_exact(self) -> bool:
        """Whether the gradient of each iteration was the one that a single process computes."""
        return bool(self.summary["exact"])

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.summary["ranks"])

    @property
    def peak_rss_mib(self) -> list[float]:
        """By rank, the most memory that it had resident, in MiB."""
        return list(self.summary["peak_rss_mib"])

    @property
    def epochs(self) -> list[EpochRecord]:
        """Seconds, loss, bytes by cause and more of each epoch; of all trials together where
        several were trained.

        Raises
        ------
        RequestError: another version of Hopper wrote them.
        """
        return self._records(EpochRecord)

    @property
    def trials(self) -> list[TrialResult]:
        """The models of the run where it trained several at once, in order of trial; else empty."""
        count = len(self.summary.get("trials", []))
        folders = [self.run_dir / trial_name(index) for index in range(count)]
        return [TrialResult(each, read_json(each / SUMMARY_FILE, "missing")) for each in folders]

    @property
    def ranking(self) -> list[int]:
        """The numbers of the trials, the best validation score first; empty for a single model."""
        return list(self.summary.get("ranking", []))

    @property
    def chosen(self) -> RunResult | TrialResult:
        """The run itself or, where it trained several models at once, the best trial."""
        return self.trials[self.ranking[0]] if self.ranking else self

    @property
    def model_file(self) -> Path:
        """The parameters of the best model by validation score, or of the last one where no epoch
        was scored, as safetensors; of several trials, the first of :attr:`ranking`."""
        chosen = self.chosen
        return super().model_file if chosen is self else chosen.model_file

    @property
    def checkpoint_file(self) -> Path | None:
        """The newest one that the run can be continued from; None where ``train.checkpoint_every``
        was 0."""
        return CheckpointFiles(self.run_dir).newest

    @property
    def epochs_file(self) -> Path:
        """A line of JSON an epoch, written while the run goes on."""
        return self.run_dir / EPOCHS_FILE

    @property
    def span_files(self) -> list[Path]:
        """Of each rank whose files are on this machine, what it did when: a line of JSON a span.
        ``hopper report RUN_DIR`` draws them."""
        files = [spans_file(self.run_dir, rank) for rank in range(self.ranks)]
        return [file for file in files if file.is_file()]

    def load_model(self) -> nn.Module:
        """The trained model: a module that needs neither servers nor ranks.

        It is the model that :attr:`metrics` tell about: the best by validation score, the last
        where no epoch was scored, and of several trials the best one's. It is in evaluation mode,
        in host memory, in the dtype of ``train.dtype``. Called with the blocks and input rows of a
        :class:`~hopper.Subgraph` it returns logits, [roots, classes].

        Only the run's folder is read, and nothing in it is unpickled. A model or layer of one's own
        (``package.module:Class``) has to be importable.

        Raises
        ------
        RequestError: the parameters are missing, altered or of another model.
        ConfigError, GraphError: the configuration or the schema is missing or not readable.
        """
        chosen = self.chosen
        if chosen is not self:
            return chosen.load_model()
        return self._load_model(read_run_schema(self.run_dir, self.config))

    def load_learnable_rows(self) -> dict[str, Tensor]:
        """The rows that were learned with the model, as they were when that of :meth:`load_model`
        was scored.

        Returns
        -------
        By table (the node type, unless ``learnable.tables`` tells tables apart), [nodes, dim] by
        original id. Empty where the model reads features alone.

        Raises
        ------
        RequestError: the file of a rank is missing (each machine has those of its ranks) or
            altered.
        """
        files = [learned_rows_file(self.run_dir, rank) for rank in range(self.ranks)]
        if not any(file.is_file() for file in files):
            return {}
        shards = [read_tensors(file) for file in files]
        tables = {}
        for name in shards[0]:
            if not name.endswith(IDS):
                ids = torch.cat([shard[f"{name}{IDS}"] for shard in shards])
                tables[name] = torch.cat([shard[name] for shard in shards])[ids.argsort()]
        return tables
