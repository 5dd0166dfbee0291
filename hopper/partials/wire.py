"""The forms in which a layer's rows may travel: before or after projection, alone or added up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

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
    """The node type that rows of a kind belong to."""
    return kind.src if isinstance(kind, Relation) else kind


@dataclass(frozen=True)
class Form:
    """How rows of one kind travel.

    Attributes
    ----------
    shape: shape of a row.
    row_bytes: bytes of a row and, if it travels back, of its gradient.
    has_gradient: whether the gradient travels back.
    """

    shape: tuple[int, ...]
    row_bytes: int
    has_gradient: bool

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Wires:
    """How the rows that one layer reads of other ranks may travel.

    Attributes
    ----------
    forms: by kind, in the order in which ranks send them. If a type may travel both unprojected and
        projected, each rank's rows take the form of fewer bytes. Sums replace either where they
        take fewer bytes.
    raw: types whose input rows travel unchanged; the receiving rank enters them into the first
        layer.
    added_as_read: by type of destination, the only relation into it, where sums are made of rows
        before their projection.
    merged: whether the layer takes all of its relations at once. It does so if no rows arrive
        projected. Received sums are then added to the layer's result.
    made_first: types whose wide input rows are multiplied before they can be sent. The rows that
        others wait for are made before the rest.
    item_bytes: bytes of the weight of an edge.
    """

    forms: Mapping[Kind, Form]
    raw: frozenset[str]
    added_as_read: Mapping[str, Relation]
    merged: bool
    made_first: frozenset[str]
    item_bytes: int

    @property
    def never_awaited(self) -> frozenset[str]:
        """Types whose rows other ranks never wait for, since only raw input rows travel."""
        has_sums = any(isinstance(kind, Sums) for kind in self.forms)
        return self.raw if self.merged and not has_sums else frozenset()

    def kinds(self, *, has_gradient: bool) -> list[Kind]:
        """The kinds that travel with a gradient, or those without, in order."""
        return [kind for kind, form in self.forms.items() if form.has_gradient == has_gradient]


@torch.no_grad()
def choose_wires(
    stack: Stack,
    travels_as: torch.dtype | None = None,
    *,
    gradients: bool = True,
    learned: Collection[str] = (),
) -> list[Wires]:
    """Choose, layer by layer, the forms that can take the fewest bytes, both ways together.

    Features have no gradient and travel one way only, ahead of the iteration. At equal bytes they
    travel unchanged, not in the form that the first layer reads. For other rows, at equal bytes,
    the owner projects them once for all readers, unless the layer takes all relations at once.

    Parameters
    ----------
    travels_as: dtype of rows on the network; None = the dtype of the parameters.
    gradients: whether gradients travel back.
    learned: types whose input rows are learned, so that their gradients travel back too.
    """
    parameter = next(stack.model.parameters())
    size = (travels_as or parameter.dtype).itemsize
    was_training = stack.model.training
    stack.model.eval()
    try:
        return [
            _choose(stack, index, rows, _Bytes(size, gradients), learned, parameter.itemsize)
            for index, rows in enumerate(stack.lone_rows())
        ]
    finally:
        stack.model.train(was_training)


@dataclass(frozen=True)
class _Bytes:
    size: int
    gradients: bool

    def form(self, row: torch.Tensor, has_gradient: bool) -> Form:
        """The form of rows that have the shape of an example, [1, ...]."""
        goes_back = has_gradient and self.gradients
        ways = 2 if goes_back else 1
        return Form(tuple(row.shape[1:]), ways * row.numel() * self.size, goes_back)


def _choose(
    stack: Stack,
    index: int,
    rows: Mapping[str, torch.Tensor],
    count: _Bytes,
    learned: Collection[str],
    item_bytes: int,
) -> Wires:
    """Choose the forms of one layer.

    Parameters
    ----------
    rows: by type, [1, ...], an example of the rows that the layer reads.
    """
    layer = stack.layers[index]
    relations, merges = list(layer.aggregations), layer.merges
    ready = {
        name: count.form(row, index > 0 or not stack.reads_features or name in learned)
        for name, row in rows.items()
    }
    unprojected = dict(ready)
    if index == 0 and not stack.reads_features:
        for name in set(rows) - set(learned):
            features = count.form(rows[name].new_empty(1, stack.widths[name]), False)
            if features.row_bytes <= ready[name].row_bytes:
                unprojected[name] = features
    projected_rows = {
        relation: aggregation.project(rows[relation.src])
        for relation, aggregation in layer.aggregations.items()
    }
    projected = {relation: count.form(row, True) for relation, row in projected_rows.items()}
    changed = {
        relation for relation, row in projected_rows.items() if row is not rows[relation.src]
    }
    forms: dict[Kind, Form] = {}
    for name in sorted(rows):
        # Where the layer takes all relations at once, rows of the same size are no gain.
        most = unprojected[name].row_bytes - merges
        read_by = [relation for relation in relations if relation.src == name]
        narrow = [
            relation
            for relation in read_by
            if relation in changed and projected[relation].row_bytes <= most
        ]
        if len(narrow) == len(read_by):
            forms |= {relation: projected[relation] for relation in read_by}
        if len(narrow) < len(read_by) or len(read_by) > 1:
            forms[name] = unprojected[name]
    merged = merges and all(isinstance(kind, str) for kind in forms)
    added_as_read = {}
    for name in sorted({relation.dst for relation in relations}) if layer.adds_up else []:
        first, *others = (relation for relation in relations if relation.dst == name)
        before, after = ready[first.src], projected[first]
        is_smaller = first not in changed or before.row_bytes < after.row_bytes
        if is_smaller and not others and not merged:
            added_as_read[name] = first
        forms[Sums(name)] = before if name in added_as_read else after
    raw = frozenset(name for name, form in unprojected.items() if form is not ready[name])
    raw &= forms.keys()
    multiplied = {
        source_type(kind)
        for kind in forms
        if isinstance(kind, Relation)
        or (isinstance(kind, str) and kind not in raw and not stack.reads_features)
    }
    made_first = frozenset(multiplied if index == 0 else ())
    return Wires(forms, raw, added_as_read, merged, made_first, item_bytes)
