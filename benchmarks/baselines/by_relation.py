"""The built-in typed models relation by relation, with which HiFuse compares merged relations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from hopper.engines import TrainState
from hopper.engines.data_parallel import ModelCentric
from hopper.graph.block import Block
from hopper.models.gat import NEGATIVE_SLOPE, log_importance
from hopper.models.hgt import RelationPartial
from hopper.models.layer import Layer
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
        aggregations = {relation: layer.aggregation(relation) for relation in layer.relations}
        for aggregation in aggregations.values():
            # Parameters and their names stay.
            aggregation.__class__ = BY_RELATION[type(aggregation)]
        split = RelationLayer(
            aggregations,
            layer.combination,
            {node_type: layer.update(node_type) for node_type in layer.types},
            layer.nothing,
        )
        for name in ("bases", "projections"):
            # What several relations share is the layer's.
            split.add_module(name, getattr(layer, name, None))
        model.layers[index] = split
    return model


class Mean(RelationMean):
    """AGG_r of R-GCN: the mean of projected rows, and of features of edges."""

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Average projected rows to [num_dst, out]."""
        if not block.equally_likely:
            return super().aggregate(block, z_src, h_dst)
        return self.with_edges(block, copy_mean(block, z_src))

    def with_edges(self, block: Block, combined: Tensor) -> Tensor:
        """Add the mean of edges' terms to the mean of rows."""
        if not self.edge_dim:
            return combined
        return combined + self.edge_term(block, combined.dtype)


class Attention(RelationAttention):
    """AGG_r of R-GAT: additive attention within the relation."""

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Sum rows by attention to [num_dst, heads * width]."""
        src_term = (z_src * self.attention_src).sum(-1)
        dst_term = (self.project(h_dst) * self.attention_dst).sum(-1)
        logits = edge_add(block, src_term, dst_term)
        if self.edge_dim:
            logits = logits + self.edge_term(block, logits.dtype)
        logits = functional.leaky_relu(logits, NEGATIVE_SLOPE)
        if not block.equally_likely:
            logits = logits + log_importance(block, logits.dtype).unsqueeze(-1)
        return weighted_sum(block, z_src, edge_softmax(block, logits)).flatten(1)


class Partial(RelationPartial):
    """AGG_r of HGT: the relation's partial of the softmax over all relations."""

    def project(self, h_src: Tensor) -> Tensor:
        """Return the terms of logits and the messages of sources, [n, heads, 2 * width]."""
        rows = self.key_value(h_src).view(len(h_src), 2, self.heads, self.width)
        key = torch.einsum("nhi,hio->nho", rows[:, 0], self.attention)
        message = torch.einsum("nhi,hio->nho", rows[:, 1], self.message)
        return torch.cat((key * (self.prior / math.sqrt(self.width)).unsqueeze(-1), message), -1)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Return a partial [num_dst, heads, 2 + width] of JointSoftmax."""
        keys, messages = source_rows(block, z_src).split(self.width, -1)
        queries = self.query(h_dst).view(len(h_dst), self.heads, self.width)
        logits = (keys * destination_rows(block, queries)).sum(-1)
        if self.edge_dim:
            logits = logits + self.edge_term(block, logits.dtype)
        if not block.equally_likely:
            logits = logits + log_importance(block, logits.dtype).unsqueeze(-1)
        top = segment_max(block, logits)
        weights = (logits - destination_rows(block, top)).exp().unsqueeze(-1)
        sums = edge_sum(block, torch.cat((weights, weights * messages), -1))
        return torch.cat((top.unsqueeze(-1), sums), -1)


BY_RELATION: Final[dict[type[Layer], type[Layer]]] = {
    RelationMean: Mean,
    RelationAttention: Attention,
    RelationPartial: Partial,
}
"""By class of a merged layer's AGG_r, the one that computes a relation by itself."""
