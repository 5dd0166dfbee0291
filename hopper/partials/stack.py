"""Models as engines that place their parts see them: layers over the relations between node types.

A graph of one node type has one type and one relation, and takes the same path as any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hopper.errors import RequestError
from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.models import GNN
from hopper.models.layer import Layer, SumLayer
from hopper.models.merged import MergedRelations
from hopper.models.relational import HGNN


@dataclass(frozen=True)
class StackLayer:
    """What is known of a layer before it computes.

    Attributes
    ----------
    aggregations: by relation that it reads, in canonical order, what aggregates it.
    types: whose new rows it computes.
    adds_up: whether all that a destination reads may be added up where it lives.
    merges: whether it takes all of its relations at once.
    """

    aggregations: Mapping[Relation, Layer]
    types: tuple[str, ...]
    adds_up: bool
    merges: bool


@dataclass(frozen=True)
class LayerInputs:
    """What one layer makes the new rows of a rank's destinations from.

    Attributes
    ----------
    before: by type whose new rows are wanted, and others, [own, ...], this rank's rows of the layer
        before, destinations first.
    ready: by type, [own, ...], the same as the layer reads them. Where ``projected`` is None,
        [sources, ...]: those of the other ranks too.
    projected: by relation, [sources of its block, ...], its projected rows; None where the layer
        takes all relations at once.
    weights: by relation, [edges], where some edges have been added up; None = the layer's own.
    more: by type, [destinations, ...], what edges that are in no block add up to.
    """

    blocks: TypedBlocks
    before: Mapping[str, Tensor]
    ready: Mapping[str, Tensor]
    projected: Mapping[Relation, Tensor] | None
    weights: Mapping[Relation, Tensor] | None = None
    more: Mapping[str, Tensor] | None = None


class Stack(ABC):
    """A model in parts: some read one row at a time, others read edges.

    Attributes
    ----------
    model: what it is of.
    layers: in order of computation. widths: by node type, the width of its input rows.
    reads_features: whether the first layer reads input rows as they are, but for dropout.
    has_head: whether a classifier follows the last layer.
    """

    reads_features: ClassVar[bool]
    has_head: bool = False
    model: torch.nn.Module
    layers: list[StackLayer]
    widths: Mapping[str, int]

    @abstractmethod
    def lone_rows(self) -> list[dict[str, Tensor]]:
        """By layer and source type, [1, ...]: a row as the layer reads it, to learn its shape."""

    @abstractmethod
    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """[n, ...]: what the first layer's :meth:`prepare` takes, from input rows [n, width]."""

    @abstractmethod
    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Nodes:
        """A type's first sources: what :meth:`prepare` is keyed by."""

    @abstractmethod
    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """[n, ...]: rows of some nodes as layer ``index`` reads them."""

    @abstractmethod
    def new_rows(self, index: int, given: LayerInputs) -> dict[str, Tensor]:
        """By type, [destinations, ...]: what a layer computes."""

    def add_up(
        self,
        index: int,
        merged: MergedRelations,
        relations: Sequence[Relation],
        ready: Mapping[str, Tensor],
        weights: Mapping[Relation, Tensor],
    ) -> Tensor:
        """[sums of all types, ...], of a layer that takes all relations at once and adds them up.

        Parameters
        ----------
        merged: the edges of sums, of ``relations``. ready: by type, [own, ...]. weights: [edges].
        """
        raise NotImplementedError(f"{type(self).__name__} aggregates relation by relation")

    def logits(self, rows: Tensor) -> Tensor:
        """[roots, out], from the last layer's rows of one type."""
        return rows


