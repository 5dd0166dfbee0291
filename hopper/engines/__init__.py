"""The engines: one gradient, different traffic (design.md, "The engines")."""

from hopper.engines.cooperative import Cooperative
from hopper.engines.engine import Engine, StepReport, TrainState
from hopper.engines.hop import Hop
from hopper.engines.locality import Locality
from hopper.engines.model_centric import ModelCentric
from hopper.engines.raf import RelationAggregationFirst
from hopper.engines.zero_hop import ZeroHop
from hopper.partition.layouts import Layout

ENGINE_CLASSES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (ModelCentric, Hop, ZeroHop, Cooperative, RelationAggregationFirst, Locality)
}


def engines_for(layout: Layout) -> list[str]:
    """The exact engines that train graphs of a layout."""
    return [
        name
        for name, engine in ENGINE_CLASSES.items()
        if engine.exact and type(layout) in engine.layouts
    ]


__all__ = [
    "ENGINE_CLASSES",
    "Cooperative",
    "Engine",
    "Hop",
    "Locality",
    "ModelCentric",
    "RelationAggregationFirst",
    "StepReport",
    "TrainState",
    "ZeroHop",
    "engines_for",
]
