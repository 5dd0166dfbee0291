"""Models as stacks of layers over relations, for engines that place parts of a layer on ranks.

A graph of one node type has one type and one relation, and takes the same path as any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hopper.errors import RequestError
from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.models import GNN
from hopper.models.layer import Layer, SumLayer
from hopper.models.relation_layer import MergedLayer
from hopper.models.relational import HGNN


@dataclass(frozen=True)
class StackLayer:
    """A layer as an engine knows it before it computes."""

    aggregations: Mapping[Relation, Layer]
    """by relation that the layer reads, in canonical order, what aggregates it"""
    types: tuple[str, ...]
    """the node types whose new rows the layer computes"""
    adds_up: bool
    """whether sources' owners may add up all that a destination reads"""
    merged: MergedLayer[Any] | None = None
    """the layer of the model, if it takes all of its relations at once"""


@dataclass(frozen=True)
class LayerInputs:
    """The inputs from which one layer computes the new rows of a rank's destinations."""

    blocks: TypedBlocks
    before: Mapping[str, Tensor]
    """by type, at least of those whose new rows are wanted, [own, ...], this rank's rows of the
    layer before, destinations first"""
    ready: Mapping[str, Tensor]
    """by type, [own, ...], the same rows as the layer reads them; where ``projected`` is None,
    [sources, ...], with the rows of other ranks"""
    projected: Mapping[Relation, Tensor] | None
    """by relation, [sources of its block, ...]; None if the layer takes all relations at once"""
    weights: Mapping[Relation, Tensor] | None = None
    """by relation, [edges], if some edges have been added up; None = the layer's own"""
    more: Mapping[str, Tensor] | None = None
    """by type, [destinations, ...], the sums over edges that are in no block"""


class Stack(ABC):
    """A model, taken apart into steps that read one row at a time and steps that read edges."""

    reads_features: ClassVar[bool]
    """whether the first layer reads input rows unchanged except for dropout"""
    has_head: bool = False
    """whether a classifier follows the last layer"""
    model: torch.nn.Module
    layers: list[StackLayer]
    """in order of computation"""
    widths: Mapping[str, int]
    """by node type, the width of its input rows"""

    @abstractmethod
    def lone_rows(self) -> list[dict[str, Tensor]]:
        """Return an example of a row as each layer reads it: by layer and source type, [1, ...]."""

    @abstractmethod
    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """Turn input rows, [n, width], into rows for the first :meth:`prepare`: [n, ...]."""

    @abstractmethod
    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Nodes:
        """Return the first ``count`` sources of a type, in the form that :meth:`prepare` takes."""

    @abstractmethod
    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """Make rows of some nodes ready to be read by layer ``index``: [n, ...]."""

    @abstractmethod
    def new_rows(self, index: int, inputs: LayerInputs) -> dict[str, Tensor]:
        """Compute a layer: by type, [destinations, ...]."""

    def logits(self, rows: Tensor) -> Tensor:
        """Turn the last layer's rows of one type into logits: [roots, out]."""
        return rows


