"""Runs ``hopper partition``: an estimate before the work, and the result after it."""

from __future__ import annotations

import argparse
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hopper.cli.options import print_json
from hopper.cli.phases import show_progress
from hopper.config.bounds import is_fanout, parse_size
from hopper.display.console_tables import make_table, print_table
from hopper.errors import HopperError, RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import limit_memory
from hopper.graph.publish import refuse_occupied
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph
from hopper.partition.executor import open_executor
from hopper.partition.memory import MemoryEstimate, choose_pieces, format_bytes, locality_bytes
from hopper.partition.partitioner import BY_RELATION, check_method
from hopper.partition.stored_forms import describe_rounded_tables


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
            "metapaths": arguments.metapath,
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
            on_estimate=partial(_show_estimate, console),
            progress=progress,
            **options | ({} if by_relation else {"executor": executor}),
        )
    if arguments.json:
        print_json(result.description)
        return 0
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    show = _show_by_relation if by_relation else _show_division
    show(result.description, arguments.out, console)
    for line in describe_rounded_tables(result.schema):
        console.print(line)
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


def _show_estimate(console: Console, estimate: MemoryEstimate, available: int) -> None:
    disk = f"; disk: about {format_bytes(estimate.disk)}" if estimate.disk else ""
    console.print(
        f"memory: about {format_bytes(estimate.peak)} needed ({estimate.worst}), "
        f"{format_bytes(available)} available{disk}"
    )


def _show_division(description: dict[str, Any], out: Path, console: Console) -> None:
    shares, per_server = description["shares"]["servers"], description["per_server"]
    worst = shares["largest_over_mean"]
    counts = [*shares["nodes"].values(), shares["edges"], *shares["splits"].values()]
    ratios = [*worst["nodes"].values(), worst["edges"], *worst["splits"].values()]
    sizes = ["feature_bytes"]
    replicated = description.get("replicated_topology_bytes")
    if replicated is not None:
        sizes.append("topology_bytes")
    rows = [
        (
            str(server),
            *(f"{count[server]:,}" for count in counts),
            *(format_bytes(share[key]) for key in sizes),
        )
        for server, share in enumerate(per_server)
    ]
    rows.append(("largest / mean", *(f"{ratio:.3f}" for ratio in ratios), *("" for _ in sizes)))
    names = [*shares["nodes"], "edges", *shares["splits"]]
    headings = ("server", *names, *(key.replace("_", " ") for key in sizes))
    servers = f"{description['graph']} over {description['servers']} servers"
    title = f"{servers}: {out}\nnodes by type, in-edges, roots by split"
    print_table(console, make_table(headings, rows, title, texts=0))
    method = f"{description['method']} ({description['backend']})"
    console.print(f"edge cut {description['edge_cut']:.1%} · {method}")
    if replicated is not None:
        stored = format_bytes(max(share["topology_bytes"] for share in description["per_server"]))
        text = f"{stored} a server at most · {format_bytes(replicated)} replicated"
        console.print(f"topology: {text}")
    locality = description.get("locality")
    if locality is not None:
        fanouts = ",".join(map(str, locality["fanouts"]))
        console.print(
            f"R_micro {locality['micrograph']:.1%} · R_sub {locality['subgraph']:.1%} "
            f"(fanouts {fanouts}, {locality['roots']} roots, batches of {locality['batch_size']})"
        )


def _show_by_relation(description: dict[str, Any], out: Path, console: Console) -> None:
    meta = description["meta"]
    hops = f"{meta['layers']} hops from {', '.join([meta['target'], *meta['others']])}"
    rows = []
    for server, (roles, share) in enumerate(
        zip(meta["servers"], description["per_server"], strict=True)
    ):
        (replica, replicas), (part, parts) = roles["replica"], roles["part"]
        cut = f" (part {part + 1} of {parts})" if parts > 1 else ""
        rows.append(
            (
                str(server),
                f"{', '.join(roles['roots'])}{cut}",
                f"{replica + 1} of {replicas}",
                str(len(roles["relations"])),
                *(f"{share[key]:,}" for key in ("nodes", "edges")),
                *(format_bytes(share[key]) for key in ("feature_bytes", "topology_bytes")),
            )
        )
    numbers = ("replica", "relations", "nodes", "edges", "rows", "topology")
    title = f"{description['graph']} over {description['servers']} servers, {hops}: {out}"
    table = make_table(("server", "root relations", *numbers), rows, title, texts=2)
    table.columns[0].justify = "right"
    print_table(console, table)
    console.print(
        f"a node is held by {meta['replication']:.2f} servers · largest share over mean: nodes "
        f"{description['balance']['nodes']:.3f}, edges {description['balance']['edges']:.3f} · "
        f"{format_bytes(meta['linked_bytes'])} are links to the graph's files"
    )
    if meta["unreachable"]:
        console.print(
            f"not stored, since {hops} do not read them: {', '.join(meta['unreachable'])}"
        )
