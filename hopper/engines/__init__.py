"""The engines: they compute one gradient with different traffic (docs/inside/engines.md)."""

from hopper.engines.engine import Engine, StepReport, TrainState
from hopper.engines.registry import (
    AUTO,
    ENGINE_CLASSES,
    engines_for,
    engines_of,
    fetching_engines,
    find_engine,
    is_fetching,
)
from hopper.engines.request import Request

__all__ = [
    "AUTO",
    "ENGINE_CLASSES",
    "Engine",
    "Request",
    "StepReport",
    "TrainState",
    "engines_for",
    "engines_of",
    "fetching_engines",
    "find_engine",
    "is_fetching",
]