class OneTypeStack(Stack):
    """The stack of a model that reads one relation, and features of width ``in_dim``."""

    reads_features: ClassVar[bool] = True

    def __init__(self, model: GNN, relation: Relation, in_dim: int) -> None:
        self.model: GNN = model
        layers = [model.layer(index) for index in range(len(model.layers))]
        self.layers = [
            StackLayer({relation: layer}, (relation.dst,), isinstance(layer, SumLayer))
            for layer in layers
        ]
        self._type, self.widths = relation.src, {relation.src: in_dim}

    def lone_rows(self) -> list[dict[str, Tensor]]:
        """Run the model on a single node without edges."""
        parameter = next(self.model.parameters())
        none, zero = (torch.zeros(n, dtype=torch.int64, device=parameter.device) for n in (0, 1))
        node = Nodes(self._type, zero, zero)
        relation = Relation(self._type, "none", self._type)
        block = Block(1, 1, zero.repeat(2), none, relation, none, node, node)
        rows, by_layer = parameter.new_zeros(1, self.widths[self._type]), []
        for index in range(len(self.layers)):
            by_layer.append({self._type: self.model.prepare(index, block.src, rows)})
            rows = self.model.step(index, block, rows)
        return by_layer

    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """Return the input rows unchanged."""
        return x

    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Nodes:
        """Return the first sources, with their degrees under the one relation."""
        (block,) = blocks.blocks.values()
        return block.src.first(count)

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """Let the model prepare the rows."""
        return self.model.prepare(index, nodes, rows)

    def new_rows(self, index: int, inputs: LayerInputs) -> dict[str, Tensor]:
        """Aggregate and update, with the given weights if there are any."""
        ((relation, block),) = inputs.blocks.blocks.items()
        assert inputs.projected is not None
        layer, z_src = self.model.layer(index), inputs.projected[relation]
        h_dst, ready = (rows[self._type][: block.num_dst] for rows in (inputs.before, inputs.ready))
        if inputs.weights is None:
            combined = layer.aggregate(block, z_src, ready)
        else:
            assert isinstance(layer, SumLayer)
            combined = layer.combine(block, z_src, inputs.weights[relation], ready)
        out = layer.update(ready, combined)
        return {self._type: self.model.finish(index, block.dst, h_dst, out)}


class TypedStack(Stack):
    """The stack of a model for graphs of several node types."""

    reads_features: ClassVar[bool] = False

    def __init__(self, model: HGNN) -> None:
        self.model: HGNN = model
        self.has_head = model.has_head
        self.widths = {name: model.widths[name] for name in model.types}
        self.layers = []
        for layer in map(model.relation_layer, range(len(model.layers))):
            aggregations = {relation: layer.aggregation(relation) for relation in layer.relations}
            are_sums = all(isinstance(part, SumLayer) for part in aggregations.values())
            adds_up = layer.combination.algebra == "sum" and are_sums
            merged = layer if isinstance(layer, MergedLayer) else None
            self.layers.append(StackLayer(aggregations, layer.types, adds_up, merged))

    def lone_rows(self) -> list[dict[str, Tensor]]:
        """Return one row of the hidden width, as all layers read it, by layer and source type."""
        row = next(self.model.parameters()).new_zeros(1, self.model.hidden)
        return [{relation.src: row for relation in layer.aggregations} for layer in self.layers]

    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """Project the input rows to the hidden width."""
        return self.model.first_rows(node_type, x, len(x))

    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Nodes:
        """Return the first sources of the type."""
        return blocks.nodes[node_type].first(count)

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """Apply the model's dropout."""
        return self.model.drop(index, nodes, rows)

    def new_rows(self, index: int, inputs: LayerInputs) -> dict[str, Tensor]:
        """Run the layer over all of its relations."""
        layer, blocks, ready = self.model.relation_layer(index), inputs.blocks, inputs.ready
        types = [name for name in layer.types if name in inputs.before]
        h_dst = {name: ready[name][: blocks.destinations[name]] for name in types}
        names = {r: r for r in layer.relations_into(types, blocks)}
        partials = layer.partials(
            blocks, names, ready, h_dst, weights=inputs.weights, projected=inputs.projected
        )
        for name, sums in (inputs.more or {}).items():
            partials.setdefault(name, []).append(sums)
        return layer.new_rows(h_dst, partials)

    def logits(self, rows: Tensor) -> Tensor:
        """Apply the model's head."""
        return self.model.head(rows)


def make_stack(
    model: torch.nn.Module, sampler: NeighborSampler, in_dim: int, engine: str = "cooperative"
) -> Stack:
    """Take a model apart into layers; raise RequestError for a model that is no stack of them.

    ``in_dim`` is the width of the features, for a graph of one node type. ``engine`` is the name of
    the engine that places the layers, for errors.
    """
    if isinstance(model, HGNN):
        return TypedStack(model)
    if not isinstance(model, GNN):
        raise RequestError(
            f"train.engine: {engine} places the parts of layers on different ranks; expected a "
            f"hopper.models.gnn.GNN, given {type(model).__name__} with only a forward(), which "
            "model_centric, hop and zero_hop train"
        )
    (relation,) = sampler.topologies
    return OneTypeStack(model, relation, in_dim)
