"""Node and edge tables in Parquet: columns are read whole, features in batches; errors name file,
row and column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.feature_columns import (
    MOST_CATEGORIES,
    FeatureColumn,
    number_texts,
    width_of,
)
from hopper.graph.importers.label_columns import (
    Read,
    all_columns,
    find_label_columns,
    join_read,
    kind_of,
)
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import CHUNK_BYTES, read_times
from hopper.graph.schema import Labels


@dataclass(frozen=True)
class ParquetFeatures:
    """The feature columns of a table: numbers, lists of numbers of one length, or texts."""

    file: Path
    columns: list[FeatureColumn]
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, width_of(self.columns)

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [name for column in self.columns for name in column.names]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32"""
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Chunks of at most 64 MiB; NaN where nothing stands."""
        step, start = max(1, CHUNK_BYTES // (4 * self.shape[1])), 0
        names = [column.name for column in self.columns]
        for batch in _open(self.file).iter_batches(step, columns=names):
            part = np.empty((batch.num_rows, self.shape[1]), np.float32)
            first = 0
            for own in self.columns:
                column, place = batch.column(own.name), slice(first, first + own.width)
                if own.categories:
                    part[:, place] = _one_hot(column, own)
                else:
                    part[:, place] = self._values(column, own.name, own.width, start)
                first += own.width
            yield start, part
            start += batch.num_rows

    def _values(self, column: Any, name: str, width: int, start: int) -> NDArray[Any]:
        if not _is_list(column.type):
            return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(-1, 1)
        from pyarrow import compute

        _refuse_nulls(column, self.file, name, start)
        values = column.flatten()
        lengths = np.asarray(compute.list_value_length(column).to_numpy(zero_copy_only=False))
        uneven = np.flatnonzero(lengths != width)
        if uneven.size:
            raise GraphError(
                f"{self.file}: row {start + int(uneven[0])}: column {name}: expected {width} "
                f"numbers, as in the first row, given {int(lengths[uneven[0]])}"
            )
        _refuse_nulls(values, self.file, name, start)
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, width)


@dataclass(frozen=True)
class ParquetNodes:
    """What a node table says, apart from its features.

    Attributes
    ----------
    ids: a pyarrow array of distinct integers or texts.
    """

    ids: Any
    labels: tuple[Labels, NDArray[Any]] | None
    label_names: list[str]
    splits: dict[str, NDArray[np.int64]] | None
    features: ParquetFeatures | None
    times: NDArray[np.int64] | None
    task_names: dict[str, list[str]]

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @property
    def names(self) -> list[str] | None:
        """The ids by row; None where they are 0, 1, ... in order."""
        import pyarrow

        if pyarrow.types.is_integer(self.ids.type):
            numbers = self.ids.to_numpy(zero_copy_only=False)
            if np.array_equal(numbers, np.arange(len(numbers))):
                return None
        return [str(each) for each in self.ids.to_pylist()]


@dataclass(frozen=True)
class ParquetEdges:
    """What an edge table says, apart from its features."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    weights: NDArray[np.float32] | None
    labels: tuple[Labels, NDArray[Any]] | None
    label_names: list[str]
    splits: dict[str, NDArray[np.int64]] | None
    features: ParquetFeatures | None
    times: NDArray[np.int64] | None
    task_names: dict[str, list[str]]


def read_node_table(file: Path) -> ParquetNodes:
    """Read a node table.

    Raises
    ------
    GraphError: naming file, row and column.
    RequestError: pyarrow is missing.
    """
    source = _open(file)
    names = source.schema_arrow.names
    ids = _column(source, file, "id")
    _refuse_nulls(ids, file, "id", 0)
    from pyarrow import compute

    if compute.count_distinct(ids).as_py() < len(ids):
        raise GraphError(f"{file}: column id: expected distinct ids; some occur twice")
    labels = find_label_columns(names, str(file))
    columns = all_columns(labels)
    read, task_names = _read_tasks(source, file, labels)
    return ParquetNodes(
        ids,
        *read,
        _read_splits(source, file),
        _find_features(source, file, _without(names, "id", "time", "split", *columns)),
        _read_times(source, file) if "time" in names else None,
        task_names,
    )


