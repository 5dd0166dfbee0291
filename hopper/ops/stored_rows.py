"""Input rows that stay in their tables until they are multiplied.

A first layer that projects its input makes narrow rows of wide ones. If the wide rows were gathered
first, they would be written to memory, and read from it for the product and for the weights'
gradient. Here rows are gathered in blocks that fit the processor's cache, and are never written to
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from hopper.ops.precision import product_dtype
from hopper.ops.row_products import Products, multiply
from hopper.ops.row_reader import RowPart, RowReader, float_form


class StoredRows(Tensor):
    """Rows [n, dim] that are read when they are multiplied.

    It takes the place of a tensor of input rows, without a gradient.
    ``torch.nn.functional.linear`` and ``@`` read the rows, or the first rows (``rows[:n]``), in
    blocks, also after dropout. Any other function gathers all rows once, and uses the result.

    Destinations are among the sources. If all rows were multiplied by a weight, the product of the
    first rows and this weight is taken from that product. :meth:`expect` announces products, which
    are then made with one reading of the rows.
    """

    _reader: RowReader
    _products: Products
    _whole: list[Tensor]

    @classmethod
    def of(cls, parts: Sequence[RowPart], count: int) -> StoredRows:
        """Make rows of some tables of one width and form.

        Parameters
        ----------
        parts: at least one. Rows in no part are zero.
        count: the number of rows.
        """
        reader = RowReader(tuple(parts), count, *float_form(parts[0].table))
        return cls._make(reader, Products(), [])

    @classmethod
    def _make(cls, reader: RowReader, products: Products, whole: list[Tensor]) -> StoredRows:
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
        return self._make(self._reader.pick(places), Products(), [])

    @property
    def is_dropped(self) -> bool:
        """Return whether dropout was applied to these rows."""
        return self._reader.keys is not None

    def drop(self, keys: Tensor, threshold: int, first: int = 0) -> StoredRows:
        """Return these rows after dropout; arguments as in :func:`hopper.ops.counter_mask.drop`.

        Dropout must not have been applied before.
        """
        reader = replace(self._reader, keys=keys, threshold=threshold, first_dropped=first)
        return self._make(reader, Products(), [])

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
        outs = multiply(self._reader, counts, dtype, [matrix.to(dtype) for matrix in matrices])
        out = outs[0]
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
    return StoredRows._make(replace(rows._reader, dtype=dtype), Products(), [])


def _index_select(rows: StoredRows, dim: int, index: Tensor) -> Any:
    return rows.pick(index).to_tensor() if dim == 0 and not rows._whole else NotImplemented


def _new(name: str) -> Callable[..., Tensor]:
    def make(rows: StoredRows, *args: Any, **kwargs: Any) -> Tensor:
        return getattr(torch.empty(0, dtype=rows._reader.dtype), name)(*args, **kwargs)

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
    Tensor.dim,
    Tensor.size,
    Tensor.numel,
    Tensor.__len__,
    Tensor.is_floating_point,
    *(
        getattr(Tensor, name).__get__
        for name in (
            "shape",
            "ndim",
            "dtype",
            "device",
            "requires_grad",
            "is_cuda",
            "layout",
            "itemsize",
            "nbytes",
        )
    ),
}
