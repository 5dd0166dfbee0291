"""Import a graph that DGL has saved with ``dgl.save_graphs``; docs/howto/import.md says what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from hopper.errors import GraphError, RequestError, cannot_import
from hopper.graph.importers.arrays import take_data
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import GraphTables, Table, read_relation
from hopper.graph.layout import safe_name

_MARKS: Final = ("inner_node", "inner_edge")
"""data that tell a part's own nodes and edges from its halo"""
_KEYS: Final = {"features": "feat", "labels": "label", "times": "time"}


def read_dgl(file: Path) -> GraphTables:
    """Read the one graph that a file holds."""
    require_file(file, "saved graphs")
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except ImportError as error:
        raise RequestError(cannot_import("import dgl", "dgl", error)) from error
    try:
        graphs, _ = dgl.load_graphs(str(file))
    except (dgl.DGLError, OSError, RuntimeError, ValueError) as error:
        raise GraphError(
            f"{file}: DGL cannot read it as saved graphs: {first_line(error)}"
        ) from error
    if len(graphs) != 1:
        raise GraphError(f"{file}: expected one graph, given {len(graphs)}")
    return tables_from_dgl(graphs[0], file.stem, str(file))


def tables_from_dgl(graph: Any, name: str, where: str) -> GraphTables:
    """Convert a ``DGLGraph`` of one or more node types and relations."""
    nodes = {node_type: dict(graph.nodes[node_type].data) for node_type in graph.ntypes}
    edges = {triple: dict(graph.edges[triple].data) for triple in graph.canonical_etypes}
    marks = sorted({key for data in (nodes | edges).values() for key in data if key in _MARKS})
    if marks:
        raise GraphError(
            f"{where}: expected a whole graph, given one part of a graph that DistDGL divided (it "
            f"has {', '.join(marks)}), with copies of nodes of other parts; import the graph that "
            "was divided, saved by dgl.save_graphs before dgl.distributed.partition_graph"
        )
    tables = GraphTables(name, f"DGL graph {Path(where).name}")
    for node_type, data in nodes.items():
        table = tables.nodes[safe_name(node_type)] = Table(int(graph.num_nodes(node_type)))
        take_data(table, data, _KEYS, where, node_type, tables.notes)
    for triple, data in edges.items():
        relation = read_relation(triple, tables.edges, where)
        src, dst = (ids.cpu().numpy() for ids in graph.edges(etype=triple, order="eid"))
        table = tables.edges[relation] = Table(src.size, src, dst)
        take_data(table, data, _KEYS | {"weights": "weight"}, where, relation, tables.notes)
    tables.choose_target(where)
    return tables