def read_edge_table(file: Path, sources: ParquetNodes, targets: ParquetNodes) -> ParquetEdges:
    """Read an edge table.

    Parameters
    ----------
    sources, targets: of the source and the destination type.

    Raises
    ------
    GraphError: naming file, row and column.
    """
    source = _open(file)
    ends = [
        _places(_column(source, file, name), own.ids, file, name)
        for name, own in (("src", sources), ("dst", targets))
    ]
    names = source.schema_arrow.names
    labels = find_label_columns(names, str(file))
    columns = all_columns(labels)
    read, task_names = _read_tasks(source, file, labels)
    return ParquetEdges(
        ends[0],
        ends[1],
        _read_weights(source, file) if "weight" in names else None,
        *read,
        _read_splits(source, file),
        _find_features(
            source, file, _without(names, "src", "dst", "weight", "time", "split", *columns)
        ),
        _read_times(source, file) if "time" in names else None,
        task_names,
    )


def _read_tasks(
    source: Any, file: Path, columns: Mapping[str, list[str]]
) -> tuple[Read, dict[str, list[str]]]:
    found = {task: _read_labels(source, file, own) for task, own in columns.items()}
    return join_read(found, f"{file}: labels")


def _read_times(source: Any, file: Path) -> NDArray[np.int64]:
    column = _column(source, file, "time")
    _refuse_nulls(column, file, "time", 0)
    return read_times(column.to_numpy(zero_copy_only=False), f"{file}: column time")


def _read_weights(source: Any, file: Path) -> NDArray[np.float32]:
    column = _column(source, file, "weight")
    if not _is_number(column.type):
        raise GraphError(f"{file}: column weight: expected numbers, given {column.type}")
    _refuse_nulls(column, file, "weight", 0)
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float32)


def _without(names: list[str], *taken: str) -> list[str]:
    return [name for name in names if name not in taken]


def _places(column: Any, ids: Any, file: Path, name: str) -> NDArray[np.int64]:
    """[n] int64: the rows of a node table that ids name."""
    import pyarrow
    from pyarrow import compute

    _refuse_nulls(column, file, name, 0)
    try:
        if pyarrow.types.is_string(column.type) != pyarrow.types.is_string(ids.type):
            raise TypeError("texts are no numbers")
        found = compute.index_in(column, value_set=ids.cast(column.type))
    except Exception as error:
        raise GraphError(
            f"{file}: column {name}: expected ids of type {ids.type}, as in the node table, given "
            f"{column.type}: {first_line(error)}"
        ) from error
    if found.null_count:
        row = int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])
        raise GraphError(
            f"{file}: row {row}: column {name}: expected an id of the node table, given "
            f"{column[row].as_py()!r}"
        )
    return np.asarray(found.to_numpy(zero_copy_only=False)).astype(np.int64)


def _read_labels(source: Any, file: Path, names: list[str]) -> Read:
    """Labels, and what classes are called that the table does not number."""
    if kind_of(names[0]) == "label" and _is_text(source.schema_arrow.field(names[0]).type):
        classes, found = number_texts(_column(source, file, names[0]).to_pylist())
        return (Labels("class", max(1, len(found))), classes), found
    return _read_numbers(source, file, names), []


def _read_numbers(source: Any, file: Path, names: list[str]) -> tuple[Labels, NDArray[Any]]:
    import pyarrow

    name, kind = names[0], kind_of(names[0])
    if kind == "several":
        columns = [_column(source, file, name) for name in names]
        for name, column in zip(names, columns, strict=True):
            _refuse_nulls(column, file, name, 0)
        table = np.stack([np.asarray(each.to_numpy(zero_copy_only=False)) for each in columns], 1)
        if not np.isin(table, (0, 1)).all():
            row, place = np.argwhere(~np.isin(table, (0, 1)))[0].tolist()
            raise GraphError(
                f"{file}: row {row}: column {names[place]}: expected 0 or 1, given "
                f"{table[row, place]}"
            )
        return Labels("multi_hot", len(names)), table.astype(np.uint8)
    column = _column(source, file, name)
    if kind == "value":
        if not _is_number(column.type):
            raise GraphError(f"{file}: column {name}: expected numbers, given {column.type}")
        values = column.cast(pyarrow.float32()).to_numpy(zero_copy_only=False)
        return Labels("float", 1), np.asarray(values, np.float32)
    if not pyarrow.types.is_integer(column.type):
        raise GraphError(
            f"{file}: column {name}: expected integers or texts, the numbers or names of classes, "
            f"given {column.type}"
        )
    column = column.cast(pyarrow.int64()).fill_null(-1)
    classes = np.asarray(column.to_numpy(zero_copy_only=False), np.int64)
    classes = np.maximum(classes, -1)
    return Labels("class", max(1, int(classes.max(initial=-1)) + 1)), classes


def _read_splits(source: Any, file: Path) -> dict[str, NDArray[np.int64]] | None:
    if "split" not in source.schema_arrow.names:
        return None
    column = _column(source, file, "split").dictionary_encode()
    numbers = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return {
        str(name): np.flatnonzero(numbers == number)
        for number, name in enumerate(column.dictionary.to_pylist())
        if name not in (None, "")
    }


def _find_features(source: Any, file: Path, names: list[str]) -> ParquetFeatures | None:
    rows, columns = source.metadata.num_rows, []
    for name in names:
        kind = source.schema_arrow.field(name).type
        if _is_text(kind):
            columns.append(FeatureColumn(name, _categories(source, file, name)))
            continue
        number = kind.value_type if _is_list(kind) else kind
        if not _is_number(number):
            raise GraphError(
                f"{file}: column {name}: expected numbers, lists of them, or texts, given {kind}: "
                "turn it into numbers first"
            )
        width = 1
        if _is_list(kind) and rows:
            first = next(source.iter_batches(1, columns=[name])).column(0)
            _refuse_nulls(first, file, name, 0)
            width = len(first[0])
            if not width:
                raise GraphError(f"{file}: row 0: column {name}: expected numbers, given none")
        columns.append(FeatureColumn(name, numbers=width))
    return ParquetFeatures(file, columns, rows) if columns else None


def _categories(source: Any, file: Path, name: str) -> tuple[str, ...]:
    """The different texts of a column, in order."""
    from pyarrow import compute

    found = compute.unique(_column(source, file, name).cast("string")).to_pylist()
    texts = sorted({text for text in found if text})
    if len(texts) > MOST_CATEGORIES:
        raise GraphError(
            f"{file}: column {name}: expected at most {MOST_CATEGORIES:,} different texts, given "
            f"{len(texts):,}: turn them into numbers first"
        )
    return tuple(texts)


def _one_hot(column: Any, own: FeatureColumn) -> NDArray[np.float32]:
    """[n, categories]: 1 for the category of each row."""
    import pyarrow
    from pyarrow import compute

    known = pyarrow.array(own.categories, pyarrow.string())
    places = compute.index_in(column.cast("string"), value_set=known).fill_null(-1)
    found: NDArray[Any] = places.to_numpy(zero_copy_only=False)
    return (found[:, None] == np.arange(own.width)).astype(np.float32)


def _column(source: Any, file: Path, name: str) -> Any:
    """A column in one piece."""
    if name not in source.schema_arrow.names:
        raise GraphError(
            f"{file}: column {name}: expected, but missing in {source.schema_arrow.names}"
        )
    try:
        return source.read(columns=[name]).column(0).combine_chunks()
    # Damaged files are told of in many ways.
    except Exception as error:
        raise GraphError(f"{file}: column {name}: not readable: {first_line(error)}") from error


def _open(file: Path) -> Any:
    """A ``pyarrow.parquet.ParquetFile``."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError(
            f"import parquet: pyarrow cannot be imported ({error}); install it with: pip install "
            "'hopper-gnn[parquet]'"
        ) from error
    require_file(file, "table")
    try:
        return parquet.ParquetFile(file)
    except Exception as error:
        raise GraphError(f"{file}: not readable as Parquet: {first_line(error)}") from error


def _refuse_nulls(column: Any, file: Path, name: str, start: int) -> None:
    if column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise GraphError(
            f"{file}: row {row}: column {name}: nothing stands there (one of {column.null_count}); "
            "what is missing has to be filled in first"
        )


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