class OneTypeStack(Stack):
    """Of a model of graphs of one node type.

    Parameters
    ----------
    relation: the one that it reads. in_dim: width of the features.
    """

    reads_features: ClassVar[bool] = True

    def __init__(self, model: GNN, relation: Relation, in_dim: int) -> None:
        self.model: GNN = model
        found = [model.layer(index) for index in range(len(model.layers))]
        self.layers = [
            StackLayer({relation: each}, (relation.dst,), isinstance(each, SumLayer), False)
            for each in found
        ]
        self._type, self.widths = relation.src, {relation.src: in_dim}

    def lone_rows(self) -> list[dict[str, Tensor]]:
        """See :class:`Stack`."""
        parameter = next(self.model.parameters())
        block = _lone_node(parameter.device)
        rows, found = parameter.new_zeros(1, self.widths[self._type]), []
        for index in range(len(self.layers)):
            found.append({self._type: self.model.prepare(index, block.src, rows)})
            rows = self.model.step(index, block, rows)
        return found

    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """See :class:`Stack`: the rows themselves."""
        return x

    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Nodes:
        """See :class:`Stack`; with degrees under the one relation."""
        (block,) = blocks.blocks.values()
        return block.src.first(count)

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """See :class:`Stack`."""
        return self.model.prepare(index, nodes, rows)

    def new_rows(self, index: int, given: LayerInputs) -> dict[str, Tensor]:
        """See :class:`Stack`."""
        ((relation, block),) = given.blocks.blocks.items()
        assert given.projected is not None
        layer, z_src = self.model.layer(index), given.projected[relation]
        h_dst, ready = (rows[self._type][: block.num_dst] for rows in (given.before, given.ready))
        if given.weights is None:
            combined = layer.aggregate(block, z_src, ready)
        else:
            assert isinstance(layer, SumLayer)
            combined = layer.combine(block, z_src, given.weights[relation], ready)
        out = layer.update(ready, combined)
        return {self._type: self.model.finish(index, block.dst, h_dst, out)}


class TypedStack(Stack):
    """Of a model of graphs of several node types."""

    reads_features: ClassVar[bool] = False

    def __init__(self, model: HGNN) -> None:
        self.model: HGNN = model
        self.has_head = model.has_head
        self.widths = {each: model.widths[each] for each in model.types}
        self.layers = []
        for layer in map(model.relation_layer, range(len(model.layers))):
            found = {each: layer.aggregation(each) for each in layer.relations}
            are_sums = all(isinstance(each, SumLayer) for each in found.values())
            adds_up = layer.combination.algebra == "sum" and are_sums
            self.layers.append(StackLayer(found, layer.types, adds_up, layer.merges()))

    def lone_rows(self) -> list[dict[str, Tensor]]:
        """See :class:`Stack`."""
        row = next(self.model.parameters()).new_zeros(1, self.model.hidden)
        return [{each.src: row for each in layer.aggregations} for layer in self.layers]

    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """See :class:`Stack`: the input projection."""
        return self.model.first_rows(node_type, x, len(x))

    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Nodes:
        """See :class:`Stack`."""
        return blocks.nodes[node_type].first(count)

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """See :class:`Stack`."""
        return self.model.drop(index, nodes, rows)

    def new_rows(self, index: int, given: LayerInputs) -> dict[str, Tensor]:
        """See :class:`Stack`."""
        types = [each for each in self.layers[index].types if each in given.before]
        found: dict[str, Tensor] = self.model.relation_layer(index)(
            *(given.blocks, given.ready, types),
            weights=given.weights,
            more=given.more,
            projected=given.projected,
        )
        return found

    def add_up(
        self,
        index: int,
        merged: MergedRelations,
        relations: Sequence[Relation],
        ready: Mapping[str, Tensor],
        weights: Mapping[Relation, Tensor],
    ) -> Tensor:
        """See :class:`Stack`."""
        return self.model.relation_layer(index).aggregate_merged(
            merged, relations, ready, {}, weights
        )

    def logits(self, rows: Tensor) -> Tensor:
        """See :class:`Stack`."""
        out: Tensor = self.model.head(rows)
        return out


def make_stack(
    model: torch.nn.Module, sampler: NeighborSampler, in_dim: int, engine: str = "cooperative"
) -> Stack:
    """The layers of a model.

    Parameters
    ----------
    sampler: of what the model reads.
    in_dim: width of the features, where there is one node type.
    engine: that places the layers, for errors.

    Raises
    ------
    RequestError: the model is no stack of layers, so nothing is known of its parts.
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


def _lone_node(device: torch.device) -> Block:
    none, one = (torch.zeros(n, dtype=torch.int64, device=device) for n in (0, 1))
    node, starts = Nodes("node", one, one), torch.zeros(2, dtype=torch.int64, device=device)
    return Block(1, 1, starts, none, Relation("node", "none", "node"), none, node, node)
