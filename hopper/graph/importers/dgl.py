"""Import a graph that DGL has saved with ``dgl.save_graphs``.

Data ``feat``, ``label`` and ``time`` of nodes and edges, ``weight`` of edges, and boolean masks
``<split>_mask`` on nodes or on the edges of one relation, are read; other data are named in a note
and left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.attributes import (
    Masks,
    as_array,
    choose_target,
    take_features,
    take_masks,
)
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import (
    GraphTables,
    read_labels,
    read_relation,
    read_times,
    read_weights,
)
from hopper.graph.layout import safe_name
from hopper.graph.schema import Relation


def read_dgl(file: Path) -> GraphTables:
    """Read the one graph that a file holds.

    Raises
    ------
    RequestError: DGL is not installed.
    GraphError: the file is missing, is not DGL's, or does not hold exactly one graph.
    """
    require_file(file, "saved graphs")
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except ImportError as error:
        raise RequestError(
            f"import dgl: DGL cannot be imported ({error}); "
            "install it with: pip install 'hopper-gnn[dgl]'"
        ) from error
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
    """Convert a ``DGLGraph`` of one or more node types and relations.

    The target is the node type or the relation that has masks; without masks, the one node type
    that has labels, or else the one relation, or the only node type.

    Raises
    ------
    GraphError: the target is not clear, or data have a dtype or shape that is not understood.
    """
    tables = GraphTables(name, f"DGL graph {Path(where).name}", "", {}, {})
    masks: dict[str | Relation, Masks] = {}
    for node_type in graph.ntypes:
        known = safe_name(node_type)
        tables.counts[known] = int(graph.num_nodes(node_type))
        data = dict(graph.nodes[node_type].data)
        if "label" in data:
            labels = as_array(data.pop("label"), f"{where}: label of {node_type}")
            tables.labels[known] = read_labels(labels, f"{where}: label of {node_type}")
        if "time" in data:
            told = f"{where}: time of {node_type}"
            tables.times[known] = read_times(as_array(data.pop("time"), told), told)
        if (features := take_features(data, "feat", where, node_type)) is not None:
            tables.features[known] = features
        masks[known] = take_masks(data, where, node_type, tables.counts[known], tables.notes)
    for triple in graph.canonical_etypes:
        src_type, rel, dst_type = triple
        relation = read_relation(src_type, rel, dst_type, tables.edges, where)
        src, dst = graph.edges(etype=triple, order="eid")
        tables.edges[relation] = (src.cpu().numpy(), dst.cpu().numpy())
        data = dict(graph.edges[triple].data)
        if "weight" in data:
            told = f"{where}: weight of {relation}"
            tables.weights[relation] = read_weights(as_array(data.pop("weight"), told), told)
        if "time" in data:
            told = f"{where}: time of {relation}"
            tables.times[relation] = read_times(as_array(data.pop("time"), told), told)
        if "label" in data:
            labels = as_array(data.pop("label"), f"{where}: label of {relation}")
            tables.labels[relation] = read_labels(labels, f"{where}: label of {relation}")
        if (features := take_features(data, "feat", where, str(relation))) is not None:
            tables.edge_features[relation] = features
        masks[relation] = take_masks(data, where, str(relation), len(src), tables.notes)
    choose_target(tables, masks, where)
    return tables
