"""Checks of a request before any work starts. Each part of a run has its own check."""

from __future__ import annotations

from hopper.config.model import ONE_LAYER, TIMELESS_MODELS, TYPED_MODELS
from hopper.device.array_module import array_module
from hopper.device.kernel_threads import has_thread_pool
from hopper.engines import (
    can_draw,
    engines_for,
    engines_of,
    fetching_engines,
    is_fetching,
    list_names,
)
from hopper.engines.learnable_tables import check_learnable
from hopper.engines.relation_division import check_division
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.features.cache_plan import parse_cache_size
from hopper.partition.message_edges import count_untrained
from hopper.tasks import check_fixed, find_target


def check_request(request: Request) -> None:
    """Refuse a request that cannot be trained, before any work starts."""
    find_target(request.config, request.schema)
    if not request.schema.splits.get("train"):
        raise RequestError(f"{request.where}: the graph has no training split")
    check_model(request)
    _check_edges(request)
    _check_edge_features(request)
    _check_replicas(request)
    _check_engines(request)
    check_learnable(request)
    _check_cache(request)
    _check_sampler(request)
    _check_layout(request)
    check_threads()


def _check_edges(request: Request) -> None:
    """Refuse settings under which links or labels of edges cannot be predicted."""
    config, layout, predicted = request.config, request.graph.layout, request.schema.predicted
    if predicted == "node":
        return
    what = "links" if predicted == "link" else "labels of edges"
    refused = [engine for engine in engines_of(request) if not engine.spec.predicts_links]
    if refused:
        fitting = [engine for engine in engines_for(layout) if engine.spec.predicts_links]
        raise RequestError(
            f"train.engine: {refused[0].spec.name} predicts nodes, not {what}; expected one of "
            f"{list_names(fitting)} (or auto)"
        )
    if predicted == "link":
        if not config.sampler.leaves_edges_out:
            raise RequestError(
                "sampler.kind: links are predicted, and the sampler must leave their own edges "
                'out; expected "node", "full", "weighted", "replacement" or "temporal", given '
                f'"{config.sampler.kind}"'
            )
        check_fixed(request.graph, config.task)
        _check_full_batch(request)
    if config.sampler.device != "cpu":
        raise RequestError(
            f"sampler.device: {what} may have ends of several types, and only the host draws for "
            f'these; expected "cpu", given "{config.sampler.device}"'
        )
    if config.model.name in ONE_LAYER or config.learnable.tables != "tied":
        raise RequestError(
            f"model.name: {what} are predicted; expected a model of the graph's own relations, and "
            f'learnable.tables = "tied"; given {config.model.name} with '
            f'"{config.learnable.tables}", which follows hops from one node type only'
        )


def _check_full_batch(request: Request) -> None:
    """Refuse a batch of all training links that leaves its model no edge to read."""
    config, graph, relations = request.config, request.graph, request.reads.relations
    if config.sampler.kind != "full" or not config.task.exclude or len(relations) != 1:
        return
    (relation,) = relations.values()
    if relation in request.schema.target_relations and count_untrained(graph, relation) == 0:
        trained = graph.schema.splits["train"]
        raise RequestError(
            f"task.exclude: a full batch has all {trained:,} training links, which leaves no edge "
            f"of {request.where} to read; expected false, or a graph with edges in no split"
        )


def _check_edge_features(request: Request) -> None:
    """Refuse to read features of edges if the graph has none, or if they cannot be read."""
    config, graph, where = request.config, request.graph, request.where
    if not config.model.edge_features:
        return
    if not request.reads.edges:
        raise RequestError(
            f"model.edge_features: the model reads no relation of {where} with features of edges; "
            "expected a graph that was imported with some (docs/howto/edge-features.md), or false"
        )
    if not all(partition.is_whole for partition in graph.partitions):
        raise RequestError(
            f"model.edge_features: {where} splits the edges of a root relation over servers, which "
            "do not read their features; expected a division without such parts, or false"
        )
    if config.sampler.device != "cpu":
        raise RequestError(
            "model.edge_features: only draws in host memory tell which features to read; expected "
            f'sampler.device = "cpu", given "{config.sampler.device}"'
        )


def _check_replicas(request: Request) -> None:
    """Refuse settings that only a run of one model can have."""
    train, hop = request.config.train, request.config.hop
    of_task = sorted({name for trial in hop.trials for name in trial if name.startswith("task.")})
    if of_task and request.schema.predicted == "node":
        raise RequestError(
            f"hop.trials: {of_task[0]}: the model predicts nodes of {request.where} and has no "
            "decoder; expected trials that differ in other keys"
        )
    if hop.replicas == "independent" and train.callbacks:
        raise RequestError(
            "train.callbacks: callbacks follow one model; expected none with hop.replicas = "
            f'"independent", given {", ".join(train.callbacks)}'
        )


