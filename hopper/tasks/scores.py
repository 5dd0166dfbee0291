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
from hopper.tasks.decoders import DECODERS, EDGE_DECODERS, Decoder, EdgeDecoder
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
    tails, expected = torch.zeros(_LINKS, _TAILS, width), (_LINKS, _TAILS)
    base: type[Decoder] = Decoder
    built_ins, default = DECODERS, "dot"
    if target.predicted == "edge":
        base, built_ins, default = EdgeDecoder, EDGE_DECODERS, "mlp"
        arguments["outputs"] = target.classes
        tails, expected = torch.zeros(_LINKS, width), (_LINKS, target.classes)
    name = default if task.decoder == "auto" else task.decoder
    plug_in: PlugIn[Decoder] = find_plug_in(
        *("task.decoder", name, base, built_ins, task.decoder_options, list(arguments)),
        derives=True,
    )
    decoder = plug_in.make(**arguments)
    _check(plug_in, decoder, tails, expected)
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
    """Return the scores of pairs, or the logits of labelled edges.

    Parameters
    ----------
    model: the model with the decoder.
    rows: [roots, width], the roots of all types in the order of :class:`Pairs`.

    Returns
    -------
    [links, 1 + k] scores, or [edges, outputs] logits.
    """
    ends = []
    for places in (pairs.heads, pairs.tails):
        flat_places = torch.from_numpy(places.reshape(-1)).to(rows.device)
        ends.append(rows.index_select(0, flat_places).view(*places.shape, rows.shape[1]))
    relations = torch.from_numpy(pairs.relations).to(rows.device)
    decoder = decoder_of(model)
    if isinstance(decoder, EdgeDecoder):
        ends = [end[:, 0] for end in ends]
    scores: Tensor = decoder(ends[0], relations, ends[1])
    return scores


def _check(
    plug_in: PlugIn[Decoder], decoder: Decoder, tails: Tensor, expected: tuple[int, int]
) -> None:
    """Try a decoder on a few rows, to find errors before the run begins."""
    heads = tails if tails.ndim == 2 else tails[:, :1]
    where = f"{plug_in.key}: {plug_in.name}"
    relations = torch.zeros(_LINKS, dtype=torch.int64)
    with explain_errors(f"{where} cannot be computed"), torch.no_grad():
        scores = [decoder(heads[:n], relations[:n], tails[:n]) for n in (_LINKS, 0)]
    shapes = [tuple(score.shape) for score in scores]
    expected_shapes = [expected, (0, expected[1])]
    if shapes != expected_shapes:
        raise ConfigError(
            f"{where}: expected something of each pair by itself, of shapes {expected_shapes}; got "
            f"{shapes}"
        )
