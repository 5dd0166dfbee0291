"""From a graph directory to a partitioned one, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from cache_server.available_memory import available_memory
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.publish import refuse_occupied
from hopper.graph.schema import GraphSchema
from hopper.partition.assign import assign, check_request
from hopper.partition.describe import describe, describe_topology, write_description
from hopper.partition.divide_topology import divide_topology
from hopper.partition.halo import TopologyChoice
from hopper.partition.layouts import ByDimension
from hopper.partition.memory import (
    MemoryEstimate,
    estimate_memory,
    require_memory,
)
from hopper.partition.message_edges import find_reverses, message_edges
from hopper.partition.metis_process import choose_backend
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.partitioner import NONE
from hopper.partition.relabel import relabel
from hopper.partition.second_level import SecondLevel, check_ranks, rank_bytes
from hopper.partition.shares import shares_of
from hopper.partition.stored_forms import check_divisible, parse_row_forms, store_rows_as
from hopper.partition.training import training_roots
from hopper.partition.write import (
    copy_shared,
    partitioned_bytes,
    table_bytes,
    unpublished_partitions,
    write_maps,
    write_server,
    write_topology,
)
from hopper.phases import Phases, Progress


def partition_graph(
    graph: GraphDirectory,
    out: Path | str,
    servers: int,
    method: str = "metis",
    seed: int = 0,
    *,
    method_options: Mapping[str, Any] = NONE,
    backend: str = "auto",
    topology: str = "replicated",
    features: Literal["by-node", "by-dimension"] = "by-node",
    feature_dtypes: Sequence[str] = (),
    ranks_per_server: int = 1,
    memory_limit: int | None = None,
    progress: Progress | None = None,
    on_estimate: Callable[[MemoryEstimate, int], None] | None = None,
    measure: Callable[[PartitionedGraph], dict[str, Any] | None] | None = None,
) -> PartitionedGraph:
    """Divide a graph over servers and write the partitioned directory.

    Parameters
    ----------
    out: destination; must not exist, or be an empty directory. It appears when it is complete.
    method: "metis" (few cut edges, balanced nodes, degrees and training nodes), "stream" (the same
        in passes over the graph on disk; edges are balanced roughly), "random", or
        "package.module:Class", a :class:`hopper.partition.partitioner.Partitioner`.
    seed: of all methods but DGL's METIS, which has none.
    method_options: keywords of the constructor of a class of one's own.
    backend: which METIS: "auto" (DGL where it is installed, else pymetis), "dgl" or "pymetis".
    topology: "replicated": every server needs all edges; "partitioned": it has the in-edges of its
        own nodes alone (among which it then draws for others' ranks); or "halo:K": also those of
        the nodes within K hops of its own.
    features: whether a server stores whole rows of its own nodes, or some columns of all nodes'
        (which engine ``p3`` alone trains on).
    feature_dtypes: forms that features are stored in, "DTYPE" of all tables or "TABLE=DTYPE", as
        of :func:`hopper.partition.stored_forms.parse_row_forms`; none = as they are.
    ranks_per_server: above 1, a server's nodes are divided once more, over so many ranks; a run
        with as many deals nodes to ranks in this way.
    memory_limit: bytes that may be used; None for what is available.
    on_estimate: told the memory estimate and the bytes available, before the work starts.
    measure: measures the locality of what was divided, for ``locality`` in partition.json; None =
        it is not measured.

    Raises
    ------
    RequestError: an impossible request, too little memory or disk space, an occupied destination.
    GraphError: the graph directory is damaged; a number that a form cannot hold.
    """
    out, schema = Path(out), graph.schema
    check_request(schema, servers, method, method_options)
    check_ranks(ranks_per_server, method)
    choice, by_dimension = TopologyChoice.parse(topology), features == "by-dimension"
    split = choice.name == "partitioned"
    _check_features(schema, servers, features, topology)
    forms = parse_row_forms(feature_dtypes, schema)
    if by_dimension:
        check_divisible(schema, forms)
    refuse_occupied(out)
    chosen = choose_backend(backend) if method == "metis" else None
    copies = servers if by_dimension else 1
    disk = _written_bytes(graph, servers, copies, ranks_per_server, split=split)
    estimate = replace(estimate_memory(graph, servers, method, chosen, split=split), disk=disk)
    available = available_memory()
    if on_estimate is not None:
        on_estimate(estimate, available)
    require_memory(estimate, available, memory_limit, method)

    phases = Phases(progress)
    reverses, parent = find_reverses(graph), out.absolute().parent
    with (
        store_rows_as(graph, forms, parent, phases) as converted,
        message_edges(converted, reverses, parent) as graph,
        unpublished_partitions(
            out, _written_bytes(converted, servers, copies, ranks_per_server, split=split)
        ) as work,
    ):
        schema = graph.schema
        edges = sum(kind.count for kind in schema.relations.values())
        roots = training_roots(graph)
        assignment = assign(
            *(graph, servers, method, seed, roots, phases, work),
            chosen or "auto",
            method_options,
        )
        with phases.phase("number the nodes"):
            maps = {name: relabel(homes, servers) for name, homes in assignment.homes.items()}
            write_maps(work, maps)
            copy_shared(graph, work)
        with phases.phase("write the topology (edges)", edges) as counter:
            shares = {
                relation: write_topology(graph, work, relation, maps, counter)
                for relation in schema.relations
            }
        if ranks_per_server > 1:
            level = SecondLevel(ranks_per_server, method, seed, chosen)
            level.write(schema, work, maps, roots, phases)
        with phases.phase("write the servers' rows (bytes)", table_bytes(graph, copies)) as counter:
            sizes = [
                write_server(graph, work, each, maps, counter, by_dimension=by_dimension)
                for each in range(servers)
            ]
        description = describe(schema, assignment, maps, shares, roots, sizes)
        description["ranks_per_server"] = ranks_per_server
        description["memory_estimate_bytes"] = estimate.peak
        if reverses:
            description["reverse_relations"] = {
                str(each): list(map(str, own)) for each, own in reverses.items()
            }
        if by_dimension:
            description["topology"] = ByDimension.name
        write_description(work, description)
        divided = PartitionedGraph.open(work)
        with phases.phase("count shares"):
            description["shares"] = shares_of(graph, divided, ranks_per_server)
        if measure is not None:
            with phases.phase("measure locality"):
                measured = measure(divided)
            if measured is not None:
                description["locality"] = measured
        if split:
            offsets = {name: own.offsets for name, own in maps.items()}
            stored = divide_topology(schema, work, offsets, choice.halo, phases)
            description |= describe_topology(choice, description["per_server"], stored)
        description["seconds"] = dict(phases.seconds)
        write_description(work, description)
    return PartitionedGraph.open(out)


def _written_bytes(
    graph: GraphDirectory, servers: int, copies: int, ranks_per_server: int, *, split: bool
) -> int:
    """Bytes on disk that the partitioned directory takes; ``copies`` of the labels."""
    more = table_bytes(graph, copies) - table_bytes(graph)
    more += rank_bytes(graph.schema, ranks_per_server)
    return partitioned_bytes(graph.schema, servers, split=split) + more


def _check_features(schema: GraphSchema, servers: int, features: str, topology: str) -> None:
    """Refuse a division of features that cannot be had."""
    if features not in ("by-node", "by-dimension"):
        raise RequestError(f"features: expected by-node or by-dimension, given {features!r}")
    if features == "by-node":
        return
    if topology != "replicated":
        raise RequestError(
            f"features: by-dimension wants topology replicated, since every server computes with "
            f"the edges of all mini-batches; given {topology}"
        )
    for name, kind in schema.node_types.items():
        if kind.feature_dim is not None and kind.feature_dim < servers:
            raise RequestError(
                f"features: by-dimension wants a column a server at least; node type {name!r} has "
                f"{kind.feature_dim} for {servers} servers"
            )
