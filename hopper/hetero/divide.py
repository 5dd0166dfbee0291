"""Divide a graph over servers, by node or by relation (Heta, section 5).

Where relations are divided, nodes keep their original ids. A server stores all nodes of the types
that its sub-metatrees read, and their relations whole. The files are links to the graph's files, or
copies that are made piece by piece, so memory does not grow with the graph. If a sub-metatree is
too large for a server, the server stores a part of it (:mod:`hopper.hetero.vertex_cut`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cache_server.store.manifest import TableSpec, write_manifest
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import limit_memory
from hopper.graph.publish import refuse_occupied, require_space
from hopper.graph.schema import GraphSchema
from hopper.hetero.fit_memory import StoredPartition, assign_relations
from hopper.hetero.meta_partition import MetaPartition
from hopper.hetero.metatree import make_metatree
from hopper.hetero.write_partition import (
    StoredFiles,
    Tables,
    name_part,
    name_share,
    name_topology,
)
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.balance import count_roots
from hopper.partition.describe import imbalance
from hopper.partition.description import (
    PARTITION_SCHEMA_VERSION,
    server_folder,
    write_description,
)
from hopper.partition.memory import (
    MemoryEstimate,
    choose_pieces,
    estimate_by_relation,
    require_memory,
)
from hopper.partition.message_edges import describe_reverses, message_edges
from hopper.partition.partitioner import BY_RELATION
from hopper.partition.stored_forms import parse_row_forms, store_rows_as
from hopper.partition.write import copy_shared, unpublished_partitions
from hopper.timing.phases import Phases, Progress


def divide_graph(
    graph: GraphDirectory | str | os.PathLike[str],
    out: str | os.PathLike[str],
    servers: int,
    method: str = "metis",
    *,
    layers: int | None = None,
    metapaths: Sequence[Sequence[str]] = (),
    server_memory: int | None = None,
    tables: Tables | None = None,
    feature_dtypes: Sequence[str] = (),
    memory_limit: int | None = None,
    on_estimate: Callable[[MemoryEstimate, int], None] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> PartitionedGraph:
    """Divide a graph over servers and write the partitioned directory.

    Parameters
    ----------
    graph: a graph directory, or its path.
    out: the destination, which must not exist or must be an empty directory. It appears when it is
        complete.
    method: "metis", "stream" and "random" divide nodes; "meta" divides whole relations.
    layers: only for "meta": the most hops that models trained on it read; None = 2. Where edges are
        predicted, roots are of the types of all their ends, and edges of validation and test links
        are not stored.
    metapaths: only for "meta": the relations that hops follow, path by path, as in
        :func:`hopper.hetero.metatree.make_metatree`; none = all relations.
    server_memory: only for "meta": the bytes that a server may store. A larger sub-metatree is cut,
        and the others are weighed by their bytes; None = no limit.
    tables: only for "meta": "link" (the default) makes whole files links to the graph's files where
        the file system allows it; "copy" copies all files.
    feature_dtypes, memory_limit, on_estimate: as in :func:`hopper.partition.partition_graph`.
    options: only for other methods: as in :func:`hopper.partition.partition_graph`.

    Raises
    ------
    RequestError: the request is impossible, memory or disk space is too small, or the destination
        is occupied.
    GraphError: the graph directory is damaged.
    """
    if not isinstance(graph, GraphDirectory):
        graph = GraphDirectory.open(Path(graph))
    out = Path(out)
    if method != BY_RELATION:
        meta_options = (layers, metapaths or None, server_memory, tables)
        if any(option is not None for option in meta_options):
            raise RequestError(
                "layers, metapaths, server_memory, tables: only --method "
                f"{BY_RELATION} reads them, not {method}"
            )
        options |= {"feature_dtypes": feature_dtypes, "memory_limit": memory_limit}
        options |= {"on_estimate": on_estimate, "progress": progress}
        return partition_graph(graph, out, servers, method, **options)
    if options:
        raise RequestError(f"{', '.join(options)}: --method {BY_RELATION} does not read that")
    layers, tables = 2 if layers is None else layers, tables or "link"
    if tables not in get_args(Tables):
        raise RequestError(f"--tables: expected {' or '.join(get_args(Tables))}, given {tables}")
    schema, phases = graph.schema, Phases(progress)
    if server_memory is not None and not isinstance(schema.target, str):
        raise RequestError(
            "--server-memory: only graphs whose nodes are predicted can be cut; expected none, as "
            f"edges of {', '.join(map(str, schema.target_relations))} are predicted and any node "
            "may be an end"
        )
    forms = parse_row_forms(feature_dtypes, schema)
    refuse_occupied(out)
    size = choose_pieces(memory_limit)
    estimate = estimate_by_relation(graph, servers, cuts=server_memory is not None, size=size)
    require_memory(estimate, memory_limit, BY_RELATION, on_estimate)
    with (
        limit_memory(size),
        store_rows_as(graph, forms, out, phases) as stored,
        message_edges(stored, out) as (messages, reverses),
    ):
        tree = make_metatree(
            messages.schema, schema.target_type(), layers, metapaths, schema.root_types[1:]
        )
        division = assign_relations(messages, tree, servers, server_memory, phases)
        with unpublished_partitions(out, 0) as work:
            files = _write_files(messages, work, division, tables, phases)
            description = _describe(messages, division.partition, division.sizes)
            description["meta"] |= {
                "metapaths": [list(path) for path in metapaths],
                "server_memory": server_memory,
                "tables": tables,
                "linked_bytes": files.linked_bytes,
            }
            description |= describe_reverses(reverses)
            write_description(work, description | {"seconds": dict(phases.seconds)})
    return PartitionedGraph.open(out)


def _write_files(
    graph: GraphDirectory, work: Path, division: StoredPartition, tables: Tables, phases: Phases
) -> StoredFiles:
    """Write all files of the directory but its description."""
    copy_shared(graph, work)
    files, tables_of = StoredFiles(tables), list[list[TableSpec]]()
    with phases.phase("link what is stored whole"):
        for relation in graph.schema.target_relations:
            # Every server may rank links, for which it needs all known links.
            name_topology(graph, work, relation, files)
        for server, part in enumerate(division.parts):
            folder = server_folder(work, server)
            folder.mkdir()
            if part is None:
                share = division.partition.shares[server]
                tables_of.append(name_share(graph, folder, share, files))
            else:
                # Feature servers compute a row's index from its id. A part's ids are not
                # contiguous, so it has no tables for them.
                name_part(graph, folder, part, files)
                tables_of.append([])
    require_space(work.parent, files.bytes_to_write)
    with phases.phase("write what is no link (bytes)", files.bytes_to_write) as counter:
        files.write(counter)
    for server, specs in enumerate(tables_of):
        write_manifest(server_folder(work, server), server, len(tables_of), specs)
    return files


def _describe(
    graph: GraphDirectory, partition: MetaPartition, sizes: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Return what partition.json says; ``sizes`` are the bytes of each server's rows and of its
    topology."""
    schema, shares = graph.schema, partition.shares
    roots = int(count_roots(graph, "train", 1, np.zeros_like).sum())
    # A group is the servers with the same edges of the same root relations. All groups finish
    # equally many roots.
    groups = len({(share.roots, share.part) for share in shares})
    counts: dict[str, Any] = {
        "nodes": [share.nodes for share in shares],
        "edges": [share.edges for share in shares],
        "train": [roots // (groups * share.copies) for share in shares],
    }
    columns = dict(zip(("feature_bytes", "topology_bytes"), zip(*sizes, strict=True), strict=True))
    return {
        "schema": PARTITION_SCHEMA_VERSION,
        "graph": schema.name,
        "method": BY_RELATION,
        "backend": "hopper",
        "servers": len(shares),
        "seed": 0,
        "seed_used": False,
        "offsets": {name: _offsets(schema, partition, name) for name in schema.node_types},
        "edge_offsets": {
            # A server that stores the relation stores all features of its edges.
            str(relation): [0] + [kind.count] * len(shares)
            for relation, kind in schema.relations.items()
            if kind.feature_dim is not None
        },
        # Hops never leave the server on which they began.
        "edge_cut": 0.0,
        "balance": {name: imbalance(np.array(values)) for name, values in counts.items()},
        "per_server": [
            {name: values[server] for name, values in (counts | columns).items()}
            for server in range(len(shares))
        ],
        "topology": "by_relation",
        "meta": partition.as_json(),
    }


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
        share == owner or (not owner.is_whole and share.roots == owner.roots)
        for share in partition.shares
    ]
    return [count * before // sum(owners) for before in accumulate(owners, initial=0)]
