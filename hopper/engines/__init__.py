"""The engines: they compute one gradient with different traffic (docs/inside/engines.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hopper.config import Config
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.engines.cooperative import Cooperative
from hopper.engines.data_parallel import DataParallelEngine, Locality, ModelCentric, ZeroHop
from hopper.engines.engine import Engine, Plan, Spec, TrainState
from hopper.engines.hop import Hop
from hopper.engines.raf import RelationAggregationFirst
from hopper.engines.request import Request
from hopper.engines.train_step import StepReport, TrainStep
from hopper.partition.layout import Layout

__all__ = [
    "AUTO",
    "ENGINE_CLASSES",
    "DataParallelEngine",
    "Engine",
    "Plan",
    "Request",
    "Spec",
    "StepReport",
    "TrainState",
    "TrainStep",
    "can_draw",
    "engines_for",
    "engines_of",
    "fetching_engines",
    "find_engine",
    "is_fetching",
    "list_names",
]

ENGINE_CLASSES: Final[dict[str, type[Engine[Any, Any]]]] = {
    engine.spec.name: engine
    for engine in (Cooperative, ZeroHop, Hop, ModelCentric, RelationAggregationFirst, Locality)
}
"""The built-in engines by name, in the order in which ``train.engine = "auto"`` tries them."""
AUTO: Final = "auto"


def find_engine(config: Config) -> PlugIn[Engine[Any, Any]]:
    """Find the engine that a configuration names, and its options. The name is not "auto"."""
    name, options = config.train.engine, config.train.engine_options
    return find_plug_in(
        "train.engine", name, Engine, ENGINE_CLASSES, options, ["state"], derives=True
    )


def engines_for(layout: Layout | None) -> list[type[Engine[Any, Any]]]:
    """Return the built-in engines that train graphs of a layout; None = all of them."""
    engines = ENGINE_CLASSES.values()
    return [each for each in engines if layout is None or type(layout) in each.spec.layouts]


def engines_of(request: Request) -> list[type[Engine[Any, Any]]]:
    """Return the engine that a request names, or for "auto" the exact engines to try."""
    if request.config.train.engine != AUTO:
        return [find_engine(request.config).kind]
    return [
        engine
        for engine in engines_for(request.graph.layout)
        if not engine.spec.biased and can_draw(engine, request)
        if engine.spec.predicts_links or not request.schema.target_relations
    ]


def can_draw(engine: type[Engine[Any, Any]], request: Request) -> bool:
    """Return whether an engine's ranks, or servers on their behalf, can draw what they read."""
    if request.graph.layout.draws_alone or engine.spec.draws_own_nodes:
        return True
    sampler, device = request.sampler, request.config.sampler.device
    return sampler.kind.draws_elsewhere(sampler.options) and device == "cpu"


def is_fetching(request: Request) -> bool:
    """Return whether the engine of a request, or one of those to try, reads rows of other
    servers."""
    return any(engine.spec.reads_remote_rows for engine in engines_of(request))


def list_names(engines: Iterable[type[Engine[Any, Any]]]) -> str:
    """Return the names of engines for a message."""
    return ", ".join(engine.spec.name for engine in engines)


def fetching_engines() -> str:
    """Return the names of the built-in engines that read rows of other servers."""
    return list_names(each for each in ENGINE_CLASSES.values() if each.spec.reads_remote_rows)
