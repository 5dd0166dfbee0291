"""Divide a graph directory and write the partitioned directory, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cache_server.available_memory import available_memory
from hopper.errors import RequestError
from hopper.graph import layout
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import MemoryBudget, limit_memory
from hopper.graph.publish import refuse_occupied
from hopper.graph.schema import Relation
from hopper.partition.balance import Balance, check_balance
from hopper.partition.build_context import BuildContext, number_nodes
from hopper.partition.by_node import ByDimension, Replicated
from hopper.partition.describe import describe, make_shares
from hopper.partition.description import write_description
from hopper.partition.divide_topology import TopologyChoice, divide_topology
from hopper.partition.executor import Executor, SerialExecutor
from hopper.partition.memory import MemoryEstimate, choose_pieces, estimate_memory, require_memory
from hopper.partition.message_edges import find_reverses, message_edges
from hopper.partition.metis import Backend, choose_backend
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.partitioner import NONE, Assigner, check_request
from hopper.partition.refine import Refiner
from hopper.partition.second_level import check_ranks, write_ranks
from hopper.partition.stacked_ids import NodeArrays
from hopper.partition.stored_forms import RowForms, parse_row_forms, store_rows_as
from hopper.partition.write import (
    copy_shared,
    partitioned_bytes,
    table_bytes,
    unpublished_partitions,
    write_server,
)
from hopper.partition.write_topology import fill_draw_arrays, fill_topology, lay_out_topology
from hopper.timing.phases import Phases, Progress

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
    executor: Executor | None = None,
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
        "package.module:Class", a :class:`~hopper.partition.partitioner.Partitioner`.
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
    executor: builds the servers' parts; None = this process does.
    on_estimate: called with the memory estimate and the available bytes before the work starts.
    measure: measures the locality, for ``locality`` in partition.json; None = no measurement.

    Raises
    ------
    RequestError: the request is impossible, memory or disk space is too small, or the destination
        is occupied.
    GraphError: the graph directory is damaged, or a stored form cannot hold a number.
    """
    schema, out, phases = graph.schema, Path(out), Phases(progress)
    check_request(schema, servers, method, method_options)
    check_ranks(ranks_per_server, method)
    request = _Request(
        *(graph, servers, method, seed, method_options, backend, balance, refiner),
        *(TopologyChoice.parse(topology), features == "by-dimension"),
        *(parse_row_forms(feature_dtypes, schema), ranks_per_server),
    )
    _check_features(request, features, topology)
    refuse_occupied(out)
    check_balance(balance, schema, method, request.metis)
    if refiner is not None:
        refiner.check(graph, servers)
    size, available = choose_pieces(memory_limit), available_memory()
    estimate = request.estimate(size)
    if on_estimate is not None:
        on_estimate(estimate, available)
    require_memory(estimate, available, memory_limit, method)
    reverses, executor = find_reverses(graph), executor or SerialExecutor()
    with (
        limit_memory(size),
        store_rows_as(graph, request.forms, out, phases) as converted,
        message_edges(converted, reverses, out) as messages,
        unpublished_partitions(out, request.written_bytes(converted)) as work,
    ):
        context, description = _write_parts(request, messages, work, executor, phases)
        description["memory_estimate_bytes"] = estimate.peak
        if reverses:
            description["reverse_relations"] = {
                str(relation): list(map(str, names)) for relation, names in reverses.items()
            }
        description |= _measure(context, description, phases, measure)
        if request.splits_topology:
            fields, of_servers = divide_topology(context, request.topology, phases, executor)
            for share, more in zip(description["per_server"], of_servers, strict=True):
                share.update(more)
            description |= fields
        write_description(work, description | {"seconds": dict(phases.seconds)})
    return PartitionedGraph.open(out)


@dataclass(frozen=True)
class _Request:
    """A division that is asked for; :func:`partition_graph` says what each field means."""

    graph: GraphDirectory
    servers: int
    method: str
    seed: int
    method_options: Mapping[str, Any]
    backend: str
    balance: Sequence[str]
    refiner: Refiner | None
    topology: TopologyChoice
    by_dimension: bool
    forms: RowForms
    ranks_per_server: int

    @cached_property
    def metis(self) -> Backend | None:
        """Which METIS divides the graph, if one does."""
        return choose_backend(self.backend) if self.method == "metis" else None

    @property
    def splits_topology(self) -> bool:
        """Whether a server gets only a part of the topology."""
        return self.topology.name == "partitioned"

    def written_bytes(self, stored: GraphDirectory) -> int:
        """Return the bytes on disk that the division of a graph takes."""
        split, ranks = self.splits_topology, self.ranks_per_server
        return partitioned_bytes(
            stored, self.servers, split=split, by_dimension=self.by_dimension, ranks=ranks
        )

    def estimate(self, size: MemoryBudget) -> MemoryEstimate:
        """Estimate the memory and disk space of the work in pieces of some size."""
        return estimate_memory(
            *(self.graph, self.servers, self.method, self.metis, self.written_bytes(self.graph)),
            split=self.splits_topology,
            balance=self.balance,
            refiner=self.refiner,
            size=size,
        )


