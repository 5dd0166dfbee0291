"""One rank of a training run, from configuration to results."""

from __future__ import annotations

import os
from pathlib import Path

import numba
import numpy as np
import torch

from hopper.cluster import Cluster, choose_device
from hopper.config import Config
from hopper.engines import ENGINE_CLASSES, TrainState
from hopper.engines.accumulate import GroupTrainer
from hopper.errors import RequestError
from hopper.features import PartitionedRows, RemoteRows
from hopper.graph.schema import GraphSchema
from hopper.micrograph.route import RootSchedule
from hopper.micrograph.sample import NeighborSampler
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective, build_model, check_exactness, check_training_labels
from hopper.partition import PartitionedGraph
from hopper.run_log import RunLog
from hopper.train.evaluate import Evaluator
from hopper.train.loop import Trainer

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def run_rank(config: Config) -> None:
    """Train as the rank that torchrun's environment names (a lone process is the only rank).

    Raises
    ------
    ConfigError, RequestError, GraphError: before any training.
    ClusterError: a rank or server was lost, or a deadline passed.
    """
    use_threads(config.train.threads)
    make_deterministic()
    graph = PartitionedGraph.open(config.data.partitioned)
    check_request(config, graph.schema)
    device = choose_device(config.train.device)
    limits = config.cluster
    cluster = Cluster.join(
        limits.ranks_per_server, device, limits.timeout_seconds, limits.start_timeout_seconds
    )
    remote = None
    try:
        if cluster.servers != graph.book.servers:
            raise RequestError(
                f"{config.data.partitioned} has {graph.book.servers} partitions; with "
                f"cluster.ranks_per_server = {limits.ranks_per_server} start "
                f"{graph.book.servers * limits.ranks_per_server} ranks, not {cluster.world}"
            )
        if graph.book.servers > 1:
            remote = RemoteRows(graph, limits.servers, limits.timeout_seconds, cluster.traffic)
            remote.wait_until_serving(limits.start_timeout_seconds)
        rows = PartitionedRows(graph, cluster.server, remote)
        make_trainer(config, graph, cluster, rows).run()
    finally:
        if remote is not None:
            remote.close()
        cluster.leave()


def make_trainer(
    config: Config, graph: PartitionedGraph, cluster: Cluster, rows: PartitionedRows
) -> Trainer:
    """Assemble everything that one rank needs."""
    schema, target = graph.schema, graph.schema.target_type()
    train_ids = graph.split("train")
    run_dir = Path(config.train.run_dir)
    log = RunLog(run_dir / "spans" / f"rank-{cluster.rank}.jsonl")
    sampler = make_sampler(config, graph)
    objective = Objective(schema.labels[target].kind)
    packed = PackedModel(make_model(config, schema).to(cluster.device))
    schedule = RootSchedule(
        graph.book,
        target,
        train_ids,
        graph.global_ids(target),
        seed=config.train.seed,
        batch_size=config.train.batch_size,
        models=cluster.world,
        ranks_per_server=cluster.ranks_per_server,
        drop_last=config.train.last_batch == "drop",
        most_iterations=config.train.iterations_per_epoch,
    )
    if schedule.iterations == 0:
        raise RequestError(
            f"train.batch_size: {config.train.batch_size} x {cluster.world} ranks with "
            f'train.last_batch = "drop" leaves no iteration for {train_ids.size} training nodes'
        )
    _check_labels(graph, rows, train_ids)
    state = TrainState(
        config=config,
        cluster=cluster,
        log=log,
        sampler=sampler,
        rows=rows,
        packed=packed,
        optimizer=make_optimizer(config, packed),
        trainer=GroupTrainer(
            sampler,
            log,
            objective,
            config.train.micro_batch or 4 * config.train.batch_size,
            DTYPES[config.train.dtype],
            cluster.device,
        ),
    )
    engine = ENGINE_CLASSES[config.train.engine_name](state)
    dtype = DTYPES[config.train.dtype]
    evaluator = Evaluator(graph, cluster, rows, objective, dtype, config.model.layers)
    return Trainer(state, engine, schedule, evaluator, run_dir)


def make_sampler(config: Config, graph: PartitionedGraph) -> NeighborSampler:
    """The sampler of a configuration over a partitioned graph."""
    schema = graph.schema
    return NeighborSampler(
        {relation: graph.topology(relation) for relation in schema.relations},
        {node_type: graph.original_ids(node_type) for node_type in schema.node_types},
        schema.target_type(),
        config.sampler.fanouts,
        config.train.seed,
    )


def make_model(config: Config, schema: GraphSchema) -> torch.nn.Module:
    """The model of a configuration, initialised from its seed alone.

    Raises
    ------
    ConfigError, ExactnessError: it cannot be built, or would break "one gradient".
    """
    target = schema.target_type()
    model = build_model(
        config.model.name,
        in_dim=schema.node_types[target].feature_dim or 0,
        out_dim=schema.labels[target].classes,
        layers=config.model.layers,
        hidden=config.model.hidden,
        heads=config.model.heads,
        dropout=config.model.dropout,
        seed=config.train.seed,
        dtype=DTYPES[config.train.dtype],
    )
    check_exactness(model)
    return model


def make_optimizer(config: Config, packed: PackedModel) -> torch.optim.Optimizer:
    """The optimiser of a configuration; ``weight_decay`` adds to the gradient."""
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    return kinds[config.train.optimizer](
        [p for p in packed.module.parameters() if p.requires_grad],
        lr=config.train.learning_rate,
        weight_decay=config.train.weight_decay,
    )


def check_request(config: Config, schema: GraphSchema) -> None:
    """Refuse what cannot be trained, before anything is started.

    Raises
    ------
    RequestError: names what the graph has and what is needed.
    """
    where = config.data.partitioned
    if not isinstance(schema.target, str):
        raise RequestError(f"{where}: the target is relation {schema.target}: edge prediction is "
                           "not built yet")  # fmt: skip
    if len(schema.relations) != 1:
        raise RequestError(
            f"{where}: the graph has {len(schema.relations)} relations; model "
            f"{config.model.name!r} reads one"
        )
    node_type = schema.node_types[schema.target]
    if not node_type.feature_dim:
        raise RequestError(f"{where}: node type {schema.target!r} has no features")
    if schema.target not in schema.labels:
        raise RequestError(f"{where}: node type {schema.target!r} has no labels")
    if not schema.splits.get("train"):
        raise RequestError(f"{where}: the graph has no training split")


def use_threads(threads: int) -> None:
    """Use that many CPU threads; 0 = the machine's cores divided by the ranks on it."""
    if threads == 0:
        cores = len(os.sched_getaffinity(0))
        threads = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


def make_deterministic() -> None:
    """Same configuration, same bits (design.md, invariant 6)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Reading uninitialised memory would be a bug elsewhere; filling it costs a pass over it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _check_labels(graph: PartitionedGraph, rows: PartitionedRows, train_ids: np.ndarray) -> None:
    """Every rank checks the training labels that its server stores."""
    target = graph.schema.target_type()
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
