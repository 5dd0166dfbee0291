"""Store the features of a graph in 16 or 8 bits a number while it is divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.feature_codec import CODECS, FEATURE_FORMS, FeatureForm
from hopper.errors import GraphError, RequestError
from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, iter_pieces, release_pages
from hopper.graph.columns import RoundingError, find_error
from hopper.graph.directory import GraphDirectory
from hopper.graph.layout import stored_features
from hopper.graph.memory_budget import memory_budget
from hopper.graph.publish import folder_beside, require_space
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.timing.phases import Phases, Progress

FeatureKind = NodeType | EdgeType
RowForms = Mapping[str, FeatureForm]
"""The form that a feature table is stored in, by its name (a node type, or ``src/rel/dst``)."""


def parse_row_forms(texts: Sequence[str], schema: GraphSchema) -> RowForms:
    """Parse the forms of tables that are to be stored in another form than now: "DTYPE" for all
    tables, or "TABLE=DTYPE", which comes before it."""
    kinds = schema.feature_tables
    of_all = [text for text in texts if "=" not in text]
    named = [text.rpartition("=")[::2] for text in texts if "=" in text]
    if len(of_all) > 1 or len({table for table, _ in named}) < len(named):
        raise RequestError(f"--feature-dtype: expected one a table, given {', '.join(texts)}")
    forms: dict[str, FeatureForm] = {}
    for table, form in [*((table, form) for form in of_all for table in kinds), *named]:
        if table not in kinds:
            raise RequestError(
                f"--feature-dtype: expected a table of features ({', '.join(kinds) or 'none'}), "
                f"given {table!r:.100}"
            )
        if form not in FEATURE_FORMS:
            raise RequestError(
                f"--feature-dtype: expected one of {', '.join(FEATURE_FORMS)}, given {form!r:.100}"
            )
        forms[table] = form
    forms = {table: form for table, form in forms.items() if form != kinds[table].feature_dtype}
    for table in forms:
        now = kinds[table].feature_dtype
        if kinds[table].feature_error is not None and now != "float32":
            raise RequestError(
                f"--feature-dtype: features of {table} are rounded to {now} already; expected that"
            )
    return forms


def describe_rounded_tables(schema: GraphSchema) -> list[str]:
    """Describe each table whose rows are rounded, in one line."""
    lines = []
    for table, kind in schema.feature_tables.items():
        how = f"rounded to {kind.feature_dtype}"
        if kind.feature_dtype == "float32":
            how = "averages of rounded rows"
        if kind.feature_error is not None:
            lines.append(f"features of {table}: approximate, {how}: {kind.feature_error}")
    return lines


@contextmanager
def store_rows_as(
    graph: GraphDirectory, forms: RowForms, out: Path, phases: Phases
) -> Iterator[GraphDirectory]:
    """Yield the graph with some tables converted to other forms, which are temporary and lie beside
    ``out``; a number that is not finite, or too large for the form, is a :class:`GraphError`."""
    if not forms:
        yield graph
        return
    schema, kinds = graph.schema, graph.schema.feature_tables
    new = {table: replace(kinds[table], feature_dtype=form) for table, form in forms.items()}
    nbytes = sum(map(_table_bytes, new.values()))
    with folder_beside(out) as folder:
        require_space(folder, nbytes)
        with phases.phase("convert the rows (bytes)", nbytes) as counter:
            for table, kind in new.items():
                if table in schema.node_types:
                    rows, file = graph.features(table), layout.features_file(folder, table)
                else:
                    relation = Relation(*table.split("/"))
                    rows = graph.edge_features(relation)
                    file = layout.edge_features_file(folder, relation)
                error = _convert(rows, kinds[table], kind, file, counter)
                new[table] = replace(kind, feature_error=error)
        node_types: dict[str, Any] = {n: new.get(n, k) for n, k in schema.node_types.items()}
        relations: dict[Relation, Any] = {
            relation: new.get(str(relation), kind) for relation, kind in schema.relations.items()
        }
        converted = replace(schema, node_types=node_types, relations=relations)
        yield _ConvertedGraph(graph.path, converted, frozenset(forms), folder)


@dataclass(frozen=True)
class _ConvertedGraph(GraphDirectory):
    """A graph with some of its feature tables in another folder."""

    converted: frozenset[str]
    folder: Path

    def features_file(self, node_type: str) -> Path:
        where = self.folder if node_type in self.converted else self.path
        return layout.features_file(where, node_type)

    def edge_features_file(self, relation: Relation) -> Path:
        where = self.folder if str(relation) in self.converted else self.path
        return layout.edge_features_file(where, relation)


def _table_bytes(kind: FeatureKind) -> int:
    stored = stored_features(kind)
    return 0 if stored is None else array_bytes(stored.dtype, (kind.count, stored.columns))


def _convert(
    table: NDArray[Any], old: FeatureKind, new: FeatureKind, file: Path, progress: Progress
) -> RoundingError | None:
    """Write a table in another form, in pieces; return its error, None if nothing was rounded."""
    assert old.feature_dtype is not None
    assert new.feature_dtype is not None
    assert new.feature_dim is not None
    source, form = CODECS[old.feature_dtype], CODECS[new.feature_dtype]
    out = create_array(file, form.dtype, (new.count, form.columns(new.feature_dim)))
    error = RoundingError(0.0, 0.0)
    # Differences are computed in 64 bits, twice as many as the widest form has.
    at_once = max(1, memory_budget().chunk // (8 * max(1, new.feature_dim)))
    for first, rows in iter_pieces(table, at_once):
        floats = source.decode(rows)
        stored = form.encode(floats)
        back = form.decode(stored)
        for numbers in (floats, back):
            if not np.isfinite(numbers).all():
                row, column = np.argwhere(~np.isfinite(numbers))[0].tolist()
                raise GraphError(
                    f"--feature-dtype: {file.parent.name}/{file.name}: row {first + row}, column "
                    f"{column}: expected a number that {form.name} can hold, given "
                    f"{floats[row, column]}"
                )
        error = error.larger_of(find_error(floats, back))
        out[first : first + len(rows)] = stored
        release_pages(out)
        progress.advance(stored.nbytes)
    before = old.feature_error
    if not error.absolute:
        return before
    return error if before is None else before.and_then(error)
