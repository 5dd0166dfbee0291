"""Hopper: train graph neural networks whose features do not fit one machine.

The public API is ``__all__``; docs/python-api.md explains it name by name. Everything below it may
change from one version to the next.

``import hopper`` takes a few milliseconds, because a command line, a notebook and every rank of a
run begin with it. Errors and :func:`train` are there at once. Classes that are made of torch,
pydantic or numba are imported when their name is first used (PEP 562). Type checkers, editors and
``dir`` see all names with their own types from the start, and report a name that does not exist.

``hopper.train`` and ``hopper.predict`` are functions. ``torchrun -m hopper.train`` needs a package
of that name as well, and Python binds a package to its parent's attribute when it is imported. This
module leaves its attributes alone, so that the names are functions whatever was imported before. A
module of the package is reached by ``from hopper.train.results import EpochRecord``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from hopper.errors import (
    ClusterError,
    ConfigError,
    DeadlineExceeded,
    ExactnessError,
    GraphError,
    HopperError,
    RankLost,
    RankSilent,
    RequestError,
    ServerLost,
    StorageError,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from torch import nn

    from cache_server.row_source import RowSource
    from hopper import config, graph, ops
    from hopper.config import Config, load_config, make_config
    from hopper.engines import Request
    from hopper.engines.assemble import make_sampler
    from hopper.engines.learning_rate import LearningRateSchedule
    from hopper.engines.optimizer import UpdateRule
    from hopper.features import FeatureSource, LocalRows
    from hopper.graph import GraphDirectory, GraphSchema, Relation
    from hopper.graph.block import Block, Nodes, TypedBlocks
    from hopper.hetero.divide import divide_graph
    from hopper.micrograph.micrograph import Micrograph
    from hopper.micrograph.sample import NeighborSampler
    from hopper.micrograph.subgraph import Subgraph
    from hopper.models import GNN, Layer
    from hopper.models.combination import Combination
    from hopper.models.layer import SumLayer
    from hopper.models.losses import Loss
    from hopper.models.metrics import Metric
    from hopper.partition import PartitionedGraph
    from hopper.partition.partitioner import Partitioner
    from hopper.predict.parts import Predictions
    from hopper.train.callbacks import Callback, Running
    from hopper.train.loggers import Logger
    from hopper.train.results import EpochRecord, TrialRecord
    from hopper.train.run_result import RunResult, TrialResult

__version__ = "0.1.0"

__all__ = [
    "GNN",
    "Block",
    "Callback",
    "ClusterError",
    "Combination",
    "Config",
    "ConfigError",
    "DeadlineExceeded",
    "EpochRecord",
    "ExactnessError",
    "FeatureSource",
    "GraphDirectory",
    "GraphError",
    "GraphSchema",
    "HopperError",
    "Layer",
    "LearningRateSchedule",
    "LocalRows",
    "Logger",
    "Loss",
    "Metric",
    "Micrograph",
    "NeighborSampler",
    "Nodes",
    "PartitionedGraph",
    "Partitioner",
    "Predictions",
    "RankLost",
    "RankSilent",
    "Relation",
    "Request",
    "RequestError",
    "RowSource",
    "RunResult",
    "Running",
    "ServerLost",
    "StorageError",
    "Subgraph",
    "SumLayer",
    "TrialRecord",
    "TrialResult",
    "TypedBlocks",
    "UpdateRule",
    "config",
    "divide_graph",
    "graph",
    "load_config",
    "load_model",
    "make_config",
    "make_sampler",
    "ops",
    "predict",
    "train",
]

# Where the names that are imported when they are used come from; an empty string for modules.
# A test compares it with the imports above.
_HOMES = {
    "Block": "hopper.graph.block",
    "Callback": "hopper.train.callbacks",
    "Combination": "hopper.models.combination",
    "Config": "hopper.config",
    "EpochRecord": "hopper.train.results",
    "FeatureSource": "hopper.features",
    "GNN": "hopper.models",
    "GraphDirectory": "hopper.graph",
    "GraphSchema": "hopper.graph",
    "Layer": "hopper.models",
    "LearningRateSchedule": "hopper.engines.learning_rate",
    "LocalRows": "hopper.features",
    "Logger": "hopper.train.loggers",
    "Loss": "hopper.models.losses",
    "Metric": "hopper.models.metrics",
    "Micrograph": "hopper.micrograph.micrograph",
    "NeighborSampler": "hopper.micrograph.sample",
    "Nodes": "hopper.graph.block",
    "PartitionedGraph": "hopper.partition",
    "Partitioner": "hopper.partition.partitioner",
    "Predictions": "hopper.predict.parts",
    "Relation": "hopper.graph",
    "Request": "hopper.engines",
    "RowSource": "cache_server.row_source",
    "RunResult": "hopper.train.run_result",
    "Running": "hopper.train.callbacks",
    "Subgraph": "hopper.micrograph.subgraph",
    "SumLayer": "hopper.models.layer",
    "TrialRecord": "hopper.train.results",
    "TrialResult": "hopper.train.run_result",
    "TypedBlocks": "hopper.graph.block",
    "UpdateRule": "hopper.engines.optimizer",
    "config": "",
    "divide_graph": "hopper.hetero.divide",
    "graph": "",
    "load_config": "hopper.config",
    "make_config": "hopper.config",
    "make_sampler": "hopper.engines.assemble",
    "ops": "",
}


def train(
    config: Config | Mapping[str, Any] | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    restarts: int = 0,
) -> RunResult:
    """Train on this machine: start servers and ranks, wait for them, and take them down again.

    The call blocks until the run is over, and has to come from the main thread, because it handles
    the signals that end a run. No server and no rank of a run outlives the call.

    Parameters
    ----------
    config: the path of a TOML file, nested values like those in the file, or what
        :func:`load_config` or :func:`make_config` returned.
    overrides: words as on the command line, such as ``["--train.epochs", "5"]``, which replace keys
        of the configuration.
    restarts: how many times a run that loses a rank or a server is started again, from its newest
        checkpoint (``train.checkpoint_every``), or else from the beginning.

    Returns
    -------
    What each epoch cost, the scores, the files of the run, and the trained model.

    Raises
    ------
    ConfigError, RequestError, GraphError: the run cannot be done as asked. Nothing was started.
    ServerLost, RankLost, ClusterError: a server or a rank ended early. The text names it.
    """
    from hopper.train.launch import train

    return train(config, overrides, restarts=restarts)


def predict(
    run: RunResult | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    what: Literal["labels", "probabilities", "logits", "embeddings"] = "labels",
    nodes: str = "all",
    format: Literal["npy", "parquet"] = "parquet",
    memory: str = "256M",
    overrides: Sequence[str] = (),
    node_type: str = "",
    at: int | None = None,
) -> Predictions:
    """Predict with a trained model: labels, probabilities, logits or embeddings of a graph's nodes.

    Servers and ranks are started on this machine, as :func:`train` does, and taken down again.

    Parameters
    ----------
    run: a finished run, or its folder.
    out: a folder for the prediction, from which the same call goes on where it was ended early;
        None = nothing is kept.
    what: "labels" (class numbers, 0 and 1 for each of several labels, or values, as the graph's
        labels are), "probabilities", "logits", or "embeddings" (what the classifier reads of a
        node).
    nodes: "all" of the target type, a split's name, or an .npy file of original ids.
    format: of the files in ``out``: "parquet" or "npy".
    memory: for the rows that one pass reads, such as "256M".
    overrides: of the run's configuration: ``["--data.partitioned", "other"]`` predicts another
        graph of the same node types, relations and widths.
    node_type: of whom; empty = the target type. Of a run that predicts links, those of both ends
        have embeddings.
    at: of a run whose draws are in time, for which time; None = that of each root.

    Returns
    -------
    The nodes' original ids, ascending, and what was predicted of each.

    Raises
    ------
    ConfigError, RequestError, GraphError: it cannot be done as asked. Nothing was started.
    ServerLost, RankLost, ClusterError: a server or a rank ended early. The text names it.
    """
    import os

    from hopper.predict.launch import predict_into, predict_once
    from hopper.predict.order import Asked
    from hopper.predict.parts import Predictions

    kept = "npy" if out is None else format
    asked = Asked(what, nodes, kept, memory, tuple(overrides), node_type, at)
    folder = run if isinstance(run, str | os.PathLike) else run.run_dir
    if out is None:
        return predict_once(folder, asked)
    predict_into(folder, out, asked)
    return Predictions.open(out)


def load_model(run: str | os.PathLike[str]) -> nn.Module:
    """The trained model of a run's folder; as :meth:`RunResult.load_model`."""
    from hopper.train.run_result import RunResult

    return RunResult.open(run).load_model()


# Type checkers do not see this function: they would take every name for one that exists.
if not TYPE_CHECKING:

    def __getattr__(name):
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module 'hopper' has no attribute {name!r}")
        if not _HOMES[name]:
            return importlib.import_module(f"hopper.{name}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


class _Hopper(ModuleType):
    """This module, which lets no package take the place of a function of its name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("train", "predict") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Hopper
