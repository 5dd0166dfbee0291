"""What a run is refused for before anything is started, one look after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hopper.config import Config
from hopper.engines import AUTO, Request
from hopper.engines.assemble import make_model, make_schedule
from hopper.engines.checks import check_request
from hopper.engines.training_parts import check_training_parts
from hopper.engines.trial_configs import all_configs
from hopper.features import PartitionedRows
from hopper.train.auto_engine import with_engine
from hopper.train.begin import begin_with
from hopper.train.callbacks import check_callbacks
from hopper.train.checkpoint_copy import CheckpointCopy
from hopper.train.labels import check_labels
from hopper.train.loggers import check_loggers
from hopper.train.network_counter import sent_bytes
from hopper.train.replay import read_decisions, replayed_engine
from hopper.train.run_metrics import check_metrics
from hopper.train.security import check_security
from hopper.train.verify import verify_data


@dataclass(frozen=True)
class RunCheck:
    """One look at what a run needs; it starts nothing, and writes nothing.

    Attributes
    ----------
    subject: what is looked at.
    run: raises a :class:`hopper.errors.HopperError` that names what is wrong.
    relies: whether it is made for what all looks before it have passed.
    """

    subject: str
    run: Callable[[], object]
    relies: bool = False


def checks_without_graph(config: Config) -> list[RunCheck]:
    """What the configuration alone tells."""
    return [
        RunCheck("cluster.interface", lambda: _check_interface(config)),
        RunCheck("certificates and token", lambda: check_security(config)),
        RunCheck("train.loggers", lambda: check_loggers(config)),
        RunCheck("train.callbacks", lambda: check_callbacks(config)),
        RunCheck("train.checkpoint_copy", lambda: CheckpointCopy(config.train.checkpoint_copy)),
    ]


def checks_of_graph(request: Request, servers: Sequence[int]) -> Iterator[RunCheck]:
    """What the configuration and its graph tell, in the order in which it has to be looked at.

    Parameters
    ----------
    servers: whose folders are read.
    """
    config, graph = request.config, request.graph
    rows = (PartitionedRows(graph, each, None) for each in servers)
    yield RunCheck("configuration and graph", lambda: check_request(request))
    yield RunCheck("files of the graph", lambda: verify_data(config, graph, servers))
    yield RunCheck("ports of metrics", lambda: check_metrics(config, len(servers)))
    yield RunCheck("labels", lambda: check_labels(graph, rows))
    yield RunCheck("train.replay", lambda: _check_replay(request), relies=True)
    yield RunCheck("models", lambda: _check_models(request), relies=True)


def _check_interface(config: Config) -> None:
    if config.cluster.interface:
        sent_bytes(config.cluster.interface)


def _check_replay(request: Request) -> None:
    config = request.config
    if config.train.engine == AUTO and config.train.replay:
        check_request(request.under(with_engine(config, replayed_engine(config))))
    read_decisions(config, request.ranks)


def _check_models(request: Request) -> None:
    for each in all_configs(request.config, request.ranks):
        own = request.under(each)
        begin_with(each, [make_model(own)], ())
        check_training_parts(each, request.schema, make_schedule(own).iterations)
