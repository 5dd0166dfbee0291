"""Draws a micrograph as a picture with matplotlib: a ring per hop, a colour per server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from hopper.display.palette import series
from hopper.files.whole_files import replacing
from hopper.micrograph.micrograph import Micrograph, Vertex
from hopper.partition.placement import PartitionBook

_SHAPES: Final = "osD^vpPX"
_MOST_LABELS: Final = 150

Spot = tuple[float, float]


def draw_micrograph(micrograph: Micrograph, path: Path | str, book: PartitionBook) -> None:
    """Write a micrograph's picture as a PNG.

    The root is at the centre and has a dark rim. A node's ring shows the hop that discovered it,
    its shape the node type, its colour the server. Edges between servers are dashed. Edges to a
    node that was known already are faint.
    """
    figure = Figure(figsize=(9, 9), layout="constrained")
    axes = figure.add_subplot()
    spots, homes = _place_vertices(micrograph), micrograph.homes(book)
    _paint_edges(axes, micrograph, spots, homes)
    _paint_nodes(axes, micrograph, spots, homes)
    axes.set_title(
        f"Micrograph of {micrograph.target} {micrograph.root}: {len(spots)} vertices, "
        f"{micrograph.colocated_share(book):.0%} stored with the root"
    )
    axes.legend(loc="upper left", fontsize=10)
    axes.set_aspect("equal")
    axes.set_axis_off()
    with replacing(Path(path)) as unfinished:
        figure.savefig(unfinished, format="png", dpi=150)


def _place_vertices(micrograph: Micrograph) -> dict[Vertex, Spot]:
    """Place leaves evenly around the circle, and each parent at the middle of its branches."""
    root = (micrograph.target, 0)
    ring, branches = {root: 0}, {root: list[Vertex]()}
    # Vertices come in order of discovery, so a parent precedes its branches.
    for edge in micrograph.walk():
        if edge.discovers:
            ring[edge.src], branches[edge.src] = edge.hop + 1, []
            branches[edge.dst].append(edge.src)
    leaves: dict[Vertex, int] = {}
    for vertex in reversed(list(branches)):
        leaves[vertex] = sum(leaves[branch] for branch in branches[vertex]) or 1
    first_leaf, spots = {root: 0}, {}
    for vertex, radius in ring.items():
        start = first_leaf[vertex]
        angle = math.pi * (start + leaves[vertex] / 2) / (leaves[root] / 2)
        spots[vertex] = radius * math.cos(angle), radius * math.sin(angle)
        for branch in branches[vertex]:
            first_leaf[branch] = start
            start += leaves[branch]
    return spots


def _paint_edges(
    axes: Any, micrograph: Micrograph, spots: dict[Vertex, Spot], homes: dict[str, Any]
) -> None:
    for edge in micrograph.walk():
        crosses = homes[edge.dst[0]][edge.dst[1]] != homes[edge.src[0]][edge.src[1]]
        axes.plot(
            *zip(spots[edge.dst], spots[edge.src], strict=True),
            color="0.4" if edge.discovers else "0.8",
            linestyle=(0, (4, 3)) if crosses else "-",
            linewidth=1.1 if edge.discovers else 0.7,
            zorder=2 if edge.discovers else 1,
        )


def _paint_nodes(
    axes: Any, micrograph: Micrograph, spots: dict[Vertex, Spot], homes: dict[str, Any]
) -> None:
    few = len(spots) <= _MOST_LABELS
    for shape, (node_type, servers) in enumerate(sorted(homes.items())):
        for server in np.unique(servers).tolist():
            rows = np.flatnonzero(servers == server).tolist()
            axes.scatter(
                *zip(*(spots[node_type, row] for row in rows), strict=True),
                s=110 if few else 25,
                color=series(server),
                marker=_SHAPES[shape % len(_SHAPES)],
                edgecolors="white",
                label=f"{node_type} on server {server}",
                zorder=3,
            )
    marker = _SHAPES[sorted(homes).index(micrograph.target) % len(_SHAPES)]
    axes.scatter(0, 0, s=200, facecolors="none", edgecolors="black", marker=marker, zorder=4)
    for (node_type, row), spot in spots.items() if few else ():
        axes.annotate(
            str(micrograph.nodes[node_type][row]),
            spot,
            xytext=(0, -9),
            textcoords="offset points",
            size=9,
            ha="center",
            va="top",
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )
