"""Store the features of a graph in 16 or 8 bits a number while it is divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.row_form import FEATURE_DTYPES, ROW_FORMS, RowForm, RowFormName
from hopper.errors import GraphError, RequestError
from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, iter_pieces, release_pages
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import memory_budget
from hopper.graph.publish import folder_beside, require_space
from hopper.graph.row_form import RoundingError, find_error, stored_features
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.phases import Phases, Progress

RowForms = Mapping[str, RowFormName]
"""The form that a feature table is stored in, by its name (a node type, or ``src/rel/dst``)."""


def parse_row_forms(texts: Sequence[str], schema: GraphSchema) -> RowForms:
    """Parse the forms of tables that are to be stored in another form than now.

    Parameters
    ----------
    texts: "DTYPE" for all tables, or "TABLE=DTYPE", which comes before it.

    Raises
    ------
    RequestError: a table or form is unknown, a table is named twice, or its rows are rounded
        already.
    """
    kinds = schema.feature_tables
    of_all = [text for text in texts if "=" not in text]
    named = [text.rpartition("=")[::2] for text in texts if "=" in text]
    if len(of_all) > 1 or len({table for table, _ in named}) < len(named):
        raise RequestError(f"--feature-dtype: expected one a table, given {', '.join(texts)}")
    forms = {table: form for form in of_all for table in kinds} | dict(named)
    new_forms: dict[str, RowFormName] = {}
    for table, form in forms.items():
        if table not in kinds:
            raise RequestError(
                f"--feature-dtype: expected a table of features ({', '.join(kinds) or 'none'}), "
                f"given {table!r:.100}"
            )
        form_name = next((name for name in FEATURE_DTYPES if name == form), None)
        if form_name is None:
            raise RequestError(
                f"--feature-dtype: expected one of {', '.join(FEATURE_DTYPES)}, given {form!r:.100}"
            )
        if form_name == kinds[table].feature_dtype:
            continue
        if kinds[table].feature_error is not None and kinds[table].feature_dtype != "float32":
            raise RequestError(
                f"--feature-dtype: features of {table} are rounded to "
                f"{kinds[table].feature_dtype} already; expected that"
            )
        new_forms[table] = form_name
    return new_forms


def check_divisible(schema: GraphSchema, forms: RowForms) -> None:
    """Check that rows can be divided by dimension.

    Raises
    ------
    RequestError: a row has one scale for all of its numbers. The text names the table.
    """
    for name, kind in schema.node_types.items():
        if forms.get(name, kind.feature_dtype) == "int8":
            raise RequestError(
                f"features: by-dimension divides a row's numbers, and int8 rows of {name!r} have "
                "one scale a row; expected float32, float16 or bfloat16"
            )


def describe_rounded_tables(schema: GraphSchema) -> list[str]:
    """Describe each table whose rows are rounded, in one line."""
    return [
        f"features of {table}: approximate, {_describe_rounding(kind)}: {error}"
        for table, kind in schema.feature_tables.items()
        if (error := kind.feature_error) is not None
    ]


def _describe_rounding(kind: NodeType | EdgeType) -> str:
    if kind.feature_dtype == "float32":
        return "averages of rounded rows"
    return f"rounded to {kind.feature_dtype}"


@contextmanager
def store_rows_as(
    graph: GraphDirectory, forms: RowForms, out: Path, phases: Phases
) -> Iterator[GraphDirectory]:
    """Yield the graph with some tables converted to other forms; without any, the same graph.

    Parameters
    ----------
    out: the converted tables are temporary and lie beside it.

    Raises
    ------
    GraphError: a number is not finite, or too large for the form. The text names table and row.
    RequestError: the disk has too little space.
    """
    if not forms:
        yield graph
        return
    kinds = graph.schema.feature_tables
    converted = {table: _with_form(kinds[table], form) for table, form in forms.items()}
    nbytes = sum(map(_table_bytes, converted.values()))
    node_types, relations = dict(graph.schema.node_types), dict(graph.schema.relations)
    with folder_beside(out) as folder:
        require_space(folder, nbytes)
        with phases.phase("convert the rows (bytes)", nbytes) as counter:
            for table, kind in converted.items():
                if isinstance(kind, NodeType):
                    file = layout.features_file(folder, table)
                    error = _convert(graph.features(table), kinds[table], kind, file, counter)
                    node_types[table] = replace(kind, feature_error=error)
                else:
                    relation = Relation(*table.split("/"))
                    file = layout.edge_features_file(folder, relation)
                    rows = graph.edge_features(relation)
                    error = _convert(rows, kinds[table], kind, file, counter)
                    relations[relation] = replace(kind, feature_error=error)
        schema = replace(graph.schema, node_types=node_types, relations=relations)
        yield _ConvertedGraph(graph.path, schema, frozenset(forms), folder)


@dataclass(frozen=True)
class _ConvertedGraph(GraphDirectory):
    """A graph with some of its feature tables in another folder.

    Attributes
    ----------
    converted: names of these tables.
    folder: the folder of these tables.
    """

    converted: frozenset[str]
    folder: Path

    def features_file(self, node_type: str) -> Path:
        """Return the file of a node type's features."""
        where = self.folder if node_type in self.converted else self.path
        return layout.features_file(where, node_type)

    def edge_features_file(self, relation: Relation) -> Path:
        """Return the file of a relation's edge features."""
        where = self.folder if str(relation) in self.converted else self.path
        return layout.edge_features_file(where, relation)


def _with_form(kind: NodeType | EdgeType, form: RowFormName) -> NodeType | EdgeType:
    return replace(kind, feature_dtype=form)


def _table_bytes(kind: NodeType | EdgeType) -> int:
    stored = stored_features(kind)
    return 0 if stored is None else array_bytes(stored.dtype, (kind.count, stored.columns))


def _convert(
    table: NDArray[Any],
    old: NodeType | EdgeType,
    new: NodeType | EdgeType,
    file: Path,
    progress: Progress,
) -> RoundingError | None:
    """Write a table in another form, in pieces; return its error, None if nothing was rounded.

    The errors raised are those of :func:`store_rows_as`.
    """
    assert old.feature_dtype is not None
    assert new.feature_dtype is not None
    assert new.feature_dim is not None
    source, form = ROW_FORMS[old.feature_dtype], ROW_FORMS[new.feature_dtype]
    out = create_array(file, form.dtype, (new.count, form.columns(new.feature_dim)))
    error = RoundingError(0.0, 0.0)
    # Differences are computed in 64 bits, twice as many as the widest form has.
    at_once = max(1, memory_budget().chunk // (8 * max(1, new.feature_dim)))
    for first, rows in iter_pieces(table, at_once):
        floats = source.decode(rows)
        stored = form.encode(floats)
        back = form.decode(stored)
        _check_fits(floats, back, form, file, first)
        error = error.larger_of(find_error(floats, back))
        out[first : first + len(rows)] = stored
        release_pages(out)
        progress.advance(stored.nbytes)
    if not error.absolute:
        return old.feature_error
    before = old.feature_error
    return error if before is None else before.and_then(error)


def _check_fits(
    floats: NDArray[np.float32], back: NDArray[np.float32], form: RowForm, file: Path, first: int
) -> None:
    """Check that a form can hold all numbers of some rows.

    Parameters
    ----------
    back: the rows after they were rounded.
    file, first: the table's file and the number of the first row, for errors.

    Raises
    ------
    GraphError: it cannot hold a number. The text names row and column.
    """
    is_lost = ~np.isfinite(floats)
    if not is_lost.any():
        is_lost = ~np.isfinite(back)
    if is_lost.any():
        row, column = np.argwhere(is_lost)[0].tolist()
        raise GraphError(
            f"--feature-dtype: {file.parent.name}/{file.name}: row {first + row}, column {column}: "
            f"expected a number that {form.name} can hold, given {floats[row, column]}"
        )