def check_model(request: Request) -> None:
    """Refuse a model that does not read graphs of this kind."""
    config, schema = request.config, request.schema
    if request.graph.partitions and not config.model.typed:
        raise RequestError(
            f"model.name: {request.where} is divided by relation, for typed models; expected one "
            f"of {', '.join(TYPED_MODELS)}, given {config.model.name!r}"
        )
    if not config.model.typed and len(schema.relations) != 1:
        raise RequestError(
            f"{request.where}: the graph has {len(schema.relations)} relations; model "
            f"{config.model.name!r} reads one; expected one of {', '.join(TYPED_MODELS)}"
        )


def _check_engines(request: Request) -> None:
    """Refuse a request that none of the engines that may be tried can train."""
    first: RequestError | None = None
    for engine in engines_of(request):
        try:
            engine.check(request)
        except RequestError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def _check_cache(request: Request) -> None:
    """Refuse a cache that would stay empty."""
    config, settings = request.config, request.config.cache
    if settings.policy == "none":
        return
    is_on_device = settings.memory == "device"
    is_apart = bool(request.reads.learned) and config.learnable.storage != "memory"
    if not (is_apart or is_on_device or is_fetching(request)):
        raise RequestError(
            f"cache.policy: {config.train.engine} reads no rows of other servers, and has its own "
            f'in memory, so there is nothing to cache; expected "none", train.engine = '
            f'{fetching_engines()}, learnable rows with learnable.storage = "host" or "mmap", or '
            'cache.memory = "device"'
        )
    parse_cache_size(settings.size)


def _check_sampler(request: Request) -> None:
    """Refuse a sampler that does not fit the model, the layout or the device."""
    config, draws_alone = request.config, request.graph.layout.draws_alone
    kind, relations = request.sampler.kind, request.reads.relations.values()
    kind.check(typed=config.model.typed, draws_alone=draws_alone, where=request.where)
    if kind.reads_weights and not any(request.schema.relations[r].weighted for r in relations):
        raise RequestError(
            f'sampler.kind: "{config.sampler.kind}" draws by weights of edges, and the model reads '
            f"no relation of {request.where} with weights; expected a graph that was imported with "
            "some (docs/reference/graph-directory.md)"
        )
    if request.reads_times:
        _check_times(request)
    if config.sampler.device == "cuda":
        _check_device(request)


def _check_device(request: Request) -> None:
    """Refuse draws on a device for engines that plan in host memory, or where there is none."""
    train, engines = request.config.train, engines_of(request)
    if train.device == "cpu":
        raise RequestError(
            'sampler.device: "cuda" needs a device; expected train.device = "cuda" or "auto", '
            'given "cpu"'
        )
    if on_host := [engine for engine in engines if engine.spec.plans_on_host]:
        raise RequestError(
            f'sampler.device: {list_names(on_host)} plans in host memory; expected "cpu", or '
            f'another train.engine; given "cuda" with {train.engine}'
        )
    array_module("cuda")


def _check_times(request: Request) -> None:
    """Refuse a graph without times, or a model that cannot read draws in time."""
    config, schema = request.config, request.schema
    for target in request.timeless_roots:
        what = "edges" if schema.target_relations else "nodes"
        raise RequestError(
            f'sampler.kind: "{config.sampler.kind}" draws edges up to the time of a root, and '
            f"{what} of {target} have no times in {request.where}; expected a graph that was "
            "imported with their times (docs/howto/times.md)"
        )
    if config.model.name in TIMELESS_MODELS:
        raise RequestError(
            f"model.name: {config.model.name} weighs neighbours by their out-degrees, which are "
            'not known at a root\'s time; expected another model, such as "sage"'
        )


def _check_layout(request: Request) -> None:
    """Refuse an engine or a model that does not fit how the graph was divided."""
    config, layout, where = request.config, request.graph.layout, request.where
    engines = engines_of(request)
    if not engines or not all(type(layout) in engine.spec.layouts for engine in engines):
        fitting = [engine for engine in engines_for(layout) if not engine.spec.biased]
        expected = f"{list_names(fitting)} (or auto)"
        if not fitting:
            expected = (
                "an engine of your own that trains it (docs/howto/plug-ins.md; a checkout of "
                "Hopper's repository has benchmarks.baselines.p3:P3)"
            )
        raise RequestError(
            f"train.engine: {layout.explain(where)}; expected {expected}, given "
            f"{config.train.engine}"
        )
    if not all(can_draw(engine, request) for engine in engines):
        raise RequestError(
            f"sampler.kind: {layout.explain(where)}; servers draw for ranks of other servers in "
            "host memory only; expected node, full, labor, replacement, temporal or weighted "
            '(without unbiased), or train.engine = "cooperative"; given '
            f'"{config.sampler.kind}" with {config.train.engine}'
        )
    if request.graph.partitions:
        check_division(request)


def check_threads() -> None:
    """Refuse a machine that cannot run parallel kernels."""
    if not has_thread_pool():
        raise RequestError(
            "numba: kernels with several threads need a library; expected OpenMP's libgomp.so.1 "
            "(Debian: apt-get install libgomp1) or TBB (pip install tbb), found neither"
        )
