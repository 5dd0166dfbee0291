"""From a configuration to the parts that engines, and their reference, are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from hopper.array_module import array_module
from hopper.config import Config
from hopper.config.sections import TYPED_MODELS
from hopper.engines import ENGINE_CLASSES, engines_for
from hopper.engines.accumulate import GroupTrainer
from hopper.engines.training_parts import make_objective
from hopper.engines.typed_reads import (
    check_learnable,
    learnable_tables,
    metatree_of,
    typed_inputs,
    unrolling_of,
)
from hopper.errors import RequestError
from hopper.features import DeviceRows
from hopper.graph.schema import GraphSchema
from hopper.hetero.cache_plan import parse_cache_size
from hopper.hetero.relation_first import make_rooted_sampler, renamed
from hopper.micrograph.array_sampler import ArraySampler
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.route import LocalRootSchedule, RootSchedule
from hopper.micrograph.sample import NeighborSampler
from hopper.models import build_model, build_typed_model, check_exactness
from hopper.models.registry import TYPED_OPTIONS
from hopper.models.relational import HGNN
from hopper.partition import PartitionedGraph
from hopper.run_log import RunLog

DTYPES = {"float32": torch.float32, "float64": torch.float64}
AUTOCAST = {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
FETCHING_ENGINES = ("model_centric", "hop", "zero_hop", "locality")
"""those that read rows of other servers, which a cache may keep"""
SAMPLERS = {"node": NeighborSampler, "layer": LayerSampler, "labor": LaborSampler}


def check_request(config: Config, schema: GraphSchema) -> None:
    """Refuse what cannot be trained, before anything is started.

    Raises
    ------
    RequestError: names what the graph has and what is needed.
    """
    where = config.data.partitioned
    if not isinstance(schema.target, str):
        raise RequestError(
            f"{where}: the target is relation {schema.target}: edge prediction is not built yet"
        )
    if config.model.typed:
        if config.sampler.kind == "layer":
            raise RequestError(
                f"sampler.kind: 'layer' draws one sample of the whole graph per relation, which "
                f"model {config.model.name!r} does not take; expected node or labor"
            )
        types = sorted({schema.target, *typed_inputs(config, schema)})
    elif config.train.engine == "raf":
        raise RequestError(
            f"train.engine: raf aggregates by relation, as typed models do; expected one of "
            f"{', '.join(TYPED_MODELS)}, given model {config.model.name!r}"
        )
    elif len(schema.relations) != 1:
        raise RequestError(
            f"{where}: the graph has {len(schema.relations)} relations; model "
            f"{config.model.name!r} reads one"
        )
    else:
        types = [schema.target]
    bare = [repr(each) for each in types if not schema.node_types[each].feature_dim]
    if bare and not config.model.typed:
        raise RequestError(f"{where}: node type {', '.join(bare)} has no features")
    if bare:
        _check_replicas(config, bare)
    if config.model.typed:
        check_learnable(config, schema)
    _check_cache(config, bool(bare))
    _check_sampler_device(config)
    if schema.target not in schema.labels:
        raise RequestError(f"{where}: node type {schema.target!r} has no labels")
    if not schema.splits.get("train"):
        raise RequestError(f"{where}: the graph has no training split")


def _check_cache(config: Config, learns_rows: bool) -> None:
    """Refuse a cache that would hold nothing."""
    own = config.cache
    if own.policy == "none":
        return
    engine, is_on_device = config.train.engine, own.memory == "device"
    if is_on_device and engine == "cooperative" and own.policy != "lru":
        raise RequestError(
            f"cache.policy: {own.policy} counts what a rank reads for its own roots, and under "
            'cooperative it reads its own rows for everyone\'s; with cache.memory = "device" '
            "expected none or lru"
        )
    is_on_disk = learns_rows and config.learnable.storage == "mmap"
    if engine not in (*FETCHING_ENGINES, "auto") and not (is_on_disk or is_on_device):
        raise RequestError(
            f"cache.policy: {engine} reads no rows of other servers, and none on disk, so there "
            f'is nothing to keep; expected "none", train.engine = {", ".join(FETCHING_ENGINES)}, '
            'learnable rows with learnable.storage = "mmap", or cache.memory = "device"'
        )
    parse_cache_size(own.size)


def _check_sampler_device(config: Config) -> None:
    """Refuse to draw on a GPU for what computes or plans elsewhere."""
    if config.sampler.device == "cpu":
        return
    if config.train.device == "cpu":
        raise RequestError(
            'sampler.device: "cuda" wants train.device = "cuda" or "auto", given "cpu"'
        )
    if config.train.engine in ("cooperative", "auto"):
        raise RequestError(
            f"sampler.device: {config.train.engine} plans in host memory (auto may take "
            'cooperative); expected "cpu", or another train.engine; given "cuda"'
        )
    array_module("cuda")


def _check_replicas(config: Config, types: list[str]) -> None:
    """Refuse models of their own where rows are learned."""
    if config.hop.replicas == "independent":
        raise RequestError(
            f"hop.replicas: node type {', '.join(types)} has learnable rows, which all models "
            'share; expected "synchronous"'
        )


def check_ranks(config: Config, ranks: int) -> None:
    """Refuse what that many ranks cannot do.

    Raises
    ------
    RequestError: names the key and its limit.
    """
    merge = config.hop.merge
    if config.train.engine == "hop" and isinstance(merge, int) and merge >= ranks:
        raise RequestError(
            f"hop.merge: expected at most {ranks - 1}, one less than the {ranks} ranks (an "
            f"iteration has that many time steps), given {merge}"
        )


def check_division(config: Config, graph: PartitionedGraph) -> None:
    """Refuse an engine that does not fit how the graph was divided.

    Raises
    ------
    RequestError: names the engine, the division and what was expected.
    """
    where, engine = config.data.partitioned, config.train.engine
    if engine != "auto" and type(graph.layout) not in ENGINE_CLASSES[engine].layouts:
        raise RequestError(
            f"train.engine: {graph.layout.explain(where)}; expected "
            f"{', '.join(engines_for(graph.layout))} (or auto), given {engine}"
        )
    if not graph.layout.draws_alone:
        if config.cache.policy not in ("none", "lru"):
            raise RequestError(
                f"cache.policy: {config.cache.policy} counts visits by sampling, which wants whole "
                f"neighbourhoods, and the topology of {where} is partitioned; expected none or lru"
            )
        if config.sampler.kind == "layer":
            raise RequestError(
                f"sampler.kind: 'layer' weighs nodes by all edges, and the topology of {where} is "
                "partitioned; expected node or labor"
            )
    if not graph.holdings:
        return
    if not config.model.typed:
        raise RequestError(
            f"model.name: {where} is divided by relation, for typed models; expected one of "
            f"{', '.join(TYPED_MODELS)}, given {config.model.name!r}"
        )
    most = graph.description["meta"]["layers"]
    if config.model.layers > most:
        raise RequestError(
            f"model.layers: {where} was divided for {most} hops; expected at most that many, given "
            f"{config.model.layers}"
        )
    _check_followed(config, graph)
    _check_parts(config, graph)


def _check_parts(config: Config, graph: PartitionedGraph) -> None:
    """Refuse draws and aggregations that need all edges of a node, where servers have some each."""
    cut = [held for held in graph.holdings if held.part.parts > 1]
    if not cut:
        return
    named = ", ".join(sorted({str(each) for held in cut for each in held.roots}))
    where = f"{config.data.partitioned}, where several servers have a part of {named} each"
    if config.sampler.kind != "node":
        raise RequestError(
            f"sampler.kind: {config.sampler.kind!r} reads all in-edges of a node, which no server "
            f"has in {where}; expected 'node'"
        )
    model = make_model(config, graph.schema)
    assert isinstance(model, HGNN)
    is_own = config.model.name == "hgnn"
    roots = {
        each for held in renamed(cut, unrolling_of(config, graph.schema)) for each in held.roots
    }
    for layer in model.root_layers():
        combination = layer.combination
        if not combination.has_parts():
            raise RequestError(
                f"model.combine: {type(combination).__name__} makes partials of whole relations, "
                f"which no server has in {where}; expected one that defines joined() too"
            )
        for own in map(layer.aggregation, sorted(roots)):
            key, name = "model.aggregate" if is_own else "model.name", type(own).__name__
            if not own.has_parts():
                raise RequestError(
                    f"{key}: {name} needs all of a node's neighbours at once, which no server has "
                    f"in {where}; expected an AGG_r whose class defines joined(), or a SumLayer "
                    "without another aggregate() or own_term()"
                )
            if own.part_width() is not None and combination.algebra != "sum":
                raise RequestError(
                    f"{key}: parts of {name} can be joined under a sum over relations alone, given "
                    f"{type(combination).__name__}, with {where}"
                )


def _check_followed(config: Config, graph: PartitionedGraph) -> None:
    """Refuse a model that follows what the servers of a graph divided by relation do not hold where
    they need it."""
    tree, where = metatree_of(config, graph.schema), config.data.partitioned
    paths = graph.description["meta"].get("metapaths")
    told = "paths that partition.json does not tell"
    if paths is not None:
        told = "; ".join(",".join(path) for path in paths) or "every relation"
    nobodys = [
        each for each in tree.roots if all(each not in held.roots for held in graph.holdings)
    ]
    if nobodys:
        raise RequestError(
            f"model.metapaths: {where} was divided along {told}; no server aggregates "
            f"{', '.join(map(str, nobodys))} for the roots, as the model does"
        )
    for server, held in enumerate(graph.holdings):
        followed = [each for each in held.roots if each in tree.roots]
        if not followed:
            raise RequestError(
                f"model.metapaths: server {server} holds {', '.join(map(str, held.roots))} for the "
                "roots, which no metapath begins with; divide the graph with these --metapath"
            )
        lacking = sorted(set(tree.relations_of(followed)) - held.relations)
        if lacking:
            raise RequestError(
                f"model.metapaths: {where} was divided along {told}; server {server} lacks "
                f"{', '.join(map(str, lacking))}, which the model follows below its root relations"
            )


def make_sampler(
    config: Config, graph: PartitionedGraph, server: int | None = None
) -> NeighborSampler:
    """The sampler of a configuration over a partitioned graph.

    Parameters
    ----------
    server: whose relations are drawn, where these are divided, and for whose nodes, where topology
        is; None = all that any server stores.
    """
    sizes, seed = config.sampler.sizes, config.train.seed
    kind: Callable[..., NeighborSampler] = SAMPLERS[config.sampler.kind]
    if config.sampler.device == "cuda":
        kind = partial(ArraySampler, module=array_module("cuda"))
    sampler = _sampler(config, graph, server, kind, sizes, seed)
    sampler.dropout_seed = config.train.own_seed
    return sampler


def make_full_sampler(config: Config, graph: PartitionedGraph, server: int) -> NeighborSampler:
    """One that takes all neighbours that the configuration's model reads, for evaluation."""
    return _sampler(config, graph, server, NeighborSampler, [-1] * config.model.layers, 0)


