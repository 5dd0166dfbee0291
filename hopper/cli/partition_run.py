"""Runs ``hopper partition`` with the options of its command line."""

from __future__ import annotations

import argparse
import tomllib
from functools import partial
from typing import Any

from rich.console import Console

from hopper.cli.metapaths import split_metapaths
from hopper.cli.partition import OF_NODES, OF_RELATIONS
from hopper.cli.partition_report import (
    print_result,
    show_by_relation,
    show_division,
    show_estimate,
)
from hopper.cli.phases import show_progress
from hopper.config.bounds import is_fanout, parse_size
from hopper.errors import HopperError, RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import limit_memory
from hopper.graph.publish import refuse_occupied
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.executor import open_executor
from hopper.partition.memory import choose_pieces, format_bytes, locality_bytes
from hopper.partition.partitioner import BY_RELATION, check_method
from hopper.partition.refine import Refiner
from hopper.partition.second_level import check_ranks


def divide(arguments: argparse.Namespace) -> int:
    """Run ``hopper partition`` and return the exit code.

    Raises
    ------
    HopperError: the request is impossible, or the graph directory is damaged.
    """
    if arguments.method == BY_RELATION:
        return _run_by_relation(arguments)
    options = _options(arguments.method_options)
    check_method(arguments.servers, arguments.method, options)
    check_ranks(arguments.ranks_per_server, arguments.method)
    for name in (*OF_RELATIONS, "metapath"):
        if getattr(arguments, name) not in (None, []):
            option = name.replace("_", "-")
            raise RequestError(f"--{option}: only --method meta reads it, not {arguments.method}")
    refuse_occupied(arguments.out)
    fanouts = _fanouts("locality-fanouts", arguments.locality_fanouts)
    if arguments.locality_roots < 0:
        raise RequestError(
            f"--locality-roots: expected at least 0, given {arguments.locality_roots}"
        )
    limit = _size("memory-limit", arguments.memory_limit)
    console, progress = show_progress()
    with limit_memory(choose_pieces(limit)):
        graph = GraphDirectory.open(arguments.graph)
    measure = partial(_measure_locality, fanouts, arguments, limit, console)
    with open_executor(arguments.on, arguments.workers) as executor:
        result = partition_graph(
            graph,
            arguments.out,
            arguments.servers,
            arguments.method,
            arguments.seed,
            method_options=options,
            backend=arguments.backend,
            balance=arguments.balance.split(",") if arguments.balance else (),
            refiner=_refiner(arguments),
            topology=arguments.topology,
            features=arguments.features,
            feature_dtypes=arguments.feature_dtype,
            ranks_per_server=arguments.ranks_per_server,
            memory_limit=limit,
            executor=executor,
            progress=progress,
            on_estimate=partial(show_estimate, console),
            measure=measure if arguments.locality_roots else None,
        )
    print_result(result, arguments, show_division)
    return 0


def _run_by_relation(arguments: argparse.Namespace) -> int:
    """Run ``hopper partition --method meta`` and return the exit code."""
    for name, option in OF_NODES.items():
        if getattr(arguments, name) != option.default:
            raise RequestError(f"--{name.replace('_', '-')}: --method meta does not read it")
    weights_fanouts = _weights_fanouts(arguments)
    limit = _size("memory-limit", arguments.memory_limit)
    console, progress = show_progress()
    with limit_memory(choose_pieces(limit)):
        graph = GraphDirectory.open(arguments.graph)
    result = divide_graph(
        graph,
        arguments.out,
        arguments.servers,
        BY_RELATION,
        layers=arguments.layers,
        target=arguments.target,
        metapaths=split_metapaths(arguments.metapath),
        weights_fanouts=weights_fanouts,
        server_memory=_size("server-memory", arguments.server_memory),
        tables=arguments.tables,
        feature_dtypes=arguments.feature_dtype,
        memory_limit=limit,
        on_estimate=partial(show_estimate, console),
        progress=progress,
    )
    print_result(result, arguments, show_by_relation)
    return 0


def _options(text: str) -> dict[str, Any]:
    try:
        options = tomllib.loads(f"options = {text}")["options"]
    except tomllib.TOMLDecodeError:
        options = None
    if not isinstance(options, dict):
        raise RequestError(
            f"--method-options: expected a TOML table such as {{key = 1}}, given {text!r:.100}"
        )
    return options


def _size(option: str, text: str | None) -> int | None:
    return parse_size(text, f"--{option}") if text else None


def _measure_locality(
    fanouts: list[int],
    arguments: argparse.Namespace,
    limit: int | None,
    console: Console,
    graph: PartitionedGraph,
) -> dict[str, Any] | None:
    """Measure R_micro and R_sub. None if they cannot be measured."""
    required = locality_bytes(graph.schema)
    if limit is not None and limit < required:
        console.print(
            f"locality not measured: it needs about {format_bytes(required)} of memory, "
            f"{format_bytes(limit)} are allowed by --memory-limit"
        )
        return None
    from hopper.micrograph.locality import measure_locality

    target = graph.schema.target_type()
    if graph.book.total(target) == 0:
        console.print(f"locality not measured: node type {target!r} has no nodes")
        return None
    roots, seed = arguments.locality_roots, arguments.seed
    try:
        return measure_locality(graph, fanouts, roots, seed=seed).as_json()
    except (HopperError, MemoryError) as error:
        # The division counts even if it cannot be measured.
        console.print(f"locality not measured: {error or 'out of memory'}")
        return None


def _weights_fanouts(arguments: argparse.Namespace) -> list[int] | None:
    """Return the fanouts that weights are sampled with. None = weights are counts."""
    weights, fanouts = arguments.weights, arguments.weights_fanouts
    if weights not in (None, "counts", "sampled"):
        raise RequestError(f"--weights: expected counts or sampled, given {weights!r}")
    if weights != "sampled":
        if fanouts is not None:
            raise RequestError("--weights-fanouts: only --weights sampled reads it")
        return None
    if fanouts is None:
        return [10] * (2 if arguments.layers is None else arguments.layers)
    return _fanouts("weights-fanouts", fanouts)


def _refiner(arguments: argparse.Namespace) -> Refiner | None:
    """Return the refiner that moves nodes after the method. None = no refiner."""
    fanouts, epochs = arguments.refine_fanouts, arguments.refine_epochs
    if arguments.refine is None:
        for option, value in (("fanouts", fanouts), ("epochs", epochs)):
            if value is not None:
                raise RequestError(f"--refine-{option}: only --refine visits reads it")
        return None
    if arguments.refine != "visits":
        raise RequestError(f"--refine: expected visits, given {arguments.refine!r:.100}")
    from hopper.hetero.refine_by_visits import VisitRefiner

    hops = _fanouts("refine-fanouts", "10,10" if fanouts is None else fanouts)
    return VisitRefiner(tuple(hops), arguments.seed, 2 if epochs is None else epochs)


def _fanouts(option: str, text: str) -> list[int]:
    try:
        fanouts = [int(word) for word in text.split(",")]
    except ValueError:
        fanouts = []
    if not fanouts or not all(map(is_fanout, fanouts)):
        raise RequestError(
            f"--{option}: expected positive numbers below 2**31 (or -1 for all neighbours) "
            f"between commas, given {text!r:.100}"
        )
    return fanouts
