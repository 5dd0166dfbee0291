"""A first layer whose input rows are spread over several servers, by columns or by rows.

A product of rows and weights is a sum over columns. Every server therefore multiplies the columns
that it stores by its part of the weights, and the rank that trains a mini-batch adds the results up
(P3, section 3.2). The same works where servers store whole rows: the rows that a server lacks count
as zeros.
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

Parts = Mapping[str, Tensor]
"""By kind, [rows, width]: what one server's columns contribute."""


_BY_NUMBER: Final = (GNN.prepare, ResidualGNN.prepare)
"""Methods that change input rows number by number and leave zeros as they are."""


class SplitLayer(ABC):
    """The first layer of a model, computed in one part for each server.

    Parameters
    ----------
    columns: the columns that this server stores; all columns if it stores whole rows.
    """

    dense: ClassVar[frozenset[str]] = frozenset()
    """Kinds for which every server contributes to every row."""

    def __init__(self, model: GNN, columns: range) -> None:
        self._model = model
        self._columns = columns
        self.layer = model.layer(0)
        self._weights: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Read the current weights. Call this before the parts of an iteration."""
        axes, parameters = self.layer.input_weights(), dict(self.layer.named_parameters())
        first, width = self._columns.start, len(self._columns)
        self._weights = {
            name: parameters[name].narrow(axis, first, width) for name, axis in axes.items()
        }

    def part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """Compute what this server's rows or columns contribute.

        Parameters
        ----------
        rows: [num_src, columns], rows of the block's sources, destinations first.
        is_own: whether this rank trains the mini-batch. It alone adds the terms that do not depend
            on rows, such as a bias.
        """
        nodes = block.src.with_columns_from(self._columns.start)
        parts = self._part(block, self._model.prepare(0, nodes, rows), is_own=is_own)
        # Products may be in a shorter float type, but their sums are in full precision.
        return {kind: in_full(part) for kind, part in parts.items()}

    def logits(self, blocks: Sequence[Block], parts: Parts) -> Tensor:
        """Compute a mini-batch's logits: [roots, out].

        Parameters
        ----------
        blocks: the blocks in order of computation.
        parts: the sums of all servers' parts of the first layer.
        """
        block, *later_blocks = blocks
        rows = self._finish(block, parts)
        own_rows = _make_absent_rows(block.num_dst, self._an_input_weight)
        rows = self._model.finish(0, block.dst, own_rows, rows)
        for index, later_block in enumerate(later_blocks, 1):
            rows = self._model.step(index, later_block, rows)
        return rows

    @property
    def _an_input_weight(self) -> Tensor:
        """One of the weights that multiply input rows."""
        return self.layer.get_parameter(next(iter(self.layer.input_weights())))

    @abstractmethod
    def shapes(self, num_src: int, num_dst: int) -> dict[str, tuple[int, int]]:
        """Return the number and the width of the rows of a mini-batch's part, by kind."""

    @abstractmethod
    def _part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """Do what :meth:`part` does, for rows that dropout has been applied to."""

    @abstractmethod
    def _finish(self, block: Block, parts: Parts) -> Tensor:
        """Return [num_dst, out]: the layer's new rows, from the sums of all servers' parts."""

    def _width_of(self, name: str) -> int:
        """Return the width of the product of a row and a weight."""
        axis = self.layer.input_weights()[name]
        return int(self.layer.get_parameter(name).shape[1 - axis])


class LinearSplit(SplitLayer):
    """Splits a layer that is linear except for its activation.

    Only one row a destination travels: the server's share of the layer's output.
    """

    dense = frozenset({"sums"})

    def __init__(self, model: GNN, columns: range) -> None:
        super().__init__(model, columns)
        assert isinstance(self.layer, SumLayer)
        self._activate = self.layer.activate
        linear = copy.copy(self.layer)
        linear.activate = _identity  # type: ignore[method-assign]
        self._linear = _LayerOnSources(linear)

    def shapes(self, num_src: int, num_dst: int) -> dict[str, tuple[int, int]]:
        """Return one row for each destination, as wide as the layer's output."""
        return {"sums": (num_dst, self._width_of(next(iter(self.layer.input_weights()))))}

    def _part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """Run the layer on this server's columns, without its activation."""
        parameters = dict(self._weights)
        for name, parameter in self.layer.named_parameters():
            if name not in parameters and not is_own:
                parameters[name] = torch.zeros_like(parameter)
        by_path = {f"layer.{name}": value for name, value in parameters.items()}
        sums: Tensor = functional_call(self._linear, by_path, (block, rows))
        return {"sums": sums}

    def _finish(self, block: Block, parts: Parts) -> Tensor:
        """Apply the activation to the sums."""
        return self._activate(parts["sums"])


