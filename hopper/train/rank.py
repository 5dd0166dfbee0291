"""One rank of a training run, from configuration to results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numba
import torch

from cache_server.allocation import keep_freed_memory
from hopper.array_module import array_module
from hopper.cluster import Cluster, choose_device
from hopper.config import Config
from hopper.engines import ENGINE_CLASSES, Engine, TrainState, engines_for
from hopper.engines.accumulate import GroupTrainer
from hopper.engines.assemble import (
    DTYPES,
    check_division,
    check_ranks,
    check_request,
    make_full_sampler,
    make_group_trainer,
    make_model,
    make_schedule,
)
from hopper.engines.optimizer import Optimizer
from hopper.engines.training_parts import (
    check_training_parts,
    make_objective,
    make_optimizer,
)
from hopper.engines.trial_configs import is_trials, trial_configs
from hopper.engines.trials import Trial, TrialsState
from hopper.engines.typed_reads import make_tables, unrolling_of
from hopper.errors import ConfigError, RequestError
from hopper.features import PartitionedRows, RemoteRows, open_graph, own_server
from hopper.hetero.learnable import LearnableRows
from hopper.hetero.relation_first import renamed
from hopper.hetero.root_shares import RootShares
from hopper.hetero.row_storage import MappedStorage, MemoryStorage, RowStorage
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective, check_training_labels
from hopper.partition import PartitionedGraph
from hopper.run_log import RunLog
from hopper.train.auto_engine import settle_engine
from hopper.train.checkpoint import run_identity
from hopper.train.console import RunConsole
from hopper.train.evaluate import Evaluator, LayerWiseEvaluator, Scene
from hopper.train.loggers import check_loggers, closing, make_loggers
from hopper.train.loop import Trainer
from hopper.train.rank_processes import threads_of_a_rank
from hopper.train.relation_evaluate import RelationEvaluator
from hopper.train.results import read_summary, refuse_finished
from hopper.train.resume import settle_resume
from hopper.train.run_lock import lock_run_folder
from hopper.train.trials import TrialsTrainer
from hopper.train.typed_evaluate import TypedEvaluator
from hopper.train.verify import (
    agree_on_division,
    await_row_checks,
    start_row_check,
    verify_as_rank,
)
from hopper.train.warm_cache import CacheMaker


def run_rank(config: Config) -> None:
    """Train as the rank that torchrun's environment names (a lone process is the only rank).

    After an error the process has to end with ``os._exit``: leaving the other ranks in good order
    would wait, without a deadline, for one that hangs.

    Raises
    ------
    ConfigError, RequestError, GraphError: before any training.
    ClusterError: a rank or server was lost, or a deadline passed.
    """
    with ExitStack() as held, joined(config) as (graph, cluster, rows):
        if cluster.rank == 0:
            held.enter_context(lock_run_folder(Path(config.train.run_dir), "rank-0"))
        check = start_row_check(config, graph, cluster)
        if check is not None:
            held.callback(check.stop)
        say = RunConsole(cluster.rank == 0, "").say
        loggers = make_loggers(config, is_first=cluster.rank == 0, say=say)
        held.enter_context(closing(loggers))
        trainer = make_trainer(config, graph, cluster, rows)
        trainer.on_trained = partial(await_row_checks, check, cluster)
        trainer.on_epoch = loggers.epoch
        run_dir = Path(config.train.run_dir)
        if loggers and not trainer.state.config.train.resume:
            # Before they write into the folder.
            refuse_finished(run_dir)
        loggers.start(trainer.state.config)
        try:
            trainer.run()
        finally:
            trainer.state.log.close()
        loggers.finish(partial(read_summary, run_dir))
        cluster.leave()


@contextmanager
def joined(config: Config) -> Iterator[tuple[PartitionedGraph, Cluster, PartitionedRows]]:
    """The graph, the cluster that this rank has joined, and the rows that it can read.

    Raises
    ------
    As :func:`run_rank`.
    """
    use_threads(config.train.threads)
    make_deterministic()
    keep_freed_memory()
    if not config.train.run_dir:
        raise ConfigError("train.run_dir: name one: ranks cannot agree on one by themselves")
    graph = open_graph(config, own_server(config))
    check_request(config, graph.schema)
    check_training_parts(config, graph.schema)
    check_loggers(config)
    check_division(config, graph)
    verify_as_rank(config, graph)
    shares = config.cluster.share_gpus
    device = choose_device(config.train.device, share_gpus=shares)
    if config.sampler.device != "cpu" and device.type == "cpu":
        raise ConfigError(
            "sampler.device: cuda wants a GPU for every rank of this machine, and there are fewer; "
            "expected cpu"
        )
    if config.cache.policy != "none" and config.cache.memory == "device":
        # Said before ranks meet, and not after an hour of presampling.
        array_module(device.type)
    limits = config.cluster
    cluster = Cluster.join(
        limits.ranks_per_server,
        device,
        limits.timeout_seconds,
        limits.start_timeout_seconds,
        through_host=shares and device.type == "cuda",
    )
    remote = None
    try:
        check_ranks(config, cluster.world)
        if cluster.servers != graph.book.servers:
            raise RequestError(
                f"{config.data.partitioned} has {graph.book.servers} partitions; with "
                f"cluster.ranks_per_server = {limits.ranks_per_server} start "
                f"{graph.book.servers * limits.ranks_per_server} ranks, not {cluster.world}"
            )
        agree_on_division(graph, cluster)
        if graph.book.servers > 1 and graph.layout.reads_remote_rows:
            remote = RemoteRows(graph, limits.servers, limits.timeout_seconds, cluster.traffic)
            remote.wait_until_serving(limits.start_timeout_seconds)
        yield graph, cluster, PartitionedRows(graph, cluster.server, remote)
    finally:
        if remote is not None:
            remote.close()


def make_trainer(
    config: Config, graph: PartitionedGraph, cluster: Cluster, rows: PartitionedRows
) -> Trainer | TrialsTrainer:
    """Assemble everything that one rank needs."""
    config = settle_resume(config, cluster)
    run_dir = Path(config.train.run_dir)
    spans = run_dir / "spans" / f"rank-{cluster.rank}.jsonl"
    _check_labels(graph, rows)
    if config.train.engine == "auto":
        config = _settled(config, graph, cluster, rows)
    learnable = make_learnable(config, graph, cluster)
    say = RunConsole(cluster.rank == 0, "").say
    CacheMaker(config, graph, cluster, rows, learnable, say).warm()
    identity = run_identity(config, graph, cluster)
    objective = make_objective(config, graph.schema)
    dtype = DTYPES[config.train.dtype]
    evaluator = _make_evaluator(config, Scene(graph, cluster, rows, objective, dtype))
    log = RunLog(spans, append=bool(config.train.resume))
    if is_trials(config):
        state = _trials_state(config, graph, cluster, rows, log)
        overrides = [dict(each.overrides) for each in trial_configs(config, cluster.world)]
        return TrialsTrainer(state, evaluator, overrides, run_dir, identity)
    schedule = make_schedule(config, graph, cluster.world)
    engine = _make_engine(config, graph, cluster, rows, log, learnable, schedule.iterations)
    evaluator.learnable = learnable
    return Trainer(engine.state, engine, schedule, evaluator, run_dir, identity)


def _make_evaluator(config: Config, scene: Scene) -> Evaluator:
    graph, cluster = scene.graph, scene.cluster
    if not config.model.typed:
        return LayerWiseEvaluator(scene, config.model.layers)
    sampler = make_full_sampler(config, graph, cluster.server)
    if not graph.holdings:
        return TypedEvaluator(scene, sampler)
    holdings = renamed(graph.holdings, unrolling_of(config, graph.schema))
    return RelationEvaluator(scene, sampler, RootShares(holdings, cluster.ranks_per_server))


def _settled(
    config: Config, graph: PartitionedGraph, cluster: Cluster, rows: PartitionedRows
) -> Config:
    """The configuration with an engine instead of "auto"."""
    schedule = make_schedule(config, graph, cluster.world)
    settled = settle_engine(
        config,
        cluster,
        [schedule.batch(0, iteration) for iteration in range(min(3, schedule.iterations))],
        lambda own: _make_engine(
            own,
            graph,
            cluster,
            rows,
            RunLog(None),
            make_learnable(own, graph, cluster),
            schedule.iterations,
        ),
        RunConsole(cluster.rank == 0, "").say,
        _only_engine(graph),
    )
    rows.take_rows()
    check_division(settled, graph)
    return settled


def _only_engine(graph: PartitionedGraph) -> tuple[str, str] | None:
    """The one engine that fits how a graph was divided, and why; None where several do."""
    fitting = engines_for(graph.layout)
    return (fitting[0], graph.layout.explain("the graph")) if len(fitting) == 1 else None


def _make_engine(
    config: Config,
    graph: PartitionedGraph,
    cluster: Cluster,
    rows: PartitionedRows,
    log: RunLog,
    learnable: LearnableRows | None,
    iterations: int,
) -> Engine:
    packed, optimizer = _model(config, graph, cluster, iterations)
    return ENGINE_CLASSES[config.train.engine](
        TrainState(
            config=config,
            cluster=cluster,
            log=log,
            rows=rows,
            packed=packed,
            optimizer=optimizer,
            trainer=_group_trainer(config, graph, cluster, log, rows),
            learnable=learnable,
        )
    )


def make_learnable(
    config: Config, graph: PartitionedGraph, cluster: Cluster
) -> LearnableRows | None:
    """This rank's share of the learnable rows, if the model reads any."""
    tables = make_tables(config, graph)
    if not tables:
        return None
    own = config.learnable
    return LearnableRows(
        graph,
        graph.placement(cluster.ranks_per_server),
        cluster,
        tables,
        own.dim or config.model.hidden,
        DTYPES[config.train.dtype],
        config.train.own_seed,
        own.optimizer,
        own.learning_rate,
        _row_storage(config, cluster),
        keeps=config.train.evaluate_every > 0 and bool(graph.schema.splits.get("val")),
        l2=own.l2,
    )


