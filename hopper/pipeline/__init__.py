"""The pipeline, which prepares iterations while earlier ones are consumed, and what it stands on.

It knows nothing of engines: they are its clients, and so is a training loop of one's own.
"""

from hopper.pipeline.check_gradients import check_gradients
from hopper.pipeline.connected import ConnectedGraph, connect
from hopper.pipeline.loader import Batch, Loader, loader
from hopper.pipeline.lookahead import Lookahead
from hopper.pipeline.pipeline import Moment, Pipeline, Stage

__all__ = [
    "Batch",
    "ConnectedGraph",
    "Loader",
    "Lookahead",
    "Moment",
    "Pipeline",
    "Stage",
    "check_gradients",
    "connect",
    "loader",
]
