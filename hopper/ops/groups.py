"""Groups of rows that are multiplied by one matrix each, and how programs of Triton share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import torch

from hopper.device.copies import to_device
from hopper.ops.csr import Csr

TILE_ROWS: Final = 64
"""The most rows of a group that one program of Triton multiplies."""
_CHUNK_ROWS: Final = 1024
"""The most rows of a group that one program of Triton sums to a gradient of its matrix."""


class Groups:
    """Which rows each matrix of a grouped product multiplies, and where the products go.

    Parameters
    ----------
    bounds: [groups + 1] ascending from 0: the products of each group. Groups may be empty.
    firsts: [groups] ascending: the first row that each group reads. Two groups read the same rows
        or have none in common, and no row is left out. None = each group has rows of its own.
    """

    def __init__(self, bounds: Sequence[int], firsts: Sequence[int] | None = None) -> None:
        self.bounds = tuple(bounds)
        self.firsts = self.bounds[:-1] if firsts is None else tuple(firsts)
        self.rows = max((read.stop for read, _ in self), default=0)
        self.products = self.bounds[-1]
        self._tables: dict[torch.device, GroupTables] = {}

    @classmethod
    def of_sizes(cls, sizes: Iterable[int]) -> Groups:
        """Return groups of so many rows of their own."""
        return cls([*accumulate(sizes, initial=0)])

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        """Yield the rows and the products of each group."""
        for first, (start, stop) in zip(self.firsts, pairwise(self.bounds), strict=True):
            yield slice(first, first + stop - start), slice(start, stop)

    @cached_property
    def shared(self) -> list[tuple[slice, slice, int | slice, int]]:
        """Groups that read the same rows: the rows, all their products, their index or indices,
        and their number. An empty group stands alone."""
        found = list[tuple[slice, slice, int | slice, int]]()
        for group, (read, made) in enumerate(self):
            if found and read.start < read.stop and read == found[-1][0]:
                _, products, _, number = found.pop()
                made = slice(products.start, made.stop)
                found.append((read, made, slice(group - number, group + 1), number + 1))
            else:
                found.append((read, made, group, 1))
        return found

    def tables(self, device: torch.device) -> GroupTables:
        """Return what programs of Triton read, which is copied to a device once."""
        if device not in self._tables:
            self._tables[device] = GroupTables(self, device)
        return self._tables[device]


class GroupTables:
    """What each program of Triton computes of a grouped product and its gradients.

    Attributes
    ----------
    products: [tiles, 4] int64: the first product of a tile, their number, and the first and the end
        of the groups to add up, of which there is one.
    rows: [tiles, 4] int64: the same for gradients of rows, to which all groups that read them
        contribute.
    chunks: [chunks, 3] int64: the first product of a chunk, their number, and their group.
    chunks_of_groups: the pattern in which groups gather their chunks. Even an empty group has one.
    shifts: [groups] int64: the first row of each group, less its first product.
    """

    def __init__(self, groups: Groups, device: torch.device) -> None:
        products, rows = list[tuple[int, int, int, int]](), list[tuple[int, int, int, int]]()
        chunks, first_chunks = list[tuple[int, ...]](), [0]
        for group, (read, made) in enumerate(groups):
            number = made.stop - made.start
            products.append((made.start, number, group, group + 1))
            if number and rows and rows[-1][0] == read.start:
                rows[-1] = (*rows[-1][:3], group + 1)
            elif number:
                rows.append((read.start, number, group, group + 1))
            chunks += _split([(made.start, number, group)], _CHUNK_ROWS) or [(0, 0, group)]
            first_chunks.append(len(chunks))

        arrays = (
            np.array(_split(products, TILE_ROWS), np.int64).reshape(-1, 4),
            np.array(_split(rows, TILE_ROWS), np.int64).reshape(-1, 4),
            np.array(chunks, np.int64).reshape(-1, 3),
            np.subtract(groups.firsts, groups.bounds[:-1]),
            np.array(first_chunks),
            np.arange(len(chunks)),
        )
        # One copy to the device for all of them.
        joined = to_device(np.concatenate([array.ravel() for array in arrays]), device)
        parts = joined.split([array.size for array in arrays])
        self.products, self.rows, self.chunks, self.shifts, *pattern = (
            part.view(array.shape) for part, array in zip(parts, arrays, strict=True)
        )
        self.chunks_of_groups = Csr(*pattern)


def _split(ranges: Iterable[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
    """Split ranges (first, number, ...) into those of at most so many."""
    return [
        (first + done, min(most, number - done), *others)
        for first, number, *others in ranges
        for done in range(0, number, most)
    ]
