"""The output of ``hopper partition``: an estimate before the work, and the result after it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from hopper.cli.options import print_json
from hopper.cli.tables import make_table
from hopper.display.console_tables import print_table
from hopper.partition import PartitionedGraph
from hopper.partition.memory import MemoryEstimate, format_bytes
from hopper.partition.stored_forms import describe_rounded_tables


def show_estimate(console: Console, estimate: MemoryEstimate, available: int) -> None:
    """Print in a line how much memory and disk the work needs."""
    disk = f"; disk: about {format_bytes(estimate.disk)}" if estimate.disk else ""
    console.print(
        f"memory: about {format_bytes(estimate.peak)} needed ({estimate.worst}), "
        f"{format_bytes(available)} available{disk}"
    )


def show_division(description: dict[str, Any], out: Path) -> None:
    """Print a division of nodes: the share of each server, and the quality of the division."""
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
            *(str(server), *(f"{count[server]:,}" for count in counts)),
            *(format_bytes(share[key]) for key in sizes),
        )
        for server, share in enumerate(per_server)
    ]
    rows.append(("largest / mean", *(f"{ratio:.3f}" for ratio in ratios), *("" for _ in sizes)))
    names = [*shares["nodes"], "edges", *shares["splits"]]
    headings = ("server", *names, *(key.replace("_", " ") for key in sizes))
    servers = f"{description['graph']} over {description['servers']} servers"
    title = f"{servers}: {out}\nnodes by type, in-edges, roots by split"
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
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


def print_result(
    result: PartitionedGraph,
    arguments: argparse.Namespace,
    show: Callable[[dict[str, Any], Path], None],
) -> None:
    """Print the result as JSON, or in tables with a line for each table that was rounded."""
    if arguments.json:
        print_json(result.description)
        return
    show(result.description, arguments.out)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in describe_rounded_tables(result.schema):
        console.print(line)


def show_by_relation(description: dict[str, Any], out: Path) -> None:
    """Print a division of relations: the share of each server."""
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
                *(str(server), f"{', '.join(roles['roots'])}{cut}"),
                *(f"{replica + 1} of {replicas}", str(len(roles["relations"]))),
                *(f"{share[key]:,}" for key in ("nodes", "edges")),
                *(format_bytes(share[key]) for key in ("feature_bytes", "topology_bytes")),
            )
        )
    numbers = ("replica", "relations", "nodes", "edges", "rows", "topology")
    title = f"{description['graph']} over {description['servers']} servers, {hops}: {out}"
    table = make_table(("server", "root relations", *numbers), rows, title, texts=2)
    table.columns[0].justify = "right"
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
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
