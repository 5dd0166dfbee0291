"""Small graphs that engines train on, and models for those of several node types; no tests.

In the typed graph relation names repeat between type pairs, one relation and one type are empty,
and features have another width in every type.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes
from tests.conftest import make_community_graph

COUNTS = {"author": 60, "field": 9, "nobody": 0, "paper": 120}
WIDTHS = {"author": 5, "field": 3, "nobody": 2, "paper": 7}
# Rows of the others are learned.
WITH_FEATURES = ("paper", "nobody")
WRITES, CITES = Relation("author", "to", "paper"), Relation("paper", "to", "paper")
EDGES = {
    WRITES: 300,
    Relation("paper", "to", "author"): 200,
    CITES: 400,
    Relation("field", "to", "paper"): 150,
    Relation("paper", "has", "field"): 150,
    Relation("author", "likes", "field"): 0,
    Relation("nobody", "to", "paper"): 0,
}
LEARNABLE: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.05, "dim": 6, "l2": 0.02}
MODELS: dict[str, dict[str, Any]] = {
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "rgcn of bases": {"name": "rgcn", "layers": 2, "hidden": 8, "bases": 2},
    "rgcn in blocks": {"name": "rgcn", "layers": 3, "hidden": 8, "diagonal_blocks": 4},
    "rgat": {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.3},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.3},
    "hgt, one layer": {"name": "hgt", "layers": 1, "hidden": 8, "heads": 2},
    "sehgnn": {"name": "sehgnn", "hidden": 8, "heads": 2, "dropout": 0.3, "layers": 1},
    "nars": {"name": "nars", "hidden": 8, "dropout": 0.3, "layers": 1},
    "own, mean of present": {
        "name": "hgnn",
        "layers": 2,
        "hidden": 8,
        "aggregate": "gated_aggregation:GatedAggregation",
        "combine": "mean_of_present",
    },
    "own, relations apart": {
        "name": "hgnn",
        "layers": 2,
        "hidden": 8,
        "dropout": 0.2,
        "aggregate": "own_parts:Dropping",
        "combine": "own_parts:AttentionOverRelations",
    },
}
WEIGHTED = {WRITES, CITES, Relation("paper", "has", "field"), Relation("nobody", "to", "paper")}
TIMED = {WRITES, Relation("field", "to", "paper"), Relation("nobody", "to", "paper")}
EDGE, NEAR = Relation("node", "edge", "node"), Relation("item", "near", "item")
NODES, EDGES_OF_NODES = 150, 1500
KNOWS, LIKES = ("person", "knows", "person"), ("person", "likes", "person")
BORROWS, WROTE = ("reader", "borrows", "book"), ("author", "wrote", "book")
END_COUNTS = {"person": 70, "group": 12, "reader": 60, "book": 45, "author": 20}
END_WIDTHS = {"person": 6, "reader": 4, "book": 5}


def draw_ends(
    generator: np.random.Generator, sources: int, destinations: int, edges: int
) -> np.ndarray:
    """[2, edges]: random sources and destinations."""
    ends = [generator.integers(0, max(1, nodes), edges) for nodes in (sources, destinations)]
    return np.stack(ends)


def make_graph(out: Path, with_features: tuple[str, ...]) -> GraphDirectory:
    """Papers and what belongs to them, where some types have features."""
    generator = np.random.default_rng(3)
    edges = {r: draw_ends(generator, COUNTS[r.src], COUNTS[r.dst], n) for r, n in EDGES.items()}
    features = {
        name: generator.standard_normal((COUNTS[name], WIDTHS[name])) for name in with_features
    }
    return _write_papers(out, generator, edges, features)


def make_drawn_graph(out: Path) -> GraphDirectory:
    """Papers have times, and so have some relations. A hub has many edges, some at one time."""
    generator = np.random.default_rng(6)
    counts = {r: n + 100 * (r in (WRITES, CITES)) for r, n in EDGES.items() if r.rel != "likes"}
    edges = {r: draw_ends(generator, COUNTS[r.src], COUNTS[r.dst], n) for r, n in counts.items()}
    for ends in edges.values():
        ends[1, : ends.shape[1] // 5] = 4
    features = {name: generator.random((n, WIDTHS[name])) for name, n in COUNTS.items()}
    weights = {r: np.exp(generator.normal(0, 2, counts[r])) for r in sorted(WEIGHTED)}
    times = {r: generator.integers(-9, 20, counts[r]) for r in sorted(TIMED)}
    return _write_papers(
        out,
        generator,
        edges,
        features,
        edge_features={WRITES: generator.random((counts[WRITES], 2))},
        edge_weights=weights,
        times={"paper": generator.integers(-5, 20, COUNTS["paper"])} | times,
    )


def _write_papers(
    out: Path,
    generator: np.random.Generator,
    edges: Mapping[Relation, np.ndarray],
    features: Mapping[str, np.ndarray],
    **more: Any,
) -> GraphDirectory:
    labels = {"paper": generator.integers(0, 4, COUNTS["paper"])}
    order = generator.permutation(COUNTS["paper"])
    splits = {"train": order[:50], "val": order[50:70], "test": order[70:90]}
    return GraphDirectory.from_arrays(
        out, edges, features, labels, splits, counts=COUNTS, target="paper", **more
    )


def memory_for_parts(
    graph: GraphDirectory, root: Relation = CITES, metapaths: Sequence[Sequence[str]] = ()
) -> int:
    """Return the smallest memory of a server with which a root relation is cut in two."""
    tree = make_metatree(graph.schema, "paper", 2, metapaths)
    return max(sum(part_bytes(graph, part)) for part in cut(graph, tree, root, 2))


def _ends(source: str, destination: str, edges: int) -> np.ndarray:
    counts = END_COUNTS[source], END_COUNTS[destination]
    return draw_ends(np.random.default_rng(edges), *counts, edges)


def _write_ends(
    out: Path,
    edges: dict[tuple[str, str, str], np.ndarray],
    targets: list[tuple[str, str, str]],
    *,
    labelled: bool = False,
    is_timed: bool = False,
) -> GraphDirectory:
    """Write relations, with weights, whose edges are predicted. Some labels are not known."""
    types = {end for src, _, dst in edges for end in (src, dst)}
    generator, times = np.random.default_rng(1), None
    if is_timed:
        times = {relation: pairs.sum(0) % 9 for relation, pairs in edges.items()}
    return GraphDirectory.from_arrays(
        out,
        edges,
        {
            name: generator.random((END_COUNTS[name], END_WIDTHS[name]))
            for name in sorted(types & {*END_WIDTHS})
        },
        {target: edges[target].sum(0) % 4 - 1 for target in targets} if labelled else None,
        edge_weights={relation: 0.5 + pairs.sum(0) % 7 for relation, pairs in edges.items()},
        times=times,
        counts={name: END_COUNTS[name] for name in sorted(types)},
        target=targets,
        options=ImportOptions(split=RandomSplit(0.7, 0.15, by_time=is_timed)),
    )


def make_people(out: Path) -> GraphDirectory:
    """All ends are people: who knows whom, in both directions, and who likes whom."""
    knows, belongs = _ends("person", "person", 180), _ends("person", "group", 130)
    edges = {
        KNOWS: knows,
        ("person", "known_by", "person"): knows[::-1],
        LIKES: _ends("person", "person", 120),
        ("person", "in", "group"): belongs,
        ("group", "has", "person"): belongs[::-1],
    }
    return _write_ends(out, edges, [KNOWS, LIKES])


def make_library(out: Path, **options: bool) -> GraphDirectory:
    """Ends are readers, books and authors; no relation leads to authors."""
    borrows = _ends("reader", "book", 260)
    edges = {
        BORROWS: borrows,
        ("book", "lent_to", "reader"): borrows[::-1],
        WROTE: _ends("author", "book", 90),
        ("reader", "knows", "reader"): _ends("reader", "reader", 150),
    }
    return _write_ends(out, edges, [BORROWS, WROTE], **options)


def make_links(out: Path, *, labelled: bool = False) -> GraphDirectory:
    """Edges of the community graph, with times; some are in no split, and are read all the same."""
    items = make_community_graph(out.with_name(f"items of {out.name}"), nodes=300)
    topology = items.topology(NEAR)
    ends = np.stack([topology.indices, topology.list_destinations()])
    order = np.random.default_rng(2).permutation(ends.shape[1])
    return GraphDirectory.from_arrays(
        out,
        {NEAR: ends},
        {"item": np.asarray(items.features("item"))},
        {NEAR: ends.sum(0) % 3} if labelled else None,
        {"train": order[:200], "val": order[200:230], "test": order[230:240]},
        times={NEAR: ends.sum(0) % 9},
        target=NEAR,
    )


def make_tasks(out: Path) -> GraphDirectory:
    """A class with a name, two values, and three labels; some nodes lack some of them."""
    generator = np.random.default_rng(5)
    topics = generator.integers(-1, 4, NODES)
    value = generator.normal(size=(NODES, 2)).astype(np.float32)
    value[generator.random(NODES) < 0.3] = np.nan
    labels = {
        "topic": ["" if topic < 0 else f"t{topic}" for topic in topics.tolist()],
        "value": value,
        "keywords": generator.integers(0, 2, (NODES, 3)),
    }
    return GraphDirectory.from_arrays(
        out,
        generator.integers(0, NODES, (2, 1200)),
        generator.random((NODES, 6)),
        labels={"node": labels},
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )


def make_nodes(out: Path) -> GraphDirectory:
    """Nodes of one type, in four classes, whose edges have weights and features.

    The features of an edge are its ends, and a number that tells apart parallel edges.
    """
    generator = np.random.default_rng(5)
    ends = draw_ends(generator, NODES, NODES, EDGES_OF_NODES)
    of_edges = np.stack([*ends, generator.normal(size=EDGES_OF_NODES)], 1) / [NODES, NODES, 1.0]
    return GraphDirectory.from_arrays(
        out,
        ends,
        generator.random((NODES, 9)),
        generator.integers(0, 4, NODES),
        edge_features=of_edges.astype(np.float32),
        edge_weights=np.exp(generator.normal(0, 2, EDGES_OF_NODES)),
        times=generator.integers(0, 30, NODES),
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )


GRAPHS: dict[str, Callable[[Path], GraphDirectory]] = {
    "items": partial(make_community_graph, nodes=300),
    "bare items": partial(make_community_graph, nodes=300, with_features=False),
    "many items": partial(make_community_graph, nodes=1200, train=370),
    "nodes": make_nodes,
    "tasks": make_tasks,
    "links": make_links,
    "labels": partial(make_links, labelled=True),
    "typed": partial(make_graph, with_features=tuple(COUNTS)),
    "bare": partial(make_graph, with_features=WITH_FEATURES),
    "learned": partial(make_graph, with_features=()),
    "drawn": make_drawn_graph,
    "people": make_people,
    "library": make_library,
    "library of labels": partial(make_library, labelled=True),
    "library in time": partial(make_library, is_timed=True),
    "library of labels in time": partial(make_library, labelled=True, is_timed=True),
}
