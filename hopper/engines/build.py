"""Builds what trains a request: an engine with its models, optimisers and samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Traffic
from hopper.engines import find_engine
from hopper.engines.assemble import DTYPES, make_model, make_runner, make_schedule
from hopper.engines.engine import Engine, TrainState
from hopper.engines.learnable_tables import make_tables
from hopper.engines.micro_batch import MicroBatchRunner
from hopper.engines.request import Request
from hopper.engines.train_step import OneModel, SparseStep, TrainStep
from hopper.engines.training_parts import make_optimizer
from hopper.engines.trial_configs import is_trials, trial_configs, trial_name
from hopper.engines.trials import IndependentHop, Trials
from hopper.features import PartitionedRows
from hopper.hetero.learnable import LearnableRows, LearnableTable, Learning, TableShare
from hopper.hetero.row_storage import MappedStorage, MemoryStorage
from hopper.micrograph.elsewhere import DrawsElsewhere
from hopper.migrate.flat_model import FlatModel, LossScale
from hopper.partition import PartitionedGraph
from hopper.timing.run_log import RunLog


def make_engine(
    request: Request, cluster: Cluster, rows: PartitionedRows, log: RunLog, learnable: LearnableRows
) -> TrainStep[Any, Any]:
    """Make the engine of a request and its models, ready to train iterations."""

    def make_trainer(request: Request, model: torch.nn.Module | None = None) -> MicroBatchRunner:
        most, device, server = request.config.roots_a_pass, cluster.device, cluster.server
        trainer = make_runner(request, log, most, device, server=server, model=model)
        traffic = cluster.traffic.apart()
        trainer.sampler.elsewhere = make_elsewhere(request.graph, rows, traffic)
        return trainer

    def make_state(
        request: Request, iterations: int, trainer: MicroBatchRunner | None = None
    ) -> TrainState:
        scale = LossScale(is_on=request.config.train.autocast == "float16")
        packed = FlatModel(make_model(request).to(cluster.device), scale)
        optimizer = make_optimizer(request.config, packed, iterations)
        trainer = trainer or make_trainer(request, packed.module)
        # Planning uses the same connections, unless an engine says otherwise.
        channels = cluster, cluster
        return TrainState(request, *channels, log, rows, packed, optimizer, trainer, learnable)

    if is_trials(request.config):
        configs = trial_configs(request.config, cluster.world)
        requests = [request.under(trial.config) for trial in configs]
        trainer = make_trainer(request) if request.config.hop.share_sampling else None
        schedules = [make_schedule(each) for each in requests]
        iterations = schedules[0].iterations
        trials = Trials([make_state(each, iterations, trainer) for each in requests])
        for number, (state, trial) in enumerate(zip(trials, configs, strict=True)):
            state.name, state.overrides = trial_name(number), trial.overrides
        engine: Engine[Any, Any] = IndependentHop(request, trials, schedules)
        return TrainStep(engine, trials, SparseStep(engine.state))
    state = make_state(request, make_schedule(request, cluster.world).iterations)
    plug_in = find_engine(request.config)
    if plug_in.kind.spec.plans_together or learnable:
        state.channel = cluster.second_channel()
        state.channel.traffic = cluster.traffic.apart()
    engine = plug_in.kind(state, **plug_in.options)
    sparse = SparseStep(state)
    return TrainStep(engine, OneModel(engine, sparse), sparse)


def make_elsewhere(
    graph: PartitionedGraph, rows: PartitionedRows, traffic: Traffic
) -> DrawsElsewhere | None:
    """Make what draws among the in-edges of other servers; None if a rank has all in-edges."""
    if graph.layout.draws_alone or rows.servers is None:
        return None
    return DrawsElsewhere(rows.servers, graph.book, traffic)


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
    graph, learning, settings = request.graph, make_learning(request), request.config.learnable
    placement = graph.placement(cluster.ranks_per_server)
    device = torch.device("cpu") if settings.storage == "host" else cluster.device
    storage = MemoryStorage(device)
    if settings.storage == "mmap":
        storage = MappedStorage(Path(settings.folder or request.config.train.run_dir))

    def make_share(table: LearnableTable) -> TableShare:
        originals = graph.original_ids(table.node_type)
        return TableShare(table, learning, originals, placement, cluster, storage)

    return LearnableRows(cluster, [make_share(table) for table in make_tables(request)])
