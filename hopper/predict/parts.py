"""The files of a prediction: written part by part, each whole or not there, and read again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.array_file import open_array
from hopper.predict.order import Format, Order, read_order
from hopper.whole_files import replacing

_ROWS_AT_ONCE: Final = 1 << 16
_INSTALL: Final = "install it with: pip install 'hopper-gnn[parquet]'"


@dataclass(frozen=True)
class Part:
    """What a rank has predicted, of one block of nodes.

    Attributes
    ----------
    ids: [n] int64 original ids, ascending.
    order: [n] int64: where the row of each is.
    """

    ids: NDArray[np.int64]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, originals: NDArray[np.int64]) -> Self:
        """Of nodes in any order."""
        order = np.argsort(originals, kind="stable")
        return cls(originals[order], order)

    def pieces(self) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        """Places in the part, and places of their rows, some at a time."""
        for first in range(0, self.ids.size, _ROWS_AT_ONCE):
            piece = slice(first, min(first + _ROWS_AT_ONCE, self.ids.size))
            yield piece, self.order[piece]


def part_file(out: Path, rank: int, block: int, kind: Format) -> Path:
    """The file whose being there says that a rank has finished a block."""
    return out / f"part-{block:05d}-{rank:05d}.{kind}"


def ids_file(part: Path) -> Path:
    """Beside a part in .npy, the file of its nodes."""
    return part.with_name(part.name.replace("part-", "ids-"))


def check_format(kind: Format) -> None:
    """Refuse a format whose library is not there.

    Raises
    ------
    RequestError: says what to install.
    """
    if kind == "parquet":
        _pyarrow()


def write_part(
    file: Path, part: Part, name: str, rows: Iterator[tuple[slice, NDArray[Any]]], sample: Any
) -> None:
    """Write a part; an older file of the name stays until it is whole.

    Parameters
    ----------
    name: of the column of values, or of the tensors.
    rows: by places in the part, in order, what is written.
    sample: [0] or [0, width]: of the same dtype and width.
    """
    if file.suffix == ".npy":
        with replacing(ids_file(file)) as unfinished, unfinished.open("wb") as stream:
            np.save(stream, part.ids)
        with replacing(file) as unfinished, unfinished.open("wb") as stream:
            header = {
                "descr": np.lib.format.dtype_to_descr(sample.dtype),
                "fortran_order": False,
                "shape": (part.ids.size, *sample.shape[1:]),
            }
            np.lib.format.write_array_header_2_0(stream, header)
            for _, values in rows:
                stream.write(np.ascontiguousarray(values).data)
        return
    arrow, parquet = _pyarrow()
    kind = arrow.from_numpy_dtype(sample.dtype)
    if sample.ndim == 2:
        kind = arrow.list_(kind, sample.shape[1])
    schema = arrow.schema([("id", arrow.int64()), (name, kind)])
    with replacing(file) as unfinished, parquet.ParquetWriter(unfinished, schema) as writer:
        for piece, values in rows:
            column = arrow.array(values.reshape(-1))
            if sample.ndim == 2:
                column = arrow.FixedSizeListArray.from_arrays(column, sample.shape[1])
            ids = arrow.array(part.ids[piece])
            writer.write_table(arrow.Table.from_arrays([ids, column], schema=schema))


@dataclass(frozen=True)
class Predictions:
    """What a model predicted.

    Attributes
    ----------
    ids: [n] int64, ascending: original ids of nodes of the target type.
    values: [n] class numbers or values, or [n, width] of anything else, in the same order.
    """

    ids: NDArray[np.int64]
    values: NDArray[Any]

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what ``hopper predict`` wrote; all of it into memory.

        Raises
        ------
        GraphError: the folder holds no prediction, or parts of it are missing or altered.
        RequestError: the prediction is not finished, or its format's library is not there.
        """
        out = Path(folder)
        order, found = read_order(out)
        if not found.get("finished"):
            raise RequestError(f"{out}: the prediction is not finished; run it again to go on")
        parts = [_read(file, order) for file in sorted(out.glob(f"part-*.{order.format}"))]
        if sum(ids.size for ids, _ in parts) != found["count"]:
            raise RequestError(
                f"{out}: expected {found['count']} nodes, as {order.what} were written, found "
                f"{sum(ids.size for ids, _ in parts)}: parts of other machines are missing"
            )
        ids = np.concatenate([ids for ids, _ in parts])
        values = np.concatenate([values for _, values in parts])
        places = np.argsort(ids)
        return cls(ids[places], values[places])


def _read(file: Path, order: Order) -> tuple[NDArray[np.int64], NDArray[Any]]:
    if file.suffix == ".npy":
        values = np.load(file, mmap_mode="r", allow_pickle=False)
        return open_array(ids_file(file), "ids", np.int64, (len(values),)), values
    _, parquet = _pyarrow()
    table = parquet.read_table(file)
    ids, column = (table.column(number).combine_chunks() for number in (0, 1))
    values = column.values if hasattr(column, "values") and column.type.num_fields else column
    found = values.to_numpy(zero_copy_only=False)
    width = getattr(column.type, "list_size", 0)
    return ids.to_numpy(), found.reshape(-1, width) if width else found


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError(
            f"--format parquet: pyarrow cannot be imported ({error}); {_INSTALL}"
        ) from error
    return pyarrow, pyarrow.parquet
