"""Writes a graph that is divided by relation, with one complete folder per server.

Heta, section 5. Nodes keep their original ids. A server stores all nodes of the types that its
sub-metatrees read, and their relations whole. The files are links to the graph's files, or copies
that are made piece by piece, so memory does not grow with the graph. If a sub-metatree is too large
for a server, the server stores a part of it (:mod:`hopper.hetero.vertex_cut`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.available_memory import available_memory
from cache_server.manifest import TableSpec, write_manifest
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.piece_size import limit_pieces
from hopper.graph.publish import refuse_occupied, require_space
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.meta_partition import MetaPartition, Share, divide
from hopper.hetero.metagraph import Metagraph, make_metagraph
from hopper.hetero.metatree import Metatree, make_metatree
from hopper.hetero.vertex_cut import CutPart, cut, part_bytes
from hopper.hetero.write_parts import name_degrees, write_part, written_bytes
from hopper.hetero.write_whole import Write, name_share, name_topology, whole_bytes
from hopper.partition import PartitionedGraph
from hopper.partition.describe import write_description
from hopper.partition.file_names import server_folder
from hopper.partition.memory import (
    MemoryEstimate,
    choose_pieces,
    estimate_by_relation,
    format_bytes,
    require_memory,
)
from hopper.partition.message_edges import find_reverses, message_edges
from hopper.partition.partitioned_graph import PARTITION_SCHEMA_VERSION
from hopper.partition.stored_files import StoredFiles, Tables
from hopper.partition.stored_forms import parse_row_forms, store_rows_as
from hopper.partition.training import count_roots
from hopper.partition.write import copy_shared, unpublished_partitions
from hopper.phases import Phases, Progress


def partition_by_relation(
    graph: GraphDirectory,
    out: Path | str,
    servers: int,
    layers: int,
    target: str | None = None,
    *,
    metapaths: Sequence[Sequence[str]] = (),
    weights_fanouts: Sequence[int] | None = None,
    server_memory: int | None = None,
    tables: Tables = "link",
    feature_dtypes: Sequence[str] = (),
    memory_limit: int | None = None,
    on_estimate: Callable[[MemoryEstimate, int], None] | None = None,
    progress: Progress | None = None,
) -> PartitionedGraph:
    """Divide whole relations over servers and write the partitioned directory.

    Parameters
    ----------
    out: the destination, which must not exist or must be an empty directory. It appears when it is
        complete.
    layers: the most hops that models trained on it read.
    target: the type of the roots; None = the graph's. Where edges are predicted, roots are of the
        types of all their ends, and edges of validation and test links are not stored.
    metapaths: the relations that hops follow, as in
        :func:`hopper.hetero.metatree.make_metatree`.
    weights_fanouts: weigh sub-metatrees by what sampling with these fanouts reads of them; None =
        by what is stored.
    server_memory: the bytes that a server may store. A larger sub-metatree is cut. The others are
        weighed by their bytes, unless ``weights_fanouts`` are given.
    tables: "link" makes whole files links to the graph's files where the file system allows it;
        "copy" copies all files.
    feature_dtypes, memory_limit, on_estimate: as in :func:`hopper.partition.partition_graph`.

    Raises
    ------
    RequestError: the request is impossible, disk space is too small, the destination is occupied,
        or a server would store more than ``server_memory`` however sub-metatrees are cut.
    GraphError: the graph directory is damaged.
    """
    if tables not in get_args(Tables):
        raise RequestError(f"--tables: expected {' or '.join(get_args(Tables))}, given {tables}")
    out = Path(out)
    others = _check_target(graph.schema, target, cuts=server_memory is not None)
    forms = parse_row_forms(feature_dtypes, graph.schema)
    refuse_occupied(out)
    size = choose_pieces(memory_limit)
    estimate = estimate_by_relation(graph, servers, cuts=server_memory is not None, size=size)
    available = available_memory()
    if on_estimate is not None:
        on_estimate(estimate, available)
    require_memory(estimate, available, memory_limit, "meta")
    reverses, parent, phases = find_reverses(graph), out.absolute().parent, Phases(progress)
    with (
        limit_pieces(size),
        store_rows_as(graph, forms, parent, phases) as stored,
        message_edges(stored, reverses, parent) as messages,
    ):
        metagraph = make_metagraph(messages.schema)
        target_type = graph.schema.target_type()
        tree = make_metatree(metagraph, target_type, layers, metapaths, others)
        _partition(
            *(messages, out, servers, metagraph, tree, reverses, phases),
            metapaths=metapaths,
            weights_fanouts=weights_fanouts,
            server_memory=server_memory,
            tables=tables,
        )
    return PartitionedGraph.open(out)


def _partition(
    graph: GraphDirectory,
    out: Path,
    servers: int,
    metagraph: Metagraph,
    tree: Metatree,
    reverses: Mapping[Relation, Sequence[Relation]],
    phases: Phases,
    *,
    metapaths: Sequence[Sequence[str]],
    weights_fanouts: Sequence[int] | None,
    server_memory: int | None,
    tables: Tables,
) -> None:
    """Divide and write a graph of message edges; errors as in :func:`partition_by_relation`.

    Parameters
    ----------
    metagraph, tree: the graph's metagraph and metatree.
    reverses: the reverse relations that :func:`find_reverses` returned.
    """
    weights = None
    if weights_fanouts is not None:
        # Sampling needs torch, whose import takes longer than dividing most graphs.
        from hopper.hetero.sampled_weights import weigh_by_sampling

        divide(metagraph, tree, servers)  # refuses an impossible number before any sampling
        with phases.phase("weigh sub-metatrees by sampling"):
            weights = weigh_by_sampling(graph, tree, weights_fanouts)
    parts: dict[Relation, list[CutPart]] = {}
    if server_memory is not None:
        alone = divide(metagraph, tree, len(tree.roots)).shares
        bytes_of = {share.roots[0]: sum(whole_bytes(graph, share)) for share in alone}
        with phases.phase("cut what is too large for a server"):
            parts = _cuts(graph, tree, bytes_of, servers, server_memory)
        # The bytes that are limited are also balanced, unless other weights are given.
        weights = weights or bytes_of
    cuts = {root: len(root_parts) for root, root_parts in parts.items()}
    partition = divide(metagraph, tree, servers, weights, cuts)
    if parts:
        partition = _with_parts(graph, partition, parts)
    sizes = [_sizes(graph, share, _part_of(share, parts)) for share in partition.shares]
    if server_memory is not None:
        _check_sizes(partition, sizes, server_memory)
    with unpublished_partitions(out, 0) as work:
        copy_shared(graph, work)
        files = StoredFiles(tables)
        with phases.phase("link what is stored whole"):
            writes, tables_of = _name_files(graph, work, partition, parts, files)
        require_space(out.absolute().parent, files.bytes_to_write)
        with phases.phase("write what is no link (bytes)", files.bytes_to_write) as counter:
            for write in writes:
                write(counter)
            files.write_copies(counter)
        for server, specs in enumerate(tables_of):
            write_manifest(server_folder(work, server), server, servers, specs)
        description = _describe(graph, partition, sizes)
        description["meta"] |= {
            "metapaths": [list(path) for path in metapaths],
            "weights_fanouts": None if weights_fanouts is None else list(weights_fanouts),
            "server_memory": server_memory,
            "tables": tables,
            "linked_bytes": files.linked_bytes,
        }
        if reverses:
            description["reverse_relations"] = {
                str(relation): list(map(str, reverse)) for relation, reverse in reverses.items()
            }
        description["seconds"] = dict(phases.seconds)
        write_description(work, description)


def _check_target(schema: GraphSchema, target: str | None, *, cuts: bool) -> tuple[str, ...]:
    """Return the types of roots besides the target type, and refuse a target that does not fit.

    Parameters
    ----------
    cuts: whether sub-metatrees that are too large for a server are cut.
    """
    if isinstance(schema.target, str) and target not in (None, schema.target):
        raise RequestError(
            f"--target: expected {schema.target!r}, whose splits the graph has; given {target!r}"
        )
    if not isinstance(schema.target, str):
        predicted = ", ".join(map(str, schema.target_relations))
        if target is not None:
            raise RequestError(
                f"--target: edges of {predicted} are predicted, whose ends are roots; expected "
                f"none, given {target!r}"
            )
        if cuts:
            raise RequestError(
                "--server-memory: only graphs whose nodes are predicted can be cut; expected none, "
                f"as edges of {predicted} are predicted and any node may be an end"
            )
    return schema.root_types[1:]


def _cuts(
    graph: GraphDirectory,
    tree: Metatree,
    sizes: Mapping[Relation, int],
    servers: int,
    memory: int,
) -> dict[Relation, list[CutPart]]:
    """Cut the sub-metatrees that are too large for a server, by root relation.

    Each is cut into as few parts as possible, or into more if servers would have nothing else to
    store.

    Parameters
    ----------
    sizes: the bytes of the whole sub-metatrees.
    """
    large = sorted((r for r in tree.roots if sizes[r] > memory), key=lambda r: (-sizes[r], r))
    free = servers - (len(large) < len(sizes))
    parts_by_root: dict[Relation, list[CutPart]] = {}
    largest: dict[Relation, int] = {}

    def cut_into(root: Relation, parts: int) -> tuple[list[CutPart], int]:
        cut_parts = cut(graph, tree, root, parts)
        return cut_parts, max(sum(part_bytes(graph, part)) for part in cut_parts)

    for root in large:
        largest[root] = sizes[root]
        while largest[root] > memory:
            parts = len(parts_by_root.get(root, [None])) + 1
            if parts > free:
                cut_so_far = f" when it is cut into {parts - 1}" if parts > 2 else ""
                raise RequestError(
                    f"--server-memory: what {root} reads takes {format_bytes(largest[root])} on a "
                    f"server{cut_so_far}; expected at most {format_bytes(memory)}; take more "
                    "servers, or more memory"
                )
            parts_by_root[root], largest[root] = cut_into(root, parts)
        free -= len(parts_by_root[root])
    while free and large and len(large) == len(sizes):
        # Cut the largest parts further. More parts can also store more copies, so check the size.
        for root in sorted(large, key=lambda root: -largest[root]):
            finer, most = cut_into(root, len(parts_by_root[root]) + 1)
            if most <= memory:
                parts_by_root[root], largest[root] = finer, most
                break
        else:
            raise RequestError(
                f"--servers: with {format_bytes(memory)} a server the cut sub-metatrees take "
                f"{servers - free}, and no finer cut fits; expected {servers - free}, given "
                f"{servers}"
            )
        free -= 1
    return parts_by_root


def _part_of(share: Share, parts: Mapping[Relation, Sequence[CutPart]]) -> CutPart | None:
    return parts[share.roots[0]][share.part.place] if share.part.parts > 1 else None


def _with_parts(
    graph: GraphDirectory, partition: MetaPartition, parts: Mapping[Relation, Sequence[CutPart]]
) -> MetaPartition:
    """Return the partition with the numbers of its parts instead of whole sub-metatrees."""
    shares = []
    is_stored: dict[str, NDArray[np.bool_]] = {
        name: np.zeros(kind.count, np.bool_) for name, kind in graph.schema.node_types.items()
    }
    for share in partition.shares:
        part = _part_of(share, parts)
        for name in share.node_types:
            is_stored[name] |= True if part is None else part.nodes[name]
        if part is None:
            shares.append(share)
            continue
        counts = {name: int(mask.sum()) for name, mask in part.nodes.items()}
        shares.append(
            replace(
                share,
                nodes=sum(counts.values()),
                edges=sum(part.edges.values()) + part.root_edges,
                held=counts,
            )
        )
    distinct = sum(int(mask.sum()) for mask in is_stored.values())
    return replace(partition, shares=tuple(shares), distinct_nodes=distinct)


def _check_sizes(partition: MetaPartition, sizes: Sequence[tuple[int, int]], memory: int) -> None:
    for server, (share, size) in enumerate(zip(partition.shares, sizes, strict=True)):
        if sum(size) > memory:
            raise RequestError(
                f"--server-memory: server {server} would store {format_bytes(sum(size))} for "
                f"{', '.join(map(str, share.roots))}; expected at most {format_bytes(memory)}; "
                "take more servers, or more memory"
            )


def _sizes(graph: GraphDirectory, share: Share, part: CutPart | None) -> tuple[int, int]:
    """Return the bytes of a server's rows and of its topology."""
    return whole_bytes(graph, share) if part is None else part_bytes(graph, part)


