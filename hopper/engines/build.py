"""Builds what trains a request: an engine with its models, optimisers and samplers."""

from __future__ import annotations

from pathlib import Path

import torch

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Traffic
from hopper.config import Config
from hopper.engines.assemble import DTYPES, make_model, make_runner, make_schedule
from hopper.engines.engine import Engine, TrainState
from hopper.engines.learnable_tables import make_tables
from hopper.engines.micro_batch import MicroBatchRunner
from hopper.engines.models import OneModel
from hopper.engines.registry import find_engine
from hopper.engines.request import Request
from hopper.engines.sparse_step import SparseStep
from hopper.engines.train_step import TrainStep
from hopper.engines.training_parts import make_optimizer
from hopper.engines.trial_configs import is_trials, trial_configs, trial_name
from hopper.engines.trials import IndependentHop, Trials
from hopper.features import PartitionedRows, RemoteRows
from hopper.hetero.learnable import LearnableRows, Learning, TableShare
from hopper.hetero.row_storage import MappedStorage, MemoryStorage, RowStorage
from hopper.micrograph.elsewhere import DrawsElsewhere
from hopper.migrate.flat_model import FlatModel, LossScale
from hopper.partition import PartitionedGraph
from hopper.timing.run_log import RunLog


def make_engine(
    request: Request,
    cluster: Cluster,
    rows: PartitionedRows,
    log: RunLog,
    learnable: LearnableRows,
) -> TrainStep:
    """Make the engine of a request and its models, ready to train iterations."""
    if is_trials(request.config):
        return _make_trials(request, cluster, rows, log, learnable)
    iterations = make_schedule(request, cluster.world).iterations
    state = _make_state(request, cluster, rows, log, learnable, iterations)
    plug_in = find_engine(request.config)
    if plug_in.kind.spec.plans_together or learnable:
        state.channel = cluster.second_channel()
        state.channel.traffic = cluster.traffic.apart()
    engine: Engine = plug_in.kind(state, **plug_in.options)
    sparse = SparseStep(state)
    return TrainStep(engine, OneModel(engine, sparse), sparse)


def _make_trials(
    request: Request, cluster: Cluster, rows: PartitionedRows, log: RunLog, learnable: LearnableRows
) -> TrainStep:
    configs = trial_configs(request.config, cluster.world)
    requests = [request.under(trial.config) for trial in configs]
    trainer = None
    if request.config.hop.share_sampling:
        trainer = _make_runner(request, cluster, rows, log)
    schedules = [make_schedule(trial_request) for trial_request in requests]
    iterations = schedules[0].iterations
    trials = Trials(
        [
            _make_state(trial_request, cluster, rows, log, learnable, iterations, trainer)
            for trial_request in requests
        ]
    )
    for number, (state, trial) in enumerate(zip(trials, configs, strict=True)):
        state.name, state.overrides = trial_name(number), trial.overrides
    engine = IndependentHop(request, trials, schedules)
    return TrainStep(engine, trials, SparseStep(engine.state))


def _make_state(
    request: Request,
    cluster: Cluster,
    rows: PartitionedRows,
    log: RunLog,
    learnable: LearnableRows,
    iterations: int,
    trainer: MicroBatchRunner | None = None,
) -> TrainState:
    scale = LossScale(is_on=request.config.train.autocast == "float16")
    packed = FlatModel(make_model(request).to(cluster.device), scale)
    return TrainState(
        request=request,
        cluster=cluster,
        channel=cluster,
        log=log,
        rows=rows,
        packed=packed,
        optimizer=make_optimizer(request.config, packed, iterations),
        trainer=trainer or _make_runner(request, cluster, rows, log, packed),
        learnable=learnable,
    )


def _make_runner(
    request: Request,
    cluster: Cluster,
    rows: PartitionedRows,
    log: RunLog,
    packed: FlatModel | None = None,
) -> MicroBatchRunner:
    runner = make_runner(
        request,
        log,
        request.config.roots_a_pass,
        cluster.device,
        server=cluster.server,
        model=None if packed is None else packed.module,
    )
    runner.sampler.elsewhere = make_elsewhere(request.graph, rows, cluster.traffic.apart())
    return runner


def make_elsewhere(
    graph: PartitionedGraph, rows: PartitionedRows, traffic: Traffic
) -> DrawsElsewhere | None:
    """Make what draws among the in-edges of other servers; None if a rank has all in-edges."""
    if graph.layout.draws_alone or not isinstance(rows.remote, RemoteRows):
        return None
    return DrawsElsewhere(rows.remote, graph.book, traffic)


def make_learning(request: Request) -> Learning:
    """Return how learnable rows are learned, from the configuration of a request."""
    config, settings = request.config, request.config.learnable
    return Learning(
        dim=settings.dim or config.model.hidden,
        dtype=DTYPES[config.train.dtype],
        seed=config.train.own_seed,
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        l2=settings.l2,
        keeps=config.train.evaluate_every > 0 and bool(request.schema.splits.get("val")),
    )


def make_learnable(request: Request, cluster: Cluster) -> LearnableRows:
    """Make this rank's share of the learnable rows that the model reads."""
    config, graph, learning = request.config, request.graph, make_learning(request)
    placement, storage = graph.placement(cluster.ranks_per_server), _row_storage(config, cluster)
    return LearnableRows(
        cluster,
        [
            TableShare(
                table, learning, graph.original_ids(table.node_type), placement, cluster, storage
            )
            for table in make_tables(request)
        ],
    )


def _row_storage(config: Config, cluster: Cluster) -> RowStorage:
    settings = config.learnable
    if settings.storage == "mmap":
        return MappedStorage(Path(settings.folder or config.train.run_dir))
    return MemoryStorage(torch.device("cpu") if settings.storage == "host" else cluster.device)
