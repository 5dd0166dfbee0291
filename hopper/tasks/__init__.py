"""Prediction tasks: labels of nodes, labels of edges, and links."""

from hopper.tasks.decoders import DECODERS, Decoder
from hopper.tasks.link_batches import LinkBatches
from hopper.tasks.links import LinkTable, TargetEdges, TrainingLinks
from hopper.tasks.negatives import check_fixed, open_fixed
from hopper.tasks.scores import DECODER, decoder_of, make_decoder, pair_scores, rows_width
from hopper.tasks.target import SIDES, Side, Target, find_target, sides_of, type_at

__all__ = [
    "DECODER",
    "DECODERS",
    "SIDES",
    "Decoder",
    "LinkBatches",
    "LinkTable",
    "Side",
    "Target",
    "TargetEdges",
    "TrainingLinks",
    "check_fixed",
    "decoder_of",
    "find_target",
    "make_decoder",
    "open_fixed",
    "pair_scores",
    "rows_width",
    "sides_of",
    "type_at",
]
