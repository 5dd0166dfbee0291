"""The checks of a run before any process starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hopper.config import Config
from hopper.engines import Request
from hopper.engines.assemble import make_model, make_schedule
from hopper.engines.checks import check_request
from hopper.engines.training_parts import check_training_parts
from hopper.engines.trial_configs import all_configs
from hopper.features import PartitionedRows
from hopper.train.begin import begin_with
from hopper.train.checkpoint_copy import CheckpointCopy
from hopper.train.labels import check_labels
from hopper.train.meter import interface_bytes
from hopper.train.observers import find_observers
from hopper.train.run_metrics import check_metrics
from hopper.train.security import check_security
from hopper.train.tuning import check_replay
from hopper.train.verify import verify_data


@dataclass(frozen=True)
class RunCheck:
    """One check of what a run needs. It starts no process and writes no file.

    Attributes
    ----------
    subject: names what is checked.
    run: raises a :class:`hopper.errors.HopperError` that names what is wrong.
    relies: whether the check assumes that all checks before it have passed.
    """

    subject: str
    run: Callable[[], object]
    relies: bool = False


def checks_without_graph(config: Config) -> list[RunCheck]:
    """Return the checks that need only the configuration."""
    return [
        RunCheck("cluster.interface", lambda: _check_interface(config)),
        RunCheck("certificates and token", lambda: check_security(config)),
        RunCheck("train.loggers", lambda: find_observers(config, "loggers")),
        RunCheck("train.callbacks", lambda: find_observers(config, "callbacks")),
        RunCheck("train.checkpoint_copy", lambda: CheckpointCopy(config.train.checkpoint_copy)),
    ]


def checks_of_graph(request: Request, servers: Sequence[int]) -> Iterator[RunCheck]:
    """Yield the checks that need the graph too, in the order in which they must run.

    Parameters
    ----------
    servers: the servers whose folders are read.
    """
    config, graph = request.config, request.graph
    rows = (PartitionedRows(graph, server, None) for server in servers)
    yield RunCheck("configuration and graph", lambda: check_request(request))
    yield RunCheck("files of the graph", lambda: verify_data(config, graph, servers))
    yield RunCheck("ports of metrics", lambda: check_metrics(config, len(servers)))
    yield RunCheck("labels", lambda: check_labels(graph, rows))
    yield RunCheck("train.replay", lambda: check_replay(request, check_request), relies=True)
    yield RunCheck("models", lambda: _check_models(request), relies=True)


def _check_interface(config: Config) -> None:
    if config.cluster.interface:
        interface_bytes(config.cluster.interface)


def _check_models(request: Request) -> None:
    for config in all_configs(request.config, request.ranks):
        model_request = request.under(config)
        begin_with(model_request, [make_model(model_request)], ())
        check_training_parts(config, request.schema, make_schedule(model_request).iterations)
