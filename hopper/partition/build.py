"""Divide a graph directory and write the partitioned directory, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cache_server.available_memory import available_memory
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import limit_memory
from hopper.partition.assign import Assignment, assign
from hopper.partition.balance import Balance
from hopper.partition.by_dimension import ByDimension
from hopper.partition.describe import describe, describe_topology, write_description
from hopper.partition.divide_topology import divide_topology
from hopper.partition.division_request import DivisionRequest
from hopper.partition.memory import MemoryEstimate, choose_pieces, require_memory
from hopper.partition.message_edges import find_reverses, message_edges
from hopper.partition.node_arrays import NodeArrays
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.partitioner import NONE
from hopper.partition.refine import Refiner
from hopper.partition.relabel import relabel
from hopper.partition.second_level import SecondLevel
from hopper.partition.shares import make_shares
from hopper.partition.stored_forms import store_rows_as
from hopper.partition.training import count_roots
from hopper.partition.workers import Construction, ThisProcess, Workers
from hopper.partition.write import (
    copy_shared,
    fill_draw_arrays,
    fill_topology,
    lay_out_topology,
    table_bytes,
    unpublished_partitions,
    write_server,
)
from hopper.phases import Phases, Progress

Measure = Callable[[PartitionedGraph], dict[str, Any] | None]
"""Measures the locality of a division."""


def partition_graph(
    graph: GraphDirectory,
    out: Path | str,
    servers: int,
    method: str = "metis",
    seed: int = 0,
    *,
    method_options: Mapping[str, Any] = NONE,
    backend: str = "auto",
    balance: Sequence[str] = (),
    refiner: Refiner | None = None,
    topology: str = "replicated",
    features: Literal["by-node", "by-dimension"] = "by-node",
    feature_dtypes: Sequence[str] = (),
    ranks_per_server: int = 1,
    memory_limit: int | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    on_estimate: Callable[[MemoryEstimate, int], None] | None = None,
    measure: Measure | None = None,
) -> PartitionedGraph:
    """Divide a graph over servers and write the partitioned directory.

    Parameters
    ----------
    out: the directory to write; it must not exist or be empty. It appears when it is complete.
    method: "metis" (few cut edges; balanced nodes, degrees and training nodes), "stream" (the same
        in passes over the graph on disk; edges are balanced roughly), "random", or
        "package.module:Class", a :class:`hopper.partition.partitioner.Partitioner`.
    seed: seed of all methods but DGL's METIS, which takes none.
    method_options: keywords of the constructor of a plug-in class.
    backend: which METIS: "auto" (DGL if it is installed, else pymetis), "dgl" or "pymetis".
    balance: what METIS balances: names of splits, "types" and "edges" (in-edges). Empty = training
        nodes, other nodes by type, and degrees of both.
    refiner: moves nodes between servers after the method, such as
        :class:`hopper.hetero.refine_by_visits.VisitRefiner`; None = nothing moves.
    topology: "replicated": every server has all edges. "partitioned": a server has the in-edges of
        its own nodes, and draws among them for other servers' ranks. "halo:K": it also has those
        of the nodes within K hops of its own.
    features: whether a server stores whole rows of its own nodes, or some columns of all nodes,
        which only the engine ``p3`` trains on.
    feature_dtypes: forms to store features in, "DTYPE" for all tables or "TABLE=DTYPE", which
        :func:`hopper.partition.stored_forms.parse_row_forms` parses. Empty = as they are.
    ranks_per_server: above 1, a server's nodes are divided again over so many ranks. A run with as
        many ranks a server uses this division.
    memory_limit: bytes that may be used; None = the available memory. All methods but METIS choose
        the pieces that they work on by it.
    workers: build the servers' parts; None = this process does.
    on_estimate: called with the memory estimate and the available bytes before the work starts.
    measure: measures the locality, for ``locality`` in partition.json; None = no measurement.

    Raises
    ------
    RequestError: the request is impossible, memory or disk space is too small, or the destination
        is occupied.
    GraphError: the graph directory is damaged, or a stored form cannot hold a number.
    """
    request = DivisionRequest.parse(
        graph,
        Path(out),
        servers,
        method,
        seed=seed,
        method_options=method_options,
        backend=backend,
        balance=balance,
        refiner=refiner,
        topology=topology,
        features=features,
        feature_dtypes=feature_dtypes,
        ranks_per_server=ranks_per_server,
    )
    size, available = choose_pieces(memory_limit), available_memory()
    estimate = request.estimate(size)
    if on_estimate is not None:
        on_estimate(estimate, available)
    require_memory(estimate, available, memory_limit, method)
    with limit_memory(size):
        _carry_out(request, estimate.peak, workers or ThisProcess(), measure, Phases(progress))
    return PartitionedGraph.open(out)


def _carry_out(
    request: DivisionRequest,
    estimated_bytes: int,
    workers: Workers,
    measure: Measure | None,
    phases: Phases,
) -> None:
    """Divide the graph and write the directory, phase by phase."""
    reverses = find_reverses(request.graph)
    with (
        store_rows_as(request.graph, request.forms, request.out, phases) as converted,
        message_edges(converted, reverses, request.out) as graph,
        unpublished_partitions(request.out, request.written_bytes(converted)) as work,
    ):
        balance = Balance.of(graph, request.balance, NodeArrays(work).full)
        assignment = _assign(request, graph, balance, phases, work)
        with phases.phase("number the nodes"):
            offsets = {
                name: relabel(homes, request.servers, work, name).offsets
                for name, homes in assignment.homes.items()
            }
            copy_shared(graph, work)
        construction = Construction(graph, work, offsets)
        description = _write(request, construction, assignment, balance, workers, phases)
        description["memory_estimate_bytes"] = estimated_bytes
        if reverses:
            description["reverse_relations"] = {
                str(relation): list(map(str, names)) for relation, names in reverses.items()
            }
        write_description(work, description)
        description |= _count(request, graph, measure, phases, work)
        if request.is_split:
            stored = divide_topology(construction, request.topology.halo, phases, workers)
            description |= describe_topology(request.topology, description["per_server"], stored)
        description["seconds"] = dict(phases.seconds)
        write_description(work, description)


def _assign(
    request: DivisionRequest, graph: GraphDirectory, balance: Balance, phases: Phases, work: Path
) -> Assignment:
    """Assign every node to a server, and refine the assignment if there is a refiner."""
    assignment = assign(
        *(graph, request.servers, request.method, request.seed, balance, phases, work),
        request.backend or "auto",
        request.method_options,
    )
    if request.refiner is None:
        return assignment
    refined = request.refiner.refine(graph, assignment.homes, balance, request.servers, phases)
    return replace(assignment, homes=refined.homes, refined=refined.description)


def _write(
    request: DivisionRequest,
    construction: Construction,
    assignment: Assignment,
    balance: Balance,
    workers: Workers,
    phases: Phases,
) -> dict[str, Any]:
    """Write topology and rows; return the content of partition.json so far."""
    graph, work = construction.graph, construction.work
    schema, ranks = graph.schema, request.ranks_per_server
    edges = sum(edge_type.count for edge_type in schema.relations.values())
    with phases.phase("write the topology (edges)", edges) as counter:
        for relation in schema.relations:
            lay_out_topology(construction, relation)
        jobs = [(server,) for server in range(request.servers)]
        parts = workers.run(fill_topology, construction, counter, jobs)
    _write_draw_arrays(construction, workers, phases)
    if ranks > 1:
        level = SecondLevel(ranks, request.method, request.seed, request.backend)
        level.write(schema, work, construction.maps, balance, phases)
    by_dimension = request.by_dimension
    copies = request.servers if by_dimension else 1
    with phases.phase("write the servers' rows (bytes)", table_bytes(graph, copies)) as counter:
        servers = [(server, by_dimension) for server in range(request.servers)]
        sizes = workers.run(write_server, construction, counter, servers)
    train = _count_train(graph, assignment, request.servers)
    description = describe(schema, assignment, construction.offsets, parts, train, sizes)
    description["ranks_per_server"] = ranks
    if balance.chosen:
        description["balanced"] = list(balance.chosen)
    if by_dimension:
        description["topology"] = ByDimension.name
    return description


def _write_draw_arrays(construction: Construction, workers: Workers, phases: Phases) -> None:
    """Write the arrays that draws by weight or time read, beside the edges of the relations."""
    schema = construction.graph.schema
    edges = {
        relation: edge_type.count
        for relation, edge_type in schema.relations.items()
        if edge_type.weighted or schema.is_timed(relation)
    }
    if edges:
        with phases.phase("write what draws read (edges)", sum(edges.values())) as counter:
            jobs = [(relation,) for relation in edges]
            workers.run(fill_draw_arrays, construction, counter, jobs)


def _count_train(graph: GraphDirectory, assignment: Assignment, servers: int) -> NDArray[np.int64]:
    """Return [servers] int64: number of training roots of each server."""
    homes = assignment.homes[graph.schema.target_type()]
    return count_roots(graph, "train", servers, lambda ids: homes[ids].astype(np.int64))


def _count(
    request: DivisionRequest,
    graph: GraphDirectory,
    measure: Measure | None,
    phases: Phases,
    work: Path,
) -> dict[str, Any]:
    """Count shares and measure locality, for partition.json."""
    divided = PartitionedGraph.open(work)
    with phases.phase("count shares"):
        fields = {"shares": make_shares(graph, divided, request.ranks_per_server)}
    if measure is not None:
        with phases.phase("measure locality"):
            locality = measure(divided)
        if locality is not None:
            fields["locality"] = locality
    return fields
