"""A first layer whose input rows lie on several servers, by columns or by row.

A product of rows and weights is a sum over columns, so every server may multiply the columns that
it stores with its part of the weights, and the rank that trains a mini-batch adds the results up
(P3, section 3.2). So it does where servers store rows: those that a server does not have are zeros.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from hopper.errors import RequestError
from hopper.graph.block import Block
from hopper.models import GNN
from hopper.models.gnn import expect_own
from hopper.models.layer import Layer, SumLayer
from hopper.models.residual import ResidualGNN
from hopper.ops import RowPart, StoredRows, in_full
from hopper.partition.layouts import Columns

Parts = Mapping[str, Tensor]
"""by kind, [rows, width]: what a server's columns contribute"""


_BY_NUMBER: Final = (GNN.prepare, ResidualGNN.prepare)
"""what stacks do to input rows number by number, and never to zeros"""


class SplitLayer(ABC):
    """The first layer of a model, computed column by column.

    Parameters
    ----------
    columns: that this server stores; all of them where it stores rows.
    """

    dense: ClassVar[frozenset[str]] = frozenset()
    """kinds of which every server makes a part of every row"""

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

    def part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """What this server's rows or columns contribute.

        Parameters
        ----------
        rows: [num_src, columns], of the block's sources, destinations first.
        is_own: whether this rank trains the mini-batch; what is no product of rows is added there.
        """
        nodes = block.src.with_columns_from(self._columns.first)
        made = self._part(block, self._model.prepare(0, nodes, rows), is_own=is_own)
        # Whatever products are made in, they are added up in full.
        return {kind: in_full(part) for kind, part in made.items()}

    def logits(self, blocks: Sequence[Block], parts: Parts) -> Tensor:
        """[roots, out]: of a mini-batch, from the sums of all servers' parts of its first layer.

        Parameters
        ----------
        blocks: in order of computation.
        """
        block, *others = blocks
        rows = self._finish(block, parts)
        own = _elsewhere(block.num_dst, self._some_weight)
        rows = self._model.finish(0, block.dst, own, rows)
        for index, other in enumerate(others, 1):
            rows = self._model.step(index, other, rows)
        return rows

    @property
    def _some_weight(self) -> Tensor:
        """One of those that multiply rows."""
        return self.layer.get_parameter(next(iter(self.layer.input_weights())))

    @abstractmethod
    def counts(self, num_src: int, num_dst: int) -> dict[str, int]:
        """By kind, how many rows a part of a mini-batch has."""

    @abstractmethod
    def widths(self) -> dict[str, int]:
        """By kind, how many numbers a row of a part has."""

    @abstractmethod
    def _part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """:meth:`part`, of rows after dropout."""

    @abstractmethod
    def _finish(self, block: Block, parts: Parts) -> Tensor:
        """[num_dst, out]: the layer's new rows, from the sums of all servers' parts."""

    def _width_of(self, name: str) -> int:
        """How many numbers the product of a row and a weight has."""
        axis = self.layer.input_weights()[name]
        return int(self.layer.get_parameter(name).shape[1 - axis])


class LinearSplit(SplitLayer):
    """Of a layer that is linear but for its activation: one row a destination travels."""

    dense = frozenset({"sums"})

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

    def widths(self) -> dict[str, int]:
        """See :class:`SplitLayer`."""
        return {"sums": self._width_of(next(iter(self.layer.input_weights())))}

    def _part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """See :class:`SplitLayer`."""
        given = dict(self._weights)
        for name, parameter in self.layer.named_parameters():
            if name not in given and not is_own:
                given[name] = torch.zeros_like(parameter)
        named = {f"layer.{name}": value for name, value in given.items()}
        sums: Tensor = functional_call(self._linear, named, (block, rows))
        return {"sums": sums}

    def _finish(self, block: Block, parts: Parts) -> Tensor:
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

    def widths(self) -> dict[str, int]:
        """See :class:`SplitLayer`."""
        names = {"sources": self._of_sources} | ({"own": self._of_own} if self._of_own else {})
        return {kind: sum(map(self._width_of, own)) for kind, own in names.items()}

    def _part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """See :class:`SplitLayer`."""
        own = rows[: block.num_dst]
        if isinstance(rows, StoredRows):
            rows.expect([self._weights[name] for name in self._of_own], block.num_dst)
        found = {"sources": self._products(rows, self._of_sources)}
        return found | ({"own": self._products(own, self._of_own)} if self._of_own else {})

    def _products(self, rows: Tensor, names: list[str]) -> Tensor:
        made = [functional.linear(rows, self._weights[name]) for name in names]
        return made[0] if len(made) == 1 else torch.cat(made, 1)

    def _finish(self, block: Block, parts: Parts) -> Tensor:
        """See :class:`SplitLayer`."""
        parameters = dict(self.layer.named_parameters())
        rows = _elsewhere(block.num_src, parameters[self._of_sources[0]])
        for kind, names in (("sources", self._of_sources), ("own", self._of_own)):
            weights = [parameters[name] for name in names]
            products = parts[kind].split([len(each) for each in weights], 1) if names else ()
            for weight, product in zip(weights, products, strict=True):
                rows.supply(weight, partial(_unchanged, product))
        out: Tensor = self.layer(block, rows, rows[: block.num_dst])
        return out


def split_layer(model: nn.Module, columns: Columns, engine: str) -> SplitLayer:
    """The first layer of a model in parts; ``columns`` as of :class:`SplitLayer`.

    Raises
    ------
    RequestError: it does not tell what multiplies its input rows.
    """
    if not isinstance(model, GNN) or not model.layer(0).input_weights():
        raise RequestError(
            f"train.engine: {engine} divides the first layer, which has to tell its input_weights; "
            f"{type(model).__name__} does not; model_centric, hop and zero_hop train it on a graph "
            "that is divided by node"
        )
    layer = model.layer(0)
    if not layer.says("input_weights"):
        raise RequestError(
            f"train.engine: {engine} divides the first layer, and {type(layer).__name__} says anew "
            "how it reads rows; expected it to define input_weights anew too"
        )
    if type(model).prepare not in _BY_NUMBER:
        raise RequestError(
            f"train.engine: {engine} divides the rows that the first layer reads, and "
            f"{type(model).__name__} prepares them in a way of its own, which may want them whole"
        )
    is_linear = isinstance(layer, SumLayer) and layer.is_linear and layer.says("is_linear")
    return (LinearSplit if is_linear else ProductSplit)(model, columns)


def _elsewhere(count: int, weight: Tensor) -> StoredRows:
    """[count, dim]: rows of which this server has a part alone; reading them is an error.

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
            "train.engine: no server has all rows of features whole; expected a first layer that "
            "does nothing with them but multiply them by its input_weights"
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