def _sampler(
    config: Config,
    graph: PartitionedGraph,
    server: int | None,
    kind: Callable[..., NeighborSampler],
    sizes: Sequence[int],
    seed: int,
) -> NeighborSampler:
    schema, unrolling = graph.schema, unrolling_of(config, graph.schema)
    if graph.holdings and server is not None:
        return make_rooted_sampler(kind, graph, server, sizes, seed, unrolling)
    relations = {each: each for each in graph.relations}
    types = {each: each for each in schema.node_types}
    if unrolling is not None:
        relations, types = dict(unrolling.relations), dict(unrolling.types)
    # Where topology is divided, and all of it is wanted, it is put together in memory: once.
    topologies = {each: graph.topology(each, server) for each in set(relations.values())}
    sampler = kind(
        {each: topologies[stored] for each, stored in relations.items()},
        {each: graph.original_ids(stored) for each, stored in types.items()},
        schema.target_type(),
        sizes,
        seed,
    )
    if unrolling is not None:
        sampler.drawn_as, sampler.stored_as = relations, types
    return sampler


def make_group_trainer(
    config: Config,
    graph: PartitionedGraph,
    log: RunLog,
    micro_batch: int,
    device: torch.device,
    server: int | None = None,
    on_device: DeviceRows | None = None,
) -> GroupTrainer:
    """What samples, gathers and trains the groups of a configuration.

    Parameters
    ----------
    micro_batch: roots of one forward pass at most.
    server: as of :func:`make_sampler`.
    on_device: features that are held on the device.
    """
    schema = graph.schema
    return GroupTrainer(
        make_sampler(config, graph, server),
        log,
        make_objective(config, schema),
        micro_batch,
        DTYPES[config.train.dtype],
        device,
        typed=config.model.typed,
        tables=learnable_tables(config, schema),
        products_in=AUTOCAST[config.train.autocast],
        on_device=on_device,
    )


