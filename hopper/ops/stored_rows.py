"""Input rows that stay in their tables until they are multiplied.

A first layer that projects its input makes narrow rows of wide ones. If the wide rows were gathered
first, they would be written to memory, and read from it for the product and for the weights'
gradient. Here rows are gathered in blocks that fit the processor's cache, and are never written to
memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map_only

from hopper.ops.counter_mask import drop_and_scale
from hopper.ops.precision import product_dtype
from hopper.ops.row_form import float_dtype, float_width, to_floats

_BLOCK_BYTES: Final = 1 << 22
"""The bytes of a block of rows. It fits the cache that cores share, and is large enough for several
threads."""


@dataclass(frozen=True)
class RowPart:
    """Some rows of one table, which are part of the rows of a :class:`StoredRows`.

    Attributes
    ----------
    table: [stored, columns], in or mapped into host memory, in a stored form.
    rows: [k] int64, the indices of the part's rows in the table; None = all rows, in order.
    places: [k] int64, ascending, their indices in the whole; None = the part is the whole.
    """

    table: Tensor
    rows: Tensor | None = None
    places: Tensor | None = None

    def __len__(self) -> int:
        return len(self.table if self.rows is None else self.rows)

    def before(self, stop: int) -> int:
        """Return how many of the part's rows are among the first ``stop`` rows of the whole."""
        if self.places is None:
            return min(stop, len(self))
        return int(torch.searchsorted(self.places, stop))

    def first(self, count: int) -> RowPart:
        """Return the first ``count`` rows of the part."""
        rows = self.rows if self.rows is None else self.rows[:count]
        table = self.table[:count] if self.rows is None else self.table
        return RowPart(table, rows, None if self.places is None else self.places[:count])


@dataclass(frozen=True)
class _Block:
    """Consecutive rows of a part.

    Attributes
    ----------
    values: [k, dim].
    places: the indices of the rows in the whole.
    """

    values: Tensor
    places: slice | Tensor

    def before(self, stop: int) -> _Block:
        """Return the block's rows among the first ``stop`` rows of the whole."""
        if isinstance(self.places, slice):
            count = max(0, min(stop, self.places.stop) - self.places.start)
            return _Block(self.values[:count], slice(self.places.start, self.places.start + count))
        count = int(torch.searchsorted(self.places, stop))
        return _Block(self.values[:count], self.places[:count])

    def of(self, whole: Tensor) -> Tensor:
        """Select the block's rows [k, ...] from a tensor with a row for each of the whole."""
        if isinstance(self.places, slice):
            return whole[self.places]
        return whole.index_select(0, self.places)


