"""What a model takes along besides itself: results that it has so far, or their gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Luggage:
    """Rows of several kinds, to which every rank adds, and what of them travels.

    A model goes from home, which is place 0, to place 1, 2, ... and home again, with all that was
    made until then; and then to the last place, the one before it, ... and home again, with what
    those that it has yet to visit have made; from the last of these with nothing.

    Parameters
    ----------
    shapes: by kind, how many rows there are, and their width.
    made_at: [n] int64, the place at which each row is made; of kinds with fewer rows, of the first.
    places: how many there are.
    dense: kinds to which every place adds in every row, so that all rows travel.

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
        """Add what a rank has made."""
        self.rows = {
            kind: self.rows[kind] + own if self.rows else own for kind, own in rows.items()
        }

    def packed(self, step: int) -> Tensor:
        """[numbers]: what travels to a time step; nothing of it is kept here."""
        rows, self.rows = self.rows, {}
        parts = [
            rows[kind] if chosen is None else rows[kind].index_select(0, chosen)
            for kind, chosen in self._travelling(step).items()
        ]
        return torch.cat([part.reshape(-1) for part in parts])

    def room(self, step: int) -> Tensor:
        """[numbers]: of unspecified content, for what travels to a time step."""
        size = 0
        for kind, chosen in self._travelling(step).items():
            count, width = self._shapes[kind]
            size += width * (count if chosen is None else len(chosen))
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def unpack(self, step: int, buffer: Tensor) -> None:
        """Take what has come; rows that did not travel are zeros."""
        place = 0
        for kind, chosen in self._travelling(step).items():
            count, width = self._shapes[kind]
            size = width * (count if chosen is None else len(chosen))
            came = buffer[place : place + size].view(-1, width)
            place += size
            if chosen is not None:
                came = came.new_zeros(count, width).index_copy_(0, chosen, came)
            self.rows[kind] = came

    def _travelling(self, step: int) -> dict[str, Tensor | None]:
        """By kind, which rows travel to a time step; None = all."""
        if step <= self._places:
            first, stop = 0, step
        else:
            first, stop = 1, 2 * self._places - step + 1
        found: dict[str, Tensor | None] = {}
        for kind, (count, _) in self._shapes.items():
            found[kind] = None
            if kind not in self._dense:
                made_at = self._made_at[:count]
                chosen = np.flatnonzero((made_at >= first) & (made_at < stop))
                found[kind] = torch.from_numpy(chosen).to(self._device)
        return found
