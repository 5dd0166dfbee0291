"""A metatree and the servers that hold its parts, as text and as a picture (Heta, Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hopper.display.palette import SOFT_TEXT, TEXT, hex_of, series, text_on
from hopper.files.whole_files import replacing
from hopper.graph.schema import Relation
from hopper.hetero.meta_partition import MetaPartition
from hopper.hetero.metatree import Metatree, Vertex
from hopper.micrograph.picture import Spot, place_tree

MOST_VERTICES: Final = 150
"""The most vertices of the unrolled tree in a picture, which shows deeper ones as a number."""
Branch = tuple[Relation, ...]
"""A vertex of the unrolled tree: the relations on the way to it from the root."""


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
    tree, shares = partition.tree, partition.shares
    depth = _drawn_depth(tree)
    below = dict(_unroll(tree, (), depth))
    places = place_tree(below)
    width = 2 * places[()]
    figure = Figure(figsize=(max(6.0, 1.3 * width), 1.7 + 1.4 * (depth + 1)), dpi=150,
                    layout="constrained")  # fmt: skip
    axes = figure.add_subplot()
    _draw_vertex(axes, tree.target, (places[()], 0), "#FFFFFF")
    for above, branches in below.items():
        for number, branch in enumerate(branches):
            servers = [s for s, share in enumerate(shares) if branch[0] in share.roots]
            ends = (places[above], -len(above)), (places[branch], -len(branch))
            _draw_relation(axes, branch[-1].rel, *ends, 0.56 if number % 2 else 0.72)
            _draw_vertex(axes, _name(tree, branch, depth), ends[1], series(servers[0]))
            if not above:
                axes.text(
                    places[branch], -depth - 0.45,
                    f"weight {partition.weights[branch[0]]:,}\n"
                    f"server {', '.join(map(str, servers))}",
                    ha="center", va="top", fontsize=9, color=SOFT_TEXT,
                )  # fmt: skip
    axes.set_xlim(-0.1, width + 0.1)
    axes.set_ylim(-depth - 1.0, 0.5)
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontsize=10)
    with replacing(Path(path)) as unfinished:
        figure.savefig(unfinished, format="png")


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


def _unroll(tree: Metatree, above: Branch, limit: int) -> Iterator[tuple[Branch, list[Branch]]]:
    """Yield the vertices of the unrolled tree down to a depth, with those right below each."""
    vertex = Vertex(above[-1].src, len(above)) if above else tree.root
    relations = tree.children.get(vertex, ()) if len(above) < limit else ()
    branches = [(*above, relation) for relation in relations]
    yield above, branches
    for branch in branches:
        yield from _unroll(tree, branch, limit)


def _name(tree: Metatree, branch: Branch, limit: int) -> str:
    """Return the type of a vertex, and how many vertices below it are not drawn."""
    node_type = branch[-1].src
    if len(branch) < limit or limit == tree.layers:
        return node_type
    hidden = _sizes(tree, tree.layers)[Vertex(node_type, limit)] - 1
    return f"{node_type}\n(+{hidden})" if hidden else node_type


def _draw_relation(axes: Axes, name: str, top: Spot, bottom: Spot, down: float) -> None:
    """Draw a line with a name, which stands nearer to the lower end, where lines are further apart;
    neighbours have heights of their own."""
    axes.plot(*zip(top, bottom, strict=True), color=hex_of("plain"), linewidth=1)
    axes.text(
        top[0] + down * (bottom[0] - top[0]), top[1] - down, name,
        fontsize=9, ha="center", va="center", color=TEXT,
        bbox={"color": "white", "pad": 0.6},
    )  # fmt: skip


def _draw_vertex(axes: Axes, text: str, spot: Spot, colour: str) -> None:
    axes.text(
        *spot, text, ha="center", va="center", fontsize=10, zorder=3, color=text_on(colour),
        bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": hex_of("dim")},
    )  # fmt: skip
