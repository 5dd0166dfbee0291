"""Divide a graph over servers, by node or by relation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.memory import MemoryEstimate
from hopper.partition.partitioner import BY_RELATION
from hopper.partition.stored_files import Tables
from hopper.timing.phases import Progress


def divide_graph(
    graph: GraphDirectory,
    out: Path | str,
    servers: int,
    method: str = "metis",
    *,
    layers: int | None = None,
    target: str | None = None,
    metapaths: Sequence[Sequence[str]] = (),
    weights_fanouts: Sequence[int] | None = None,
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
    method: "metis", "stream" and "random" divide nodes; "meta" divides whole relations.
    layers: only for "meta": the most hops that models read; None = 2.
    target: only for "meta": the node type of the roots.
    metapaths: only for "meta": the relations that hops follow, path by path; none = all relations.
    weights_fanouts: only for "meta": the fanouts of the sampling that weighs sub-metatrees; None =
        weigh them by what is stored.
    server_memory: only for "meta": the bytes that a server may store. A larger sub-metatree is cut;
        None = no limit.
    tables: only for "meta": whether whole files are links to the graph's ("link") or copies
        ("copy").
    feature_dtypes, memory_limit, on_estimate: as in :func:`hopper.partition.partition_graph`.
    options: only for other methods: as in :func:`hopper.partition.partition_graph`.

    Raises
    ------
    RequestError: the request is impossible, memory or disk space is too small, or the destination
        is occupied.
    GraphError: the graph directory is damaged.
    """
    if method == BY_RELATION and options:
        raise RequestError(f"{', '.join(options)}: --method {BY_RELATION} does not read that")
    meta_options = [layers, target, metapaths or None, weights_fanouts, server_memory, tables]
    if method != BY_RELATION and any(option is not None for option in meta_options):
        raise RequestError(
            "layers, target, metapaths, weights_fanouts, server_memory, tables: only --method "
            f"{BY_RELATION} reads them, not {method}"
        )
    if method != BY_RELATION:
        options |= {"feature_dtypes": feature_dtypes, "progress": progress}
        options |= {"memory_limit": memory_limit, "on_estimate": on_estimate}
        return partition_graph(graph, out, servers, method, **options)
    # Other methods need no networkx, which takes a fifth of a second to import.
    from hopper.hetero.write_partition import partition_by_relation

    hops = 2 if layers is None else layers
    return partition_by_relation(
        graph,
        out,
        servers,
        hops,
        target,
        metapaths=metapaths,
        weights_fanouts=weights_fanouts,
        server_memory=server_memory,
        tables="link" if tables is None else tables,
        feature_dtypes=feature_dtypes,
        memory_limit=memory_limit,
        on_estimate=on_estimate,
        progress=progress,
    )
