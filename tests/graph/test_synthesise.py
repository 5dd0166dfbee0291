"""What `make` promises of a synthetic graph: a pure function, its schema, edges and labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from cache_server.draws.counter import SYNTHESIS, key_of
from hopper.errors import RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers.arrays import EDGES as EDGE
from hopper.graph.importers.arrays import NODE
from hopper.graph.memory_budget import LEAST_CHUNK, MemoryBudget, limit_memory
from hopper.graph.presets import PRESETS
from hopper.graph.synthesise import combine_parts, draw_nodes, make
from hopper.micrograph.locality import measure_locality
from hopper.partition import partition_graph
from tests.conftest import numba_threads

SCALES = {
    "arxiv-like": 0.1,
    "products-like": 0.003,
    "uk-like": 0.006,
    "in-like": 0.003,
    "it-like": 0.0001,
    "scattered": 0.03,
    "mag-like": 0.01,
    "freebase-like": 0.0003,
    "donor-like": 0.002,
    "igbhet-like": 0.0002,
    "mag240m-like": 0.00002,
    "am-like": 0.01,
    "bgs-like": 0.1,
}
# Heta, Table 1 (nodes, types, edges, relations, types with features, classes); HiFuse, Table 2.
PUBLISHED = {
    "mag-like": (1.9e6, 4, 4.2e7, 7, 1, 349),
    "freebase-like": (1.2e7, 8, 1.3e8, 64, 0, 8),
    "donor-like": (9.7e6, 7, 2.4e7, 14, 7, 2),
    "igbhet-like": (2.6e7, 4, 4.9e8, 7, 4, 2983),
    "mag240m-like": (2.4e8, 3, 3.5e9, 5, 1, 153),
    "am-like": (1_885_136, 7, 5_668_682, 108, 0, 11),
    "bgs-like": (94_806, 27, 672_884, 122, 0, 2),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[str, GraphDirectory]:
    """Every preset at a small scale, opened with all checks (order, ranges, degrees)."""
    root = tmp_path_factory.mktemp("presets")
    return {n: GraphDirectory.open(make(n, root / n, scale=scale)) for n, scale in SCALES.items()}


def edge_ends(graph: GraphDirectory, relation: Relation = EDGE) -> NDArray[np.int64]:
    """Return [2, edges]: sources and destinations."""
    topology = graph.topology(relation)
    return np.stack([topology.indices, topology.list_destinations()])


@pytest.mark.parametrize(("name", "scale"), [("arxiv-like", 0.01), ("mag-like", 0.001)])
def test_same_seed_same_bytes_whatever_the_threads_and_pieces(name, scale, tmp_path):
    def make_files(seed: int) -> dict[str, bytes]:
        out = make(name, tmp_path / str(len(list(tmp_path.iterdir()))), scale=scale, seed=seed)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        return {str(path.relative_to(out)): path.read_bytes() for path in files}

    with numba_threads():
        first = make_files(7)
    with limit_memory(MemoryBudget(LEAST_CHUNK)):
        assert make_files(7) == first
    other = make_files(8)
    assert first.keys() == other.keys()
    assert {Path(of).name for of in first if first[of] == other[of]} <= {"edge_ids.npy"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_scaled_graph_keeps_types_relations_and_reverses(name, graphs):
    preset, graph = PRESETS[name], graphs[name]
    schema, stored = graph.schema, preset.stored_relations
    for node_type, kind in preset.types.items():
        made = schema.node_types[node_type]
        assert made.count == max(min(kind.count, 16), round(kind.count * SCALES[name]))
        assert made.feature_dim == kind.feature_dim
    assert set(schema.relations) == {r for edges in preset.relations for r in stored(edges)}
    if name in PUBLISHED:
        nodes, types, total, relations, featured, classes = PUBLISHED[name]
        assert preset.nodes == pytest.approx(nodes, rel=0.03)
        assert preset.edges == pytest.approx(total, rel=0.05)
        assert (len(preset.types), len(schema.relations)) == (types, relations)
        assert (len(schema.feature_tables), preset.classes) == (featured, classes)
    for edges in preset.relations:
        sources, destinations = edge_ends(graph, edges.relation)
        width = schema.node_types[edges.src].count
        pairs = destinations * width + sources
        assert np.all(np.diff(pairs) > 0), "an edge occurs twice"
        if edges.src == edges.dst:
            assert not np.any(sources == destinations)
            reversed_pairs = np.sort(sources * width + destinations)
            assert np.array_equal(pairs, reversed_pairs) == preset.is_symmetrised(edges)
        for reverse in stored(edges)[1:]:
            ends = edge_ends(graph, reverse)
            assert np.array_equal(np.sort(ends[0] * width + ends[1]), pairs)
    assert schema.labels[preset.target].classes == preset.classes
    assert all(schema.splits.values())
    ids = np.concatenate([graph.split(split) for split in schema.splits])
    assert np.unique(ids).size == ids.size


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.one_type])
def test_degrees_splits_and_labels_of_one_type(name, graphs):
    preset, graph = PRESETS[name], graphs[name]
    schema, labels = graph.schema, np.asarray(graph.labels(NODE))
    count = schema.node_types[NODE].count
    mean = schema.relations[EDGE].count / count
    assert mean == pytest.approx(preset.edges / preset.nodes, rel=1e-3)
    for split, share in preset.splits.items():
        assert schema.splits[split] / count == pytest.approx(share, abs=1e-3)
    degrees = np.sort(graph.topology(EDGE).in_degrees)[::-1]
    assert degrees[0] > 5 * mean
    assert np.median(degrees) < 0.8 * mean
    # Hill's estimate over the nodes that neither the cap nor the minimum bends.
    tail = degrees[degrees.size // 100 : degrees.size // 10].astype(float)
    exponent = 1 + 1 / np.mean(np.log(tail / tail[-1])) * (1 - 0.1 * np.log(10) / 0.9)
    assert 1.8 < exponent < 3.5
    sources, destinations = edge_ends(graph)
    # Edges between the halves of the id order: half of them, as for ids dealt at random.
    crossing = np.mean((sources < count // 2) != (destinations < count // 2))
    assert crossing == pytest.approx(0.5, abs=0.05)
    shares = np.bincount(labels, minlength=preset.classes) / labels.size
    assert shares.min() > 0
    assert np.mean(labels[sources] == labels[destinations]) > 3 * np.sum(shares**2)


def test_no_single_relation_reveals_the_class(graphs):
    name = "mag-like"
    preset, graph = PRESETS[name], graphs[name]
    types = draw_nodes(preset, graph.schema, key_of(SYNTHESIS, *name.encode(), 0))
    without_noise = combine_parts(preset, types["paper"])
    assert 0.94 < np.mean(without_noise == np.asarray(graph.labels("paper"))) < 0.97
    parts = {of: [one.parts for one in nodes.structures] for of, nodes in types.items()}
    chance = np.mean(parts["paper"][1] == np.random.default_rng(0).permutation(parts["paper"][1]))
    for edges in preset.relations:
        src, dst = edge_ends(graph, edges.relation)
        equal = [np.mean(parts[edges.src][s][src] == parts[edges.dst][s][dst]) for s in (0, 1)]
        assert equal[edges.structure] > 0.3
        assert equal[1 - edges.structure] < chance + 0.1


def test_neighbours_say_more_of_the_class_than_own_features(graphs):
    graph = graphs["arxiv-like"]
    features, topology = np.array(graph.features(NODE)), graph.topology(EDGE)
    labels, (train, test) = np.asarray(graph.labels(NODE)), map(graph.split, ("train", "test"))

    def measure_accuracy(inputs: NDArray[np.float32]) -> float:
        """Return the test accuracy of a linear classifier (ridge regression on one-hot classes)."""
        rows = (inputs - inputs[train].mean(0)) / inputs[train].std(0)
        one_hot = np.eye(graph.schema.labels[NODE].classes, dtype=np.float32)[labels[train]]
        gram = rows[train].T @ rows[train] + 10.0 * np.eye(rows.shape[1], dtype=np.float32)
        weight = np.linalg.solve(gram, rows[train].T @ (one_hot - one_hot.mean(0)))
        predicted = (rows[test] @ weight + one_hot.mean(0)).argmax(1)
        return float(np.mean(predicted == labels[test]))

    ones = np.ones(topology.indices.size, np.float32)
    adjacency = scipy.sparse.csr_array((ones, topology.indices, topology.indptr))
    degrees = np.maximum(topology.in_degrees, 1)[:, None].astype(np.float32)
    accuracy = measure_accuracy(features)
    assert 0.15 < accuracy < 0.6, "features alone should say something, and not everything"
    both = np.hstack([features, adjacency @ features / degrees])
    assert measure_accuracy(both) > accuracy + 0.1


# DGL leaves /proc/self/status open when it reports its memory.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_locality_under_metis_is_the_published_one(graphs, tmp_path):
    """HopGNN Table 1, METIS, node-wise sampling, two layers, 4 servers: R_micro is 66 %."""
    pytest.importorskip("dgl", reason="needs DGL for METIS")
    parts = partition_graph(graphs["arxiv-like"], tmp_path / "parts", 4, "metis")
    measured = measure_locality(parts, (10, 10), roots=400).micrograph
    assert measured == pytest.approx(0.66, abs=0.1)


def test_the_smallest_scale_works_and_what_is_unusable_is_refused(tmp_path, monkeypatch):
    cases: list[tuple[str, dict[str, Any], str]] = [
        *(("arxiv-like", {"scale": scale}, "scale: expected more than 0 and at most 1, given")
          for scale in (0.0, 1.5, float("nan"), float("inf"))),
        ("arxiv-like", {"scale": 1e-4}, r"arxiv-like needs at least \d+ nodes.*\(17 nodes\)"),
        ("arxiv-like", {"feature_dim": 0}, "feature dim: expected at least 1, given 0"),
        ("mag-like", {"feature_dim": 3}, "feature dim: mag-like has several"),
        ("mag240m-like", {}, "too little memory: about .* GiB needed for the largest relation"),
        ("cora", {}, "expected one of arxiv-like, .*it-like, scattered, mag-like, .*given 'cora'"),
        ("am-like", {"scale": 0.05}, "too little memory: about .* GiB needed"),
    ]  # fmt: skip
    for name, options, text in cases:
        if name == "am-like":
            # Stands for a control group's limit too: both are read by ``available_memory``.
            monkeypatch.setenv("HOPPER_MEMORY_LIMIT", "1")
        with pytest.raises(RequestError, match=text):
            make(name, tmp_path / "g", **options)
        assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    preset = PRESETS["products-like"]
    scale = (preset.smallest_count() + 1) / preset.nodes
    graph = GraphDirectory.open(make("products-like", tmp_path / "g", scale=scale, feature_dim=3))
    assert graph.topology(EDGE).in_degrees.max() > 0
    assert graph.features(NODE).shape[1] == 3
