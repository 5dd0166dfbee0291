"""Calls models of one node type and of several in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hopper.graph.block import TypedBlocks
from hopper.models.relational import HGNN


def run_model(
    model: nn.Module,
    blocks: Sequence[TypedBlocks],
    inputs: Mapping[str, Tensor],
    types: Sequence[str] = (),
) -> Tensor:
    """Run a model, and return its logits [num roots, out].

    A model of typed graphs takes blocks and rows by type. Any other model takes the blocks of the
    only relation and the rows of the only type.

    Parameters
    ----------
    blocks: the hops, in order of computation.
    inputs: by node type, the input rows [sources of the first hop, width].
    types: the types of roots, in the order of the result; none = the target.
    """
    if not isinstance(model, HGNN):
        (rows,) = inputs.values()
        return model([block for hop in blocks for block in hop.blocks.values()], rows)
    if types:
        by_type = model.rows(blocks, inputs)
        return torch.cat([model.head(by_type[node_type]) for node_type in types])
    return model(blocks, inputs)
