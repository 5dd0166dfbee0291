"""The built-in typed models relation by relation, with which HiFuse compares merged relations."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from hopper.engines import TrainState
from hopper.engines.data_parallel import ModelCentric
from hopper.graph.block import Block
from hopper.models.gat import NEGATIVE_SLOPE, log_importance
from hopper.models.hgt import RelationPartial
from hopper.models.layer import Layer, SumLayer
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import HGNN
from hopper.models.rgat import RelationAttention
from hopper.models.rgcn import RelationMean
from hopper.ops import (
    copy_mean,
    destination_rows,
    edge_add,
    edge_softmax,
    edge_sum,
    segment_max,
    source_rows,
    weighted_sum,
)


class ByRelation(ModelCentric):
    """``model_centric``, with layers that aggregate relation by relation."""

    spec = replace(ModelCentric.spec, name="by_relation")

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        model = state.packed.module
        assert isinstance(model, HGNN)
        split_relations(model)


def split_relations(model: HGNN) -> HGNN:
    """Let a model's layers aggregate relation by relation, with the same parameters.

    Parameters
    ----------
    model: of type "rgcn", "rgat" or "hgt". It is changed.
    """
    for index in range(len(model.layers)):
        layer = model.relation_layer(index)
        split = RelationLayer(
            {relation: _split(layer.aggregation(relation)) for relation in layer.relations},
            layer.combination,
            {node_type: layer.update(node_type) for node_type in layer.types},
            layer.nothing,
        )
        for name in ("bases", "projections"):
            # What several relations share is the layer's.
            split.add_module(name, getattr(layer, name, None))
        model.layers[index] = split
    return model


def _split(aggregation: Layer) -> Layer:
    """Return an AGG_r that computes one relation with the parameters of a merged layer's."""
    if isinstance(aggregation, RelationMean):
        return Mean(aggregation)
    if isinstance(aggregation, RelationAttention):
        return Attention(aggregation)
    assert isinstance(aggregation, RelationPartial)
    return Partial(aggregation)


class Mean(SumLayer):
    """AGG_r of R-GCN: the mean of projected rows, and of features of edges."""

    def __init__(self, held: RelationMean) -> None:
        super().__init__()
        self.held = held

    def project(self, h_src: Tensor) -> Tensor:
        """Multiply rows by the relation's matrix, to [n, out]."""
        return self.held.project(h_src)

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return the weights [edges] of a mean."""
        return block.mean_weights(dtype)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Average projected rows to [num_dst, out]."""
        if not block.equally_likely:
            return super().aggregate(block, z_src, h_dst)
        return self.with_edges(block, copy_mean(block, z_src))

    def with_edges(self, block: Block, combined: Tensor) -> Tensor:
        """Add the mean of edges' terms to the mean of rows."""
        if not self.held.edge_dim:
            return combined
        return combined + self.held.edge_term(block, combined.dtype)


class Attention(Layer):
    """AGG_r of R-GAT: additive attention within the relation."""

    def __init__(self, held: RelationAttention) -> None:
        super().__init__()
        self.held = held

    def project(self, h_src: Tensor) -> Tensor:
        """Project rows for each head, to [n, heads, width]."""
        return self.held.project(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Sum rows by attention to [num_dst, heads * width]."""
        src_term = (z_src * self.held.attention_src).sum(-1)
        dst_term = (self.project(h_dst) * self.held.attention_dst).sum(-1)
        logits = edge_add(block, src_term, dst_term)
        if self.held.edge_dim:
            logits = logits + self.held.edge_term(block, logits.dtype)
        logits = functional.leaky_relu(logits, NEGATIVE_SLOPE)
        if not block.equally_likely:
            logits = logits + log_importance(block, logits.dtype).unsqueeze(-1)
        return weighted_sum(block, z_src, edge_softmax(block, logits)).flatten(1)


class Partial(Layer):
    """AGG_r of HGT: the relation's partial of the softmax over all relations."""

    def __init__(self, held: RelationPartial) -> None:
        super().__init__()
        self.held = held

    def project(self, h_src: Tensor) -> Tensor:
        """Return the terms of logits and the messages of sources, [n, heads, 2 * width]."""
        rows, held = self.held.keys_values(h_src), self.held
        key = torch.einsum("nhi,hio->nho", rows[:, 0], held.attention)
        message = torch.einsum("nhi,hio->nho", rows[:, 1], held.message)
        return torch.cat((key * (held.prior / math.sqrt(held.width)).unsqueeze(-1), message), -1)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Return a partial [num_dst, heads, 2 + width] of JointSoftmax."""
        keys, messages = source_rows(block, z_src).split(self.held.width, -1)
        logits = (keys * destination_rows(block, self.held.queries(h_dst))).sum(-1)
        if self.held.edge_dim:
            logits = logits + self.held.edge_term(block, logits.dtype)
        if not block.equally_likely:
            logits = logits + log_importance(block, logits.dtype).unsqueeze(-1)
        top = segment_max(block, logits)
        weights = (logits - destination_rows(block, top)).exp().unsqueeze(-1)
        sums = edge_sum(block, torch.cat((weights, weights * messages), -1))
        return torch.cat((top.unsqueeze(-1), sums), -1)