def make_model(config: Config, schema: GraphSchema) -> torch.nn.Module:
    """The model of a configuration, initialised from its seed alone.

    Raises
    ------
    ConfigError, ExactnessError: it cannot be built, or would break "one gradient".
    """
    target = schema.target_type()
    own = config.model
    shared: dict[str, Any] = {
        "out_dim": schema.labels[target].classes,
        "hidden": own.hidden,
        "heads": own.heads,
        "dropout": own.dropout,
        "seed": config.train.own_seed,
        "dtype": DTYPES[config.train.dtype],
    }
    model: torch.nn.Module
    if own.typed:
        shared |= {name: getattr(own, name) for name in TYPED_OPTIONS[own.name]}
        model = _typed_model(config, schema, shared)
    else:
        in_dim = schema.node_types[target].feature_dim or 0
        model = build_model(own.name, in_dim=in_dim, layers=own.layers, **shared)
    check_exactness(model)
    return model


def _typed_model(config: Config, schema: GraphSchema, options: Mapping[str, Any]) -> HGNN:
    tree, unrolling = metatree_of(config, schema), unrolling_of(config, schema)
    hops = reversed(range(config.model.layers))
    if unrolling is None:
        reads = stored = [tree.read_at(hop) for hop in hops]
    else:
        reads = [unrolling.read_at(hop) for hop in hops]
        stored = [unrolling.stored(each) for each in reads]
    model = build_typed_model(
        config.model.name,
        target=schema.target_type(),
        inputs=typed_inputs(config, schema),
        reads=stored,
        **options,
    )
    if unrolling is not None:
        model.rename(unrolling.types, unrolling.relations, reads)
    return model


def make_schedule(config: Config, graph: PartitionedGraph, world: int) -> RootSchedule:
    """The global batches of a configuration's epochs, for ``world`` ranks.

    Raises
    ------
    RequestError: an epoch has no iteration.
    """
    target = graph.schema.target_type()
    train_ids = graph.split("train")
    kind = LocalRootSchedule if config.train.engine == "locality" else RootSchedule
    schedule = kind(
        graph.placement(config.cluster.ranks_per_server),
        target,
        train_ids,
        graph.global_ids(target),
        seed=config.train.seed,
        batch_size=config.train.batch_size,
        models=world,
        drop_last=config.train.last_batch == "drop",
        most_iterations=config.train.iterations_per_epoch,
    )
    if schedule.iterations == 0:
        raise RequestError(
            f"train.batch_size: {config.train.batch_size} x {world} ranks with "
            f'train.last_batch = "drop" leaves no iteration for {train_ids.size} training nodes'
        )
    return schedule
