"""The results of a run, read from its folder: epochs, scores, files and the trained model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import torch
from torch import Tensor, nn

from hopper.config import Config, load_config
from hopper.engines import Request
from hopper.engines.assemble import make_model_of_schema
from hopper.engines.trial_configs import trial_name
from hopper.errors import RequestError
from hopper.files.whole_files import read_non_finite, write_text
from hopper.graph.columns import find_class_difference, find_column_difference
from hopper.graph.json_file import read_json
from hopper.graph.layout import SCHEMA_FILE
from hopper.graph.schema import GraphSchema
from hopper.graph.schema_json import read_schema, schema_to_json
from hopper.hetero.learnable import IDS
from hopper.partition import PartitionedGraph
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.results import (
    EPOCHS_FILE,
    SUMMARY_FILE,
    EpochRecord,
    TrialRecord,
    learned_rows_file,
    spans_file,
    split_scores,
)
from hopper.train.run_files import CONFIG_FILE
from hopper.train.tensor_file import BEST_MODEL_FILE, fill_tensors, read_tensors

_LABEL_NAMES: Final = "label_names.json"
_Record = TypeVar("_Record", EpochRecord, TrialRecord)


@dataclass(frozen=True)
class _Trained:
    """Base of runs and trials: a folder, and the content of its ``summary.json``."""

    run_dir: Path
    summary: dict[str, Any]

    @property
    def metric(self) -> str:
        """The name of the metric that selects the best model: "accuracy", "micro_f1", "rmse", or
        that of a user-defined :class:`~hopper.Metric`."""
        return str(self.summary["metric"])

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """By metric and split ("val", "test"), the scores of the model of :meth:`load_model`. The
        metric that selects it comes first. Splits that were not scored are absent."""
        return self._by_metric(split_scores(self.summary))

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """By metric and split, the scores of a single answer for all nodes: the largest class of
        training nodes, for each of several labels what most of them have, or their mean."""
        return self._by_metric(read_non_finite(self.summary["baselines"]))

    @property
    def by_class(self) -> dict[str, list[Any]]:
        """The scores of each class on the test split, as columns "class" (its name, or number),
        "precision", "recall", "f1" and "support"; None where nothing defines a score. There are no
        columns where a root has several labels, or above 1,000 classes."""
        columns: dict[str, list[Any]] = self.summary.get("by_class", {}).get("test", {})
        return columns

    def _by_metric(self, splits: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        by_metric: dict[str, dict[str, float]] = {self.metric: {}}
        for split, scores in splits.items():
            for name, score in scores.items():
                by_metric.setdefault(name, {})[split] = score
        return by_metric

    @property
    def best_epoch(self) -> int | None:
        """The epoch with the best validation score, from 0; None if no epoch was scored."""
        epoch: int | None = self.summary["best_epoch"]
        return epoch

    @property
    def config(self) -> Config:
        """The configuration as the ranks read it, with the addresses of the run's servers."""
        return load_config(self.run_dir / CONFIG_FILE)

    @property
    def model_file(self) -> Path:
        """The safetensors file with the parameters of the best model by validation score, or, if no
        epoch was scored, after the last epoch."""
        return self.run_dir / BEST_MODEL_FILE

    def _load_model(self, schema: GraphSchema) -> nn.Module:
        model = make_model_of_schema(self.config, schema)
        fill_tensors(model.state_dict(), self.model_file)
        return model.eval()

    def _records(self, record_class: type[_Record]) -> list[_Record]:
        names = {field.name for field in fields(record_class)}
        try:
            return [
                record_class(**{name: value for name, value in record.items() if name in names})
                for record in read_non_finite(self.summary["epochs"])
            ]
        except TypeError as error:
            raise RequestError(
                f"{self.run_dir / SUMMARY_FILE}: written by another version of Hopper: {error}"
            ) from error


@dataclass(frozen=True)
class TrialResult(_Trained):
    """One of the models that a run trained at once (docs/howto/sweeps.md): its folder ``run_dir``,
    and ``summary``, the content of that folder's ``summary.json``."""

    @property
    def overrides(self) -> dict[str, str | int | float]:
        """By "section.key", the values that the trial replaces in the run's configuration."""
        return dict(self.summary["overrides"])

    @property
    def epochs(self) -> list[TrialRecord]:
        """The losses and scores of each epoch. Only the run's epochs say what they cost."""
        return self._records(TrialRecord)

    def load_model(self) -> nn.Module:
        """Load the trained model of this trial, as :meth:`RunResult.load_model` does."""
        return self._load_model(read_schema(self.run_dir.parent))


