"""Divide a graph over servers, by node or by relation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.assign import BY_RELATION
from hopper.partition.phases import Progress


def divide_graph(
    graph: GraphDirectory,
    out: Path | str,
    servers: int,
    method: str = "metis",
    *,
    layers: int = 2,
    target: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> PartitionedGraph:
    """Divide a graph over servers and write the partitioned directory.

    Parameters
    ----------
    method: "metis", "stream" or "random" divide nodes; "meta" divides whole relations.
    layers, target: of "meta": hops that models read at most, and the type of the roots.
    options: of the others: as of :func:`hopper.partition.partition_graph`.

    Raises
    ------
    RequestError: an impossible request, too little memory or disk space, an occupied destination.
    GraphError: the graph directory is damaged.
    """
    if method != BY_RELATION:
        return partition_graph(graph, out, servers, method, progress=progress, **options)
    # networkx takes a fifth of a second to load, which other methods do without.
    from hopper.hetero.write_partition import partition_by_relation

    return partition_by_relation(graph, out, servers, layers, target, progress=progress)
