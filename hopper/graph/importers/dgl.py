"""Import a graph that DGL has saved with ``dgl.save_graphs``.

Node data ``feat`` and ``label``, boolean masks ``<split>_mask`` on nodes or on the edges of one
relation, and edge data ``feat`` are read; other data are named in a note and left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import (
    ArrayFeatures,
    GraphTables,
    read_labels,
    read_relation,
)
from hopper.graph.layout import safe_name
from hopper.graph.schema import Relation

_MASK = "_mask"


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
    that has labels, or the only node type.

    Raises
    ------
    GraphError: the target is not clear, or data have a dtype or shape that is not understood.
    """
    tables = GraphTables(name, f"DGL graph {Path(where).name}", "", {}, {})
    masks: dict[str | Relation, dict[str, NDArray[Any]]] = {}
    for node_type in graph.ntypes:
        known = safe_name(node_type)
        tables.counts[known] = int(graph.num_nodes(node_type))
        data = dict(graph.nodes[node_type].data)
        if "label" in data:
            labels = np.asarray(data.pop("label").numpy())
            tables.labels[known] = read_labels(labels, f"{where}: label of {node_type}")
        if (features := _take_features(data, where, node_type)) is not None:
            tables.features[known] = features
        masks[known] = _take_masks(data, where, node_type, tables.notes)
    for triple in graph.canonical_etypes:
        src_type, rel, dst_type = triple
        relation = read_relation(src_type, rel, dst_type, tables.edges, where)
        src, dst = graph.edges(etype=triple, order="eid")
        tables.edges[relation] = (src.numpy(), dst.numpy())
        data = dict(graph.edges[triple].data)
        if (features := _take_features(data, where, str(relation))) is not None:
            tables.edge_features[relation] = features
        masks[relation] = _take_masks(data, where, str(relation), tables.notes)
    _choose_target(tables, {key: found for key, found in masks.items() if found}, where)
    return tables


def _take_features(data: dict[str, Any], where: str, owner: str) -> ArrayFeatures | None:
    """Take ``feat`` out of the data, a vector standing for one column."""
    if "feat" not in data:
        return None
    rows = np.asarray(data.pop("feat").numpy())
    if rows.ndim == 1:
        rows = rows[:, np.newaxis]
    if rows.ndim != 2:
        raise GraphError(
            f"{where}: feat of {owner}: expected shape [n, d], given {list(rows.shape)}"
        )
    return ArrayFeatures(rows)


def _take_masks(
    data: dict[str, Any], where: str, owner: str, notes: list[str]
) -> dict[str, NDArray[Any]]:
    """Take the masks out of the data, as ids by split; note what is left in it."""
    found = {}
    for key in [key for key in data if key.endswith(_MASK)]:
        mask = np.asarray(data.pop(key).numpy())
        if mask.ndim == 2:
            notes.append(f"{key} of {owner}: the first of {mask.shape[1]} splits was taken")
            mask = mask[:, 0]
        if mask.ndim != 1 or (mask.size and not np.isin(mask, (0, 1)).all()):
            raise GraphError(
                f"{where}: {key} of {owner}: expected a mask of 0 and 1, "
                f"given {mask.dtype} of shape {list(mask.shape)}"
            )
        found[key.removesuffix(_MASK)] = np.flatnonzero(mask)
    left = sorted(key for key in data if not key.startswith("_"))
    if left:
        notes.append(f"data of {owner} left out: {', '.join(left)}")
    return found


def _choose_target(
    tables: GraphTables, masks: Mapping[str | Relation, dict[str, NDArray[Any]]], where: str
) -> None:
    candidates: list[str | Relation] = list(masks or tables.labels or tables.counts)
    if len(candidates) != 1:
        given = ", ".join(str(candidate) for candidate in candidates)
        raise GraphError(
            f"{where}: target: expected masks or labels on one node type or relation, "
            f"given {given or 'none'}"
        )
    tables.target = candidates[0]
    tables.splits = dict(masks.get(tables.target, {}))