@dataclass(frozen=True)
class _Reader:
    """Reads rows block by block.

    Attributes
    ----------
    parts: the parts of the whole. Rows in no part are zero.
    count: the number of rows of the whole.
    dim: the width of a row.
    dtype: the dtype to which values are converted.
    keys: [count] int64, the key of dropout of each row; None = no dropout.
    threshold: the threshold of dropout, as in :func:`hopper.ops.counter_mask.drop`.
    first_dropped: the index of the first element of rows, for dropout.
    """

    parts: tuple[RowPart, ...]
    count: int
    dim: int
    dtype: torch.dtype
    keys: Tensor | None = None
    threshold: int = 0
    first_dropped: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every row is in a part."""
        return sum(map(len, self.parts)) == self.count

    def first(self, count: int) -> _Reader:
        """Return a reader of the first rows of the whole."""
        parts = tuple(part.first(part.before(count)) for part in self.parts)
        keys = None if self.keys is None else self.keys[:count]
        return replace(self, parts=parts, count=count, keys=keys)

    def pick(self, places: Tensor) -> _Reader:
        """Return a reader of some rows of the whole.

        Parameters
        ----------
        places: [n] int64, the indices of the rows, in any order.
        """
        keys = None if self.keys is None else self.keys[places]
        if len(self.parts) == 1 and self.parts[0].places is None:
            (part,) = self.parts
            rows = places if part.rows is None else part.rows[places]
            return replace(self, parts=(RowPart(part.table, rows),), count=len(places), keys=keys)
        part_of = torch.full((self.count,), -1, dtype=torch.int16)
        row_of = torch.empty(self.count, dtype=torch.int64)
        for number, part in enumerate(self.parts):
            rows = torch.arange(len(part)) if part.rows is None else part.rows
            in_part = slice(None) if part.places is None else part.places
            part_of[in_part], row_of[in_part] = number, rows
        part_of, row_of = part_of[places], row_of[places]
        parts = []
        for number, part in enumerate(self.parts):
            picked = (part_of == number).nonzero().squeeze(1)
            parts.append(RowPart(part.table, row_of[picked], picked))
        return replace(self, parts=tuple(parts), count=len(places), keys=keys)

    def blocks(self, dtype: torch.dtype) -> Iterator[_Block]:
        """Yield all rows in blocks. A block becomes invalid when the next one is read."""
        for part in self.parts:
            table, total = part.table, len(part)
            size = max(1, _BLOCK_BYTES // max(1, table.shape[1] * table.itemsize))
            rows_a_block = min(size, total)
            buffer = None if part.rows is None else table.new_empty(rows_a_block, table.shape[1])
            for start in range(0, total, size):
                stop = min(start + size, total)
                if part.rows is None or buffer is None:
                    values = table[start:stop]
                else:
                    values = buffer[: stop - start]
                    torch.index_select(table, 0, part.rows[start:stop], out=values)
                places = slice(start, stop) if part.places is None else part.places[start:stop]
                values = to_floats(values, self.dtype)
                if self.keys is not None:
                    values = drop_and_scale(
                        *(values, self.keys[places], self.threshold, self.first_dropped)
                    )
                yield _Block(values.to(dtype), places)

    def to_tensor(self) -> Tensor:
        """Gather all rows to a tensor [count, dim]."""
        make = torch.empty if self.is_whole else torch.zeros
        out = make(self.count, self.dim, dtype=self.dtype)
        for block in self.blocks(self.dtype):
            out[block.places] = block.values
        return out


@dataclass(frozen=True)
class _Made:
    """A product of rows and a weight that was or can be made.

    Attributes
    ----------
    weight, transposed: the arguments of :meth:`StoredRows.times`.
    version: the version of the weight when the product was made.
    dtype: the dtype of the product.
    has_gradient: whether the product was made with gradients enabled.
    out: returns the product [rows, ...]; None if it was freed or changed.
    """

    weight: Tensor
    transposed: bool
    version: int
    dtype: torch.dtype
    has_gradient: bool
    out: Callable[[], Tensor | None]


@dataclass
class _Products:
    """The products of rows that were made, and those that are expected.

    Attributes
    ----------
    made: the products that were made.
    expected: pairs of a weight [out, dim] and the number of first rows to multiply by it.
    """

    made: list[_Made] = field(default_factory=list)
    expected: list[tuple[Tensor, int]] = field(default_factory=list)

    def find(
        self, weight: Tensor, transposed: bool, count: int, dtype: torch.dtype
    ) -> Tensor | None:
        """Return a product [count, out] that was made of at least so many rows; None = none was."""
        has_gradient = torch.is_grad_enabled()
        for product in self.made:
            is_same = product.weight is weight and product.version == weight._version
            is_same &= product.transposed == transposed
            if is_same and product.dtype == dtype and product.has_gradient == has_gradient:
                out = product.out()
                if out is not None and len(out) >= count:
                    return out[:count]
        return None

    def keep(
        self, weight: Tensor, out: Tensor, *, transposed: bool = False, until_used: bool
    ) -> None:
        """Remember a product for :meth:`find`, for as long as others refer to it.

        Parameters
        ----------
        until_used: whether to hold the product until it is first found.
        """
        held = [out] if until_used else []
        reference, version = weakref.ref(out), out._version

        def find() -> Tensor | None:
            product = held.pop() if held else reference()
            return None if product is None or product._version != version else product

        self._note(weight, transposed, out.dtype, find)

    def supply(self, weight: Tensor, make: Callable[[], Tensor]) -> None:
        """Register a function that makes a product when it is looked for."""
        self._note(weight, False, product_dtype(weight), make)

    def _note(
        self,
        weight: Tensor,
        transposed: bool,
        dtype: torch.dtype,
        out: Callable[[], Tensor | None],
    ) -> None:
        version, has_gradient = weight._version, torch.is_grad_enabled()
        self.made.append(_Made(weight, transposed, version, dtype, has_gradient, out))


class StoredRows(Tensor):
    """Rows [n, dim] that are read when they are multiplied.

    It takes the place of a tensor of input rows, without a gradient.
    ``torch.nn.functional.linear`` and ``@`` read the rows, or the first rows (``rows[:n]``), in
    blocks, also after dropout. Any other function gathers all rows once, and uses the result.

    Destinations are among the sources. If all rows were multiplied by a weight, the product of the
    first rows and this weight is taken from that product. :meth:`expect` announces products, which
    are then made with one reading of the rows.
    """

    _reader: _Reader
    _products: _Products
    _whole: list[Tensor]

    @classmethod
    def of(cls, parts: Sequence[RowPart], count: int) -> StoredRows:
        """Make rows of some tables of one width and form.

        Parameters
        ----------
        parts: at least one. Rows in no part are zero.
        count: the number of rows.
        """
        table = parts[0].table
        reader = _Reader(tuple(parts), count, float_width(table), float_dtype(table))
        return cls._make(reader, _Products(), [])

    @classmethod
    def _make(cls, reader: _Reader, products: _Products, whole: list[Tensor]) -> StoredRows:
        shape = (reader.count, reader.dim)
        rows: StoredRows = Tensor._make_wrapper_subclass(cls, shape, dtype=reader.dtype)
        rows._reader, rows._products, rows._whole = reader, products, whole
        return rows

    def expect(self, weights: Sequence[Tensor], count: int) -> None:
        """Announce that the first ``count`` rows will be multiplied by other weights.

        Parameters
        ----------
        weights: the weights [out, dim] that ``torch.nn.functional.linear`` will receive.
        """
        self._products.expected += [(weight, count) for weight in weights]

    def products(self) -> list[tuple[Tensor, Tensor]]:
        """Return the weights by which these rows, or the first ones, were multiplied.

        Each comes with its product. Products that were freed are missing.
        """
        products = [(product.weight, product.out()) for product in self._products.made]
        return [(weight, out) for weight, out in products if out is not None]

    def supply(self, weight: Tensor, make: Callable[[], Tensor]) -> None:
        """Register how to make the product of the first rows and a weight without reading rows.

        Parameters
        ----------
        weight: the weight [out, dim] that ``torch.nn.functional.linear`` will receive.
        make: makes the product [n, out] of the first n rows, when it is needed.
        """
        self._products.supply(weight, make)

    def first(self, count: int) -> StoredRows:
        """Return the first rows."""
        whole = [rows[:count] for rows in self._whole]
        return self._make(self._reader.first(count), self._products, whole)

    def pick(self, places: Tensor) -> StoredRows:
        """Return the rows [n, dim] with the given indices [n], int64."""
        return self._make(self._reader.pick(places), _Products(), [])

    @property
    def is_dropped(self) -> bool:
        """Whether dropout was applied to these rows."""
        return self._reader.keys is not None

    def drop(self, keys: Tensor, threshold: int, first: int = 0) -> StoredRows:
        """Return these rows after dropout; arguments as in :func:`hopper.ops.counter_mask.drop`.

        Dropout must not have been applied before.
        """
        reader = replace(self._reader, keys=keys, threshold=threshold, first_dropped=first)
        return self._make(reader, _Products(), [])

    def to_tensor(self) -> Tensor:
        """Gather all rows to an ordinary tensor [n, dim]."""
        if not self._whole:
            self._whole.append(self._reader.to_tensor())
        return self._whole[0]

    def times(self, weight: Tensor, *, transposed: bool = False) -> Tensor:
        """Multiply these rows by a matrix, to [n, out].

        Parameters
        ----------
        weight: [out, dim], or [dim, out] if ``transposed``.
        """
        products, count = self._products, self._reader.count
        dtype = product_dtype(weight)
        known = products.find(weight, transposed, count, dtype)
        if known is not None:
            return known
        if self._whole:
            rows = self._whole[0]
            return rows @ (weight if transposed else weight.t())
        expected = [(other, rows) for other, rows in products.expected if rows <= count]
        products.expected.clear()
        matrices = [weight.t() if transposed else weight, *(other for other, _ in expected)]
        counts = (count, *(rows for _, rows in expected))
        outs = _Product.apply(self._reader, counts, dtype, *(m.to(dtype) for m in matrices))
        out: Tensor = outs[0]
        products.keep(weight, out, transposed=transposed, until_used=False)
        for (other, _), other_out in zip(expected, outs[1:], strict=True):
            products.keep(other, other_out, until_used=True)
        return out

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Multiply in blocks, answer questions about shapes, and gather rows for all else."""
        keywords = kwargs or {}
        if func in _READ_NOTHING:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **keywords)
        special = _SPECIAL.get(func)
        is_first = bool(args) and isinstance(args[0], StoredRows)
        if special is not None and is_first and "out" not in keywords:
            result = special(*args, **keywords)
            if result is not NotImplemented:
                return result
        return _call_gathered(func, args, keywords)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Gather rows for operations that torch dispatches below its functions."""
        return _call_gathered(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StoredRows({self._reader.count} x {self._reader.dim}, {self._reader.dtype})"


class _Product(torch.autograd.Function):
    """Multiplies the first ``counts[i]`` rows by the i-th matrix [out, dim].

    One reading of the rows serves all matrices.
    """

    @staticmethod
    def forward(
        ctx: Any, reader: _Reader, counts: tuple[int, ...], dtype: torch.dtype, *matrices: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.reader, ctx.counts, ctx.dtype = reader, counts, dtype
        ctx.shapes = [matrix.shape for matrix in matrices]
        make = torch.empty if reader.is_whole else torch.zeros
        outs = [
            make(count, len(matrix), dtype=matrix.dtype)
            for matrix, count in zip(matrices, counts, strict=True)
        ]
        for block in reader.blocks(dtype):
            for matrix, count, out in zip(matrices, counts, outs, strict=True):
                part = block if count == reader.count else block.before(count)
                if isinstance(part.places, slice):
                    torch.mm(part.values, matrix.t(), out=out[part.places])
                else:
                    out.index_copy_(0, part.places, part.values @ matrix.t())
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        reader, needed = ctx.reader, ctx.needs_input_grad[3:]
        # Sums over blocks have float32 at least, as a product over all rows has inside.
        sum_dtype = torch.promote_types(ctx.dtype, torch.float32)
        sums = [
            torch.zeros(shape, dtype=sum_dtype) if needs and grad is not None else None
            for shape, needs, grad in zip(ctx.shapes, needed, grads, strict=True)
        ]
        if any(total is not None for total in sums):
            for block in reader.blocks(ctx.dtype):
                for grad, count, total in zip(grads, ctx.counts, sums, strict=True):
                    if total is None or grad is None:
                        continue
                    part = block if count == reader.count else block.before(count)
                    block_grad = part.of(grad).t()
                    if total.dtype == ctx.dtype:
                        total.addmm_(block_grad, part.values)
                    else:
                        total += block_grad @ part.values
        gradients = [None if total is None else total.to(ctx.dtype) for total in sums]
        return (None, None, None, *gradients)


def _call_gathered(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    arguments = tree_map_only(StoredRows, StoredRows.to_tensor, (tuple(args), dict(kwargs)))
    return func(*arguments[0], **arguments[1])


def _linear(rows: StoredRows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = rows.times(weight)
    return out if bias is None else out + bias.to(out.dtype)


def _matmul(rows: StoredRows, other: Tensor) -> Any:
    is_matrix = not isinstance(other, StoredRows) and other.dim() == 2
    return rows.times(other, transposed=True) if is_matrix else NotImplemented


def _getitem(rows: StoredRows, index: Any) -> Any:
    if not isinstance(index, slice) or index.start not in (None, 0) or index.step not in (None, 1):
        return NotImplemented
    _, stop, _ = index.indices(len(rows))
    return rows if stop == len(rows) else rows.first(stop)


def _to(rows: StoredRows, *args: Any, **kwargs: Any) -> Any:
    (dtype,) = args if len(args) == 1 and not kwargs else (None,)
    if not isinstance(dtype, torch.dtype):
        return NotImplemented
    if dtype == rows._reader.dtype:
        return rows
    return StoredRows._make(replace(rows._reader, dtype=dtype), _Products(), [])


def _index_select(rows: StoredRows, dim: int, index: Tensor) -> Any:
    return rows.pick(index).to_tensor() if dim == 0 and not rows._whole else NotImplemented


def _new(name: str) -> Callable[..., Tensor]:
    def make(rows: StoredRows, *args: Any, **kwargs: Any) -> Tensor:
        new: Tensor = getattr(torch.empty(0, dtype=rows._reader.dtype), name)(*args, **kwargs)
        return new

    return make


_SPECIAL: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    torch.nn.functional.linear: _linear,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
    Tensor.mm: _matmul,
    Tensor.__matmul__: _matmul,
    Tensor.__getitem__: _getitem,
    Tensor.to: _to,
    Tensor.index_select: _index_select,
    torch.index_select: _index_select,
    **{
        getattr(Tensor, name): _new(name)
        for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
    },
}
_READ_NOTHING: Final = {
    *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
    *(
        getattr(Tensor, name).__get__
        for name in (
            *("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "layout"),
            *("itemsize", "nbytes"),
        )
    ),
}
