"""A rank's own rows as a layer reads them. The rows that other ranks wait for are made first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hopper.graph.schema import Relation
from hopper.models.gnn import expect_own
from hopper.ops import StoredRows, in_full
from hopper.partials.join_parts import join_parts
from hopper.partials.plan import LayerPlan
from hopper.partials.stack import Stack
from hopper.partials.wire import Wires

Rows = Mapping[str, Tensor]
"""Rows by node type."""


@dataclass(frozen=True)
class OwnRows:
    """All own rows of a layer, or some of them.

    Attributes
    ----------
    before: by type, [n, ...], rows of the layer before, or input rows as they enter the first one.
    ready: by type, [n, ...], the same rows as the layer reads them.
    projected: by relation whose rows may travel projected, [n, ...].
    """

    before: Rows
    ready: Rows
    projected: Mapping[Relation, Tensor]


class OwnLayer:
    """Makes the own rows of one layer in one iteration, in two steps.

    The rows that other ranks wait for come first. The rest can be made while those travel.

    Parameters
    ----------
    rows: by type, [own, ...], rows of the layer before; input rows for the first layer.

    Attributes
    ----------
    before, ready: the fields of :class:`OwnRows` for all own rows; filled by :meth:`make_rest`.
    """

    def __init__(self, stack: Stack, wires: Wires, index: int, plan: LayerPlan, rows: Rows) -> None:
        self._stack, self._wires = stack, wires
        self._index, self._plan, self._rows = index, plan, rows
        self._awaited = self._rest = OwnRows({}, {}, {})
        self._unawaited = wires.never_awaited & rows.keys()
        self.before: Rows = {}
        self.ready: Rows = {}

    def make_awaited(self) -> OwnRows:
        """Make the rows that other ranks wait for.

        Of a type that is not split, these are all rows, or none if no rank ever waits for any.
        """
        splits = self._plan.splits
        self._awaited = self._make(
            {
                name: splits[name].awaited if name in splits else None
                for name in self._rows
                if name not in self._unawaited
            }
        )
        return self._awaited

    def make_rest(self) -> None:
        """Make the rows that no rank waits for."""
        splits = self._plan.splits
        chosen: dict[str, Tensor | None] = dict.fromkeys(sorted(self._unawaited))
        self._rest = self._make(chosen | {name: split.rest for name, split in splits.items()})
        before, ready = {}, {}
        for name in self._rows:
            rows = self._rest if name in self._unawaited else self._awaited
            before[name], ready[name] = rows.before[name], rows.ready[name]
            if name in splits:
                before[name], ready[name] = self._join_split(name)
        self.before, self.ready = before, ready

    def is_projected(self, relation: Relation) -> bool:
        """Return whether a relation's own rows have been projected."""
        return relation in self._awaited.projected

    def join_projected(self, relation: Relation, others: Sequence[Tensor]) -> Tensor:
        """Return [n, ...]: a relation's projected rows, own ones first.

        Parameters
        ----------
        others: the projected rows that follow them, in order.
        """
        awaited = self._awaited.projected[relation]
        split = self._plan.splits.get(relation.src)
        if split is None:
            return join_parts([awaited, *others])
        return join_parts([awaited, self._rest.projected[relation], *others], split.places)

    def _join_split(self, name: str) -> tuple[Tensor, Tensor]:
        """Return [own, ...]: all rows of a split type, before the layer and as it reads them."""
        split = self._plan.splits[name]
        parts = [half.ready[name] for half in (self._awaited, self._rest)]
        if isinstance(parts[0], StoredRows):
            before = self._stack.enter(name, self._rows[name])
            ready = self._prepare(name, None, before)
            self._supply_products(name, ready)
            return before, ready
        ready = join_parts(parts, split.places)
        if self._awaited.before[name] is parts[0]:
            return ready, ready
        parts = [half.before[name] for half in (self._awaited, self._rest)]
        return join_parts(parts, split.places), ready

    def _make(self, chosen: Mapping[str, Tensor | None]) -> OwnRows:
        """Make some of the own rows.

        Parameters
        ----------
        chosen: by type, [n] int64 ascending, the rows to make; None = all.
        """
        stack, index, plan = self._stack, self._index, self._plan
        before, ready = {}, {}
        for name, places in chosen.items():
            rows = self._rows[name]
            if places is not None and isinstance(rows, StoredRows):
                rows = rows.pick(places)
            elif places is not None:
                rows = rows.index_select(0, places)
            before[name] = stack.enter(name, rows) if index == 0 else rows
            ready[name] = self._prepare(name, places, before[name])
        aggregations = {
            relation: aggregation
            for relation, aggregation in stack.layers[index].aggregations.items()
            if relation.src in chosen
        }
        for relation, aggregation in aggregations.items():
            count = plan.blocks.destinations[relation.dst]
            destinations = _count_below(count, chosen[relation.src])
            expect_own(aggregation, ready[relation.src], destinations)
        projected = {
            relation: in_full(aggregation.project(ready[relation.src]))
            for relation, aggregation in aggregations.items()
            if relation in self._wires.forms and not self._wires.merged
        }
        return OwnRows(before, ready, projected)

    def _prepare(self, name: str, places: Tensor | None, rows: Tensor) -> Tensor:
        """Return [n, ...]: rows of a type as the layer reads them.

        Parameters
        ----------
        places: [n], the numbers of these own rows; None = all.
        """
        nodes = self._plan.own[name]
        return self._stack.prepare(
            self._index, nodes if places is None else nodes.pick(places), rows
        )

    def _supply_products(self, name: str, ready: Tensor) -> None:
        """Give stored rows the products that were computed from their two parts.

        A layer then does not multiply its destinations, which are among the sources, again.
        """
        first, second = (half.ready[name] for half in (self._awaited, self._rest))
        assert isinstance(ready, StoredRows)
        assert isinstance(first, StoredRows)
        assert isinstance(second, StoredRows)
        second_products = {id(weight): product for weight, product in second.products()}
        for weight, product in first.products():
            if id(weight) in second_products:
                parts = [product, second_products[id(weight)]]
                split_places = self._plan.splits[name].places
                places = [rows[: len(part)] for rows, part in zip(split_places, parts, strict=True)]
                ready.supply(weight, partial(join_parts, parts, places))


def _count_below(count: int, places: Tensor | None) -> int:
    """Return how many of some ascending row numbers are below ``count``; ``places`` None = all
    rows."""
    return count if places is None else int(torch.searchsorted(places, count))
