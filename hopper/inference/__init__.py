"""Inference: a trained model's rows of nodes, computed from all of their neighbours.

Evaluation and ``hopper predict`` use it.
"""

from hopper.inference.build import make_inference
from hopper.inference.inference import Inference, Scene, Wanted, check_output
from hopper.inference.pace import Pace
from hopper.inference.row_space import FileRows, MemoryRows, RowSpace

__all__ = [
    "FileRows",
    "Inference",
    "MemoryRows",
    "Pace",
    "RowSpace",
    "Scene",
    "Wanted",
    "check_output",
    "make_inference",
]
