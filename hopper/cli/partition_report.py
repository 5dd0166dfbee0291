"""What ``hopper partition`` prints: what it needs, and what it made."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hopper.console_tables import print_table
from hopper.partition import PartitionedGraph
from hopper.partition.memory import MemoryEstimate, format_bytes
from hopper.partition.stored_forms import rounded_tables


def show_estimate(console: Console, estimate: MemoryEstimate, available: int) -> None:
    """What the work needs of memory, disk and time, in a line."""
    disk = f"; disk: about {format_bytes(estimate.disk)}" if estimate.disk else ""
    seconds = f"; time: about {estimate.seconds:.0f} s" if estimate.seconds is not None else ""
    console.print(
        f"memory: about {format_bytes(estimate.peak)} needed ({estimate.worst}), "
        f"{format_bytes(available)} available{disk}{seconds}"
    )


def show_division(description: dict[str, Any], out: Path) -> None:
    """Where nodes were divided: what servers have, and how good that is."""
    table = Table(title=f"{description['graph']} over {description['servers']} servers: {out}")
    columns = {"nodes": "nodes", "edges": "edges", "train": "training nodes"}
    sizes = {"feature_bytes": "feature bytes"}
    is_split = "halo" in description
    if is_split:
        columns |= {"halo_nodes": "halo nodes", "halo_edges": "halo edges"}
        sizes |= {"topology_bytes": "topology bytes"}
    for heading in ("server", *columns.values(), *sizes.values()):
        table.add_column(heading, justify="right")
    for server, share in enumerate(description["per_server"]):
        table.add_row(
            str(server),
            *(f"{share[key]:,}" for key in columns),
            *(format_bytes(share[key]) for key in sizes),
        )
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    print_table(console, table)
    balance = description["balance"]
    console.print(
        f"edge cut {description['edge_cut']:.1%} · largest share over mean: "
        f"nodes {balance['nodes']:.3f}, edges {balance['edges']:.3f}, "
        f"training {balance['train']:.3f} · {description['method']} ({description['backend']})"
    )
    if "refined" in description:
        console.print(_refinement(description["refined"]))
    print_table(console, _shares_table(description["shares"]))
    if is_split:
        shares = description["per_server"]
        stored, without = (
            format_bytes(max(share[key] for share in shares))
            for key in ("topology_bytes", "topology_bytes_without_halo")
        )
        replicated = format_bytes(description["replicated_topology_bytes"])
        told = f"topology: {stored} a server at most, with a halo of {description['halo']} hops"
        console.print(f"{told} · {without} without · {replicated} replicated")
    locality = description.get("locality")
    if locality is not None:
        fanouts = ",".join(map(str, locality["fanouts"]))
        console.print(
            f"R_micro {locality['micrograph']:.1%} · R_sub {locality['subgraph']:.1%} "
            f"(fanouts {fanouts}, {locality['roots']} roots, batches of {locality['batch_size']})"
        )


def _refinement(refined: dict[str, Any]) -> str:
    """What moving nodes gained, in a line."""
    how = f"fanouts {','.join(map(str, refined['fanouts']))}, {refined['epochs']} epochs counted"
    before, after = (refined[f"remote_rows_{when}"] for when in ("before", "after"))
    if not refined["moved"]:
        return f"not refined: no moves read fewer rows of other servers than {before:.1%} ({how})"
    most = " to ".join(f"{refined[f'visits_balance_{when}']:.3f}" for when in ("before", "after"))
    return (
        f"refined by visits: rows read from other servers {before:.1%} to {after:.1%}, "
        f"{refined['moved']:,} nodes moved, visits' largest share over mean {most} ({how})"
    )


def tell(
    result: PartitionedGraph,
    arguments: argparse.Namespace,
    show: Callable[[dict[str, Any], Path], None],
) -> None:
    """What was made: as JSON, or in tables and which rows are rounded."""
    if arguments.json:
        print(json.dumps(result.description, indent=2))
        return
    show(result.description, arguments.out)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in rounded_tables(result.schema):
        console.print(line)


def _shares_table(shares: dict[str, Any]) -> Table:
    """What each server and rank has, and of each column the largest over the mean."""
    table = Table(title="shares: nodes by type, in-edges, roots by split")
    first = shares["servers"]
    table.add_column("of")
    for heading in (*first["nodes"], "edges", *first["splits"]):
        table.add_column(heading, justify="right")
    for level, share in shares.items():
        columns = [*share["nodes"].values(), share["edges"], *share["splits"].values()]
        for owner, counts in enumerate(zip(*columns, strict=True)):
            table.add_row(f"{level[:-1]} {owner}", *(f"{each:,}" for each in counts))
        worst = share["largest_over_mean"]
        ratios = [*worst["nodes"].values(), worst["edges"], *worst["splits"].values()]
        table.add_row(
            f"{level}: largest / mean", *(f"{each:.3f}" for each in ratios), end_section=True
        )
    return table


def show_by_relation(description: dict[str, Any], out: Path) -> None:
    """Where relations were divided: what servers have."""
    meta = description["meta"]
    hops = f"{meta['layers']} hops from {', '.join([meta['target'], *meta['others']])}"
    table = Table(
        title=f"{description['graph']} over {description['servers']} servers, {hops}: {out}"
    )
    table.add_column("server", justify="right")
    table.add_column("root relations")
    for heading in ("replica", "relations", "nodes", "edges", "rows", "topology"):
        table.add_column(heading, justify="right")
    for server, (held, share) in enumerate(
        zip(meta["servers"], description["per_server"], strict=True)
    ):
        (place, copies), (part, parts) = held["replica"], held["part"]
        cut = f" (part {part + 1} of {parts})" if parts > 1 else ""
        table.add_row(
            str(server),
            f"{', '.join(held['roots'])}{cut}",
            f"{place + 1} of {copies}",
            str(len(held["relations"])),
            *(f"{share[key]:,}" for key in ("nodes", "edges")),
            *(format_bytes(share[key]) for key in ("feature_bytes", "topology_bytes")),
        )
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
