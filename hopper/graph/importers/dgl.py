"""Import a graph that DGL has saved with ``dgl.save_graphs``.

This reads the data ``feat``, ``label`` and ``time`` of nodes and edges, ``weight`` of edges, and
boolean masks ``<split>_mask`` on nodes or on the edges of one relation. A note names other data,
which are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from hopper.errors import GraphError, RequestError, cannot_import
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

_MARKS: Final = ("inner_node", "inner_edge")
"""data that tell a part's own nodes and edges from its halo"""


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
    """Convert a ``DGLGraph`` of one or more node types and relations.

    :func:`choose_target` tells what is predicted.

    Raises
    ------
    GraphError: the target is not clear, data have a wrong dtype or shape, or the graph is one part
        of a divided graph.
    """
    _refuse_part(graph, where)
    tables = GraphTables(name, f"DGL graph {Path(where).name}", "", {}, {})
    masks: dict[str | Relation, Masks] = {}
    for node_type in graph.ntypes:
        safe_type = safe_name(node_type)
        tables.counts[safe_type] = int(graph.num_nodes(node_type))
        data = dict(graph.nodes[node_type].data)
        if "label" in data:
            labels = as_array(data.pop("label"), f"{where}: label of {node_type}")
            tables.labels[safe_type] = read_labels(labels, f"{where}: label of {node_type}")
        if "time" in data:
            field = f"{where}: time of {node_type}"
            tables.times[safe_type] = read_times(as_array(data.pop("time"), field), field)
        if (features := take_features(data, "feat", where, node_type)) is not None:
            tables.features[safe_type] = features
        masks[safe_type] = take_masks(
            data, where, node_type, tables.counts[safe_type], tables.notes
        )
    for triple in graph.canonical_etypes:
        src_type, rel, dst_type = triple
        relation = read_relation(src_type, rel, dst_type, tables.edges, where)
        src, dst = graph.edges(etype=triple, order="eid")
        tables.edges[relation] = (src.cpu().numpy(), dst.cpu().numpy())
        data = dict(graph.edges[triple].data)
        if "weight" in data:
            field = f"{where}: weight of {relation}"
            tables.weights[relation] = read_weights(as_array(data.pop("weight"), field), field)
        if "time" in data:
            field = f"{where}: time of {relation}"
            tables.times[relation] = read_times(as_array(data.pop("time"), field), field)
        if "label" in data:
            labels = as_array(data.pop("label"), f"{where}: label of {relation}")
            tables.labels[relation] = read_labels(labels, f"{where}: label of {relation}")
        if (features := take_features(data, "feat", where, str(relation))) is not None:
            tables.edge_features[relation] = features
        masks[relation] = take_masks(data, where, str(relation), len(src), tables.notes)
    choose_target(tables, masks, where)
    return tables


def _refuse_part(graph: Any, where: str) -> None:
    """Refuse a part that ``dgl.distributed.partition_graph`` wrote: it has nodes of other parts."""
    data = [
        *(graph.nodes[n].data for n in graph.ntypes),
        *(graph.edges[e].data for e in graph.canonical_etypes),
    ]
    marks = sorted({key for frame in data for key in frame if key in _MARKS})
    if marks:
        raise GraphError(
            f"{where}: expected a whole graph, given one part of a graph that DistDGL divided (it "
            f"has {', '.join(marks)}), with copies of nodes of other parts; import the graph that "
            "was divided, saved by dgl.save_graphs before dgl.distributed.partition_graph"
        )
