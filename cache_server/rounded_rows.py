"""Rows that are rounded to fewer bits a number before they are sent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest
from cache_server.row_form import find_form
from cache_server.table import Table
from cache_server.wire import little_endian


class RoundedRows:
    """The rows of a float32 table, rounded to a form as they are read.

    Parameters
    ----------
    table: the table to read.
    form: float16, bfloat16 or int8.

    Attributes
    ----------
    row_bytes: size of a rounded row.
    scratch_bytes: memory that rounding a row needs besides the rounded row: the stored row and
        intermediate results.

    Raises
    ------
    BadRequest: the form is unknown, or the table's rows are not float32.
    """

    def __init__(self, table: Table, form: str) -> None:
        self._form = find_form(form)
        if table.spec.dtype != "float32":
            raise BadRequest(
                f"form: rows of {table.name} are {table.spec.dtype}; only float32 is rounded, to "
                f"{form} as to any form"
            )
        self._table = table
        self.row_bytes = self._form.row_bytes(table.spec.dim)
        self.scratch_bytes = 3 * table.row_bytes

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Read rows, round them and write them to ``out`` [n, row_bytes].

        Raises
        ------
        BadRequest: the form cannot hold a number of the rows.
        """
        stored = np.empty((rows.size, self._table.row_bytes), np.uint8)
        self._table.gather(rows, stored)
        floats = stored.view(little_endian("float32"))
        rounded = self._form.encode(floats)
        if self._form.name == "float16" and not np.isfinite(rounded).all():
            lost = np.isinf(rounded) & np.isfinite(floats)
            if lost.any():
                raise BadRequest(
                    f"form: rows of {self._table.name} have numbers beyond what float16 can hold, "
                    f"such as {floats[lost][0]:g}; expected bfloat16 or int8"
                )
        out[:] = rounded.view(np.uint8).reshape(out.shape)
