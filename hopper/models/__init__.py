"""Models over blocks: plain modules, written in the parts that engines place."""

from hopper.models.exactness import check_exactness
from hopper.models.gnn import GNN
from hopper.models.layer import Layer
from hopper.models.objective import Objective, check_training_labels
from hopper.models.registry import build_model, build_typed_model
from hopper.models.run import run_model

__all__ = [
    "GNN",
    "Layer",
    "Objective",
    "build_model",
    "build_typed_model",
    "check_exactness",
    "check_training_labels",
    "run_model",
]
