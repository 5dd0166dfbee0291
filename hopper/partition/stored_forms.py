"""Store the features of a graph in 16 or 8 bits a number while it is divided.

Files that a division changes lie in a temporary folder over the graph directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.feature_codec import FEATURE_FORMS, FeatureForm
from hopper.errors import GraphError, RequestError
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces, release_pages
from hopper.graph.columns import RoundingError, find_error
from hopper.graph.directory import GraphDirectory
from hopper.graph.layout import StoredFeatures, stored_features
from hopper.graph.memory_budget import memory_budget
from hopper.graph.publish import folder_beside, require_space
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, NodeType
from hopper.graph.topology import Links
from hopper.timing.phases import Phases, Progress

FeatureKind = NodeType | EdgeType
RowForms = Mapping[str, FeatureForm]
"""The form that a feature table is stored in, by its name (a node type, or ``src/rel/dst``)."""


def parse_row_forms(texts: Sequence[str], schema: GraphSchema) -> RowForms:
    """Parse the forms of tables that are to be stored in another form than now: "DTYPE" for all
    tables, or "TABLE=DTYPE", which comes before it."""
    kinds, option, forms = schema.feature_tables, "--feature-dtype", dict[str, FeatureForm]()
    # Those of all tables, whose name is empty here, come first.
    pairs = sorted((text.rpartition("=")[::2] for text in texts), key=lambda pair: pair[0] != "")
    if len(dict(pairs)) < len(pairs):
        raise RequestError(f"{option}: expected one a table, given {', '.join(texts)}")
    for table, form in pairs:
        if table and table not in kinds:
            tables = ", ".join(kinds) or "none"
            raise RequestError(
                f"{option}: expected a table of features ({tables}), given {table!r:.100}"
            )
        if form not in FEATURE_FORMS:
            expected = ", ".join(FEATURE_FORMS)
            raise RequestError(f"{option}: expected one of {expected}, given {form!r:.100}")
        forms |= dict.fromkeys([table] if table else kinds, form)
    forms = {table: form for table, form in forms.items() if form != kinds[table].feature_dtype}
    for table in forms:
        now = kinds[table].feature_dtype
        if kinds[table].feature_error is not None and now != "float32":
            text = f"features of {table} are rounded to {now} already; expected that"
            raise RequestError(f"{option}: {text}")
    return forms


def describe_rounded_tables(schema: GraphSchema) -> list[str]:
    """Describe each table whose rows are rounded, in one line."""
    lines = []
    for table, kind in schema.feature_tables.items():
        rounded = f"rounded to {kind.feature_dtype}"
        how = "averages of rounded rows" if kind.feature_dtype == "float32" else rounded
        if kind.feature_error is not None:
            lines.append(f"features of {table}: approximate, {how}: {kind.feature_error}")
    return lines


@dataclass(frozen=True)
class OverlaidGraph(GraphDirectory):
    """A graph some of whose files another folder replaces. Its schema describes these; edge ids,
    what stands by edge id, and links are those of the whole graph."""

    whole: GraphDirectory
    folder: Path

    def file(self, part: str, owner: Labelled) -> Path:
        """Return the file of an array: the folder's, if it replaces the whole graph's."""
        file = self.folder / self._spec(part, owner).file
        return file if file.exists() else self.whole.file(part, owner)

    def links(self, split: str) -> Links:
        """Read the links of the whole graph."""
        return self.whole.links(split)

    def _map(self, part: str, owner: Labelled) -> NDArray[Any]:
        # The whole graph's other arrays have as many edges as it has.
        is_replaced = self.file(part, owner).is_relative_to(self.folder)
        return super()._map(part, owner) if is_replaced else self.whole._map(part, owner)


@contextmanager
def store_rows_as(
    graph: GraphDirectory, forms: RowForms, out: Path, phases: Phases
) -> Iterator[GraphDirectory]:
    """Yield the graph with some tables converted to other forms, which are temporary and lie beside
    ``out``; a number that is not finite, or too large for the form, is a :class:`GraphError`."""
    if not forms:
        yield graph
        return
    schema = graph.schema
    new: dict[Any, Any] = {
        owner: replace(kind, feature_dtype=forms[str(owner)])
        for owner, kind in schema.kinds.items()
        if str(owner) in forms
    }
    nbytes = sum(kind.count * _stored(kind).row_bytes for kind in new.values())
    with folder_beside(out) as folder:
        require_space(folder, nbytes)
        with phases.phase("convert the rows (bytes)", nbytes) as counter:
            for owner, kind in new.items():
                rows, file = graph.features(owner), layout.features_file(folder, owner)
                error = _convert(rows, schema.kinds[owner], kind, file, counter)
                new[owner] = replace(kind, feature_error=error)
        node_types = {name: new.get(name, kind) for name, kind in schema.node_types.items()}
        relations = {name: new.get(name, kind) for name, kind in schema.relations.items()}
        converted = replace(schema, node_types=node_types, relations=relations)
        yield OverlaidGraph(graph.path, converted, graph, folder)


def _stored(kind: FeatureKind) -> StoredFeatures:
    """Return how a table of features is stored."""
    stored = stored_features(kind)
    assert stored is not None
    return stored


def _convert(
    table: NDArray[Any], old: FeatureKind, new: FeatureKind, file: Path, progress: Progress
) -> RoundingError | None:
    """Write a table in another form, in pieces; return its error, None if nothing was rounded."""
    source, (columns, dtype, form) = _stored(old).form, _stored(new)
    out = create_array(file, dtype, (new.count, columns))
    error = RoundingError(0.0, 0.0)
    # Differences are computed in 64 bits, twice as many as the widest form has.
    at_once = max(1, memory_budget().chunk // (8 * (new.feature_dim or 1)))
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
        error = error.combine(find_error(floats, back), max)
        out[first : first + len(rows)] = stored
        release_pages(out)
        progress.advance(stored.nbytes)
    before = old.feature_error
    if not error.absolute:
        return before
    return error if before is None else before.combine(error, sum)
