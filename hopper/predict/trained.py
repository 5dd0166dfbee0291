"""The run whose model predicts: its configuration, model and learned rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import xxhash

from hopper.config import Config, make_config
from hopper.engines import Request
from hopper.engines.checks import check_model, check_threads
from hopper.engines.request import find_reads
from hopper.errors import RequestError
from hopper.graph.schema_json import read_schema
from hopper.hetero.learnable import LearnableRows
from hopper.tasks import find_target
from hopper.train.run_result import RunResult, check_encodings, read_label_names
from hopper.train.warm_start import restore_rows

_FREE: Final[Any] = {"data": True, "cluster": True, "train": {"device", "threads", "run_dir"}}
"""sections and keys that may be overridden"""
_RESET: Final = {
    "resume",
    "patience",
    "score_training",
    "init_from",
    "replay",
    "record_gradients",
    "loggers",
    "loggers_options",
    "callbacks",
    "callbacks_options",
}
"""keys of ``[train]`` that predictions do not read"""


class TrainedRun:
    """A finished run, to predict with its model. A :class:`RequestError` says that it has not
    finished, or that the folder is not a run's; a :class:`ConfigError` or :class:`GraphError`, that
    its configuration or schema cannot be read."""

    def __init__(self, run_dir: Path) -> None:
        self.result = RunResult.open(run_dir)
        chosen = self.result.chosen
        self.config = chosen.config
        self.schema = read_schema(run_dir)
        self.model_file = chosen.model_file
        self.label_names = read_label_names(run_dir)
        """by task ("" = the only one), the names of classes in the graph of training"""
        self.target = find_target(self.config, self.schema)

    def checksum(self) -> str:
        """Return the checksum of the model's file; refuse (:class:`RequestError`) a run without."""
        if not self.model_file.is_file():
            raise RequestError(f"{self.model_file}: no such file: the run has no model")
        return xxhash.xxh3_128(self.model_file.read_bytes()).hexdigest()

    def request_config(self, overrides: Sequence[str]) -> Config:
        """Make the configuration to predict with from the run's, without the settings of training,
        of caches and of the pipeline, since they affect speed only. A :class:`ConfigError` says
        that an override is malformed, a :class:`RequestError` that it would change the model."""
        values = self.config.model_dump(exclude={"cache": True, "pipeline": True, "train": _RESET})
        values["cluster"]["servers"] = []
        values["sampler"]["device"] = "cpu"
        values["train"] |= {"engine": "model_centric", "evaluate_every": 0}
        values["hop"]["replicas"] = "synchronous"
        reads = find_reads(self.config, self.schema, self.schema.ordered_relations())
        values["learnable"] |= {"initial": "", "frozen": reads.learned}
        config, as_trained = make_config(values, overrides), make_config(values)
        given, expected = (each.model_dump(exclude=_FREE) for each in (config, as_trained))
        for key, value in given.items():
            if value != expected[key]:
                raise RequestError(
                    f"{key}: belongs to the model as it was trained; expected overrides of data, "
                    "cluster, train.device or train.threads"
                )
        return config

    def check(self, request: Request) -> None:
        """Refuse a graph that the model cannot read. The :class:`RequestError` names the node type
        or relation, what was expected and what was given."""
        check_threads()
        check_model(request)
        graph, where = request.schema, request.where
        if graph.target_type() != self.schema.target_type():
            raise RequestError(
                f"{where}: the model predicts node type {self.schema.target_type()!r}; the graph's "
                f"target is {graph.target_type()!r}"
            )
        check_encodings(self.result, request)
        trained = find_reads(self.config, self.schema, self.schema.ordered_relations())
        _check_same_names(trained.relations, request.reads.relations, "relations", where)
        _check_same_names(trained.inputs, request.reads.inputs, "node types", where)
        inputs, edges = request.reads.inputs, request.reads.edges
        widths = [
            (of.node_type, of.features, inputs[n].features) for n, of in trained.inputs.items()
        ]
        widths += [(f"edges of {of}", dim, edges.get(of, 0)) for of, dim in trained.edges.items()]
        for of, expected_width, width in widths:
            if width != expected_width:
                raise RequestError(
                    f"{where}: features of {of}: expected {expected_width} columns, as the model "
                    f"was trained with, given {width or 'none'}"
                )

    def restore_rows(self, learnable: LearnableRows) -> None:
        """Set this rank's learnable rows to those that were learned with the model. A
        :class:`RequestError` says that a file of rows is missing or altered, or that a node has no
        learned row."""
        for name, missing in restore_rows(self.result, learnable).items():
            if missing:
                raise RequestError(
                    f"learnable rows of {name}: {missing} nodes have none: they were not there in "
                    "training; expected a graph of the same nodes of that type"
                )


def _check_same_names(
    expected: Iterable[object], given: Iterable[object], what: str, where: str
) -> None:
    expected_names, given_names = (sorted(map(str, names)) for names in (expected, given))
    if expected_names != given_names:
        raise RequestError(
            f"{where}: {what}: expected {', '.join(expected_names)}, as the model was trained "
            f"with; given {', '.join(given_names)}"
        )
