"""Hopper: train graph neural networks whose features do not fit one machine.

The public API is ``__all__``; docs/reference/python-api.md explains it name by name. Everything
below it may change from one version to the next.

``import hopper`` takes a few milliseconds, because every command line, notebook and rank begins
with it. Errors and :func:`train` are available at once. Classes that need torch, pydantic or numba
are imported when their name is first used (PEP 562). Type checkers, editors and ``dir`` see all
names with their types from the start, and report a name that does not exist.

``hopper.train`` and ``hopper.predict`` are functions. ``torchrun -m hopper.train`` also needs a
package of that name. When Python imports a package, it sets an attribute of the parent module. This
module refuses that for these two names, so that they are always functions. Import from the package
as in ``from hopper.train.results import EpochRecord``.
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

    from cache_server.store.row_source import RowSource
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
    from hopper.pipeline import (
        Batch,
        ConnectedGraph,
        Loader,
        Moment,
        Pipeline,
        Stage,
        check_gradients,
        connect,
        loader,
    )
    from hopper.predict.parts import Predictions
    from hopper.train.callbacks import Callback, Running
    from hopper.train.results import EpochRecord, TrialRecord
    from hopper.train.run_result import RunResult, TrialResult

__version__ = "0.1.0"

__all__ = [
    "GNN",
    "Batch",
    "Block",
    "Callback",
    "ClusterError",
    "Combination",
    "Config",
    "ConfigError",
    "ConnectedGraph",
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
    "Loader",
    "LocalRows",
    "Loss",
    "Metric",
    "Micrograph",
    "Moment",
    "NeighborSampler",
    "Nodes",
    "PartitionedGraph",
    "Partitioner",
    "Pipeline",
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
    "Stage",
    "StorageError",
    "Subgraph",
    "SumLayer",
    "TrialRecord",
    "TrialResult",
    "TypedBlocks",
    "UpdateRule",
    "check_gradients",
    "config",
    "connect",
    "divide_graph",
    "graph",
    "load_config",
    "load_model",
    "loader",
    "make_config",
    "make_sampler",
    "ops",
    "predict",
    "train",
]

# The module of each name that is imported at first use; an empty string for modules. A test
# compares this table with the imports above.
_HOMES = {
    "Batch": "hopper.pipeline",
    "Block": "hopper.graph.block",
    "Callback": "hopper.train.callbacks",
    "Combination": "hopper.models.combination",
    "Config": "hopper.config",
    "ConnectedGraph": "hopper.pipeline",
    "EpochRecord": "hopper.train.results",
    "FeatureSource": "hopper.features",
    "GNN": "hopper.models",
    "GraphDirectory": "hopper.graph",
    "GraphSchema": "hopper.graph",
    "Layer": "hopper.models",
    "LearningRateSchedule": "hopper.engines.learning_rate",
    "Loader": "hopper.pipeline",
    "LocalRows": "hopper.features",
    "Loss": "hopper.models.losses",
    "Metric": "hopper.models.metrics",
    "Micrograph": "hopper.micrograph.micrograph",
    "Moment": "hopper.pipeline",
    "NeighborSampler": "hopper.micrograph.sample",
    "Nodes": "hopper.graph.block",
    "PartitionedGraph": "hopper.partition",
    "Partitioner": "hopper.partition.partitioner",
    "Pipeline": "hopper.pipeline",
    "Predictions": "hopper.predict.parts",
    "Relation": "hopper.graph",
    "Request": "hopper.engines",
    "RowSource": "cache_server.store.row_source",
    "RunResult": "hopper.train.run_result",
    "Running": "hopper.train.callbacks",
    "Stage": "hopper.pipeline",
    "Subgraph": "hopper.micrograph.subgraph",
    "SumLayer": "hopper.models.layer",
    "TrialRecord": "hopper.train.results",
    "TrialResult": "hopper.train.run_result",
    "TypedBlocks": "hopper.graph.block",
    "UpdateRule": "hopper.engines.optimizer",
    "check_gradients": "hopper.pipeline",
    "config": "",
    "connect": "hopper.pipeline",
    "divide_graph": "hopper.hetero.divide",
    "graph": "",
    "load_config": "hopper.config",
    "loader": "hopper.pipeline",
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
    """Train on this machine: start servers and ranks, wait for them, and end them.

    The call blocks until the run is over. It must come from the main thread, because it handles the
    signals that end a run. All servers and ranks have ended when it returns.

    Parameters
    ----------
    config: the path of a TOML file, nested values like those in the file, or a :class:`Config`.
    overrides: arguments as on the command line, such as ``["--train.epochs", "5"]``, which replace
        keys of the configuration.
    restarts: how many times to restart a run that loses a rank or a server. It continues from its
        newest checkpoint (``train.checkpoint_every``), or starts from the beginning.

    Returns
    -------
    The costs and losses of all epochs, the scores, the files of the run, and the trained model.

    Raises
    ------
    ConfigError, RequestError, GraphError: the run is not possible. No process was started.
    ServerLost, RankLost, ClusterError: a server or a rank ended early. The text names it.
    """
    from hopper.launch.run import train

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
    top: int = 0,
    dtype: Literal["float32", "float16"] = "float32",
) -> Predictions:
    """Predict labels, probabilities, logits or embeddings of a graph's nodes with a trained model.

    The call starts servers and ranks on this machine and ends them, as :func:`train` does.

    Parameters
    ----------
    run: a finished run, or its folder.
    out: a folder for the prediction, or an address of fsspec, such as "s3://bucket/folder". The
        same call continues a prediction that was ended early. None = return the prediction without
        keeping files.
    what: "labels", "probabilities", "logits" or "embeddings". Labels have the form of the graph's:
        class numbers, 0 and 1 for each of several labels, or values. Embeddings are the rows that
        the classifier reads.
    nodes: "all" nodes of the target type, a split's name, an .npy file of original ids, or a .txt
        file with a name a line.
    format: format of the files in ``out``: "parquet" or "npy".
    memory: memory for the rows that one pass reads, such as "256M".
    overrides: arguments that replace keys of the run's configuration. With
        ``["--data.partitioned", "other"]`` the call predicts for another graph with the same node
        types, relations and widths.
    node_type: the type of the nodes; "" = the target type. A run that predicts links gives
        embeddings of the types of both ends.
    at: the time to predict for, if the run's draws are in time; None = the time of each root.
    top: of probabilities, only this many largest ones of each node, and their classes; 0 = all.
    dtype: of probabilities, logits and embeddings: "float32" or "float16".

    Returns
    -------
    The nodes' original ids, ascending, and the prediction for each node.

    Raises
    ------
    ConfigError, RequestError, GraphError: the prediction is not possible. No process was started.
    ServerLost, RankLost, ClusterError: a server or a rank ended early. The text names it.
    """
    import os

    from hopper.predict.launch import predict_into, predict_once
    from hopper.predict.parts import Predictions
    from hopper.predict.request import PredictionRequest

    file_format = "npy" if out is None and not top else format
    words = tuple(overrides)
    request = PredictionRequest(what, nodes, file_format, memory, words, node_type, at, top, dtype)
    folder = run if isinstance(run, str | os.PathLike) else run.run_dir
    if out is None:
        return predict_once(folder, request)
    predict_into(folder, out, request)
    return Predictions.open(out)


def load_model(run: str | os.PathLike[str]) -> nn.Module:
    """Load the trained model of a run's folder, as :meth:`RunResult.load_model` does."""
    from hopper.train.run_result import RunResult

    return RunResult.open(run).load_model()


# Type checkers must not see this function, or they would accept every name.
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
    """The class of this module. It keeps packages from replacing functions of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("train", "predict") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Hopper
