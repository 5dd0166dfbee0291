"""Rows that a trained model makes of nodes and their whole neighbourhoods: what scores a split, and
what predicts (``hopper predict``)."""

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
