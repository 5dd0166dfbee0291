"""A model's decoder: how it is made, and the scores and logits that it computes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from hopper.config import Config
from hopper.config.plug_ins import PlugIn, explain_errors, find_plug_in
from hopper.errors import ConfigError
from hopper.graph.schema import GraphSchema
from hopper.micrograph.subgraph import Pairs
from hopper.tasks.decoders import DECODERS, EDGE_DECODERS, Decoder
from hopper.tasks.target import Target

DECODER: Final = "link_decoder"
"""name of the decoder in a model"""
_LINKS: Final = 3
_TAILS: Final = 5
"""links, and tails of each, that a new decoder is tried on"""


def make_decoder(config: Config, schema: GraphSchema, target: Target) -> Decoder:
    """Make the decoder of a configuration, and try it on a few rows.

    Raises
    ------
    ConfigError: the decoder does not exist, cannot be made, or returns scores of a wrong shape;
        names the key.
    """
    task, width = config.task, target.width
    arguments = {"width": width, "relations": len(schema.target_relations)}
    built_ins, default, shape = DECODERS, "dot", (_LINKS, _TAILS)
    rows = torch.zeros(_LINKS, _TAILS, width)
    if target.predicted == "edge":
        built_ins, default, shape = EDGE_DECODERS, "mlp", (_LINKS, target.classes)
        rows, arguments["outputs"] = rows[:, 0], target.classes
    name = default if task.decoder == "auto" else task.decoder
    plug_in: PlugIn[Decoder] = find_plug_in(
        "task.decoder",
        name,
        Decoder,
        built_ins,
        task.decoder_options,
        list(arguments),
        derives=True,
    )
    decoder = plug_in.make(**arguments)
    heads, where = rows if rows.ndim == 2 else rows[:, :1], f"{plug_in.key}: {name}"
    relations = torch.zeros(_LINKS, dtype=torch.int64)
    with explain_errors(f"{where} cannot be computed"), torch.no_grad():
        scores = [decoder(heads[:n], relations[:n], rows[:n]) for n in (_LINKS, 0)]
    shapes, expected = [tuple(score.shape) for score in scores], [shape, (0, shape[1])]
    if shapes != expected:
        raise ConfigError(
            f"{where}: expected something of each pair by itself, of shapes {expected}; got "
            f"{shapes}"
        )
    decoder.row_width = width
    return decoder


def decoder_of(model: nn.Module) -> Decoder:
    """Return a model's decoder, which must have one."""
    decoder = getattr(model, DECODER)
    assert isinstance(decoder, Decoder)
    return decoder


def rows_width(model: nn.Module) -> int | None:
    """Return the width of the rows that a model's decoder reads; None if it has no decoder."""
    decoder = getattr(model, DECODER, None)
    return decoder.row_width if isinstance(decoder, Decoder) else None


def pair_scores(model: nn.Module, rows: Tensor, pairs: Pairs) -> Tensor:
    """Return the scores [links, 1 + k] of pairs, or the logits [edges, outputs] of labelled edges,
    from the rows [roots, width] of all types in the order of :class:`Pairs`."""
    heads, tails = (
        rows.index_select(0, torch.from_numpy(places.reshape(-1)).to(rows.device)).view(
            *places.shape, rows.shape[1]
        )
        for places in (pairs.heads, pairs.tails)
    )
    return decoder_of(model)(heads, torch.from_numpy(pairs.relations).to(rows.device), tails)
