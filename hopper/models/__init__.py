"""Models over blocks: plain modules, made of parts that engines can run on different ranks."""

from hopper.models.exactness import check_exactness
from hopper.models.gnn import GNN
from hopper.models.layer import Layer
from hopper.models.objective import Objective, check_training_labels
from hopper.models.registry import build_model, build_typed_model
from hopper.models.relational import run_model

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
