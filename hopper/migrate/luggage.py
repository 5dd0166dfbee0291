"""Partial results, or their gradients, that travel with a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Luggage:
    """Rows of several kinds that travel with a model, and to which every rank adds.

    On the way out a model goes from home, which is place 0, to places 1, 2, ... and home again, and
    takes along all rows made so far. On the way back it goes to the last place, the one before,
    ... and home again. It then takes along the rows made at places that it has yet to visit, and
    from the last place none.

    Parameters
    ----------
    shapes: by kind, the number of rows and their width.
    made_at: [n] int64, the place at which each row is made. A kind with fewer rows uses the first.
    places: number of places.
    dense: kinds in which every place adds to every row, so that all rows travel.

    Attributes
    ----------
    rows: by kind, [n, width].
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        made_at: NDArray[np.int64],
        places: int,
        dense: Collection[str],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shapes, self._places, self._dense = dict(shapes), places, dense
        self._made_at = made_at
        self._dtype, self._device = dtype, device
        self.rows: dict[str, Tensor] = {}

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add a rank's rows, by kind."""
        self.rows = {
            kind: self.rows[kind] + added if self.rows else added for kind, added in rows.items()
        }

    def pack(self, step: int) -> Tensor:
        """Return the elements that travel to a time step in one dimension, and keep no rows."""
        rows, self.rows = self.rows, {}
        parts = [
            rows[kind] if places is None else rows[kind].index_select(0, places)
            for kind, places in self._find_travelling_rows(step).items()
        ]
        return torch.cat([part.reshape(-1) for part in parts])

    def room(self, step: int) -> Tensor:
        """Return an uninitialised buffer for the elements that travel to a time step."""
        size = 0
        for kind, places in self._find_travelling_rows(step).items():
            count, width = self._shapes[kind]
            size += width * (count if places is None else len(places))
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def unpack(self, step: int, buffer: Tensor) -> None:
        """Set the rows from a received buffer; rows that did not travel become zeros."""
        offset = 0
        for kind, places in self._find_travelling_rows(step).items():
            count, width = self._shapes[kind]
            size = width * (count if places is None else len(places))
            rows = buffer[offset : offset + size].view(-1, width)
            offset += size
            if places is not None:
                rows = rows.new_zeros(count, width).index_copy_(0, places, rows)
            self.rows[kind] = rows

    def _find_travelling_rows(self, step: int) -> dict[str, Tensor | None]:
        """Return, by kind, the indices of the rows that travel to a time step; None = all."""
        if step <= self._places:
            first, stop = 0, step
        else:
            first, stop = 1, 2 * self._places - step + 1
        travelling: dict[str, Tensor | None] = {}
        for kind, (count, _) in self._shapes.items():
            travelling[kind] = None
            if kind not in self._dense:
                made_at = self._made_at[:count]
                places = np.flatnonzero((made_at >= first) & (made_at < stop))
                travelling[kind] = torch.from_numpy(places).to(self._device)
        return travelling