def _check_features(request: _Request, features: str, topology: str) -> None:
    """Check how features are to be divided."""
    if features not in ("by-node", "by-dimension"):
        raise RequestError(f"features: expected by-node or by-dimension, given {features!r}")
    if not request.by_dimension:
        return
    if topology != "replicated":
        raise RequestError(
            f"features: by-dimension wants topology replicated, since every server computes with "
            f"the edges of all mini-batches; given {topology}"
        )
    for name, kind in request.graph.schema.node_types.items():
        if kind.feature_dim is not None and kind.feature_dim < request.servers:
            raise RequestError(
                f"features: by-dimension wants a column a server at least; node type {name!r} has "
                f"{kind.feature_dim} for {request.servers} servers"
            )
        if request.forms.get(name, kind.feature_dtype) == "int8":
            raise RequestError(
                f"features: by-dimension divides a row's numbers, and int8 rows of {name!r} have "
                "one scale a row; expected float32, float16 or bfloat16"
            )
    if request.refiner is not None:
        raise RequestError(
            "--refine: moves whole rows to where they are read; with --features by-dimension every "
            "server has a part of every row"
        )


def _write_parts(
    request: _Request, graph: GraphDirectory, work: Path, executor: Executor, phases: Phases
) -> tuple[BuildContext, dict[str, Any]]:
    """Assign and number the nodes, and write all files of the directory but its description; return
    what parts are built from, and the description."""
    servers, by_dimension = request.servers, request.by_dimension
    balance = Balance.of(graph, request.balance, NodeArrays(work).full)
    assigner = Assigner(
        request.method, balance, phases, work, request.backend, request.method_options
    )
    homes, refined = assigner.assign(graph, servers, request.seed), dict[str, Any]()
    if request.refiner is not None:
        homes, gain = request.refiner.refine(graph, homes, balance, servers, phases)
        refined["refined"] = dict(gain)
    with phases.phase("number the nodes"):
        offsets = {name: number_nodes(of, servers, work, name) for name, of in homes.items()}
        copy_shared(graph, work)
    context = BuildContext(graph, work, offsets)
    edge_counts = _write_topology(context, executor, phases)
    if request.ranks_per_server > 1:
        write_ranks(context, assigner, request.ranks_per_server, request.seed)
    nbytes = table_bytes(graph, servers if by_dimension else 1)
    with phases.phase("write the servers' rows (bytes)", nbytes) as counter:
        jobs = [(server, by_dimension) for server in range(servers)]
        feature_bytes = executor.run(write_server, context, counter, jobs)
    return context, {
        **describe(context, assigner, request.seed, edge_counts, feature_bytes),
        **refined,
        "topology": ByDimension.name if by_dimension else Replicated.name,
        "ranks_per_server": request.ranks_per_server,
        **({"balanced": list(request.balance)} if request.balance else {}),
    }


def _measure(
    context: BuildContext, description: Mapping[str, Any], phases: Phases, measure: Measure | None
) -> dict[str, Any]:
    """Open what was written, and return what the description says of shares and locality."""
    write_description(context.work, description)
    divided, measured = PartitionedGraph.open(context.work), dict[str, Any]()
    with phases.phase("count shares"):
        measured["shares"] = make_shares(context.graph, divided, description["ranks_per_server"])
    if measure is not None:
        with phases.phase("measure locality"):
            locality = measure(divided)
        measured |= {} if locality is None else {"locality": locality}
    return measured


def _write_topology(
    context: BuildContext, executor: Executor, phases: Phases
) -> list[dict[Relation, tuple[int, int]]]:
    """Write topology and what draws read; return what :func:`fill_topology` returns of servers."""
    schema = context.graph.schema
    edges = {relation: kind.count for relation, kind in schema.relations.items()}
    with phases.phase("write the topology (edges)", sum(edges.values())) as counter:
        for relation in edges:
            lay_out_topology(context, relation)
        servers = [(server,) for server in range(context.servers)]
        counts = executor.run(fill_topology, context, counter, servers)
    drawn = {relation: n for relation, n in edges.items() if layout.draw_arrays(schema, relation)}
    if drawn:
        with phases.phase("write what draws read (edges)", sum(drawn.values())) as counter:
            executor.run(fill_draw_arrays, context, counter, [(relation,) for relation in drawn])
    return counts
