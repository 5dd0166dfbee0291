"""The engines by name, and those that a request may mean."""

from __future__ import annotations

from hopper.config import Config
from hopper.engines.cooperative import Cooperative
from hopper.engines.engine import Engine
from hopper.engines.hop import Hop
from hopper.engines.locality import Locality
from hopper.engines.model_centric import ModelCentric
from hopper.engines.raf import RelationAggregationFirst
from hopper.engines.request import Request
from hopper.engines.zero_hop import ZeroHop
from hopper.partition.layouts import Layout
from hopper.plug_ins import find_plug_in, import_class

ENGINE_CLASSES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (Cooperative, ZeroHop, Hop, ModelCentric, RelationAggregationFirst, Locality)
}
"""in the order in which ``train.engine = "auto"`` tries them"""
AUTO = "auto"


def find_engine(config: Config) -> type[Engine]:
    """The engine that a configuration names, which is not "auto".

    Raises
    ------
    ConfigError: there is none, or its options do not fit; names the key.
    """
    train = config.train
    if train.engine not in ENGINE_CLASSES:
        base = f"subclass of {Engine.__module__}.{Engine.__name__}"
        import_class("train.engine", train.engine, Engine, base)
    found = find_plug_in(
        "train.engine", train.engine, Engine, ENGINE_CLASSES, train.engine_options, ["state"]
    )
    kind: type[Engine] = found.kind
    return kind


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
        return [find_engine(request.config)]
    return [each for each in engines_for(request.graph.layout) if each.exact]
