"""Models of typed graphs: a stack of :class:`hopper.models.relation_layer.RelationLayer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from hopper.errors import RequestError
from hopper.graph.block import Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.models.layer import init_linears
from hopper.models.relation_layer import MergedLayer, RelationLayer
from hopper.models.typed_rows import TypedRows, lay_out_destinations
from hopper.ops import drop_rows, in_full
from hopper.ops.dropout import drop_rows_of_types, keys_of_types

NO_EDGES: Final[Mapping[Relation, int]] = {}
"""The widths of features of edges in a model that reads none."""


class HGNN(nn.Module):
    """A stack of relational layers after an input projection for each node type.

    Parameters
    ----------
    target: the type of the roots.
    inputs: by type, the width of its features, for all types that the first layer reads.
    hidden: the width to which all types are projected.
    layers: the layers, in order of computation. Without a ``head``, the last one's rows of the
        target are the logits.
    head: the module that makes logits of the last layer's rows.
    dropout: the probability in [0, 1) of dropping input rows of every layer, keyed by type and
        node.
    projects: whether there are input projections. Without them input rows are ``hidden`` wide.
    """

    reads_types: ClassVar[bool] = True
    """whether a class reads graphs of several node types, which the configuration checks"""

    def __init__(
        self,
        target: str,
        inputs: Mapping[str, int],
        hidden: int,
        layers: Sequence[RelationLayer],
        head: nn.Module | None = None,
        dropout: float = 0.0,
        projects: bool = True,
    ) -> None:
        super().__init__()
        self.target = target
        self.hidden = hidden
        self.types = tuple(sorted(inputs))
        self.widths = dict(inputs)
        self._place = {node_type: place for place, node_type in enumerate(self.types)}
        self.inputs = nn.ModuleList(
            nn.Linear(inputs[node_type], hidden) if projects else nn.Identity()
            for node_type in self.types
        )
        self.layers = nn.ModuleList(layers)
        self.head = head if head is not None else nn.Identity()
        self.dropout = dropout
        init_linears(self.inputs)

    @property
    def has_head(self) -> bool:
        """Return whether a head makes the logits, and not the last layer."""
        return not isinstance(self.head, nn.Identity)

    def forward(self, blocks: Sequence[TypedBlocks], x: Mapping[str, Tensor]) -> Tensor:
        """Return the logits [num roots, out] of destinations of the target type.

        Arguments and errors are those of :meth:`rows`.
        """
        return self.head(self.rows(blocks, x)[self.target])

    def rows(self, blocks: Sequence[TypedBlocks], x: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the last layer's rows [n, width] of the last hop's destinations, by type.

        Parameters
        ----------
        blocks: the hops, in order of computation. The destinations of each are the sources of the
            next.
        x: by type, the input rows [sources of the first hop, in]. Types without rows may be
            missing.

        Raises
        ------
        RequestError: the number of hops or of rows does not fit. The message names the type.
        """
        if len(blocks) != len(self.layers):
            raise RequestError(
                f"{type(self).__name__}: expected {len(self.layers)} hops, one per layer; given "
                f"{len(blocks)}"
            )
        h = self.enter(x, blocks[0].sources)
        for index, (layer, hop) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(hop, self.drop_all(index, hop, h))
        return h

    def lay_out(self, blocks: Sequence[TypedBlocks]) -> None:
        """Prepare the edges of all hops, in order of computation, ahead of the passes of training
        that compute on them."""
        names: Sequence[str] = self.types
        for index, hop in enumerate(blocks):
            types = self.relation_layer(index).types
            self.lay_out_layer(index, hop, names, types)
            names = types

    def lay_out_layer(
        self, index: int, hop: TypedBlocks, names: Sequence[str], types: Sequence[str]
    ) -> None:
        """Prepare the edges of a hop from rows of types ``names`` into ``types``, both ascending,
        ahead of the layer that computes on them."""
        layer = self.layers[index]
        if isinstance(layer, MergedLayer) and names:
            if relations := layer.relations_into(types, hop):
                layer.lay_out(hop, relations, types)
                lay_out_destinations(hop, names, types, next(self.parameters()).device)
            if self.dropout:
                keys_of_types(hop, names, index)

    def enter(self, x: Mapping[str, Tensor], counts: Mapping[str, int]) -> Mapping[str, Tensor]:
        """Return the rows [n, hidden] that the first layer reads, of those types that have counts,
        from input rows [n, in] by type. Types without rows may be missing."""
        # The last rows of x may still be on their way, so they are read in its order.
        order = [name for name in dict.fromkeys((*x, *self.types)) if name in self._place]
        names = [name for name in order if name in counts]
        first = {name: self.first_rows(name, x.get(name), counts[name]) for name in names}
        h = {name: first[name] for name in self.types if name in first}
        return TypedRows.join(h) if h and isinstance(self.layers[0], MergedLayer) else h

    def first_rows(self, node_type: str, x: Tensor | None, count: int) -> Tensor:
        """Project a type's input rows [count, in] to [count, hidden]; None = there are none. A
        RequestError names a type whose rows have another shape."""
        parameter = next(self.parameters())
        rows = parameter.new_empty(0, self.widths[node_type]) if x is None else x
        expected = (count, self.widths[node_type])
        if rows.shape != expected:
            raise RequestError(
                f"{type(self).__name__}: {node_type}: expected rows {list(expected)}, given "
                f"{list(rows.shape)}"
            )
        return in_full(self.input_of(node_type)(rows.to(parameter.dtype)))

    def input_of(self, node_type: str) -> nn.Module:
        """Return a type's input projection."""
        return self.inputs[self._place[node_type]]

    def drop_all(
        self, index: int, hop: TypedBlocks, h: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Apply dropout, in training, to the rows that a layer reads, by type."""
        if not self.training or self.dropout == 0.0:
            return h
        if isinstance(h, TypedRows):
            return h.replace(drop_rows_of_types(hop, list(h), h.matrix, self.dropout, index))
        return {name: self.drop(index, hop.nodes[name], rows) for name, rows in h.items()}

    def drop(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """Apply dropout, in training, to the rows [n, hidden] of a type that a layer reads."""
        if not self.training or self.dropout == 0.0:
            return rows
        # The key contains the type, since nodes of two types may have the same id.
        return drop_rows(nodes, rows, self.dropout, index)

    def rename(
        self,
        types: Mapping[str, str],
        relations: Mapping[Relation, Relation],
        reads: Sequence[tuple[Sequence[Relation], Sequence[str]]],
    ) -> None:
        """Give types and relations other names: by new name, the old one whose parameters it uses.
        Several new names may use the same. The target keeps its name.

        ``reads`` has by layer, in order of computation, the new names of the relations that it
        aggregates and of the types of its destinations.
        """
        self.widths = {new: self.widths[old] for new, old in types.items()}
        self._place = {new: self._place[old] for new, old in types.items()}
        self.types = tuple(sorted(types))
        for index, (read, destinations) in enumerate(reads):
            self.relation_layer(index).rename(
                {name: relations[name] for name in read},
                {name: types[name] for name in destinations},
            )

    def relation_layer(self, index: int) -> RelationLayer:
        """Return one of the layers."""
        layer = self.layers[index]
        assert isinstance(layer, RelationLayer)
        return layer

    def root_layers(self, node_type: str | None = None) -> list[RelationLayer]:
        """Return the layers that compute rows of roots, which are of the target type, or of
        another.

        They are the last layer, and each earlier layer whose next layer reads its destinations.
        """
        layers: list[RelationLayer] = []
        for index in reversed(range(len(self.layers))):
            layer = self.relation_layer(index)
            layers.insert(0, layer)
            if not layer.reads_destination(node_type or self.target):
                break
        return layers


def run_model(
    model: nn.Module,
    blocks: Sequence[TypedBlocks],
    inputs: Mapping[str, Tensor],
    types: Sequence[str] = (),
) -> Tensor:
    """Run a model of one node type or of several, and return its logits [num roots, out].

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


def make_head(hidden: int, out_dim: int) -> nn.Linear:
    """Make a linear classifier."""
    head = nn.Linear(hidden, out_dim)
    init_linears([head])
    return head
