"""``hopper inspect metatree GRAPH``: the relations that hops read, and their division."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.tree import Tree

from hopper.cli.options import print_json, whole
from hopper.display.console_tables import make_table, print_table

if TYPE_CHECKING:
    from hopper.hetero.metatree import Metatree


def add_parser(kinds: Any) -> None:
    """Add the subcommand."""
    parser = kinds.add_parser(
        "metatree",
        help="show the metatree of a typed graph, and how servers would divide it",
        description="Show the relations that hops from the target follow as a tree, the "
        "sub-metatrees with their weights, and the server of each. Only the schema of the graph is "
        "read.",
        allow_abbrev=False,
    )
    parser.option("graph GRAPH", type=Path)
    parser.option("--layers K", "hops (default 2)", type=whole, default=2)
    parser.option("--servers P", "servers (default 2)", type=whole, default=2)
    parser.option("--target T", "node type (default: the graph's own)")
    parser.metapath_option()
    parser.option("--json", "print JSON instead of tables")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.graph import GraphDirectory
    from hopper.hetero.meta_partition import divide
    from hopper.hetero.metatree import make_metatree

    schema = GraphDirectory.open(options.graph, check="shapes").schema
    target = options.target if options.target is not None else schema.target_type()
    tree = make_metatree(schema, target, options.layers, options.metapath)
    partition = divide(schema, tree, options.servers)
    if options.json:
        print_json(partition.as_json())
        return 0
    console = Console()
    console.print(_draw(tree), highlight=False)
    weights = [(str(root), f"{weight:,}") for root, weight in partition.weights.items()]
    print_table(
        console, make_table(("root relation", "weight of its sub-metatree"), weights, texts=2)
    )
    headings = ("server", "root relations", "replica", "relations", "nodes", "edges")
    shares = [
        (
            str(server),
            ", ".join(map(str, share.roots)),
            f"{share.place + 1} of {share.copies}",
            str(len(share.relations)),
            f"{share.nodes:,}",
            f"{share.edges:,}",
        )
        for server, share in enumerate(partition.shares)
    ]
    print_table(console, make_table(headings, shares, texts=6))
    console.print(f"a node is held by {partition.replication:.2f} servers", highlight=False)
    if partition.unreachable:
        unread = ", ".join(map(str, partition.unreachable))
        console.print(
            f"not read within {options.layers} hops of {target}: {unread}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
    return 0


def _draw(tree: Metatree) -> Tree:
    """Return the relations that hops follow, in the order of depth-first search. What is below a
    node type at a depth is shown where it comes first."""
    from hopper.hetero.metatree import Vertex

    shown, drawn = Tree(" and ".join(tree.root_types)), set[Vertex]()
    below = [(shown, Vertex(name, 0)) for name in reversed(tree.root_types)]
    while below:
        branch, vertex = below.pop()
        relations = tree.children.get(vertex, ())
        if relations and vertex in drawn:
            branch.add("as above")
            continue
        drawn.add(vertex)
        added = [
            (branch.add(str(relation)), Vertex(relation.src, vertex.depth + 1))
            for relation in relations
        ]
        below += reversed(added)
    return shown