@dataclass(frozen=True)
class RunResult(_Trained):
    """A finished run: its folder ``run_dir``, and ``summary``, the content of that folder's
    ``summary.json``."""

    @classmethod
    def open(cls, run_dir: str | os.PathLike[str]) -> Self:
        """Read the folder of a run that finished earlier, here or on another machine.

        Raises RequestError if the folder has no summary, so that its run has not finished or it is
        not a run's, and GraphError if the summary is not readable.
        """
        folder = Path(run_dir)
        if not (folder / SUMMARY_FILE).is_file():
            missing = f"it has no {SUMMARY_FILE}"
            raise RequestError(f"{folder}: expected the folder of a finished run; {missing}")
        return cls(folder, read_json(folder / SUMMARY_FILE, "no such file"))

    @property
    def engine(self) -> str:
        """The name of the engine that trained; with "auto", of the engine that was chosen."""
        return str(self.summary["engine"])

    @property
    def is_exact(self) -> bool:
        """Return whether each iteration's gradient equals that of a single process."""
        return bool(self.summary["exact"])

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.summary["ranks"])

    @property
    def peak_rss_mib(self) -> list[float]:
        """By rank, the peak resident memory in MiB."""
        return list(self.summary["peak_rss_mib"])

    @property
    def epochs(self) -> list[EpochRecord]:
        """The records of all epochs: seconds, loss, bytes by cause and more. With several trials, a
        record covers all of them."""
        return self._records(EpochRecord)

    @property
    def trials(self) -> list[TrialResult]:
        """The trials of the run, in order; empty if it trained a single model."""
        count = len(self.summary.get("trials", []))
        folders = [self.run_dir / trial_name(index) for index in range(count)]
        return [
            TrialResult(folder, read_json(folder / SUMMARY_FILE, "missing")) for folder in folders
        ]

    @property
    def ranking(self) -> list[int]:
        """The numbers of the trials, the best validation score first; empty for a single model."""
        return list(self.summary.get("ranking", []))

    @property
    def chosen(self) -> RunResult | TrialResult:
        """The best trial, or the run itself if it trained a single model."""
        return self.trials[self.ranking[0]] if self.ranking else self

    @property
    def model_file(self) -> Path:
        """The safetensors file with the parameters of the best model by validation score, or, if no
        epoch was scored, after the last epoch; of the first trial in :attr:`ranking`."""
        return self.chosen.model_file if self.ranking else super().model_file

    @property
    def checkpoint_file(self) -> Path | None:
        """The newest checkpoint; None if ``train.checkpoint_every`` was 0."""
        return CheckpointFiles(self.run_dir).newest

    @property
    def epochs_file(self) -> Path:
        """The file with a line of JSON for each epoch, written during the run."""
        return self.run_dir / EPOCHS_FILE

    @property
    def span_files(self) -> list[Path]:
        """The files of spans, one for each rank whose files are on this machine, with a line of
        JSON for what a rank did when. ``hopper report RUN_DIR`` draws them."""
        files = [spans_file(self.run_dir, rank) for rank in range(self.ranks)]
        return [file for file in files if file.is_file()]

    def load_model(self) -> nn.Module:
        """Load the trained model, a module that needs neither servers nor ranks.

        It is the model that :attr:`metrics` describe: the best by validation score, or the last if
        no epoch was scored; with several trials, the best trial's. It is in evaluation mode, in
        host memory, in the dtype of ``train.dtype``. Called with the blocks and input rows of a
        :class:`~hopper.Subgraph`, it returns logits, [roots, classes].

        Only the run's folder is read, and nothing in it is unpickled. A user-defined model or layer
        (``package.module:Class``) must be importable.

        Raises
        ------
        RequestError: the parameters are missing, altered or of another model.
        ConfigError, GraphError: the configuration or the schema is missing or not readable.
        """
        if self.ranking:
            return self.chosen.load_model()
        return self._load_model(read_schema(self.run_dir))

    def load_learnable_rows(self) -> dict[str, Tensor]:
        """Load the learnable rows that belong to the model of :meth:`load_model`.

        Returns
        -------
        By table, [nodes, dim] in order of original id. A table is named by its node type, unless
        ``learnable.tables`` gives a type several tables. Empty if the model reads only features.

        Raises
        ------
        RequestError: the file of a rank is altered or missing. Each machine has only the files of
            its own ranks.
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


def describe_run(config: Config, graph: PartitionedGraph) -> None:
    """Write the configuration, the schema and the names of classes into ``train.run_dir``."""
    run_dir, schema = Path(config.train.run_dir), graph.schema
    partitioned = str(Path(config.data.partitioned).absolute())
    data = config.data.model_copy(update={"partitioned": partitioned})
    described = config.model_copy(update={"data": data})
    write_text(run_dir / CONFIG_FILE, described.model_dump_json(indent=1))
    write_text(run_dir / SCHEMA_FILE, json.dumps(schema_to_json(schema), indent=1))
    write_text(run_dir / _LABEL_NAMES, json.dumps(graph.class_names(), indent=1))


def read_label_names(run_dir: Path) -> dict[str, list[str]]:
    """Read the names of classes in the graph that a run was trained on, by task, "" if there is
    only one."""
    names: dict[str, list[str]] = read_json(run_dir / _LABEL_NAMES, "no such file")
    return names


def check_encodings(run: RunResult, request: Request) -> None:
    """Refuse a graph whose features that the model reads, or classes, were encoded otherwise than
    those of a run."""
    graph, columns = request.graph, read_schema(run.run_dir).columns
    difference = find_column_difference(columns, request.columns)
    difference = difference or find_class_difference(
        read_label_names(run.run_dir), graph.class_names()
    )
    if difference:
        like = run.config.data.partitioned
        raise RequestError(
            f"{graph.path}: {difference}; import the new data with --encode-like {like}"
        )
