"""Hopper: train graph neural networks whose features do not fit one machine.

The public API is ``__all__``; docs/python-api.md explains it name by name. Everything below it may
change from one version to the next.

``import hopper`` takes a few milliseconds, because a command line, a notebook and every rank of a
run begin with it. Errors and :func:`train` are there at once. Classes that are made of torch,
pydantic or numba are imported when their name is first used (PEP 562). Type checkers, editors and
``dir`` see all names with their own types from the start, and report a name that does not exist.

``hopper.train`` is a function. ``torchrun -m hopper.train`` needs a package of that name as well,
and Python binds a package to its parent's attribute when it is imported. This module leaves its
attribute alone, so that the name is the function whatever was imported before. A module of the
package is reached by ``from hopper.train.results import EpochRecord``.
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
    from typing import Any

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
    from hopper.train.loggers import Logger
    from hopper.train.results import EpochRecord, TrialRecord
    from hopper.train.run_result import RunResult, TrialResult

__version__ = "0.1.0"

__all__ = [
    "GNN",
    "Block",
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
    "RankLost",
    "RankSilent",
    "Relation",
    "Request",
    "RequestError",
    "RowSource",
    "RunResult",
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
    "make_config",
    "make_sampler",
    "ops",
    "train",
]

# Where the names that are imported when they are used come from; an empty string for modules.
# A test compares it with the imports above.
_HOMES = {
    "Block": "hopper.graph.block",
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
    "Relation": "hopper.graph",
    "Request": "hopper.engines",
    "RowSource": "cache_server.row_source",
    "RunResult": "hopper.train.run_result",
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
    config: Config | Mapping[str, Any] | str | os.PathLike[str], overrides: Sequence[str] = ()
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

    Returns
    -------
    What each epoch cost, the scores, the files of the run, and the trained model.

    Raises
    ------
    ConfigError, RequestError, GraphError: the run cannot be done as asked. Nothing was started.
    ServerLost, RankLost, ClusterError: a server or a rank ended early. The text names it.
    """
    from hopper.train.launch import train

    return train(config, overrides)


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
    """This module, which does not let the package ``hopper.train`` take the function's place."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "train" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Hopper
