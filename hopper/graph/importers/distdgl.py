"""Import a graph that DistDGL has divided, with the server of every node.

``dgl.distributed.partition_graph`` writes NAME.json beside a folder for each part. Nodes and edges
have consecutive ids by type and part there, which become the graph's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.arrays import TableReader, split_triple
from hopper.graph.importers.dgl import KEYS, KEYS_OF_EDGES, load_dgl
from hopper.graph.importers.distdgl_chunks import note_parts, read_chunks
from hopper.graph.importers.source_files import explain_errors, find_inside, require_file
from hopper.graph.importers.tables import GraphTables
from hopper.graph.json_file import read_json

Ids = NDArray[np.int64]


class _IdMap:
    """The ids within a type of nodes or edges, which have ids in common with all types; ``ranges``
    has the first and the last id plus one by type and part, ``numbers`` the types' numbers."""

    def __init__(self, ranges: Mapping[str, Any], numbers: Mapping[str, int], where: str) -> None:
        with explain_errors(f"{where}: expected ranges [first, stop] by type and part"):
            bounds = {name: np.array(ranges[name], np.int64).reshape(-1, 2) for name in numbers}
        self.counts = {name: of[:, 1] - of[:, 0] for name, of in bounds.items()}
        """the number of ids in each part, by type"""
        every = np.concatenate([*bounds.values()])
        firsts = np.concatenate([np.cumsum(of) - of for of in self.counts.values()])
        order = np.argsort(every[:, 0], kind="stable")
        self._starts, self._shift = every[order, 0], (firsts - every[:, 0])[order]

    def within_type(self, ids: Ids) -> Ids:
        """Return the ids within their types."""
        return ids + self._shift[np.searchsorted(self._starts, ids, "right") - 1]


def read_distdgl(file: Path) -> GraphTables:
    """Read the graph of NAME.json and its parts, as a whole, or of a chunked metadata.json."""
    meta, where = read_json(file), str(file)
    if "node_type" in meta:
        return read_chunks(file, meta)
    dgl = load_dgl("import distdgl")
    for field in ("num_parts", "node_map", "edge_map", "ntypes", "etypes"):
        if field not in meta:
            raise GraphError(f"{file}: {field}: missing field")
    nodes = _IdMap(meta["node_map"], meta["ntypes"], f"{file}: node_map")
    edges = _IdMap(meta["edge_map"], meta["etypes"], f"{file}: edge_map")
    data: dict[str, dict[str, list[Any]]] = {name: {} for name in (*nodes.counts, *edges.counts)}
    ends: dict[str, list[NDArray[Any]]] = {name: [] for name in edges.counts}
    for part in range(int(meta["num_parts"])):
        entry, place = meta.get(f"part-{part}", {}), f"{file}: part-{part}"
        with explain_errors(f"{place}: DGL cannot read it as a part"):
            paths = {
                key: str(require_file(find_inside(file.parent, entry[key], place), key))
                for key in ("part_graph", "node_feats", "edge_feats")
            }
            (graph,), _ = dgl.load_graphs(paths["part_graph"])
            ids = nodes.within_type(graph.ndata[dgl.NID].numpy())
            src, dst = (ids[side.numpy()] for side in graph.edges(order="eid"))
            own = graph.edata["inner_edge"].numpy().astype(bool)
            types = graph.edata.get(dgl.ETYPE, torch.zeros(len(own))).numpy()
            of_edge = edges.within_type(graph.edata[dgl.EID].numpy())
            for name, number in meta["etypes"].items():
                chosen = np.flatnonzero(own & (types == number))
                chosen = chosen[np.argsort(of_edge[chosen], kind="stable")]
                ends[name].append(np.stack((src[chosen], dst[chosen])))
            for kind in ("node_feats", "edge_feats"):
                for key, rows in dgl.data.utils.load_tensors(paths[kind]).items():
                    owner, _, column = key.rpartition("/")
                    if owner in data:
                        data[owner].setdefault(column, []).append(rows)
    reader = TableReader(str(meta.get("graph_name", file.stem)), f"DistDGL {file.name}", where)
    for name, counts in nodes.counts.items():
        table = reader.add_nodes(name, _join(data[name]), KEYS, int(counts.sum()))
        table.servers = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
    for name in edges.counts:
        triple, of_type = split_triple(name, f"{file}: edge_map"), np.concatenate(ends[name], 1)
        reader.add_edges(triple, of_type, _join(data[name]), KEYS_OF_EDGES)
    reader.tables.choose_target(where, follows=True)
    note_parts(reader.tables, int(meta["num_parts"]))
    return reader.tables


def _join(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Join columns, each with its rows in all parts that have some."""
    return {name: torch.cat(parts) for name, parts in columns.items()}
