"""Writes a graph that is divided by relation, with one complete folder per server.

Heta, section 5. Nodes keep their original ids. A server stores all nodes of the types that its
sub-metatrees read, and their relations whole. The files are links to the graph's files, or copies
that are made piece by piece, so memory does not grow with the graph. If a sub-metatree is too large
for a server, the server stores a part of it (:mod:`hopper.hetero.vertex_cut`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from cache_server.available_memory import available_memory
from cache_server.store.manifest import TableSpec, write_manifest
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import limit_memory
from hopper.graph.publish import refuse_occupied, require_space
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.describe_partition import describe_by_relation
from hopper.hetero.fit_memory import StoredPartition, assign_relations
from hopper.hetero.meta_partition import divide
from hopper.hetero.metagraph import make_metagraph
from hopper.hetero.metatree import Metatree, make_metatree
from hopper.hetero.write_parts import name_degrees, write_part, written_bytes
from hopper.hetero.write_whole import Write, name_share, name_topology
from hopper.partition import PartitionedGraph
from hopper.partition.description import write_description
from hopper.partition.file_names import server_folder
from hopper.partition.memory import (
    MemoryEstimate,
    choose_pieces,
    estimate_by_relation,
    require_memory,
)
from hopper.partition.message_edges import find_reverses, message_edges
from hopper.partition.stored_files import StoredFiles, Tables
from hopper.partition.stored_forms import parse_row_forms, store_rows_as
from hopper.partition.write import copy_shared, unpublished_partitions
from hopper.timing.phases import Phases, Progress


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
    reverses, phases = find_reverses(graph), Phases(progress)
    with (
        limit_memory(size),
        store_rows_as(graph, forms, out, phases) as stored,
        message_edges(stored, reverses, out) as messages,
    ):
        metagraph = make_metagraph(messages.schema)
        target_type = graph.schema.target_type()
        tree = make_metatree(metagraph, target_type, layers, metapaths, others)
        weights = None
        if weights_fanouts is not None:
            divide(metagraph, tree, servers)  # refuses an impossible number before any sampling
            weights = _weigh_by_sampling(messages, tree, weights_fanouts, phases)
        division = assign_relations(
            messages, metagraph, tree, servers, weights, server_memory, phases
        )
        options = {
            "metapaths": [list(path) for path in metapaths],
            "weights_fanouts": None if weights_fanouts is None else list(weights_fanouts),
            "server_memory": server_memory,
        }
        _write(messages, out, division, tables, options, reverses, phases)
    return PartitionedGraph.open(out)


def _weigh_by_sampling(
    graph: GraphDirectory, tree: Metatree, fanouts: Sequence[int], phases: Phases
) -> Mapping[Relation, int]:
    # Sampling needs torch, whose import takes longer than dividing most graphs.
    from hopper.hetero.sampled_weights import weigh_by_sampling

    with phases.phase("weigh sub-metatrees by sampling"):
        return weigh_by_sampling(graph, tree, fanouts)


def _write(
    graph: GraphDirectory,
    out: Path,
    division: StoredPartition,
    tables: Tables,
    options: Mapping[str, Any],
    reverses: Mapping[Relation, Sequence[Relation]],
    phases: Phases,
) -> None:
    """Write a graph of message edges, divided.

    Parameters
    ----------
    options: the options of the division, for partition.json.
    reverses: the reverse relations that :func:`find_reverses` returned.
    """
    with unpublished_partitions(out, 0) as work:
        copy_shared(graph, work)
        files = StoredFiles(tables)
        with phases.phase("link what is stored whole"):
            writes, tables_of = _name_files(graph, work, division, files)
        require_space(out.absolute().parent, files.bytes_to_write)
        with phases.phase("write what is no link (bytes)", files.bytes_to_write) as counter:
            for write in writes:
                write(counter)
            files.write_copies(counter)
        for server, specs in enumerate(tables_of):
            write_manifest(server_folder(work, server), server, len(tables_of), specs)
        description = describe_by_relation(graph, division.partition, division.sizes)
        description["meta"] |= options
        description["meta"] |= {"tables": tables, "linked_bytes": files.linked_bytes}
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


def _name_files(
    graph: GraphDirectory,
    work: Path,
    division: StoredPartition,
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
    stored = zip(division.partition.shares, division.parts, strict=True)
    for server, (share, part) in enumerate(stored):
        folder = server_folder(work, server)
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
