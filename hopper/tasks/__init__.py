"""Prediction tasks: labels of nodes, labels of edges, and links."""

from hopper.tasks.decoders import (
    DECODER,
    DECODERS,
    Decoder,
    decoder_of,
    edge_decoder_of,
    make_decoder,
    pair_scores,
    rows_width,
)
from hopper.tasks.edge_decoders import EdgeDecoder
from hopper.tasks.fixed_negatives import FixedNegatives, check_fixed, open_fixed
from hopper.tasks.link_batches import LinkBatches
from hopper.tasks.sides import SIDES, Side, sides_of, type_at
from hopper.tasks.target import Target, find_target
from hopper.tasks.training_links import LinkTable, TrainingLinks

__all__ = [
    "DECODER",
    "DECODERS",
    "SIDES",
    "Decoder",
    "EdgeDecoder",
    "FixedNegatives",
    "LinkBatches",
    "LinkTable",
    "Side",
    "Target",
    "TrainingLinks",
    "check_fixed",
    "decoder_of",
    "edge_decoder_of",
    "find_target",
    "make_decoder",
    "open_fixed",
    "pair_scores",
    "rows_width",
    "sides_of",
    "type_at",
]
