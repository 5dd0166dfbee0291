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
from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import SampledBlock
from hopper.models import GNN
from hopper.models.layer import Layer, SumLayer
from hopper.models.merged import MergedRelations
from hopper.models.relational import HGNN


@dataclass(frozen=True)
class LayerInputs:
    """What one layer makes the new rows of a rank's destinations from.

    Attributes
    ----------
    before: by type, [own, ...], this rank's rows of the layer before.
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
    weights: Mapping[Relation, Tensor] | None
    more: Mapping[str, Tensor] | None


class Stack(ABC):
    """A model in parts that read one row at a time, and those that read edges.

    Attributes
    ----------
    model: what it is of.
    depth: number of layers. types: the node types whose rows enter the first one.
    relations: by layer, in canonical order, those that it reads.
    reads_features: whether the first layer reads input rows as they are, but for dropout.
    """

    reads_features: ClassVar[bool]
    model: torch.nn.Module
    depth: int
    types: tuple[str, ...]
    relations: list[tuple[Relation, ...]]

    @abstractmethod
    def aggregation(self, index: int, relation: Relation) -> Layer:
        """What aggregates one relation in layer ``index``."""

    @abstractmethod
    def adds_up(self, index: int) -> bool:
        """Whether all that a destination reads may be added up where it lives."""

    @abstractmethod
    def merges(self, index: int) -> bool:
        """Whether a layer takes all of its relations at once."""

    @abstractmethod
    def width(self, node_type: str) -> int:
        """The width of a type's input rows."""

    @abstractmethod
    def lone_rows(self) -> list[dict[str, Tensor]]:
        """By layer and source type, [1, ...]: a row as the layer reads it, to learn its shape."""

    @abstractmethod
    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """[n, ...]: the rows that enter the first layer's :meth:`prepare`, from input rows."""

    @abstractmethod
    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Block:
        """A type's first sources as a block without edges: what :meth:`prepare` is keyed by."""

    @abstractmethod
    def prepare(self, index: int, nodes: Block, rows: Tensor) -> Tensor:
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
        """[sums of all types, ...], of a layer that :meth:`merges` and :meth:`adds_up`.

        Parameters
        ----------
        merged: the edges of sums, of ``relations``. ready: by type, [own, ...]. weights: [edges].
        """
        raise NotImplementedError(f"{type(self).__name__} aggregates relation by relation")

    @abstractmethod
    def logits(self, rows: Mapping[str, Tensor]) -> Tensor:
        """[roots, out], from the last layer's rows."""


class OneTypeStack(Stack):
    """Of a model of graphs of one node type.

    Parameters
    ----------
    relation: the one that it reads.
    in_dim: width of the features.
    """

    reads_features: ClassVar[bool] = True

    def __init__(self, model: GNN, relation: Relation, in_dim: int) -> None:
        self.model: GNN = model
        self.depth = len(model.layers)
        self.relations = [(relation,)] * self.depth
        self._type, self._in_dim = relation.src, in_dim
        self.types = (relation.src,)

    def aggregation(self, index: int, relation: Relation) -> Layer:
        """See :class:`Stack`."""
        return self.model.layer(index)

    def adds_up(self, index: int) -> bool:
        """See :class:`Stack`."""
        return isinstance(self.model.layer(index), SumLayer)

    def merges(self, index: int) -> bool:
        """See :class:`Stack`."""
        return False

    def width(self, node_type: str) -> int:
        """See :class:`Stack`."""
        return self._in_dim

    def lone_rows(self) -> list[dict[str, Tensor]]:
        """See :class:`Stack`."""
        parameter = next(self.model.parameters())
        block = _lone_node(parameter.device)
        rows, found = parameter.new_zeros(1, self._in_dim), []
        for index in range(self.depth):
            found.append({self._type: self.model.prepare(index, block, rows)})
            rows = self.model.step(index, block, rows)
        return found

    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """See :class:`Stack`."""
        return x

    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Block:
        """See :class:`Stack`; degrees are at hand too."""
        (block,) = blocks.blocks.values()
        assert isinstance(block, SampledBlock)
        return block.sources_alone(count)

    def prepare(self, index: int, nodes: Block, rows: Tensor) -> Tensor:
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
        return {self._type: self.model.finish(index, block, h_dst, out)}

    def logits(self, rows: Mapping[str, Tensor]) -> Tensor:
        """See :class:`Stack`."""
        return rows[self._type]


class TypedStack(Stack):
    """Of a model of graphs of several node types."""

    reads_features: ClassVar[bool] = False

    def __init__(self, model: HGNN) -> None:
        self.model: HGNN = model
        self.depth, self.types = len(model.layers), model.types
        self.relations = [model.relation_layer(index).relations for index in range(self.depth)]

    def aggregation(self, index: int, relation: Relation) -> Layer:
        """See :class:`Stack`."""
        return self.model.relation_layer(index).aggregation(relation)

    def adds_up(self, index: int) -> bool:
        """See :class:`Stack`."""
        layer = self.model.relation_layer(index)
        return layer.combination.algebra == "sum" and all(
            isinstance(layer.aggregation(each), SumLayer) for each in layer.relations
        )

    def merges(self, index: int) -> bool:
        """See :class:`Stack`."""
        return self.model.relation_layer(index).merges()

    def width(self, node_type: str) -> int:
        """See :class:`Stack`."""
        return self.model.widths[node_type]

    def lone_rows(self) -> list[dict[str, Tensor]]:
        """See :class:`Stack`."""
        row = next(self.model.parameters()).new_zeros(1, self.model.hidden)
        return [{each.src: row for each in read} for read in self.relations]

    def enter(self, node_type: str, x: Tensor) -> Tensor:
        """See :class:`Stack`: the input projection."""
        return self.model.first_rows(node_type, x, len(x))

    def nodes(self, blocks: TypedBlocks, node_type: str, count: int) -> Block:
        """See :class:`Stack`."""
        return blocks.nodes(node_type, count)

    def prepare(self, index: int, nodes: Block, rows: Tensor) -> Tensor:
        """See :class:`Stack`."""
        return self.model.drop(index, nodes, rows)

    def new_rows(self, index: int, given: LayerInputs) -> dict[str, Tensor]:
        """See :class:`Stack`."""
        found: dict[str, Tensor] = self.model.relation_layer(index)(
            given.blocks,
            given.ready,
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
        return self.model.relation_layer(index).merged(merged, relations, ready, {}, weights)

    def logits(self, rows: Mapping[str, Tensor]) -> Tensor:
        """See :class:`Stack`."""
        out: Tensor = self.model.head(rows[self.model.target])
        return out


def make_stack(model: torch.nn.Module, sampler: NeighborSampler, in_dim: int) -> Stack:
    """The layers of a model.

    Parameters
    ----------
    sampler: of what the model reads.
    in_dim: width of the features, where there is one node type.

    Raises
    ------
    RequestError: the model is no stack of layers, so nothing is known of its parts.
    """
    if isinstance(model, HGNN):
        return TypedStack(model)
    if not isinstance(model, GNN):
        raise RequestError(
            f"train.engine: cooperative places the parts of layers on different ranks; expected a "
            f"hopper.models.gnn.GNN, given {type(model).__name__} with only a forward(), which "
            "model_centric, hop and zero_hop train"
        )
    (relation,) = sampler.topologies
    return OneTypeStack(model, relation, in_dim)


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
