"""Import a graph that DGL has saved with ``dgl.save_graphs``; docs/howto/import.md says what."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from hopper.errors import GraphError
from hopper.graph.block import load_dgl
from hopper.graph.importers.arrays import TableReader
from hopper.graph.importers.source_files import explain_errors, require_file
from hopper.graph.importers.tables import GraphTables

_MARKS: Final = ("inner_node", "inner_edge")
"""data that tell a part's own nodes and edges from its halo"""
KEYS: Final = {"features": "feat", "labels": "label", "times": "time"}
KEYS_OF_EDGES: Final = {**KEYS, "weights": "weight"}


def read_dgl(file: Path) -> GraphTables:
    """Read the one graph that a file holds."""
    require_file(file, "saved graphs")
    dgl = load_dgl("import dgl")
    with explain_errors(f"{file}: DGL cannot read it as saved graphs"):
        graphs, _ = dgl.load_graphs(str(file))
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
            f"has {', '.join(marks)}), with copies of nodes of other parts; give hopper "
            "dataset import distdgl the NAME.json beside the parts"
        )
    reader = TableReader(name, f"DGL graph {Path(where).name}", where)
    for node_type, data in nodes.items():
        reader.add_nodes(node_type, data, KEYS, int(graph.num_nodes(node_type)))
    for triple, data in edges.items():
        ends = [ids.cpu().numpy() for ids in graph.edges(etype=triple, order="eid")]
        reader.add_edges(triple, np.stack(ends), data, KEYS_OF_EDGES)
    reader.tables.choose_target(where)
    return reader.tables
