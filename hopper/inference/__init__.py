"""Inference: a trained model's rows of nodes, computed from all of their neighbours.

Evaluation and ``hopper predict`` use it.
"""

from hopper.inference.end_rows import EndRows, blocks_of, exchange_by_owner, parts_of, score_block
from hopper.inference.inference import Inference, Output, Scene, Wanted, check_output
from hopper.inference.layer_wise import make_inference
from hopper.inference.row_space import RowSpace, split_rows

__all__ = [
    "EndRows",
    "Inference",
    "Output",
    "RowSpace",
    "Scene",
    "Wanted",
    "blocks_of",
    "check_output",
    "exchange_by_owner",
    "make_inference",
    "parts_of",
    "score_block",
    "split_rows",
]
