"""Input rows that stay where they are stored until they are multiplied.

A first layer that projects its input makes narrow rows of wide ones. Gathered first, the wide ones
are written to memory and read from it twice, for the product and for the weights' gradient;
gathered in blocks that fit the processor's cache, they are read where they are stored and written
nowhere.
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

from hopper.ops.counter_mask import masked_scale
from hopper.ops.precision import product_dtype
from hopper.ops.row_form import float_dtype, float_width, to_floats

_BLOCK_BYTES: Final = 1 << 22
"""of the rows of a block: it stays in the cache that cores share, and is large enough for several
threads to gain by it"""


@dataclass(frozen=True)
class RowPart:
    """Some rows of one table.

    Attributes
    ----------
    table: [stored, columns] in host memory, or mapped into it, in a stored form.
    rows: [k] int64: which of them; None = all, in their order.
    places: [k] int64, ascending: which rows of the whole they are; None = all of it.
    """

    table: Tensor
    rows: Tensor | None = None
    places: Tensor | None = None

    def __len__(self) -> int:
        return len(self.table if self.rows is None else self.rows)

    def before(self, stop: int) -> int:
        """How many of them are among the first ``stop`` rows of the whole."""
        if self.places is None:
            return min(stop, len(self))
        return int(torch.searchsorted(self.places, stop))

    def first(self, count: int) -> RowPart:
        """The first ``count`` of them."""
        rows = self.rows if self.rows is None else self.rows[:count]
        table = self.table[:count] if self.rows is None else self.table
        return RowPart(table, rows, None if self.places is None else self.places[:count])


@dataclass(frozen=True)
class _Block:
    """Consecutive rows of a part.

    values: [k, dim]. places: which rows of the whole they are.
    """

    values: Tensor
    places: slice | Tensor

    def before(self, stop: int) -> _Block:
        """Those among the first ``stop`` rows of the whole."""
        if isinstance(self.places, slice):
            count = max(0, min(stop, self.places.stop) - self.places.start)
            return _Block(self.values[:count], slice(self.places.start, self.places.start + count))
        count = int(torch.searchsorted(self.places, stop))
        return _Block(self.values[:count], self.places[:count])

    def of(self, whole: Tensor) -> Tensor:
        """[k, ...]: their rows of a tensor that has one for each of the whole."""
        if isinstance(self.places, slice):
            return whole[self.places]
        return whole.index_select(0, self.places)


@dataclass(frozen=True)
class _Reader:
    """Reads rows block by block.

    Attributes
    ----------
    parts: that make up the whole. count: rows of the whole.
    dtype: what values are converted to.
    keys: [count] int64: of dropout, one a row; None = there is none. threshold, first_dropped: of
        dropout.
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
        """Whether all rows are in parts; the others are zeros."""
        return sum(map(len, self.parts)) == self.count

    def first(self, count: int) -> _Reader:
        """The first rows of the whole."""
        parts = tuple(part.first(part.before(count)) for part in self.parts)
        keys = None if self.keys is None else self.keys[:count]
        return replace(self, parts=parts, count=count, keys=keys)

    def pick(self, places: Tensor) -> _Reader:
        """Some rows of the whole, in any order.

        Parameters
        ----------
        places: [n] int64: which.
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
            own = slice(None) if part.places is None else part.places
            part_of[own], row_of[own] = number, rows
        part_of, row_of = part_of[places], row_of[places]
        parts = []
        for number, part in enumerate(self.parts):
            own = (part_of == number).nonzero().squeeze(1)
            parts.append(RowPart(part.table, row_of[own], own))
        return replace(self, parts=tuple(parts), count=len(places), keys=keys)

    def blocks(self, dtype: torch.dtype) -> Iterator[_Block]:
        """All rows; a block is not valid any more when the next one has been read."""
        for part in self.parts:
            table, total = part.table, len(part)
            size = max(1, _BLOCK_BYTES // max(1, table.shape[1] * table.itemsize))
            room = None if part.rows is None else table.new_empty(min(size, total), table.shape[1])
            for start in range(0, total, size):
                stop = min(start + size, total)
                if part.rows is None or room is None:
                    values = table[start:stop]
                else:
                    values = room[: stop - start]
                    torch.index_select(table, 0, part.rows[start:stop], out=values)
                places = slice(start, stop) if part.places is None else part.places[start:stop]
                values = to_floats(values, self.dtype)
                if self.keys is not None:
                    values = masked_scale(
                        *(values, self.keys[places], self.threshold, self.first_dropped)
                    )
                yield _Block(values.to(dtype), places)

    def gathered(self) -> Tensor:
        """[count, dim]."""
        make = torch.empty if self.is_whole else torch.zeros
        out = make(self.count, self.dim, dtype=self.dtype)
        for block in self.blocks(self.dtype):
            out[block.places] = block.values
        return out


@dataclass(frozen=True)
class _Made:
    """A product that is there already.

    weight: of which, as it was given. transposed: and how. version: the weight's.
    dtype: of the product.
    out: [rows, ...], how to come by the product; None once nobody has it any more, or somebody has
        changed it.
    """

    weight: Tensor
    transposed: bool
    version: int
    dtype: torch.dtype
    has_gradient: bool
    out: Callable[[], Tensor | None]


@dataclass
class _Products:
    """What rows were multiplied with, and what else they will be.

    expected: weights [out, dim] that the first ``count`` rows will be multiplied with.
    """

    made: list[_Made] = field(default_factory=list)
    expected: list[tuple[Tensor, int]] = field(default_factory=list)

    def find(
        self, weight: Tensor, transposed: bool, count: int, dtype: torch.dtype
    ) -> Tensor | None:
        """[count, out]: a product of as many rows or more, if it was made."""
        for each in self.made:
            is_same = each.weight is weight and each.version == weight._version
            is_same &= each.transposed == transposed
            if is_same and each.dtype == dtype and each.has_gradient == torch.is_grad_enabled():
                out = each.out()
                if out is not None and len(out) >= count:
                    return out[:count]
        return None

    def keep(
        self, weight: Tensor, out: Tensor, *, transposed: bool = False, until_used: bool
    ) -> None:
        """Let a product be found; ``until_used``, even if nobody has it yet."""
        kept = [out] if until_used else []
        known, version = weakref.ref(out), out._version

        def find() -> Tensor | None:
            found = kept.pop() if kept else known()
            return None if found is None or found._version != version else found

        self._note(weight, transposed, out.dtype, find)

    def supply(self, weight: Tensor, make: Callable[[], Tensor]) -> None:
        """Let a product be made when it is looked for."""
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
    """[n, dim] rows that are read when they are multiplied, and for anything else gathered first.

    It takes the place of a tensor of input rows: ``torch.nn.functional.linear`` and ``@`` read it
    in blocks, after dropout too, and so they do its first rows (``rows[:n]``); for any other
    function it is gathered, once. Rows have no gradient.

    Where the first rows are multiplied with what all rows were multiplied with (a destination is
    among the sources), the product is taken from there; :meth:`expect` lets several products be
    made in one go.
    """

    _reader: _Reader
    _products: _Products
    _whole: list[Tensor]

    @classmethod
    def of(cls, parts: Sequence[RowPart], count: int) -> StoredRows:
        """Rows of some tables of one width and form, at least one.

        Parameters
        ----------
        parts: each of the ``count`` rows is in one of them, or else all zeros.
        """
        table = parts[0].table
        reader = _Reader(tuple(parts), count, float_width(table), float_dtype(table))
        return cls._make(reader, _Products(), [])

    @classmethod
    def _make(cls, reader: _Reader, products: _Products, whole: list[Tensor]) -> StoredRows:
        shape = (reader.count, reader.dim)
        made: StoredRows = Tensor._make_wrapper_subclass(cls, shape, dtype=reader.dtype)
        made._reader, made._products, made._whole = reader, products, whole
        return made

    def expect(self, weights: Sequence[Tensor], count: int) -> None:
        """Say that the first rows will be multiplied with other weights too.

        Parameters
        ----------
        weights: [out, dim] each, as ``torch.nn.functional.linear`` will be given them.
        """
        self._products.expected += [(weight, count) for weight in weights]

    def products(self) -> list[tuple[Tensor, Tensor]]:
        """What these rows, or the first of them, were multiplied with, each with the product; of
        products that somebody has or that were expected."""
        found = [(each.weight, each.out()) for each in self._products.made]
        return [(weight, out) for weight, out in found if out is not None]

    def supply(self, weight: Tensor, make: Callable[[], Tensor]) -> None:
        """Say how to come by the product of the first rows and a weight without reading them.

        Parameters
        ----------
        weight: [out, dim], as ``torch.nn.functional.linear`` will be given it.
        make: makes the product, [n, out] of the first n rows, when it is asked for.
        """
        self._products.supply(weight, make)

    def first(self, count: int) -> StoredRows:
        """The first rows of these."""
        whole = [rows[:count] for rows in self._whole]
        return self._make(self._reader.first(count), self._products, whole)

    def pick(self, places: Tensor) -> StoredRows:
        """[n, dim]: some of these rows; ``places`` [n] int64."""
        return self._make(self._reader.pick(places), _Products(), [])

    @property
    def is_dropped(self) -> bool:
        """Whether dropout was applied to these rows."""
        return self._reader.keys is not None

    def dropped(self, keys: Tensor, threshold: int, first: int = 0) -> StoredRows:
        """These rows, to which none was applied, after dropout; see
        :func:`hopper.ops.counter_mask.drop`."""
        reader = replace(self._reader, keys=keys, threshold=threshold, first_dropped=first)
        return self._make(reader, _Products(), [])

    def gathered(self) -> Tensor:
        """[n, dim]: an ordinary tensor."""
        if not self._whole:
            self._whole.append(self._reader.gathered())
        return self._whole[0]

    def times(self, weight: Tensor, *, transposed: bool = False) -> Tensor:
        """[n, out]: these rows times a matrix.

        Parameters
        ----------
        weight: [out, dim], or, ``transposed``, [dim, out].
        """
        products, count = self._products, self._reader.count
        dtype = product_dtype(weight)
        found = products.find(weight, transposed, count, dtype)
        if found is not None:
            return found
        if self._whole:
            rows = self._whole[0]
            return rows @ (weight if transposed else weight.t())
        others = [(each, rows) for each, rows in products.expected if rows <= count]
        products.expected.clear()
        matrices = [weight.t() if transposed else weight, *(each for each, _ in others)]
        counts = (count, *(rows for _, rows in others))
        made = _Product.apply(self._reader, counts, dtype, *(each.to(dtype) for each in matrices))
        out: Tensor = made[0]
        products.keep(weight, out, transposed=transposed, until_used=False)
        for (each, _), other in zip(others, made[1:], strict=True):
            products.keep(each, other, until_used=True)
        return out

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Multiplies in blocks, tells what is known without reading, and gathers for all else."""
        given = kwargs or {}
        if func in _READ_NOTHING:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **given)
        special = _SPECIAL.get(func)
        if special is not None and args and isinstance(args[0], StoredRows) and "out" not in given:
            found = special(*args, **given)
            if found is not NotImplemented:
                return found
        return _with_gathered(func, args, given)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Gathers for what torch calls below its own functions."""
        return _with_gathered(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StoredRows({self._reader.count} x {self._reader.dim}, {self._reader.dtype})"


class _Product(torch.autograd.Function):
    """The first ``counts[i]`` rows times the i-th matrix [out, dim], for all of them in one go."""

    @staticmethod
    def forward(
        ctx: Any, reader: _Reader, counts: tuple[int, ...], dtype: torch.dtype, *matrices: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.reader, ctx.counts, ctx.dtype = reader, counts, dtype
        ctx.shapes = [each.shape for each in matrices]
        make = torch.empty if reader.is_whole else torch.zeros
        found = [
            make(n, len(each), dtype=each.dtype) for each, n in zip(matrices, counts, strict=True)
        ]
        for block in reader.blocks(dtype):
            for matrix, count, out in zip(matrices, counts, found, strict=True):
                part = block if count == reader.count else block.before(count)
                if isinstance(part.places, slice):
                    torch.mm(part.values, matrix.t(), out=out[part.places])
                else:
                    out.index_copy_(0, part.places, part.values @ matrix.t())
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        reader, needed = ctx.reader, ctx.needs_input_grad[3:]
        # Over blocks in float32 at least, as one product over all rows would add up.
        sums = torch.promote_types(ctx.dtype, torch.float32)
        found = [
            torch.zeros(shape, dtype=sums) if needs and grad is not None else None
            for shape, needs, grad in zip(ctx.shapes, needed, grads, strict=True)
        ]
        if any(out is not None for out in found):
            for block in reader.blocks(ctx.dtype):
                for grad, count, out in zip(grads, ctx.counts, found, strict=True):
                    if out is None or grad is None:
                        continue
                    part = block if count == reader.count else block.before(count)
                    own = part.of(grad).t()
                    if out.dtype == ctx.dtype:
                        out.addmm_(own, part.values)
                    else:
                        out += own @ part.values
        given = [None if out is None else out.to(ctx.dtype) for out in found]
        return (None, None, None, *given)


def _with_gathered(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = tree_map_only(StoredRows, StoredRows.gathered, (tuple(args), dict(kwargs)))
    return func(*given[0], **given[1])


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
    return rows.pick(index).gathered() if dim == 0 and not rows._whole else NotImplemented


def _new(name: str) -> Callable[..., Tensor]:
    def make(rows: StoredRows, *args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = getattr(torch.empty(0, dtype=rows._reader.dtype), name)(*args, **kwargs)
        return made

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
