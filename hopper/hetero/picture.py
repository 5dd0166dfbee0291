"""A metatree and the servers that hold its parts, as text and as a picture (Heta, Figure 6)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hopper.display.palette import SOFT_TEXT, TEXT, hex_of, series, text_on
from hopper.graph.schema import Relation
from hopper.hetero.meta_partition import MetaPartition
from hopper.hetero.metatree import Metatree, Vertex

MOST_VERTICES: Final = 150
"""The most vertices of the unrolled tree in a picture, which shows deeper ones as a number."""


@dataclass
class _Node:
    """A vertex of the unrolled tree.

    Attributes
    ----------
    hidden: how many vertices below it are not drawn.
    place: its horizontal position in the picture.
    """

    name: str
    relation: str
    children: list[_Node] = field(default_factory=list)
    hidden: int = 0
    place: float = 0.0


def list_shares(partition: MetaPartition) -> list[list[str]]:
    """Return a table row for each server: root relations, replica, relations, nodes, edges."""
    return [
        [
            str(server),
            ", ".join(map(str, share.roots)),
            f"{share.place + 1} of {share.copies}",
            str(len(share.relations)),
            f"{share.nodes:,}",
            f"{share.edges:,}",
        ]
        for server, share in enumerate(partition.shares)
    ]


def draw_metatree(partition: MetaPartition, path: Path | str, title: str) -> None:
    """Write a PNG of a metatree.

    The root is on top. Below each root relation is its sub-metatree, in the colour of the servers
    that hold it, with its weight.
    """
    tree = partition.tree
    depth, sizes = _drawn_depth(tree), _sizes(tree, tree.layers)
    root = _Node(tree.target, "")
    owners: list[list[int]] = []
    for relation in tree.roots:
        root.children.append(_unroll(tree, relation, 1, depth, sizes))
        owners.append([s for s, share in enumerate(partition.shares) if relation in share.roots])
    width = _spread(root, 0.0)
    figure = Figure(figsize=(max(6.0, 1.3 * width), 1.7 + 1.4 * (depth + 1)), dpi=150,
                    layout="constrained")  # fmt: skip
    axes = figure.add_subplot()
    for place, (child, relation, holders) in enumerate(
        zip(root.children, tree.roots, owners, strict=True)
    ):
        colour = series(holders[0])
        _draw_branch(axes, root, child, 0, colour, place)
        servers = ", ".join(map(str, holders))
        axes.text(
            child.place, -depth - 0.45,
            f"weight {partition.weights[relation]:,}\nserver {servers}",
            ha="center", va="top", fontsize=9, color=SOFT_TEXT,
        )  # fmt: skip
    _draw_vertex(axes, root, 0, "#FFFFFF")
    axes.set_xlim(-0.6, width - 0.4)
    axes.set_ylim(-depth - 1.0, 0.5)
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontsize=10)
    unfinished = f"{path}.unfinished"
    figure.savefig(unfinished, format="png")
    os.replace(unfinished, path)


def _drawn_depth(tree: Metatree) -> int:
    """Return how many hops fit into a picture."""
    for depth in range(tree.layers, 1, -1):
        if _sizes(tree, depth)[tree.root] <= MOST_VERTICES + 1:
            return depth
    return 1


def _sizes(tree: Metatree, limit: int) -> dict[Vertex, int]:
    """Count the vertices of each branch of the unrolled tree, down to a depth."""
    sizes: dict[Vertex, int] = {}
    for vertex in sorted(tree.children, key=lambda vertex: -vertex.depth):
        below = tree.children[vertex] if vertex.depth < limit else ()
        deeper = (sizes.get(Vertex(relation.src, vertex.depth + 1), 1) for relation in below)
        sizes[vertex] = 1 + sum(deeper)
    return sizes


def _unroll(
    tree: Metatree, relation: Relation, depth: int, limit: int, sizes: dict[Vertex, int]
) -> _Node:
    node = _Node(relation.src, relation.rel)
    if depth < limit:
        below = tree.children.get(Vertex(relation.src, depth), ())
        node.children = [_unroll(tree, child, depth + 1, limit, sizes) for child in below]
    elif limit < tree.layers:
        node.hidden = sizes[Vertex(relation.src, depth)] - 1
    return node


def _spread(node: _Node, left: float) -> float:
    """Place the vertices of a branch from ``left`` on, and return where the next may begin."""
    if not node.children:
        node.place = left
        return left + 1.0
    right = left
    for child in node.children:
        right = _spread(child, right)
    node.place = (node.children[0].place + node.children[-1].place) / 2
    return right


def _draw_branch(
    axes: Axes, parent: _Node, node: _Node, depth: int, colour: str, place: int
) -> None:
    axes.plot([parent.place, node.place], [-depth, -depth - 1], color=hex_of("plain"), linewidth=1)
    # Nearer to the child, where lines stand further apart; neighbours at heights of their own.
    down = 0.56 if place % 2 else 0.72
    axes.text(
        parent.place + down * (node.place - parent.place), -depth - down, node.relation,
        fontsize=9, ha="center", va="center", color=TEXT,
        bbox={"color": "white", "pad": 0.6},
    )  # fmt: skip
    for place, child in enumerate(node.children):
        _draw_branch(axes, node, child, depth + 1, colour, place)
    _draw_vertex(axes, node, depth + 1, colour)


def _draw_vertex(axes: Axes, node: _Node, depth: int, colour: str) -> None:
    text = node.name + (f"\n(+{node.hidden})" if node.hidden else "")
    axes.text(
        node.place, -depth, text, ha="center", va="center", fontsize=10, zorder=3,
        color=text_on(colour),
        bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": hex_of("dim")},
    )  # fmt: skip
