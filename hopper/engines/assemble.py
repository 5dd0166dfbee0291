"""Makes the parts that engines, and their reference, consist of: model, sampler, schedule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from hopper.config import Config
from hopper.device.array_module import array_module
from hopper.engines import engines_of
from hopper.engines.engine import value_of
from hopper.engines.micro_batch import MicroBatchRunner
from hopper.engines.request import ModelReads, Request, find_reads
from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema
from hopper.hetero.rooted import make_rooted_sampler
from hopper.micrograph.array_sampler import ArraySampler
from hopper.micrograph.route import RootSchedule, TrainingNodes, TrainingRoots
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import StoredNames
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.models import build_model, build_typed_model, check_exactness
from hopper.models.relational import HGNN
from hopper.tasks import DECODER, LinkBatches, Target, find_target, make_decoder
from hopper.timing.run_log import RunLog

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_ONE_AT_A_TIME = threading.Lock()


def make_sampler(
    request: Request, server: int | None = None, model: torch.nn.Module | None = None
) -> NeighborSampler:
    """Make the sampler of a request.

    Parameters
    ----------
    server: the server to sample on. It matters where relations or topology are divided. None = all
        that any server stores.
    model: the model that is trained. Where relations are divided and no rows are learned, roots
        are drawn for only at the hops at which it reads them. None = at all hops.
    """
    config = request.config
    make: Callable[..., NeighborSampler] = request.sampler.kind
    make = partial(make, **request.sampler.options)
    if config.sampler.device == "cuda":
        make = partial(ArraySampler, module=array_module("cuda"))
    draws_once = config.sampler.expansion == "once"
    make = partial(make, draws_once=draws_once, dependence=config.sampler.dependence)
    # With learnable rows every engine must draw alike, since it updates the rows that it draws.
    hops = None if request.reads.tables else _root_hops(request, model)
    seeds = config.train.seed, config.train.own_seed
    return _make_sampler(request, server, make, config.sampler.sizes, seeds, hops)


def make_full_sampler(
    request: Request, server: int, model: torch.nn.Module | None = None, at: int | None = None
) -> NeighborSampler:
    """Make the sampler of evaluation, which takes all neighbours that the model reads.

    If training draws only the latest neighbours of a time, evaluation draws these. ``at`` is a time
    that roots may have besides their own.
    """
    sizes, is_timed = [-1] * request.config.model.layers, request.reads_times
    make: Callable[..., NeighborSampler] = NeighborSampler
    if is_timed:
        kind: Callable[..., NeighborSampler] = request.sampler.kind
        make = partial(kind, **request.sampler.options)
        if request.sampler.options.get("pick") == "recent":
            sizes = list(request.config.sampler.sizes)
    return _make_sampler(request, server, make, sizes, (0, 0), _root_hops(request, model), at)


def _root_hops(request: Request, model: torch.nn.Module | None) -> dict[str, int] | None:
    """Return at how many of the first hops a model reads roots, by their type."""
    if not isinstance(model, HGNN):
        return None
    return {name: len(model.root_layers(name)) for name in request.schema.root_types}


def _make_sampler(
    request: Request,
    server: int | None,
    make: Callable[..., NeighborSampler],
    sizes: Sequence[int],
    seeds: tuple[int, int],
    root_hops: Mapping[str, int] | None,
    at: int | None = None,
) -> NeighborSampler:
    """Make a sampler by its class, with the seeds of draws and of dropout."""
    graph, reads, (seed, dropout_seed) = request.graph, request.reads, seeds
    names = StoredNames(reads.relations, reads.types)
    if reads.partitions and server is not None:
        sampler = make_rooted_sampler(
            make,
            graph,
            server,
            reads.partitions[server],
            names,
            sizes,
            seed,
            dropout_seed=dropout_seed,
            root_hops=root_hops,
            whole_lists=not request.config.sampler.is_node_wise,
        )
    else:
        # Several names may share a relation. A divided topology is put together in memory once.
        stored = {each: graph.topology(each, server) for each in set(reads.relations.values())}
        topologies = {name: stored[relation] for name, relation in reads.relations.items()}
        originals = {name: graph.original_ids(stored) for name, stored in reads.types.items()}
        settings = {"names": names, "dropout_seed": dropout_seed}
        sampler = make(topologies, originals, reads.target, sizes, seed, **settings)
    if isinstance(sampler, TemporalSampler):
        _set_times(sampler, request, at)
    return sampler


def _set_times(sampler: TemporalSampler, request: Request, at: int | None) -> None:
    """Give a sampler the times that the roots of a request have or may have."""
    graph, schema, target = request.graph, request.schema, request.schema.target_type()
    times = [] if at is None else [np.array([at], np.int64)]
    if schema.predicted == "edge":
        times += [graph.times(relation) for relation in schema.target_relations]
    elif schema.predicted == "link":
        link_times = [graph.links(split).times for split in schema.splits]
        times += [split_times for split_times in link_times if split_times is not None]
    is_node = schema.predicted == "node"
    sampler.set_times({target: graph.times(target)} if is_node else {}, times)


def make_runner(
    request: Request,
    log: RunLog,
    most_roots: int,
    device: torch.device,
    *,
    server: int | None = None,
    model: torch.nn.Module | None = None,
) -> MicroBatchRunner:
    """Make what samples, reads and trains micro-batches of at most ``most_roots`` roots."""
    sampler = make_sampler(request, server, model)
    links = make_link_batches(request, sampler, server)
    if links is not None:
        sampler.exclude = links.excluded
    return MicroBatchRunner(request, sampler, links, log, most_roots, device, model)


def make_link_batches(
    request: Request, sampler: NeighborSampler, server: int | None = None
) -> LinkBatches | None:
    """Make what turns edges of batches into roots for a sampler, by the neighbour lists of a server
    (None = of all servers). None where nodes are predicted."""
    if not request.schema.target_relations:
        return None
    task, seed = request.config.task, request.config.train.seed
    parts = (request.graph, task, request.links, make_schedule(request), seed)
    return LinkBatches(*parts, sampler.versions_at, server)


def make_model(request: Request) -> torch.nn.Module:
    """Make the model of a request, initialised from its seed alone."""
    return _make_model(request.config, request.schema, request.reads)


def make_model_of_schema(config: Config, schema: GraphSchema) -> torch.nn.Module:
    """Make a model from a graph's schema, without the graph."""
    return _make_model(config, schema, find_reads(config, schema, schema.ordered_relations()))


