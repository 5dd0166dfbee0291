"""How rows that a layer reads of other ranks travel: as they are, projected, or added up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hopper.graph.schema import Relation
from hopper.partials.stack import Stack


class Sums(NamedTuple):
    """The kind of rows that are partial sums for the destinations of a type."""

    node_type: str


RowKind = str | Relation
"""A node type stands for its rows as layers read them, a relation for its projected rows."""
Kind = RowKind | Sums
"""All kinds of rows that travel."""


def source_type(kind: RowKind) -> str:
    """Return the node type that rows of a kind belong to."""
    return kind.src if isinstance(kind, Relation) else kind


@dataclass(frozen=True)
class RowLayout:
    """The shape of the rows of one kind."""

    shape: tuple[int, ...]
    row_bytes: int
    """bytes of a row and, if it travels back, of its gradient"""
    has_gradient: bool
    """whether the gradient travels back"""


@dataclass(frozen=True)
class LayerTransfer:
    """The kinds of rows that one layer reads of other ranks.

    A type's rows travel as they are, or projected by each relation that reads them. Sums replace
    either where they take fewer bytes.
    """

    layouts: Mapping[Kind, RowLayout]
    """by kind, in the order in which ranks send them"""
    raw: frozenset[str]
    """types whose input rows travel unchanged, and are entered by the receiving rank"""
    added_as_read: frozenset[str]
    """types of destinations whose sums are made of rows before their projection"""
    merged: bool
    """whether the layer takes all of its relations at once, as it may if no rows arrive projected;
    received sums are then added to the layer's result"""
    item_bytes: int
    """bytes of the weight of an edge"""

    def kind_of(self, relation: Relation) -> RowKind:
        """Return the kind of the rows that travel for a relation."""
        return relation if relation in self.layouts else relation.src


@torch.no_grad()
def choose_transfers(
    stack: Stack,
    travels_as: torch.dtype | None = None,
    *,
    gradients: bool = True,
    learned: Collection[str] = (),
) -> list[LayerTransfer]:
    """Choose, layer by layer, the rows that take the fewest bytes, both ways together.

    Features have no gradient and travel one way only, ahead of the iteration, unless the rows of
    their type are ``learned`` too. At equal bytes they travel unchanged, not as the first layer
    reads them. For other rows, at equal bytes, the owner projects them once for all readers, unless
    the layer takes all relations at once. Rows travel in their own dtype unless another is given.
    """
    parameter = next(stack.model.parameters())
    size = (travels_as or parameter.dtype).itemsize

    def lay_out(row: Tensor, has_gradient: bool) -> RowLayout:
        goes_back = has_gradient and gradients
        return RowLayout(tuple(row.shape[1:]), (1 + goes_back) * row.numel() * size, goes_back)

    def choose(index: int, rows: Mapping[str, Tensor]) -> LayerTransfer:
        layer, layouts, raw = stack.layers[index], dict[Kind, RowLayout](), set[str]()
        projected_rows = {
            relation: aggregation.project(rows[relation.src])
            for relation, aggregation in layer.aggregations.items()
        }
        projected = {relation: lay_out(row, True) for relation, row in projected_rows.items()}
        ready = {
            name: lay_out(row, index > 0 or not stack.reads_features or name in learned)
            for name, row in rows.items()
        }
        for name in sorted(rows):
            fewest = ready[name]
            if index == 0 and not stack.reads_features and name not in learned:
                features = lay_out(rows[name].new_empty(1, stack.widths[name]), False)
                fewest = min(features, fewest, key=lambda layout: layout.row_bytes)
            readers = [relation for relation in layer.aggregations if relation.src == name]
            # Where the layer takes all relations at once, rows of the same size are no gain.
            most = fewest.row_bytes - (layer.merged is not None)
            is_narrower = sum(projected[relation].row_bytes for relation in readers) <= most
            if is_narrower and all(projected_rows[r] is not rows[name] for r in readers):
                layouts |= {relation: projected[relation] for relation in readers}
            else:
                layouts[name] = fewest
                raw |= {name} if fewest is not ready[name] else set()
        merged = layer.merged is not None and all(isinstance(kind, str) for kind in layouts)
        as_read = set()
        for name in sorted({r.dst for r in layer.aggregations} if layer.adds_up else ()):
            first, *more = (relation for relation in layer.aggregations if relation.dst == name)
            before, after = ready[first.src], projected[first]
            if before.row_bytes < after.row_bytes and not more and not merged:
                as_read.add(name)
            layouts[Sums(name)] = before if name in as_read else after
        return LayerTransfer(
            layouts, frozenset(raw), frozenset(as_read), merged, parameter.itemsize
        )

    was_training = stack.model.training
    stack.model.eval()
    try:
        return [choose(index, rows) for index, rows in enumerate(stack.lone_rows())]
    finally:
        stack.model.train(was_training)
