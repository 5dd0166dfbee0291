"""How a model is called, whatever graphs it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from hopper.graph.block import TypedBlocks
from hopper.models.relational import HGNN


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
