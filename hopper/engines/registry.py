"""The engines by name, and those that a request may mean."""

from __future__ import annotations

from hopper.config import Config
from hopper.engines.cooperative import Cooperative
from hopper.engines.engine import Engine
from hopper.engines.hop import Hop
from hopper.engines.locality import Locality
from hopper.engines.model_centric import ModelCentric
from hopper.engines.naive import Naive
from hopper.engines.neutronstar import NeutronStar
from hopper.engines.p3 import P3
from hopper.engines.raf import RelationAggregationFirst
from hopper.engines.request import Request
from hopper.engines.zero_hop import ZeroHop
from hopper.micrograph.samplers import find_sampler
from hopper.partition.layouts import Layout
from hopper.plug_ins import PlugIn, find_plug_in

ENGINE_CLASSES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        *(Cooperative, ZeroHop, Hop, ModelCentric),
        *(RelationAggregationFirst, P3, Naive, NeutronStar, Locality),
    )
}
"""in the order in which ``train.engine = "auto"`` tries them"""
AUTO = "auto"


def find_engine(config: Config) -> PlugIn[Engine]:
    """The engine that a configuration names, which is not "auto", and its options.

    Raises
    ------
    ConfigError: there is none, or its options do not fit; names the key.
    """
    name, options = config.train.engine, config.train.engine_options
    return find_plug_in(
        "train.engine", name, Engine, ENGINE_CLASSES, options, ["state"], derives=True
    )


def engines_for(layout: Layout | None) -> list[type[Engine]]:
    """The engines that train graphs of a layout; None = all engines."""
    return [
        engine
        for engine in ENGINE_CLASSES.values()
        if layout is None or type(layout) in engine.layouts
    ]


def engines_of(request: Request) -> list[type[Engine]]:
    """The engine that a request names; for "auto", the exact ones that may be tried."""
    if request.config.train.engine != AUTO:
        return [find_engine(request.config).kind]
    links = bool(request.schema.target_relations)
    return [
        each
        for each in engines_for(request.graph.layout)
        if each.exact and each.may_win and (each.predicts_links or not links)
        if can_draw(each, request)
    ]


def can_draw(engine: type[Engine], request: Request) -> bool:
    """Whether the ranks of an engine can draw what they read, or servers for them."""
    if request.graph.layout.draws_alone or engine.draws_own_nodes:
        return True
    own = request.config.sampler
    found = find_sampler(own.kind, own.kind_options)
    return found.kind.draws_elsewhere(found.options) and own.device == "cpu"


def is_fetching(request: Request) -> bool:
    """Whether the engine of a request, or one that may be tried, reads rows of other servers."""
    return any(each.reads_remote_rows for each in engines_of(request))


def fetching_engines() -> str:
    """The built-in engines that read rows of other servers, in words."""
    return ", ".join(each.name for each in engines_for(None) if each.reads_remote_rows)