class ProductSplit(SplitLayer):
    """Splits any layer that reads rows only through :meth:`Layer.input_weights`.

    The products of all sources travel. So do the products of destinations with the weights that
    multiply only these.
    """

    def __init__(self, model: GNN, columns: range) -> None:
        super().__init__(model, columns)
        own_weights = {id(weight) for weight in self.layer.own_weights()}
        parameters = dict(self.layer.named_parameters())
        names = list(self.layer.input_weights())
        self._of_sources = [name for name in names if id(parameters[name]) not in own_weights]
        self._of_own = [name for name in names if id(parameters[name]) in own_weights]

    def shapes(self, num_src: int, num_dst: int) -> dict[str, tuple[int, int]]:
        """Return rows of the products with all weights: one for each source, and for each
        destination that needs one."""
        kinds = {"sources": (num_src, self._of_sources), "own": (num_dst, self._of_own)}
        return {
            kind: (count, sum(map(self._width_of, names)))
            for kind, (count, names) in kinds.items()
            if names
        }

    def _part(self, block: Block, rows: Tensor, *, is_own: bool) -> Parts:
        """Multiply this server's columns by its part of the weights."""
        destinations = rows[: block.num_dst]
        if isinstance(rows, StoredRows):
            rows.expect([self._weights[name] for name in self._of_own], block.num_dst)
        parts = {"sources": self._multiply(rows, self._of_sources)}
        return parts | ({"own": self._multiply(destinations, self._of_own)} if self._of_own else {})

    def _multiply(self, rows: Tensor, names: list[str]) -> Tensor:
        """Return [n, width of all products]: rows times each of some weights, side by side."""
        products = [functional.linear(rows, self._weights[name]) for name in names]
        return products[0] if len(products) == 1 else torch.cat(products, 1)

    def _finish(self, block: Block, parts: Parts) -> Tensor:
        """Run the layer with the summed products in place of its own multiplications."""
        parameters = dict(self.layer.named_parameters())
        rows = _make_absent_rows(block.num_src, parameters[self._of_sources[0]])
        for kind, names in (("sources", self._of_sources), ("own", self._of_own)):
            weights = [parameters[name] for name in names]
            products = parts[kind].split([len(weight) for weight in weights], 1) if names else ()
            for weight, product in zip(weights, products, strict=True):
                rows.supply(weight, partial(_identity, product))
        out: Tensor = self.layer(block, rows, rows[: block.num_dst])
        return out


def split_layer(model: nn.Module, columns: range, engine: str) -> SplitLayer:
    """Split the first layer of a model in the way that sends the fewest numbers.

    Parameters
    ----------
    columns: the columns that this server stores; all columns if it stores whole rows.
    engine: the engine's name, for errors.
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


def _make_absent_rows(count: int, weight: Tensor) -> StoredRows:
    """Return [count, dim]: rows that no server has in full. Reading them raises an error."""
    return StoredRows.of([_AbsentRows(weight.detach().cpu()[:0])], count)


@dataclass(frozen=True)
class _AbsentRows(RowPart):
    """Rows that raise an error when they are read."""

    def __len__(self) -> int:
        raise RequestError(
            "train.engine: no server has all rows of features whole; expected a first layer that "
            "does nothing with them but multiply them by its input_weights"
        )

    def first(self, stop: int) -> RowPart:
        """Return the same rows: only their number differs, and the caller knows it."""
        return self


def _identity(rows: Tensor) -> Tensor:
    return rows


class _LayerOnSources(nn.Module):
    """A layer as a function of its block and its sources' rows, destinations first."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, block: Block, rows: Tensor) -> Tensor:
        expect_own(self.layer, rows, block.num_dst)
        out: Tensor = self.layer(block, rows, rows[: block.num_dst])
        return out
