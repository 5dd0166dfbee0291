"""Reading the rows of tables block by block, and converting stored rows of features to floats.

A block fits the processor's cache, so rows that are multiplied block by block are never written to
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from cache_server.feature_codec import SCALE_BYTES
from hopper.ops.counter_mask import drop_and_scale

_BLOCK_BYTES: Final = 1 << 22
"""The bytes of a block of rows. It fits the cache that cores share, and is large enough for several
threads."""


def to_floats(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert stored rows of any form, or floats, to [n, dim] in a floating dtype.

    Rows of int8 are always multiplied by their scale in float32, so that a row has the same numbers
    in every run (:mod:`cache_server.feature_codec`).
    """
    if rows.dtype == torch.uint16:
        return rows.view(torch.bfloat16).to(dtype)
    if rows.dtype == torch.int8:
        # The copy is aligned for float32.
        scales = rows[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format)
        return (rows[:, :-SCALE_BYTES].to(torch.float32) * scales.view(torch.float32)).to(dtype)
    return rows.to(dtype)


def float_form(rows: Tensor) -> tuple[int, torch.dtype]:
    """Return the number of a stored row's numbers, and their dtype."""
    # torch cannot read two of the forms as numbers directly.
    if rows.dtype == torch.int8:
        return rows.shape[1] - SCALE_BYTES, torch.float32
    return rows.shape[1], torch.bfloat16 if rows.dtype == torch.uint16 else rows.dtype


@dataclass(frozen=True)
class RowPart:
    """Some rows of one table, which are part of the rows of a :class:`hopper.ops.StoredRows`.

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

    def first(self, stop: int) -> RowPart:
        """Return the part's rows among the first ``stop`` rows of the whole."""
        count = stop if self.places is None else int(torch.searchsorted(self.places, stop))
        rows = self.rows if self.rows is None else self.rows[:count]
        table = self.table[:count] if self.rows is None else self.table
        return RowPart(table, rows, None if self.places is None else self.places[:count])


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a part: values [k, dim], and the places of the rows in the whole."""

    values: Tensor
    places: slice | Tensor

    def before(self, stop: int) -> RowBlock:
        """Return the block's rows among the first ``stop`` rows of the whole."""
        if isinstance(self.places, slice):
            count = max(0, min(stop, self.places.stop) - self.places.start)
            return RowBlock(
                self.values[:count], slice(self.places.start, self.places.start + count)
            )
        count = int(torch.searchsorted(self.places, stop))
        return RowBlock(self.values[:count], self.places[:count])

    def of(self, whole: Tensor) -> Tensor:
        """Select the block's rows [k, ...] from a tensor with a row for each of the whole."""
        if isinstance(self.places, slice):
            return whole[self.places]
        return whole.index_select(0, self.places)


@dataclass(frozen=True)
class RowReader:
    """Reads rows block by block."""

    parts: tuple[RowPart, ...]
    """the parts of the whole. Rows in no part are zero"""
    count: int
    """the number of rows of the whole"""
    dim: int
    """the width of a row"""
    dtype: torch.dtype
    """the dtype to which values are converted"""
    keys: Tensor | None = None
    """[count] int64, the key of dropout of each row; None = no dropout"""
    threshold: int = 0
    """the threshold of dropout, as in :func:`hopper.ops.counter_mask.drop`"""
    first_dropped: int = 0
    """the index of the first element of rows, for dropout"""

    @property
    def is_whole(self) -> bool:
        """Return whether every row is in a part."""
        return sum(map(len, self.parts)) == self.count

    def first(self, count: int) -> RowReader:
        """Return a reader of the first rows of the whole."""
        parts = tuple(part.first(count) for part in self.parts)
        keys = None if self.keys is None else self.keys[:count]
        return replace(self, parts=parts, count=count, keys=keys)

    def pick(self, places: Tensor) -> RowReader:
        """Return a reader of the rows of the whole at [n] int64 places, in any order."""
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

    def blocks(self, dtype: torch.dtype) -> Iterator[RowBlock]:
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
                        values, self.keys[places], self.threshold, self.first_dropped
                    )
                yield RowBlock(values.to(dtype), places)

    def to_tensor(self) -> Tensor:
        """Gather all rows to a tensor [count, dim]; a table that has just these is not copied."""
        table = self.parts[0].table
        in_order = all(part.table is table and part.rows is part.places for part in self.parts)
        if in_order and self.is_whole and self.keys is None and table.dtype == self.dtype:
            return table
        make = torch.empty if self.is_whole else torch.zeros
        out = make(self.count, self.dim, dtype=self.dtype)
        for block in self.blocks(self.dtype):
            out[block.places] = block.values
        return out
