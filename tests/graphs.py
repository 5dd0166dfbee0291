"""Small random graphs with what a test asks for; no tests of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation

RATES, RATED = Relation("reader", "rates", "book"), Relation("book", "rated_by", "reader")
WROTE, KNOWS = Relation("author", "wrote", "book"), Relation("reader", "knows", "reader")
READERS, BOOKS, AUTHORS = 60, 45, 20
RATINGS = 300
EDGE = Relation("node", "edge", "node")
NODES, EDGES = 150, 1500


def draw_ends(
    generator: np.random.Generator, sources: int, destinations: int, edges: int
) -> np.ndarray:
    """[2, edges]: random sources and destinations."""
    return np.stack(
        [generator.integers(0, sources, edges), generator.integers(0, destinations, edges)]
    )


def make_nodes(
    out: Path, *, edge_features: bool = False, edge_weights: bool = False, times: bool = False
) -> GraphDirectory:
    """Write nodes of one type, in four classes.

    The features of an edge are its ends, and a number that tells apart parallel edges.
    """
    generator = np.random.default_rng(5)
    ends = draw_ends(generator, NODES, NODES, EDGES)
    of_edges = np.stack([*ends, generator.normal(size=EDGES)], 1) / [NODES, NODES, 1.0]
    return GraphDirectory.from_arrays(
        out,
        ends,
        features=generator.random((NODES, 9)),
        labels=generator.integers(0, 4, NODES),
        edge_features=of_edges.astype(np.float32) if edge_features else None,
        edge_weights=np.exp(generator.normal(0, 2, EDGES)) if edge_weights else None,
        times=generator.integers(0, 30, NODES) if times else None,
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )


def make_library(
    out: Path,
    target: Any = "book",
    *,
    labels: Mapping[Relation, Any] | None = None,
    edge_features: bool = False,
    edge_weights: bool = False,
) -> GraphDirectory:
    """Write readers and books; also authors, without features, if who wrote what is predicted.

    Parameters
    ----------
    target: books in three classes, or relations whose edges or labels are predicted.
    labels: of the edges of target relations.
    edge_features, edge_weights: whether ratings have them, in both directions.
    """
    generator = np.random.default_rng(5)
    rates, weights = (
        draw_ends(generator, READERS, BOOKS, RATINGS),
        np.exp(generator.normal(0, 2, RATINGS)),
    )
    of_edges = {
        RATES: generator.normal(size=(RATINGS, 3)),
        RATED: generator.random((RATINGS, 2)),
    }
    edges = {RATES: rates, RATED: rates[::-1], KNOWS: draw_ends(generator, READERS, READERS, 150)}
    has_authors = isinstance(target, list) and WROTE in target
    if has_authors:
        edges[WROTE] = draw_ends(generator, AUTHORS, BOOKS, 90)
    return GraphDirectory.from_arrays(
        out,
        edges,
        features={"reader": generator.random((READERS, 4)), "book": generator.random((BOOKS, 5))},
        labels={"book": generator.integers(0, 3, BOOKS)} if target == "book" else labels,
        counts={"author": AUTHORS} if has_authors else {},
        edge_features=of_edges if edge_features else None,
        edge_weights={RATES: weights, RATED: weights} if edge_weights else None,
        target=target,
        options=ImportOptions(split=RandomSplit(0.6, 0.2)),
    )
