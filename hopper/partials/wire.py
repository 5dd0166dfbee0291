"""What a layer puts on the wire: rows before or after its projection, alone or added up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hopper.errors import RequestError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models import GNN
from hopper.models.layer import Layer, SumLayer


@dataclass(frozen=True)
class Wire:
    """How one layer's rows travel.

    Attributes
    ----------
    projected: the source's owner projects; else the consumer does, from rows as the layer reads
        them.
    width: elements of a row that travels.
    row_bytes: of a row and, where gradients flow, of its gradient.
    item_bytes: of an element of the parameters' dtype, which weights of edges travel in.
    folds: whether the layer adds its neighbours up, so that partial sums may travel.
    """

    projected: bool
    width: int
    row_bytes: int
    item_bytes: int
    folds: bool


@torch.no_grad()
def choose_wires(
    model: torch.nn.Module,
    in_dim: int,
    travels_as: torch.dtype | None = None,
    *,
    gradients: bool = True,
) -> list[Wire]:
    """The cheapest form for every layer of a stack, in bytes there and back.

    Rows of the first layer before projection are features: they have no gradient, and cross one
    way only. At equal bytes the owner projects, once for all that read the row.

    Parameters
    ----------
    in_dim: width of the features.
    travels_as: what rows are on the wire; None = what they are.
    gradients: whether they travel back.

    Raises
    ------
    RequestError: the model is no stack of layers, so nothing is known of its parts.
    """
    if not isinstance(model, GNN):
        raise RequestError(
            f"train.engine: cooperative places the parts of layers on different ranks; expected a "
            f"hopper.models.gnn.GNN, given {type(model).__name__} with only a forward(), which "
            "model_centric, hop and zero_hop train"
        )
    wires = []
    parameter = next(model.parameters())
    size = (travels_as or parameter.dtype).itemsize
    block = _lone_node(parameter.device)
    rows = parameter.new_zeros(1, in_dim)
    was_training = model.training
    model.eval()
    try:
        for index in range(len(model.layers)):
            ready = model.prepare(index, block, rows)
            back = 2 if gradients else 1
            ways = 1 if index == 0 else back
            wires.append(_choose(model.layer(index), ready, ways * size, back * size))
            rows = model.step(index, block, rows)
    finally:
        model.train(was_training)
    return wires


def _choose(layer: Layer, ready: torch.Tensor, item: int, projected_item: int) -> Wire:
    """The wire of a layer that reads such a row; bytes of an item are there and back."""
    projected = layer.project(ready)
    before, after = ready.numel() * item, projected.numel() * projected_item
    is_sum = isinstance(layer, SumLayer)
    size = ready.element_size()
    if projected is ready or before < after:
        return Wire(False, ready.numel(), before, size, is_sum)
    return Wire(True, projected.numel(), after, size, is_sum)


def _lone_node(device: torch.device) -> Block:
    none, one = (torch.zeros(n, dtype=torch.int64, device=device) for n in (0, 1))
    return Block(
        Relation("node", "none", "node"),
        num_src=1,
        num_dst=1,
        indptr=torch.zeros(2, dtype=torch.int64, device=device),
        indices=none,
        positions=none,
        src_original=one,
        dst_original=one,
        src_out_degree=one,
        dst_in_degree=one,
    )
