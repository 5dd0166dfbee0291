"""Import a graph of DistDGL, divided or in its Chunked Graph Format, with the server of every node.

``dgl.distributed.partition_graph`` writes NAME.json beside a folder for each part. Nodes and edges
have consecutive ids by type and part there, which become the graph's. The metadata.json of a
chunked graph is specified in
https://www.dgl.ai/dgl_docs/guide/distributed-preprocessing.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hopper.errors import GraphError
from hopper.graph.block import load_dgl
from hopper.graph.importers.arrays import TableReader, split_triple
from hopper.graph.importers.dgl import KEYS, KEYS_OF_EDGES
from hopper.graph.importers.source_files import (
    explain_errors,
    find_inside,
    load_table,
    require_file,
)
from hopper.graph.importers.tables import Features, GraphTables, array_features
from hopper.graph.json_file import parse_json, read_json
from hopper.graph.topology import Ids

_FEATURES: Final = KEYS["features"]


def read_distdgl(file: Path) -> GraphTables:
    """Read the graph of NAME.json and its parts, as a whole, or of a chunked metadata.json."""
    meta, where = read_json(file), str(file)
    if "node_type" in meta:
        return _read_chunks(file, meta)
    dgl = load_dgl("import distdgl")
    for field in ("num_parts", "node_map", "edge_map", "ntypes", "etypes"):
        if field not in meta:
            raise GraphError(f"{file}: {field}: missing field")
    node_counts, find_nodes = _read_ranges(meta["node_map"], meta["ntypes"], f"{file}: node_map")
    edge_counts, find_edges = _read_ranges(meta["edge_map"], meta["etypes"], f"{file}: edge_map")
    data: dict[str, dict[str, list[Any]]] = {name: {} for name in (*node_counts, *edge_counts)}
    ends: dict[str, list[NDArray[Any]]] = {name: [] for name in edge_counts}
    for part in range(int(meta["num_parts"])):
        entry, place = meta.get(f"part-{part}", {}), f"{file}: part-{part}"
        with explain_errors(f"{place}: DGL cannot read it as a part"):
            paths = {
                key: str(require_file(find_inside(file.parent, entry[key], place), key))
                for key in ("part_graph", "node_feats", "edge_feats")
            }
            (graph,), _ = dgl.load_graphs(paths["part_graph"])
            ids = find_nodes(graph.ndata[dgl.NID].numpy())
            src, dst = (ids[side.numpy()] for side in graph.edges(order="eid"))
            own = graph.edata["inner_edge"].numpy().astype(bool)
            types = graph.edata.get(dgl.ETYPE, torch.zeros(len(own))).numpy()
            of_edge = find_edges(graph.edata[dgl.EID].numpy())
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
    for name, counts in node_counts.items():
        table = reader.add_nodes(name, _concatenate(data[name]), KEYS, int(counts.sum()))
        table.servers = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
    for name in edge_counts:
        triple, of_type = split_triple(name, f"{file}: edge_map"), np.concatenate(ends[name], 1)
        reader.add_edges(triple, of_type, _concatenate(data[name]), KEYS_OF_EDGES)
    reader.tables.choose_target(where, follows=True)
    _note_parts(reader.tables, int(meta["num_parts"]))
    return reader.tables


def _read_ranges(
    ranges: Mapping[str, Any], numbers: Mapping[str, int], where: str
) -> tuple[dict[str, Ids], Callable[[Ids], Ids]]:
    """Return the count of each part by type, and a function from ids to those within types."""
    with explain_errors(f"{where}: expected ranges [first, stop] by type and part"):
        bounds = {name: np.array(ranges[name], np.int64).reshape(-1, 2) for name in numbers}
    counts = {name: of[:, 1] - of[:, 0] for name, of in bounds.items()}
    every = np.concatenate([*bounds.values()])
    firsts = np.concatenate([np.cumsum(of) - of for of in counts.values()])
    order = np.argsort(every[:, 0], kind="stable")
    starts, shift = every[order, 0], (firsts - every[:, 0])[order]
    return counts, lambda ids: ids + shift[np.searchsorted(starts, ids, "right") - 1]


def _concatenate(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    return {name: torch.cat(parts) for name, parts in columns.items()}


@dataclass(frozen=True)
class _Format:
    name: str
    delimiter: str = " "


@dataclass(frozen=True)
class _Chunks:
    """The files of the edges of a relation, or of data of a type, one after another."""

    format: _Format
    data: tuple[str, ...]


@dataclass(frozen=True)
class _Metadata:
    node_type: tuple[str, ...]
    edge_type: tuple[str, ...]
    edges: Mapping[str, _Chunks]
    graph_name: str = "graph"
    num_nodes_per_type: tuple[int, ...] | None = None
    num_nodes_per_chunk: tuple[tuple[int, ...], ...] | None = None
    num_edges_per_type: tuple[int, ...] | None = None
    num_edges_per_chunk: tuple[tuple[int, ...], ...] | None = None
    node_data: Mapping[str, Mapping[str, _Chunks]] | None = None
    edge_data: Mapping[str, Mapping[str, _Chunks]] | None = None


def _read_chunks(file: Path, content: Mapping[str, Any]) -> GraphTables:
    """Read a chunked graph; a file TYPE.txt beside it has the server of each node."""
    metadata = parse_json(TypeAdapter(_Metadata), content, str(file))
    reader = TableReader(metadata.graph_name, f"DistDGL {file.name}", str(file))
    counts = _count(metadata.num_nodes_per_type, metadata.num_nodes_per_chunk)
    if len(counts) != len(metadata.node_type):
        raise GraphError(
            f"{file}: num_nodes_per_type: expected {len(metadata.node_type)}, given {len(counts)}"
        )
    for name, count in zip(metadata.node_type, counts, strict=True):
        data = _read_data(file, (metadata.node_data or {}).get(name, {}), name)
        table = reader.add_nodes(name, data, KEYS, count)
        assignment = find_inside(file.parent, f"{name}.txt", f"{file}: node_type")
        if assignment.exists():
            table.servers = _read_servers(assignment, count)
    for name in metadata.edge_type:
        triple, place = split_triple(name, f"{file}: edge_type"), f"{file}: edges: {name}"
        if name not in metadata.edges:
            raise GraphError(f"{place}: missing field")
        data = _read_data(file, (metadata.edge_data or {}).get(name, {}), name)
        with explain_errors(f"{place}: expected chunks [edges, 2]"):
            ends = np.concatenate(
                [np.empty((0, 2), np.int64), *_load(file, metadata.edges[name], place)]
            ).T
        reader.add_edges(triple, ends, data, KEYS_OF_EDGES)
    edges = [table.count for table in reader.tables.edges.values()]
    expected = _count(metadata.num_edges_per_type, metadata.num_edges_per_chunk)
    if expected and expected != edges:
        raise GraphError(f"{file}: num_edges_per_type: expected {expected}, found {edges} edges")
    reader.tables.choose_target(str(file), follows=True)
    servers = [t.servers for t in reader.tables.nodes.values() if t.servers is not None]
    if len(servers) == len(counts):
        _note_parts(reader.tables, 1 + max(int(of.max(initial=0)) for of in servers))
    return reader.tables


def _note_parts(tables: GraphTables, servers: int) -> None:
    """Note for the user how to keep the parts that nodes were in."""
    keep = f"hopper partition DIR --servers {servers} --method given"
    tables.notes.append(f"each node knows its part; to keep them: {keep}")


def _count(
    by_type: tuple[int, ...] | None, by_chunk: tuple[tuple[int, ...], ...] | None
) -> list[int]:
    return list(by_type) if by_type is not None else [sum(chunks) for chunks in by_chunk or ()]


def _load(file: Path, chunks: _Chunks, place: str) -> list[NDArray[Any]]:
    """Read or map the array of each chunk."""
    form, files = chunks.format, (find_inside(file.parent, name, place) for name in chunks.data)
    return [load_table(of, form.name, place, form.delimiter) for of in files]


def _read_data(file: Path, data: Mapping[str, _Chunks], owner: str) -> dict[str, Any]:
    """Read the data of a type by name; features stay in their files."""
    read = dict[str, Any]()
    for key, chunks in data.items():
        place = f"{file}: data {key} of {owner}"
        parts = _load(file, chunks, place)
        if key == _FEATURES:
            read[key] = _join(parts, place)
        elif parts:
            with explain_errors(f"{place}: expected chunks of one width"):
                read[key] = np.concatenate(parts)
    return read


def _join(parts: list[NDArray[Any]], place: str) -> Features | None:
    """Put the features of chunks one after another; they stay in their files."""
    wide = [part[:, np.newaxis] if part.ndim == 1 else part for part in parts]
    shapes = [list(part.shape) for part in wide]
    if any(part.ndim != 2 or part.shape[1] != wide[0].shape[1] for part in wide):
        raise GraphError(f"{place}: expected chunks [n, d] of one width, given {shapes}")
    if not wide:
        return None
    starts, dtype = (
        np.cumsum([0, *map(len, wide)]).tolist(),
        np.result_type(*{part.dtype for part in wide}),
    )

    def chunks() -> Iterator[tuple[int, NDArray[Any]]]:
        for first, part in zip(starts, wide, strict=False):
            for start, rows in array_features(part).chunks():
                yield first + start, rows.astype(dtype, copy=False)

    return Features((starts[-1], wide[0].shape[1]), dtype, chunks)


def _read_servers(file: Path, count: int) -> NDArray[np.int32]:
    """Read the server of each node."""
    servers = load_table(file, "csv", "assignment")
    if servers.shape != (count, 1) or servers.dtype.kind != "i" or (servers < 0).any():
        raise GraphError(
            f"{file}: expected {count:,} lines, each the number of a server, given {len(servers):,}"
            f" of {servers.dtype}"
        )
    return servers[:, 0].astype(np.int32)
