"""Writes and reads the files of a prediction. Each part is complete or does not exist."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.files.addresses import AnyPath, hide_passwords, path_of, remote_errors
from hopper.files.scratch import scratch_folder
from hopper.files.whole_files import replacing
from hopper.graph.array_file import open_array
from hopper.graph.layout import names_file
from hopper.graph.names import Names
from hopper.predict.request import PredictionRequest, TaskColumns, read_description

LABEL_NAME: Final = "label_name"
"""the column with names of classes"""
CLASSES: Final = "classes"
"""the column with the most probable classes"""


def ids_file(part: AnyPath) -> AnyPath:
    """Return the file with the ids of a part in .npy."""
    return part.with_name(part.name.replace("part-", "ids-"))


def write_part(
    file: AnyPath,
    ids: NDArray[np.int64],
    name: str,
    pieces: Iterator[tuple[slice, Any]],
    more: Callable[[slice, Any], dict[str, Any]] = lambda piece, values: {},
) -> None:
    """Write the file of a part, which replaces an older one once it is complete.

    ``ids`` ascend. ``pieces`` yields slices of them in order, at least one, each with its values,
    [n] or [n, width]. In Parquet these are the column ``name``; ``more`` returns columns by name
    that are added, or replace it: arrays, or lists of texts.
    """
    with replacing(file) as unfinished, ExitStack() as cleanup:
        if file.suffix == ".npy":
            with replacing(ids_file(file)) as other, other.open("wb") as stream:
                np.save(stream, ids)
            stream = cleanup.enter_context(unfinished.open("wb"))
            for piece, values in pieces:
                values = np.ascontiguousarray(values)
                if piece.start == 0:
                    header = np.lib.format.header_data_from_array_1_0(values)
                    header["shape"] = ids.size, *values.shape[1:]
                    np.lib.format.write_array_header_2_0(stream, header)
                stream.write(values.data)
            return
        import pyarrow as arrow
        from pyarrow import parquet

        writer = None
        for piece, values in pieces:
            columns = {"id": ids[piece], name: values} | more(piece, values)
            table = arrow.table({key: _to_arrow(of) for key, of in columns.items()})
            writer = writer or cleanup.enter_context(
                parquet.ParquetWriter(unfinished, table.schema)
            )
            writer.write_table(table)


def _to_arrow(values: Any) -> Any:
    import pyarrow as arrow

    if isinstance(values, list):
        return arrow.array(values, arrow.string())
    array, width = arrow.array(np.ravel(values)), values.shape[1:]
    return arrow.FixedSizeListArray.from_arrays(array, *width) if width else array


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model.

    Attributes
    ----------
    ids: [n] int64, ascending: original ids of nodes or edges.
    values: [n] class numbers or values, or [n, width] of anything else, in the same order.
    classes: [n, top] int64: the classes of the ``top`` largest probabilities; None unless only
        these were asked for.
    names: [n] the source's names of the nodes; None if it numbered them. For files in .npy they are
        read from the partitioned directory, and None if that is gone.
    label_names: the source's names of the classes by number; empty if it numbered them.
    tasks: the columns of each task by name, if there are several (docs/howto/several-tasks.md).
    """

    ids: NDArray[np.int64]
    values: NDArray[Any]
    names: NDArray[np.str_] | None = None
    label_names: tuple[str, ...] = ()
    tasks: Mapping[str, TaskColumns] = field(default_factory=dict)
    classes: NDArray[np.int64] | None = None

    @classmethod
    @hide_passwords()
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Read all files that ``hopper predict`` wrote, into a folder or to an address, into
        memory.

        A :class:`GraphError` says that the folder has no prediction, or that a part is altered, a
        :class:`RequestError` that the prediction is not finished, or that parts are missing.
        """
        out = path_of(folder)
        request, description = read_description(out)
        if not description.get("finished"):
            raise RequestError(f"{out}: the prediction is not finished; run it again to go on")
        if not isinstance(out, Path):
            with scratch_folder("hopper-predictions-") as copy:
                with remote_errors(out):
                    out.fs.get(f"{out.path}/", f"{copy}/", recursive=True)
                return cls.open(copy)
        parts = [_read(file, request) for file in sorted(out.glob(f"part-*.{request.format}"))]
        found, expected = sum(len(part["id"]) for part in parts), description["count"]
        if found != expected:
            raise RequestError(
                f"{out}: expected {expected} rows, as {request.what} were written, found {found}: "
                "parts of other machines are missing"
            )
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        ascending = np.argsort(columns["id"])
        columns = {name: values[ascending] for name, values in columns.items()}
        return cls(
            columns["id"],
            columns[request.what],
            columns["name"] if "name" in columns else _read_names(request, columns["id"]),
            tuple(description.get("label_names", ())),
            {task["name"]: TaskColumns(**task) for task in description.get("tasks", ())},
            columns.get(CLASSES),
        )

    def task(self, name: str) -> NDArray[Any]:
        """Return the predictions of one task: [n] class numbers or values, or [n, width]; refuse
        (:class:`RequestError`) an unknown one."""
        if name not in self.tasks:
            raise RequestError(f"task: expected one of {', '.join(self.tasks)}; given {name!r}")
        return self.tasks[name].of(self.values)


def _read_names(request: PredictionRequest, ids: NDArray[np.int64]) -> NDArray[np.str_] | None:
    file = names_file(Path(request.graph), request.node_type)
    if request.of_edges or not file.is_file():
        return None
    return np.array(Names(file).of(ids), np.str_)


def _read(file: Path, request: PredictionRequest) -> dict[str, NDArray[Any]]:
    """Read the columns of a part that :class:`Predictions` has."""
    if file.suffix == ".npy":
        values = np.load(file, mmap_mode="r", allow_pickle=False)
        ids = open_array(Path(str(ids_file(file))), "ids", np.int64, (len(values),))
        return {"id": ids, request.what: values}
    from pyarrow import parquet

    table = parquet.read_table(file)
    names = {"id", request.what, "name", CLASSES}.intersection(table.column_names)
    return {name: _to_numpy(table.column(name).combine_chunks()) for name in names}


def _to_numpy(array: Any) -> NDArray[Any]:
    if str(array.type) == "string":
        return np.array(array.to_pylist(), np.str_)
    width = getattr(array.type, "list_size", 0)
    values: NDArray[Any] = (array.values if width else array).to_numpy(zero_copy_only=False)
    return values.reshape(-1, width) if width else values