def _row_storage(config: Config, cluster: Cluster) -> RowStorage:
    if config.learnable.storage == "mmap":
        return MappedStorage(Path(config.learnable.folder or config.train.run_dir))
    return MemoryStorage(cluster.device)


def _trials_state(
    config: Config, graph: PartitionedGraph, cluster: Cluster, rows: PartitionedRows, log: RunLog
) -> TrialsState:
    configs = [each.config for each in trial_configs(config, cluster.world)]
    if config.hop.share_sampling:
        trainers = [_group_trainer(config, graph, cluster, log, rows)] * len(configs)
        schedules = [make_schedule(config, graph, cluster.world)] * len(configs)
    else:
        trainers = [_group_trainer(each, graph, cluster, log, rows) for each in configs]
        schedules = [make_schedule(each, graph, cluster.world) for each in configs]
    models = [
        _model(each, graph, cluster, own.iterations)
        for each, own in zip(configs, schedules, strict=True)
    ]
    return TrialsState(
        config=config,
        cluster=cluster,
        log=log,
        rows=rows,
        trials=[
            Trial(index, index % cluster.world, each, *models[index])
            for index, each in enumerate(configs)
        ],
        trainers=trainers,
        schedules=schedules,
    )


def _model(
    config: Config, graph: PartitionedGraph, cluster: Cluster, iterations: int
) -> tuple[PackedModel, Optimizer]:
    packed = PackedModel(make_model(config, graph.schema).to(cluster.device))
    return packed, make_optimizer(config, packed, iterations)


