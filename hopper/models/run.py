"""How a model is called, whatever graphs it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hopper.graph.block import TypedBlocks
from hopper.models.relational import HGNN


def run_root_rows(
    model: nn.Module,
    blocks: Sequence[TypedBlocks],
    inputs: Mapping[str, Tensor],
    types: Sequence[str],
) -> Tensor:
    """[num roots, out]: what a model makes of roots of several types, those of one behind those of
    another, in the order of ``types``; otherwise as :func:`run_model`."""
    if not isinstance(model, HGNN):
        return run_model(model, blocks, inputs)
    rows = model.rows(blocks, inputs)
    return torch.cat([model.head(rows[each]) for each in types])


def run_model(
    model: nn.Module, blocks: Sequence[TypedBlocks], inputs: Mapping[str, Tensor]
) -> Tensor:
    """[num roots, out]: a model's logits.

    A model of typed graphs takes blocks and rows by type; any other takes the blocks of the only
    relation, and the rows of the only type.

    Parameters
    ----------
    blocks: in order of computation.
    inputs: by node type, [sources of the first hop, width], input rows.
    """
    logits: Tensor
    if isinstance(model, HGNN):
        logits = model(blocks, inputs)
    else:
        (rows,) = inputs.values()
        logits = model([block for hop in blocks for block in hop.blocks.values()], rows)
    return logits
