"""The engines: they compute one gradient with different traffic (docs/inside/engines.md)."""

from hopper.engines.data_parallel import DataParallelEngine
from hopper.engines.engine import Engine, Plan, Spec, TrainState
from hopper.engines.models import StepReport
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
from hopper.engines.train_step import TrainStep

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
    "engines_for",
    "engines_of",
    "fetching_engines",
    "find_engine",
    "is_fetching",
]