def _group_trainer(
    config: Config, graph: PartitionedGraph, cluster: Cluster, log: RunLog, rows: PartitionedRows
) -> GroupTrainer:
    passes = config.train.roots_a_pass
    return make_group_trainer(
        config, graph, log, passes, cluster.device, cluster.server, rows.on_device
    )


def use_threads(threads: int) -> None:
    """Use that many CPU threads; 0 = the machine's cores divided by the ranks on it."""
    threads = threads_of_a_rank(threads, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


def make_deterministic() -> None:
    """Same configuration, same bits (design.md, invariant 6)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms(True), which also imports torch's compiler.
    torch.set_deterministic_debug_mode("error")
    # Reading uninitialised memory would be a bug elsewhere; filling it costs a pass over it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _check_labels(graph: PartitionedGraph, rows: PartitionedRows) -> None:
    """Every rank checks the training labels that its server stores."""
    target = graph.schema.target_type()
    train_ids = graph.split("train")
    global_ids = graph.global_ids(target)[train_ids]
    local = rows.is_local(target, global_ids)
    labels = graph.schema.labels[target]
    stored = torch.from_numpy(rows.local.gather("labels", target, global_ids[local]))
    check_training_labels(
        labels.kind,
        Objective(labels.kind).shaped(stored),
        torch.from_numpy(train_ids[local]),
        labels.classes,
    )
