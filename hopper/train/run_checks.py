"""The checks of a run before any process starts, and those of each rank before ranks meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster.security import check_security
from hopper.config import Config
from hopper.engines import Request
from hopper.engines.assemble import make_model, make_schedule
from hopper.engines.checks import check_request
from hopper.engines.training_parts import check_training_parts
from hopper.engines.trial_configs import all_configs
from hopper.errors import GraphError
from hopper.features import PartitionedRows
from hopper.graph.check_values import is_labelled
from hopper.graph.schema import Labels
from hopper.models import check_training_labels
from hopper.partition import PartitionedGraph
from hopper.train.checkpoint_files import CheckpointCopy
from hopper.train.meter import interface_bytes
from hopper.train.observers import find_observers
from hopper.train.run_metrics import check_metrics
from hopper.train.tuning import check_replay
from hopper.train.verify import verify_data
from hopper.train.warm_start import warm_start


@dataclass(frozen=True)
class RunCheck:
    """One check of what a run needs, which starts no process and writes no file. ``run`` raises a
    HopperError. ``relies`` says whether all checks before it must have passed."""

    subject: str
    run: Callable[[], object]
    relies: bool = False


def checks_without_graph(config: Config) -> list[RunCheck]:
    """Return the checks that need only the configuration."""
    interface = config.cluster.interface
    return [
        RunCheck("cluster.interface", lambda: interface and interface_bytes(interface)),
        RunCheck("certificates and token", lambda: check_security(config)),
        *_checks_of_plug_ins(config),
    ]


def _checks_of_plug_ins(config: Config) -> list[RunCheck]:
    """Return the checks of what follows a run and copies its checkpoints."""
    return [
        RunCheck("train.loggers", lambda: find_observers(config, "loggers")),
        RunCheck("train.callbacks", lambda: find_observers(config, "callbacks")),
        RunCheck("train.checkpoint_copy", lambda: CheckpointCopy(config.train.checkpoint_copy)),
    ]


def checks_of_graph(request: Request, servers: Sequence[int]) -> Iterator[RunCheck]:
    """Yield the checks that need the graph too, in the order in which they must run; the folders of
    ``servers`` are read."""
    config, graph = request.config, request.graph
    if config.train.script:
        yield RunCheck("files of the graph", lambda: verify_data(config, graph, servers))
        return
    rows = (PartitionedRows(graph, server, None) for server in servers)
    yield RunCheck("configuration and graph", lambda: check_request(request))
    yield RunCheck("files of the graph", lambda: verify_data(config, graph, servers))
    yield RunCheck("ports of metrics", lambda: check_metrics(config, len(servers)))
    yield RunCheck("labels", lambda: check_labels(graph, rows))
    yield RunCheck("train.replay", lambda: check_replay(request, check_request), relies=True)
    yield RunCheck("models", lambda: _check_models(request), relies=True)


def _check_models(request: Request) -> None:
    for config in all_configs(request.config, request.ranks):
        model_request = request.under(config)
        warm_start(model_request, [make_model(model_request)], ())
        check_training_parts(config, request.schema, make_schedule(model_request).iterations)


def check_training(request: Request) -> None:
    """Refuse a request that this rank cannot train."""
    check_request(request)
    check_training_parts(request.config, request.schema)
    for check in _checks_of_plug_ins(request.config):
        check.run()


def check_labels(graph: PartitionedGraph, rows: Iterable[PartitionedRows]) -> None:
    """Refuse training labels that are missing or not valid, of the servers whose rows are given.
    Every server stores all labels of edges."""
    labels = graph.schema.target_labels
    if labels is None:
        # A link is its own label.
        return
    if graph.schema.target_relations:
        links = graph.links("train")
        assert links.labels is not None
        stored = np.array(links.labels).reshape(links.count, -1)
        _check_labels_of(labels, stored, np.array(links.ids))
        return
    target, train_ids = graph.schema.target_type(), graph.split("train")
    global_ids = graph.global_ids(target)[train_ids]
    for server_rows in rows:
        local = server_rows.is_local(target, global_ids)
        stored = server_rows.local.gather("labels", target, global_ids[local])
        _check_labels_of(labels, stored, train_ids[local])


def _check_labels_of(labels: Labels, stored: NDArray[Any], ids: NDArray[np.int64]) -> None:
    if labels.kind == "tasks":
        has_label = is_labelled(labels, stored)
        if not has_label.all():
            examples = ids[~has_label][:5].tolist()
            raise GraphError(
                "labels: expected one of some task for every training root; given none at original "
                f"ids {examples} ({int((~has_label).sum())} in all)"
            )
        return
    shaped = torch.from_numpy(stored[:, 0] if labels.kind == "class" else stored)
    check_training_labels(labels.kind, shaped, torch.from_numpy(ids), labels.classes)
