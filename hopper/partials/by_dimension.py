"""A first layer whose input rows lie on several servers by columns (P3, section 3.2).

A product of rows and weights is a sum over columns, so every server multiplies the columns that it
stores with its part of the weights, and the rank that trains a mini-batch adds the results up.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from hopper.errors import RequestError
from hopper.graph.block import Block
from hopper.models import GNN
from hopper.models.gnn import expect_own
from hopper.models.layer import Layer, SumLayer
from hopper.ops import RowPart, StoredRows
from hopper.partition.layouts import Columns

Parts = Mapping[str, Tensor]
"""by kind, [rows, width]: what a server's columns contribute"""


class SplitLayer(ABC):
    """The first layer of a model, computed column by column.

    Parameters
    ----------
    columns: that this server stores.
    """

    def __init__(self, model: GNN, columns: Columns) -> None:
        self._model = model
        self._columns = columns
        self.layer = model.layer(0)
        self._weights: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Take the weights as they are now; before the parts of an iteration."""
        axes, parameters = self.layer.input_weights(), dict(self.layer.named_parameters())
        first, width = self._columns.first, self._columns.width
        self._weights = {
            name: parameters[name].narrow(axis, first, width) for name, axis in axes.items()
        }

    def read(self, block: Block, rows: Tensor) -> Tensor:
        """[num_src, columns]: rows as the layer reads them: after dropout."""
        return self._model.prepare(0, block.src.with_columns_from(self._columns.first), rows)

    @abstractmethod
    def counts(self, num_src: int, num_dst: int) -> dict[str, int]:
        """By kind, how many rows a part of a mini-batch has."""

    @abstractmethod
    def part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """What this server's columns contribute.

        Parameters
        ----------
        rows: [num_src, columns], of the block's sources, destinations first.
        is_own: whether this rank trains the mini-batch; what is no product of rows is added there.
        """

    @abstractmethod
    def finish(self, block: Block, parts: Parts) -> Tensor:
        """[num_dst, out]: the layer's new rows, from the sums of all servers' parts."""


class LinearSplit(SplitLayer):
    """Of a layer that is linear but for its activation: one row a destination travels."""

    def __init__(self, model: GNN, columns: Columns) -> None:
        super().__init__(model, columns)
        assert isinstance(self.layer, SumLayer)
        self._activate = self.layer.activate
        linear = copy.copy(self.layer)
        linear.activate = _unchanged  # type: ignore[method-assign]
        self._linear = _Expecting(linear)

    def counts(self, num_src: int, num_dst: int) -> dict[str, int]:
        """See :class:`SplitLayer`."""
        return {"sums": num_dst}

    def part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """See :class:`SplitLayer`."""
        given = dict(self._weights)
        for name, parameter in self.layer.named_parameters():
            if name not in given and not is_own:
                given[name] = torch.zeros_like(parameter)
        named = {f"layer.{name}": value for name, value in given.items()}
        sums: Tensor = functional_call(self._linear, named, (block, rows))
        return {"sums": sums}

    def finish(self, block: Block, parts: Parts) -> Tensor:
        """See :class:`SplitLayer`."""
        return self._activate(parts["sums"])


class ProductSplit(SplitLayer):
    """Of any layer that reads rows through :meth:`Layer.input_weights` alone: the products of all
    sources travel, and those of destinations with what multiplies these alone."""

    def __init__(self, model: GNN, columns: Columns) -> None:
        super().__init__(model, columns)
        own = {id(each) for each in self.layer.own_weights()}
        parameters = dict(self.layer.named_parameters())
        names = list(self.layer.input_weights())
        self._of_sources = [name for name in names if id(parameters[name]) not in own]
        self._of_own = [name for name in names if id(parameters[name]) in own]

    def counts(self, num_src: int, num_dst: int) -> dict[str, int]:
        """See :class:`SplitLayer`."""
        return {"sources": num_src} | ({"own": num_dst} if self._of_own else {})

    def part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """See :class:`SplitLayer`."""
        own = rows[: block.num_dst]
        if isinstance(rows, StoredRows):
            rows.expect([self._weights[name] for name in self._of_own], block.num_dst)
        found = {"sources": self._products(rows, self._of_sources)}
        return found | ({"own": self._products(own, self._of_own)} if self._of_own else {})

    def _products(self, rows: Tensor, names: list[str]) -> Tensor:
        made = [functional.linear(rows, self._weights[name]) for name in names]
        return made[0] if len(made) == 1 else torch.cat(made, 1)

    def finish(self, block: Block, parts: Parts) -> Tensor:
        """See :class:`SplitLayer`."""
        parameters = dict(self.layer.named_parameters())
        rows = elsewhere(block.num_src, parameters[self._of_sources[0]])
        for kind, names in (("sources", self._of_sources), ("own", self._of_own)):
            weights = [parameters[name] for name in names]
            products = parts[kind].split([len(each) for each in weights], 1) if names else ()
            for weight, product in zip(weights, products, strict=True):
                rows.supply(weight, partial(_unchanged, product))
        out: Tensor = self.layer(block, rows, rows[: block.num_dst])
        return out


def split_layer(model: GNN, columns: Columns) -> SplitLayer:
    """The first layer of a model, which has :meth:`Layer.input_weights`, by columns."""
    layer = model.layer(0)
    is_linear = isinstance(layer, SumLayer) and layer.is_linear
    return (LinearSplit if is_linear else ProductSplit)(model, columns)


def elsewhere(count: int, weight: Tensor) -> StoredRows:
    """[count, dim]: rows of which no server has all columns; reading them is an error.

    Parameters
    ----------
    weight: [out, dim], one that multiplies them.
    """
    return StoredRows.of([_Elsewhere(weight.detach().cpu()[:0])], count)


@dataclass(frozen=True)
class _Elsewhere(RowPart):
    """Rows that nobody may read."""

    def __len__(self) -> int:
        raise RequestError(
            "train.engine: under p3 no server has whole rows of features; expected a first layer "
            "that does nothing with them but multiply them by its input_weights"
        )

    def before(self, stop: int) -> int:
        """See :class:`RowPart`."""
        return stop

    def first(self, count: int) -> RowPart:
        """See :class:`RowPart`."""
        return self


def _unchanged(rows: Tensor) -> Tensor:
    return rows


class _Expecting(nn.Module):
    """A layer on rows of sources, destinations first."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, block: Block, rows: Tensor) -> Tensor:
        expect_own(self.layer, rows, block.num_dst)
        out: Tensor = self.layer(block, rows, rows[: block.num_dst])
        return out
