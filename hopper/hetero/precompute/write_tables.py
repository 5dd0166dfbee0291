"""Writes the tables that a recipe makes of a graph, as a graph of their own.

The new graph has the target's nodes, with their labels, splits and own rows, and a node type for
every table. Each node of a table is one row, with one edge to the target's node of the same id. A
typed model of one layer can therefore read the tables under any engine, and ``hopper partition
--method meta`` divides whole tables over servers (Heta, appendix C).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hopper.errors import RequestError
from hopper.graph.columns import FeatureColumn, RoundingError
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.topology import Topology
from hopper.graph.write import GraphWriter
from hopper.hetero.precompute.stored_graph import StoredGraph, open_stored, workspace
from hopper.hetero.precompute.tables import Recipe, Table, row_widths
from hopper.timing.phases import Phases, Progress


def precompute(
    graph: str | Path,
    out: str | Path,
    recipe: Recipe,
    *,
    random_dim: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> GraphSchema:
    """Average neighbours once, and write the averages as a graph directory.

    Parameters
    ----------
    graph: a graph directory, or a partitioned directory that was divided by relation. In the second
        case each server's relations are averaged from that server's files only. The result is the
        same.
    recipe: decides which rows are averaged over which relations.
    random_dim: the width of random rows for types without features; 0 = such types are refused if
        they are averaged.
    seed: the seed of the random rows.

    Returns
    -------
    The schema of the new graph.

    Raises
    ------
    GraphError: the graph is damaged.
    RequestError: the graph cannot be averaged in this way, ``out`` is occupied, or its disk is too
        small. The message names what was expected.
    """
    path, target_path = Path(graph), Path(out)
    parts = open_stored(path)
    if not isinstance(parts[0].schema.target, str):
        raise RequestError(
            f"{path}: expected a node type as target, given {parts[0].schema.target}"
        )
    if len(parts) > 1 and not recipe.takes_parts:
        raise RequestError(
            f"{path}: expected an undivided graph directory, since several servers of a divided "
            "one may hold the relations of a subset"
        )
    widths = row_widths(parts[0].schema, random_dim)
    tables = [recipe.tables(stored, widths) for stored in parts]
    all_tables = sorted(table for part_tables in tables for table in part_tables)
    schema = _schema(parts[0].schema, all_tables, recipe.own_rows_dim(widths[_target(parts[0])]))
    phases = Phases(progress)
    with GraphWriter(target_path, schema) as writer:
        _write_target(writer, parts[0])
        with phases.phase("averaging neighbours", len(all_tables)) as bar:
            for number, stored in enumerate(parts):
                with workspace(stored, target_path, random_dim, seed) as work:
                    if number == 0:
                        target_rows = recipe.own_rows(work, _target(stored))
                        writer.features(_target(stored))[:] = target_rows
                    for name, rows in recipe.fill(work):
                        writer.features(name)[:] = rows
                        bar.advance(1)
    return schema


def _target(stored: StoredGraph) -> str:
    return stored.schema.target_type()


def _schema(schema: GraphSchema, tables: Sequence[Table], own_dim: int) -> GraphSchema:
    """Make the schema of the new graph."""
    target = schema.target_type()
    if not own_dim:
        raise RequestError(
            f"--random-dim: the target {target!r} has no features; expected the width of random "
            "rows"
        )
    count = schema.node_types[target].count
    error = _error_of_averages(schema)
    types = {
        table.name: NodeType(
            *(count, table.dim, "float32"),
            feature_error=error,
            columns=_columns(schema, table.source, table.dim),
        )
        for table in tables
    }
    if target in types:
        raise RequestError(f"metapaths: one has the name of the target type {target!r}")
    relations = {Relation(table.name, table.relation, target): EdgeType(count) for table in tables}
    return GraphSchema(
        name=schema.name,
        source=schema.source,
        node_types={
            target: NodeType(
                *(count, own_dim, "float32"),
                feature_error=schema.node_types[target].feature_error,
                columns=_columns(schema, target, own_dim),
            ),
            **types,
        },
        relations=relations,
        target=target,
        labels={target: schema.labels[target]} if target in schema.labels else {},
        splits=schema.splits,
    )


def _columns(schema: GraphSchema, source: str, dim: int) -> tuple[FeatureColumn, ...]:
    """Return the columns of a node type's rows; none where these are no features of that width."""
    kind = schema.node_types.get(source)
    return kind.columns if kind is not None and kind.feature_dim == dim else ()


def _error_of_averages(schema: GraphSchema) -> RoundingError | None:
    """Bound the rounding error of averages of a graph's rows.

    The error of a mean is at most the largest error of its numbers.
    """
    errors = [kind.feature_error for kind in schema.node_types.values()]
    most = max((error.absolute for error in errors if error is not None), default=0.0)
    return RoundingError(most, None) if most else None


def _write_target(writer: GraphWriter, stored: StoredGraph) -> None:
    """Write the target's labels and splits, and an edge from every table's row to its node."""
    target = _target(stored)
    if target in stored.schema.labels:
        writer.labels(target, np.asarray(stored.labels(target)))
    for name in stored.schema.splits:
        writer.split(name, np.asarray(stored.graph.split(name)))
    count = stored.schema.node_types[target].count
    ids, ones = np.arange(count), np.ones(count, np.int64)
    one_to_one = Topology(np.arange(count + 1), ids, ids, ones, ones)
    for relation in writer.schema.relations:
        writer.topology_csc(relation, one_to_one)
