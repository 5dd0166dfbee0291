"""The forms in which a layer's rows may travel: before or after projection, alone or added up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from hopper.graph.schema import Relation
from hopper.partials.stack import Stack, StackLayer


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
class Form:
    """The form in which rows of one kind travel.

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
        """The number of elements in a row."""
        return prod(self.shape)


@dataclass(frozen=True)
class Wires:
    """The forms in which the rows that one layer reads of other ranks may travel.

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
        """Return the kinds that travel with a gradient, or those without, in order."""
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
    if was_training:
        stack.model.eval()
    try:
        return [
            _choose(stack, index, rows, _Bytes(size, gradients), learned, parameter.itemsize)
            for index, rows in enumerate(stack.lone_rows())
        ]
    finally:
        if was_training:
            stack.model.train()


@dataclass(frozen=True)
class _Bytes:
    size: int
    gradients: bool

    def form(self, row: torch.Tensor, has_gradient: bool) -> Form:
        """Return the form of rows that have the shape of an example, [1, ...]."""
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
    candidates = _find_candidates(stack, index, rows, count, learned)
    forms = _choose_row_forms(layer, candidates)
    merged = layer.merges and all(isinstance(kind, str) for kind in forms)
    into: dict[str, list[Relation]] = {}
    for relation in layer.aggregations if layer.adds_up else ():
        into.setdefault(relation.dst, []).append(relation)
    added_as_read = {}
    for name, relations in sorted(into.items()):
        first = relations[0]
        before, after = candidates.ready[first.src], candidates.projected[first]
        is_smaller = first not in candidates.changed or before.row_bytes < after.row_bytes
        if is_smaller and len(relations) == 1 and not merged:
            added_as_read[name] = first
        forms[Sums(name)] = before if name in added_as_read else after
    raw = candidates.raw & forms.keys()
    multiplied = {
        source_type(kind)
        for kind in forms
        if isinstance(kind, Relation)
        or (isinstance(kind, str) and kind not in raw and not stack.reads_features)
    }
    made_first = frozenset(multiplied if index == 0 else ())
    return Wires(forms, raw, added_as_read, merged, made_first, item_bytes)


@dataclass(frozen=True)
class _Candidates:
    """The forms that the rows of one layer could take.

    Attributes
    ----------
    ready: by type, rows as the layer reads them.
    unprojected: by type, the same rows, or input rows as they are where those are no larger.
    projected: by relation, rows after projection.
    changed: the relations whose projection changes rows.
    """

    ready: Mapping[str, Form]
    unprojected: Mapping[str, Form]
    projected: Mapping[Relation, Form]
    changed: frozenset[Relation]

    @property
    def raw(self) -> frozenset[str]:
        """The types whose unprojected rows are input rows as they are."""
        return frozenset(
            name for name, form in self.unprojected.items() if form is not self.ready[name]
        )


def _find_candidates(
    stack: Stack,
    index: int,
    rows: Mapping[str, torch.Tensor],
    count: _Bytes,
    learned: Collection[str],
) -> _Candidates:
    """Find the forms that the rows of one layer could take; parameters as of :func:`_choose`."""
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
        for relation, aggregation in stack.layers[index].aggregations.items()
    }
    projected = {relation: count.form(row, True) for relation, row in projected_rows.items()}
    changed = frozenset(
        relation for relation, row in projected_rows.items() if row is not rows[relation.src]
    )
    return _Candidates(ready, unprojected, projected, changed)


def _choose_row_forms(layer: StackLayer, candidates: _Candidates) -> dict[Kind, Form]:
    """Choose, type by type, whether rows may travel before projection, after it, or both ways."""
    forms: dict[Kind, Form] = {}
    for name in sorted(candidates.unprojected):
        # Where the layer takes all relations at once, rows of the same size are no gain.
        most = candidates.unprojected[name].row_bytes - layer.merges
        readers = [relation for relation in layer.aggregations if relation.src == name]
        narrow = [
            relation
            for relation in readers
            if relation in candidates.changed and candidates.projected[relation].row_bytes <= most
        ]
        if len(narrow) == len(readers):
            forms |= {relation: candidates.projected[relation] for relation in readers}
        if len(narrow) < len(readers) or len(readers) > 1:
            forms[name] = candidates.unprojected[name]
    return forms
