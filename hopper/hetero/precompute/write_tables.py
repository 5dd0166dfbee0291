"""Write the tables that a recipe makes of a graph, as a graph of their own.

The new graph has the target's nodes, with their labels, splits and own rows, and a node type for
every table. A node of it is one row, and its one edge leads to the target's node of the same id. So
a typed model of one layer reads the tables, under any engine, and `hopper partition --method meta`
divides whole tables over servers (Heta, appendix C).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hopper.errors import RequestError
from hopper.graph.row_form import RoundingError
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.topology import Topology
from hopper.graph.write import GraphWriter
from hopper.hetero.precompute.stored_graph import StoredGraph, open_stored, workspace
from hopper.hetero.precompute.tables import Recipe, Table, widths_of
from hopper.phases import Phases, Progress


def precompute(
    graph: str | Path,
    out: str | Path,
    recipe: Recipe,
    *,
    random_dim: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> GraphSchema:
    """Average neighbours once and write what comes of it as a graph directory.

    Parameters
    ----------
    graph: a graph directory; or a partitioned one that was divided by relation: then each server's
        relations are averaged from that server's files alone, and the result is the same.
    recipe: what is averaged over what.
    random_dim: width of random rows, which types without features then have; 0 = such types are
        refused where they are averaged.
    seed: of the random rows.

    Returns
    -------
    The schema of the new graph.

    Raises
    ------
    GraphError: the graph is damaged.
    RequestError: the graph is none that can be averaged so, ``out`` is occupied, or its disk is too
        small; names what was expected.
    """
    path, target_path = Path(graph), Path(out)
    parts = open_stored(path)
    if not isinstance(parts[0].schema.target, str):
        raise RequestError(
            f"{path}: expected a node type as target, given {parts[0].schema.target}"
        )
    if len(parts) > 1 and not recipe.takes_parts:
        raise RequestError(
            f"{path}: expected a graph directory: a subset of the relations may lie on several "
            "servers of a graph that is divided by relation"
        )
    widths = widths_of(parts[0].schema, random_dim)
    tables = [recipe.tables(stored, widths) for stored in parts]
    flat = sorted(table for some in tables for table in some)
    schema = _schema(parts[0].schema, flat, recipe.own_rows_dim(widths[_target(parts[0])]))
    phases = Phases(progress)
    with GraphWriter(target_path, schema) as writer:
        _write_target(writer, parts[0])
        with phases.phase("averaging neighbours", len(flat)) as bar:
            for number, stored in enumerate(parts):
                with workspace(stored, target_path, random_dim, seed) as work:
                    if number == 0:
                        own = recipe.own_rows(work, _target(stored))
                        writer.features(_target(stored))[:] = own
                    for name, rows in recipe.fill(work):
                        writer.features(name)[:] = rows
                        bar.advance(1)
    return schema


def _target(stored: StoredGraph) -> str:
    return stored.schema.target_type()


def _schema(schema: GraphSchema, tables: Sequence[Table], own_dim: int) -> GraphSchema:
    """The new graph's."""
    target = schema.target_type()
    if not own_dim:
        raise RequestError(
            f"--random-dim: the target {target!r} has no features; expected the width of random "
            "rows"
        )
    count = schema.node_types[target].count
    error = _error_of_averages(schema)
    types = {
        table.name: NodeType(count, table.dim, "float32", feature_error=error) for table in tables
    }
    if target in types:
        raise RequestError(f"metapaths: one has the name of the target type {target!r}")
    relations = {Relation(table.name, table.relation, target): EdgeType(count) for table in tables}
    return GraphSchema(
        name=schema.name,
        source=schema.source,
        node_types={
            target: NodeType(
                *(count, own_dim, "float32"), feature_error=schema.node_types[target].feature_error
            ),
            **types,
        },
        relations=relations,
        target=target,
        labels={target: schema.labels[target]} if target in schema.labels else {},
        splits=schema.splits,
    )


def _error_of_averages(schema: GraphSchema) -> RoundingError | None:
    """How far averages of a graph's rows are from those of the rows that it was made of: a number
    is off by no more than the numbers that it is the mean of."""
    errors = [kind.feature_error for kind in schema.node_types.values()]
    most = max((error.absolute for error in errors if error is not None), default=0.0)
    return RoundingError(most, None) if most else None


def _write_target(writer: GraphWriter, stored: StoredGraph) -> None:
    """Labels and splits, as they were, and an edge to each of the target's nodes from its row of
    every table."""
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
