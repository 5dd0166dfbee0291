"""A rank's own rows as a layer reads them: those that other ranks wait for are made first."""

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
"""by node type"""


@dataclass(frozen=True)
class OwnRows:
    """Own rows of a layer, all of them or those that stand in some places.

    Attributes
    ----------
    before: by type, [n, ...], of the layer before, or as input rows enter the first layer.
    ready: by type, [n, ...], as the layer reads them.
    projected: by relation whose rows may travel projected, [n, ...].
    """

    before: Rows
    ready: Rows
    projected: Mapping[Relation, Tensor]


class OwnLayer:
    """The own rows of one layer in one iteration: first those that other ranks wait for, then the
    rest, which may be made while the others travel.

    Parameters
    ----------
    rows: by type, [own, ...], of the layer before; input rows for the first layer.

    Attributes
    ----------
    before, ready: as of :class:`OwnRows`, of all own rows, once the rest is made.
    """

    def __init__(self, stack: Stack, wires: Wires, index: int, plan: LayerPlan, rows: Rows) -> None:
        self._stack, self._wires = stack, wires
        self._index, self._plan, self._rows = index, plan, rows
        self._awaited = self._rest = OwnRows({}, {}, {})
        self._unawaited = wires.never_awaited & rows.keys()
        self.before: Rows = {}
        self.ready: Rows = {}

    def make_awaited(self) -> OwnRows:
        """Those that other ranks wait for; of types that are not split, all, unless nobody ever
        waits for any."""
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
        """Make those that nobody waits for."""
        splits = self._plan.splits
        chosen: dict[str, Tensor | None] = dict.fromkeys(sorted(self._unawaited))
        self._rest = self._make(chosen | {name: split.rest for name, split in splits.items()})
        before, ready = {}, {}
        for name in self._rows:
            made = self._rest if name in self._unawaited else self._awaited
            before[name], ready[name] = made.before[name], made.ready[name]
            if name in splits:
                before[name], ready[name] = self._whole(name)
        self.before, self.ready = before, ready

    def projects(self, relation: Relation) -> bool:
        """Whether a relation's own rows are projected already."""
        return relation in self._awaited.projected

    def projected(self, relation: Relation, behind: Sequence[Tensor]) -> Tensor:
        """[n, ...]: a relation's projected rows, own ones first.

        Parameters
        ----------
        behind: those that other ranks have sent, in order.
        """
        awaited = self._awaited.projected[relation]
        split = self._plan.splits.get(relation.src)
        if split is None:
            return join_parts([awaited, *behind])
        return join_parts([awaited, self._rest.projected[relation], *behind], split.places)

    def _whole(self, name: str) -> tuple[Tensor, Tensor]:
        """[own, ...]: rows of a type that was split, before the layer and as it reads them."""
        split = self._plan.splits[name]
        parts = [each.ready[name] for each in (self._awaited, self._rest)]
        if isinstance(parts[0], StoredRows):
            before = self._stack.enter(name, self._rows[name])
            ready = self._prepare(name, None, before)
            self._supply(name, ready)
            return before, ready
        ready = join_parts(parts, split.places)
        if self._awaited.before[name] is parts[0]:
            return ready, ready
        parts = [each.before[name] for each in (self._awaited, self._rest)]
        return join_parts(parts, split.places), ready

    def _make(self, chosen: Mapping[str, Tensor | None]) -> OwnRows:
        """Some of the rows.

        Parameters
        ----------
        chosen: by type, [n] int64 ascending: which own rows; None = all.
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
            each: own
            for each, own in stack.layers[index].aggregations.items()
            if each.src in chosen
        }
        for each, own in aggregations.items():
            count = plan.blocks.destinations[each.dst]
            expect_own(own, ready[each.src], _among_first(count, chosen[each.src]))
        projected = {
            each: in_full(own.project(ready[each.src]))
            for each, own in aggregations.items()
            if each in self._wires.forms and not self._wires.merged
        }
        return OwnRows(before, ready, projected)

    def _prepare(self, name: str, places: Tensor | None, rows: Tensor) -> Tensor:
        """[n, ...]: rows as the layer reads them.

        Parameters
        ----------
        places: which of the type's they are; None = all.
        """
        nodes = self._plan.own[name]
        return self._stack.prepare(
            self._index, nodes if places is None else nodes.pick(places), rows
        )

    def _supply(self, name: str, ready: Tensor) -> None:
        """Let stored rows know the products that were made with the two parts: what a layer makes
        of its destinations, who are among the sources, is among them."""
        first, second = (each.ready[name] for each in (self._awaited, self._rest))
        assert isinstance(ready, StoredRows)
        assert isinstance(first, StoredRows)
        assert isinstance(second, StoredRows)
        others = {id(weight): product for weight, product in second.products()}
        for weight, product in first.products():
            if id(weight) in others:
                parts = [product, others[id(weight)]]
                split = self._plan.splits[name].places
                places = [own[: len(part)] for own, part in zip(split, parts, strict=True)]
                ready.supply(weight, partial(join_parts, parts, places))


def _among_first(count: int, places: Tensor | None) -> int:
    """How many of the first rows are among those in some places; None = all."""
    return count if places is None else int(torch.searchsorted(places, count))
