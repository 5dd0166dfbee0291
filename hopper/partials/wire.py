"""What may travel for a layer: rows before or after its projection, alone or added up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from hopper.graph.schema import Relation
from hopper.partials.stack import Stack


class Sums(NamedTuple):
    """Partial sums for the destinations of a type: what of it names a kind of rows."""

    node_type: str


RowKind = str | Relation
"""a node type, whose rows are as layers read them, or a relation, whose rows are projected"""
Kind = RowKind | Sums
"""what travels"""


def source_type(kind: RowKind) -> str:
    """The type of nodes whose rows are of a kind."""
    return kind.src if isinstance(kind, Relation) else kind


@dataclass(frozen=True)
class Form:
    """How rows of one kind travel.

    Attributes
    ----------
    shape: of a row.
    row_bytes: of a row and, where that travels back, of its gradient.
    has_gradient: whether it does.
    """

    shape: tuple[int, ...]
    row_bytes: int
    has_gradient: bool

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return prod(self.shape)


@dataclass(frozen=True)
class Wires:
    """How the rows that one layer reads of other ranks may travel.

    Attributes
    ----------
    forms: by kind, in the order in which ranks send them. A type that has both a kind of its own
        and its relations' projected rows takes whichever is fewer bytes, rank by rank. Sums take
        the place of both where they are fewer bytes.
    raw: types whose input rows travel; the rank that reads them enters them into the first layer.
    added_as_read: by type of destination, the one relation into it, of which sums are made of rows
        before their projection.
    merged: whether the layer takes all of its relations at once, which it does if none of its rows
        come projected; sums that come are then added behind it.
    made_first: types of which wide input rows are multiplied before they can go out. Those that
        others wait for are made before the rest.
    item_bytes: of the weight of an edge.
    """

    forms: Mapping[Kind, Form]
    raw: frozenset[str]
    added_as_read: Mapping[str, Relation]
    merged: bool
    made_first: frozenset[str]
    item_bytes: int

    @property
    def never_awaited(self) -> frozenset[str]:
        """Types of which other ranks wait for no row that is made of input rows, nor for sums."""
        has_sums = any(isinstance(kind, Sums) for kind in self.forms)
        return self.raw if self.merged and not has_sums else frozenset()

    def kinds(self, *, has_gradient: bool) -> list[Kind]:
        """Those that travel with a gradient, or without, in order."""
        return [kind for kind, form in self.forms.items() if form.has_gradient == has_gradient]


@torch.no_grad()
def choose_wires(
    stack: Stack,
    travels_as: torch.dtype | None = None,
    *,
    gradients: bool = True,
    learned: Collection[str] = (),
) -> list[Wires]:
    """The forms that can be the cheapest, layer by layer, in bytes there and back.

    Features have no gradient, and cross one way only, ahead of the iteration; at equal bytes they
    travel as they are rather than made into what the first layer reads. Otherwise the owner
    projects at equal bytes, once for all that read the row, unless the layer takes all relations at
    once.

    Parameters
    ----------
    travels_as: what rows are on the wire; None = what parameters are.
    gradients: whether they travel back.
    learned: types whose input rows are learned, so that their gradients go back too.
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
        """Of rows that are like one, [1, ...]."""
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
    """Those of one layer, which reads rows like these, [1, ...]."""
    layer = stack.layers[index]
    relations, merges = list(layer.aggregations), layer.merges
    ready = {
        each: count.form(row, index > 0 or not stack.reads_features or each in learned)
        for each, row in rows.items()
    }
    as_rows = dict(ready)
    if index == 0 and not stack.reads_features:
        for each in set(rows) - set(learned):
            features = count.form(rows[each].new_empty(1, stack.widths[each]), False)
            if features.row_bytes <= ready[each].row_bytes:
                as_rows[each] = features
    made = {each: own.project(rows[each.src]) for each, own in layer.aggregations.items()}
    projected = {each: count.form(row, True) for each, row in made.items()}
    changed = {each for each, row in made.items() if row is not rows[each.src]}
    forms: dict[Kind, Form] = {}
    for name in sorted(rows):
        # Where the layer takes all relations at once, rows of the same size are no gain.
        most = as_rows[name].row_bytes - merges
        read_by = [each for each in relations if each.src == name]
        narrow = [each for each in read_by if each in changed and projected[each].row_bytes <= most]
        if len(narrow) == len(read_by):
            forms |= {each: projected[each] for each in read_by}
        if len(narrow) < len(read_by) or len(read_by) > 1:
            forms[name] = as_rows[name]
    merged = merges and all(isinstance(each, str) for each in forms)
    added_as_read = {}
    for name in sorted({each.dst for each in relations}) if layer.adds_up else []:
        first, *others = (each for each in relations if each.dst == name)
        before, after = ready[first.src], projected[first]
        is_smaller = first not in changed or before.row_bytes < after.row_bytes
        if is_smaller and not others and not merged:
            added_as_read[name] = first
        forms[Sums(name)] = before if name in added_as_read else after
    raw = (
        frozenset(each for each, form in as_rows.items() if form is not ready[each]) & forms.keys()
    )
    multiplied = {
        source_type(kind)
        for kind in forms
        if isinstance(kind, Relation)
        or (isinstance(kind, str) and kind not in raw and not stack.reads_features)
    }
    made_first = frozenset(multiplied if index == 0 else ())
    return Wires(forms, raw, added_as_read, merged, made_first, item_bytes)
