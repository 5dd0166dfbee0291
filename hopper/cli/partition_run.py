"""Runs ``hopper partition`` with the options of its command line."""

from __future__ import annotations

import argparse
import tomllib
from functools import partial
from typing import Any

from rich.console import Console

from hopper.cli.options import split_metapaths
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
from hopper.partition import PartitionedGraph
from hopper.partition.executor import open_executor
from hopper.partition.memory import choose_pieces, format_bytes, locality_bytes
from hopper.partition.partitioner import BY_RELATION, check_method


def divide(arguments: argparse.Namespace) -> int:
    """Run ``hopper partition`` and return the exit code."""
    method, by_relation = arguments.method, arguments.method == BY_RELATION
    options = _method_options(arguments)
    refuse_occupied(arguments.out)
    fanouts = _locality_fanouts(arguments.locality_fanouts)
    if arguments.locality_roots < 0:
        raise RequestError(
            f"--locality-roots: expected at least 0, given {arguments.locality_roots}"
        )
    limit = _size("memory-limit", arguments.memory_limit)
    server_memory = _size("server-memory", arguments.server_memory)
    console, progress = show_progress()
    with limit_memory(choose_pieces(limit)):
        graph = GraphDirectory.open(arguments.graph)
    if by_relation:
        options = {
            "layers": arguments.layers,
            "metapaths": split_metapaths(arguments.metapath),
            "server_memory": server_memory,
            "tables": arguments.tables,
        }
    elif arguments.locality_roots:
        options["measure"] = partial(_measure_locality, fanouts, arguments, limit, console)
    with open_executor(arguments.on, arguments.workers) as executor:
        result = divide_graph(
            graph,
            arguments.out,
            arguments.servers,
            method,
            feature_dtypes=arguments.feature_dtype,
            memory_limit=limit,
            on_estimate=partial(show_estimate, console),
            progress=progress,
            **options | ({} if by_relation else {"executor": executor}),
        )
    print_result(result, arguments, show_by_relation if by_relation else show_division)
    return 0


def _method_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check the options that only methods that divide nodes read, and return them."""
    if arguments.method == BY_RELATION:
        return {}
    options = _options(arguments.method_options)
    if arguments.like is not None:
        options = options | {"parts": arguments.like}
    check_method(arguments.servers, arguments.method, options)
    names = ("seed", "backend", "topology", "features")
    return {"method_options": options, **{name: getattr(arguments, name) for name in names}}


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


def _locality_fanouts(text: str) -> list[int]:
    try:
        fanouts = [int(word) for word in text.split(",")]
    except ValueError:
        fanouts = []
    if not fanouts or not all(map(is_fanout, fanouts)):
        raise RequestError(
            "--locality-fanouts: expected positive numbers below 2**31 (or -1 for all neighbours) "
            f"between commas, given {text!r:.100}"
        )
    return fanouts
