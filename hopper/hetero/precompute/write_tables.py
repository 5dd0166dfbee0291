"""Writes the tables that a recipe makes of a graph, as a graph of their own.

The new graph has the target's nodes, with their labels, splits and own rows, and a node type for
every table. Each node of a table is one row, with one edge to the target's node of the same id. A
typed model of one layer can therefore read the tables under any engine, and ``hopper partition
--method meta`` divides whole tables over servers (Heta, appendix C).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from hopper.errors import RequestError
from hopper.graph.columns import RoundingError
from hopper.graph.directory import GraphDirectory
from hopper.graph.publish import folder_beside
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.topology import Topology
from hopper.graph.write import GraphWriter
from hopper.hetero.precompute.averages import Rows, Workspace
from hopper.timing.phases import Phases, Progress


class Table(NamedTuple):
    """A table of rows for the target's nodes."""

    name: str
    """of the table's node type in the new graph; the target's, if the rows are its own"""
    relation: str
    """the name of the relation from the table to the target"""
    dim: int
    """the width of a row"""
    source: str = ""
    """the node type whose rows are averaged; "" = several"""


class Recipe(Protocol):
    """Decides which rows are averaged over which relations."""

    def tables(self, schema: GraphSchema, widths: Mapping[str, int]) -> list[Table]:
        """Return the tables that are made of a graph, that of the target's own rows first.
        ``widths`` are those of each type's features or random rows, 0 = it has neither. A
        :class:`RequestError` names a type that has no rows, or rows of a wrong width."""

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """Yield the name and the rows of every table, in any order."""


def precompute(
    graph: str | Path,
    out: str | Path,
    recipe: Recipe,
    *,
    random_dim: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> GraphSchema:
    """Average neighbours of a graph directory once, write the averages as a graph directory, and
    return its schema.

    Parameters
    ----------
    recipe: decides which rows are averaged over which relations.
    random_dim: the width of random rows for types without features; 0 = such types are refused if
        they are averaged.
    seed: the seed of the random rows.

    Raises
    ------
    GraphError: the graph is damaged.
    RequestError: the graph cannot be averaged in this way, ``out`` is occupied, or its disk is too
        small. The message names what was expected.
    """
    target_path, source = Path(out), GraphDirectory.open(Path(graph), check="shapes")
    if not isinstance(source.schema.target, str):
        raise RequestError(f"{graph}: expected a node type as target, given {source.schema.target}")
    kinds = source.schema.node_types.items()
    widths = {name: kind.feature_dim or random_dim for name, kind in kinds}
    tables = recipe.tables(source.schema, widths)
    schema, phases = _make_schema(source.schema, tables), Phases(progress)
    with GraphWriter(target_path, schema) as writer:
        _write_target(writer, source)
        with (
            phases.phase("averaging neighbours", len(tables)) as bar,
            folder_beside(target_path) as folder,
        ):
            for name, rows in recipe.fill(Workspace(source, folder, random_dim, seed)):
                writer.features(name)[:] = rows
                bar.advance(1)
    return schema


def _make_schema(schema: GraphSchema, tables: Sequence[Table]) -> GraphSchema:
    """Make the schema of the new graph, of whose tables the first has the target's own rows."""
    target, kinds = schema.target_type(), schema.node_types
    own, *others = tables
    if not own.dim:
        raise RequestError(
            f"--random-dim: the target {target!r} has no features; expected the width of random "
            "rows"
        )
    if target in {table.name for table in others}:
        raise RequestError(f"metapaths: one has the name of the target type {target!r}")
    # The error of a mean is at most the largest error of its numbers.
    errors = [kind.feature_error for kind in kinds.values()]
    most = max((error.absolute for error in errors if error is not None), default=0.0)
    mean_error = RoundingError(most, None) if most else None

    def make_type(table: Table, error: RoundingError | None) -> NodeType:
        # Averages of features have their columns, if they were not projected.
        kind = kinds.get(table.source)
        columns = kind.columns if kind is not None and kind.feature_dim == table.dim else ()
        count = kinds[target].count
        return NodeType(count, table.dim, "float32", feature_error=error, columns=columns)

    relations = [Relation(table.name, table.relation, target) for table in sorted(others)]
    types = {table.name: make_type(table, mean_error) for table in sorted(others)}
    return GraphSchema(
        name=schema.name,
        source=schema.source,
        node_types={target: make_type(own, kinds[target].feature_error), **types},
        relations={relation: EdgeType(kinds[target].count) for relation in relations},
        target=target,
        labels={target: schema.labels[target]} if target in schema.labels else {},
        splits=schema.splits,
    )


def _write_target(writer: GraphWriter, graph: GraphDirectory) -> None:
    """Write the target's labels and splits, and an edge from every table's row to its node."""
    target = graph.schema.target_type()
    if target in graph.schema.labels:
        writer.labels(target, np.asarray(graph.labels(target)))
    for name in graph.schema.splits:
        writer.split(name, np.asarray(graph.split(name)))
    count = graph.schema.node_types[target].count
    ids, ones = np.arange(count), np.ones(count, np.int64)
    one_to_one = Topology(np.arange(count + 1), ids, ids, ones, ones)
    for relation in writer.schema.relations:
        writer.topology_csc(relation, one_to_one)