def _make_model(config: Config, schema: GraphSchema, reads: ModelReads) -> torch.nn.Module:
    settings, predicted = config.model, find_target(config, schema)
    shared: dict[str, Any] = settings.options | {
        "out_dim": predicted.width,
        "hidden": settings.hidden,
        "heads": settings.heads,
        "dropout": settings.dropout,
        "seed": config.train.own_seed,
        "dtype": DTYPES[config.train.dtype],
    }
    model: torch.nn.Module
    # Ranks may be threads of one process, and initialisation draws from torch's own generator.
    with _ONE_AT_A_TIME:
        if settings.typed:
            model = build_typed_model(
                settings.name,
                target=reads.target,
                inputs=reads.widths,
                reads=reads.stored_layers,
                edges=reads.edges,
                **shared,
            )
            if reads.unrolling is not None:
                model.rename(reads.types, reads.relations, reads.layers)
        else:
            shared |= {"in_dim": reads.inputs[reads.target].width, "layers": settings.layers}
            model = build_model(settings.name, edge_dim=sum(reads.edges.values()), **shared)
        if predicted.has_decoder:
            _add_decoder(model, config, schema, predicted)
    check_exactness(model)
    return model


def _add_decoder(
    model: torch.nn.Module, config: Config, schema: GraphSchema, target: Target
) -> None:
    """Add a decoder to a model, initialised from the seed alone."""
    if hasattr(model, DECODER):
        raise RequestError(
            f"model.name: {config.model.name} has a {DECODER} of its own; expected the name to be "
            "free for task.decoder"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.own_seed)
        decoder = make_decoder(config, schema, target)
    model.add_module(DECODER, decoder.to(DTYPES[config.train.dtype]))


def make_schedule(request: Request, world: int | None = None) -> RootSchedule:
    """Make the schedule of global batches of a request, for a number of ranks."""
    config, graph, world = request.config, request.graph, world or request.ranks
    roots: TrainingRoots = request.links
    if not request.schema.target_relations:
        placement, target = graph.placement(config.cluster.ranks_per_server), request.reads.target
        split, global_ids = graph.split("train"), graph.global_ids(target)
        roots = TrainingNodes(placement, target, split, global_ids)
    spec, batch_size = engines_of(request)[0].spec, config.train.batch_size
    if config.sampler.kind == "full":
        batch_size = -(-roots.count // world)
    options = value_of(config, spec.schedule_options) if spec.schedule_options else {}
    schedule = spec.schedule(
        roots,
        seed=config.train.seed,
        batch_size=batch_size,
        models=world,
        drop_last=config.train.last_batch == "drop" and config.sampler.kind != "full",
        most_iterations=config.train.iterations_per_epoch,
        **options,
    )
    if schedule.iterations == 0:
        raise RequestError(
            f"train.batch_size: {batch_size} x {world} ranks with "
            f'train.last_batch = "drop" leaves no iteration for {roots.count} training '
            + ("edges" if request.schema.target_relations else "nodes")
        )
    return schedule
