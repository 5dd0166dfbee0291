"""Divide a graph directory and write the partitioned directory, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hopper.errors import RequestError
from hopper.graph import layout
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import limit_memory
from hopper.graph.publish import refuse_occupied
from hopper.graph.schema import GraphSchema, Relation
from hopper.partition.balance import training_roots
from hopper.partition.describe import describe
from hopper.partition.description import write_description
from hopper.partition.divide_topology import divide_topology
from hopper.partition.executor import Executor
from hopper.partition.layout import ByDimension, Replicated
from hopper.partition.memory import OnEstimate, choose_pieces, estimate_memory, require_memory
from hopper.partition.message_edges import describe_reverses, message_edges
from hopper.partition.metis import choose_backend
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.partitioner import NONE, Assigner, check_request
from hopper.partition.stacked_ids import NodeArrays
from hopper.partition.stored_forms import RowForms, parse_row_forms, store_rows_as
from hopper.partition.write import (
    BuildContext,
    copy_shared,
    number_nodes,
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
    topology: str = "replicated",
    features: Literal["by-node", "by-dimension"] = "by-node",
    feature_dtypes: Sequence[str] = (),
    memory_limit: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    on_estimate: OnEstimate | None = None,
    measure: Measure | None = None,
) -> PartitionedGraph:
    """Divide a graph over servers and write the partitioned directory.

    Parameters
    ----------
    out: the directory to write; it must not exist or be empty. It appears when it is complete.
    method: "metis" (few cut edges; balanced nodes, degrees and training nodes), "stream" (the same
        in passes over the graph on disk; edges are balanced roughly), "random", "given" (by the
        files ``servers/TYPE.npy`` of the graph), "like" (as ``{"parts": PATH}`` of
        ``method_options``, a partitioned directory, has those nodes that it knows by name), or
        "package.module:Class", a :class:`~hopper.partition.partitioner.Partitioner`.
    seed: seed of all methods but DGL's METIS, which takes none.
    method_options: keywords of the constructor of a plug-in class.
    backend: which METIS: "auto" (DGL if it is installed, else pymetis), "dgl" or "pymetis".
    topology: "replicated": every server has all edges. "partitioned": a server has the in-edges of
        its own nodes, and draws among them for other servers' ranks.
    features: whether a server stores whole rows of its own nodes, or some columns of all nodes,
        which only the engine ``p3`` trains on.
    feature_dtypes: forms to store features in, "DTYPE" for all tables or "TABLE=DTYPE", which
        :func:`hopper.partition.stored_forms.parse_row_forms` parses. Empty = as they are.
    memory_limit: bytes that may be used; None = the available memory. All methods but METIS choose
        the pieces that they work on by it.
    executor: builds the servers' parts; None = this process does.
    on_estimate, measure: called before the work starts, and for ``locality`` in partition.json.

    Raises
    ------
    RequestError: the request is impossible, memory or disk space is too small, or the destination
        is occupied.
    GraphError: the graph directory is damaged, or a stored form cannot hold a number.
    """
    schema, out, phases = graph.schema, Path(out), Phases(progress)
    check_request(schema, servers, method, method_options)
    forms = parse_row_forms(feature_dtypes, schema)
    _check_layout(schema, forms, servers, features, topology)
    refuse_occupied(out)
    metis = choose_backend(backend) if method == "metis" else None
    split, by_dimension = topology == "partitioned", features == "by-dimension"
    executor, size = executor or Executor(), choose_pieces(memory_limit)
    kinds = {"split": split, "by_dimension": by_dimension}
    disk = partitioned_bytes(graph, servers, **kinds)
    estimate = estimate_memory(graph, servers, method, metis, disk, size=size)
    require_memory(estimate, memory_limit, method, on_estimate)
    with (
        limit_memory(size),
        store_rows_as(graph, forms, out, phases) as stored,
        message_edges(stored, out) as (messages, reverses),
        unpublished_partitions(out, partitioned_bytes(messages, servers, **kinds)) as work,
    ):
        roots = training_roots(messages, full=NodeArrays(work).full)
        assigner = Assigner(method, roots, phases, work, backend, method_options)
        context, description = _write_parts(
            messages, assigner, servers, seed, by_dimension, executor, measure
        )
        description["memory_estimate_bytes"] = estimate.peak
        description |= describe_reverses(reverses)
        if split:
            entries = description["per_server"]
            description |= divide_topology(context, entries, phases, executor)
        write_description(work, description | {"seconds": dict(phases.seconds)})
    return PartitionedGraph.open(out)


def _check_layout(
    schema: GraphSchema, forms: RowForms, servers: int, features: str, topology: str
) -> None:
    """Check how topology and features are to be divided."""
    if topology not in ("replicated", "partitioned"):
        raise RequestError(f"topology: expected replicated or partitioned, given {topology!r:.100}")
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
        if forms.get(name, kind.feature_dtype) == "int8":
            raise RequestError(
                f"features: by-dimension divides a row's numbers, and int8 rows of {name!r} have "
                "one scale a row; expected float32, float16 or bfloat16"
            )


def _write_parts(
    graph: GraphDirectory,
    assigner: Assigner,
    servers: int,
    seed: int,
    by_dimension: bool,
    executor: Executor,
    measure: Measure | None,
) -> tuple[BuildContext, dict[str, Any]]:
    """Assign and number the nodes, and write the directory with its whole topology; return what
    parts are built from, and the description."""
    work, phases = assigner.scratch, assigner.phases
    homes = assigner.assign(graph, servers, seed)
    with phases.phase("number the nodes"):
        offsets = {name: number_nodes(of, servers, work, name) for name, of in homes.items()}
        copy_shared(graph, work)
    del homes
    context = BuildContext(graph, work, offsets)
    edge_counts = _write_topology(context, executor, phases)
    nbytes = table_bytes(graph, servers if by_dimension else 1)
    with phases.phase("write the servers' rows (bytes)", nbytes) as counter:
        jobs = [(server, by_dimension) for server in range(servers)]
        feature_bytes = executor.run(write_server, context, counter, jobs)
    topology = ByDimension.name if by_dimension else Replicated.name
    with phases.phase("count shares"):
        description = describe(context, assigner, seed, topology, edge_counts, feature_bytes)
    if measure is not None:
        write_description(work, description)
        with phases.phase("measure locality"):
            locality = measure(PartitionedGraph.open(work))
        description |= {} if locality is None else {"locality": locality}
    return context, description


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