def _name_files(
    graph: GraphDirectory,
    work: Path,
    partition: MetaPartition,
    parts: Mapping[Relation, Sequence[CutPart]],
    files: StoredFiles,
) -> tuple[list[Write], list[list[TableSpec]]]:
    """Name all files of all servers.

    Returns
    -------
    Functions that write the files which are neither links nor copies, and the tables of every
    ``shard.json``.
    """
    writes: list[Write] = []
    tables_of: list[list[TableSpec]] = []
    for relation in graph.schema.target_relations:
        # Every server may rank links, for which it needs all known links.
        writes += name_topology(graph, work, relation, files)
    for server, share in enumerate(partition.shares):
        folder, part = server_folder(work, server), _part_of(share, parts)
        folder.mkdir()
        specs: list[TableSpec] = []
        if part is not None:
            # Feature servers compute a row's index from its id. A part's ids are not contiguous,
            # so it has no tables for them.
            name_degrees(graph, folder, part, files)
            files.bytes_to_write += written_bytes(graph, part)
            writes.append(partial(write_part, graph, folder, part))
        else:
            written, specs = name_share(graph, folder, share, files)
            writes += written
        tables_of.append(specs)
    return writes, tables_of


def _describe(
    graph: GraphDirectory, partition: MetaPartition, sizes: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Return the content of partition.json, without times."""
    schema, shares = graph.schema, partition.shares
    servers = len(shares)
    nodes = np.array([share.nodes for share in shares])
    edges = np.array([share.edges for share in shares])
    roots = int(count_roots(graph, "train", 1, np.zeros_like).sum())
    # A group is the servers with the same edges of the same root relations. All groups finish
    # equally many roots.
    groups = len({(share.roots, share.part) for share in shares})
    train = [roots // (groups * share.replica.copies) for share in shares]
    return {
        "schema": PARTITION_SCHEMA_VERSION,
        "graph": schema.name,
        "method": "meta",
        "backend": "hopper",
        "servers": servers,
        "seed": 0,
        "seed_used": False,
        "offsets": {
            name: _offsets(schema, partition, name) for name in schema.node_types
        },
        "edge_offsets": {
            # A server that stores the relation stores all features of its edges.
            str(relation): [0] + [kind.count] * servers
            for relation, kind in schema.relations.items()
            if kind.feature_dim is not None
        },
        # Hops never leave the server on which they began.
        "edge_cut": 0.0,
        "balance": {
            name: round(float(values.max() / max(1e-9, values.mean())), 6) if values.any() else 1.0
            for name, values in (("nodes", nodes), ("edges", edges), ("train", np.array(train)))
        },
        "per_server": [
            {"nodes": share.nodes, "edges": share.edges, "train": trained,
             "feature_bytes": rows, "topology_bytes": topology}
            for share, trained, (rows, topology) in zip(shares, train, sizes, strict=True)
        ],
        "topology": "by_relation",
        "meta": partition.as_json(),
    }  # fmt: skip


def _offsets(schema: GraphSchema, partition: MetaPartition, node_type: str) -> list[int]:
    """Return the offsets that say which server owns which nodes of a type.

    Nodes of roots' types are dealt evenly. Those of another type belong to the server that stores
    it and follows most edges out of it, or to the first server if none stores it.
    """
    count, servers = schema.node_types[node_type].count, len(partition.shares)
    if node_type in partition.tree.root_types:
        return [count * server // servers for server in range(servers + 1)]
    followed = [
        sum(schema.relations[r].count for r in share.relations if r.src == node_type)
        if node_type in share.node_types
        else -1
        for share in partition.shares
    ]
    owner = partition.shares[followed.index(max(followed))]
    # If the owner has a part, all parts of the same sub-metatree own equally many nodes.
    owners = [
        share == owner or (owner.part.parts > 1 and share.roots == owner.roots)
        for share in partition.shares
    ]
    return [count * before // sum(owners) for before in accumulate(owners, initial=0)]
