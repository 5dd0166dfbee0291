"""What typed presets promise: published totals, a pure function, classes of both structures."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest

from cache_server.draw import SYNTHESIS, key_of
from hopper.errors import RequestError
from hopper.graph import GraphDirectory, synthesise_typed
from hopper.graph.schema import Relation
from hopper.graph.synthesise import make
from hopper.graph.typed_presets import TYPED_PRESETS

SMALL = {
    "mag-like": 0.01,
    "freebase-like": 0.001,
    "donor-like": 0.002,
    "igbhet-like": 0.0004,
    "mag240m-like": 0.00005,
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
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphDirectory]:
    """Every typed preset at a small scale, opened with all checks."""
    root = tmp_path_factory.mktemp("typed-presets")
    return {
        name: GraphDirectory.open(make(name, root / name, scale=scale), check="full")
        for name, scale in SMALL.items()
    }


@pytest.mark.parametrize("name", TYPED_PRESETS)
def test_totals_are_the_published_ones(name: str) -> None:
    preset = TYPED_PRESETS[name]
    nodes, types, edges, relations, featured, classes = PUBLISHED[name]
    assert preset.nodes == pytest.approx(nodes, rel=0.03)
    assert preset.edges == pytest.approx(edges, rel=0.05)
    assert (len(preset.types), preset.stored_relations) == (types, relations)
    assert sum(kind.feature_dim is not None for kind in preset.types.values()) == featured
    assert preset.classes == classes


@pytest.mark.parametrize("name", SMALL)
def test_a_scaled_graph_keeps_types_relations_and_reverses(
    name: str, graphs: dict[str, GraphDirectory]
) -> None:
    preset, graph = TYPED_PRESETS[name], graphs[name]
    schema = graph.schema
    assert len(schema.relations) == preset.stored_relations
    for node_type, kind in preset.types.items():
        made_type = schema.node_types[node_type]
        assert made_type.count == max(min(kind.count, 16), round(kind.count * SMALL[name]))
        assert made_type.feature_dim == kind.feature_dim
    for edges in preset.relations:
        relation = Relation(edges.src, edges.rel, edges.dst)
        topology = graph.topology(relation)
        dst = np.repeat(np.arange(topology.in_degrees.size), topology.in_degrees)
        pairs = set(zip(topology.indices.tolist(), dst.tolist(), strict=True))
        assert len(pairs) == dst.size, "an edge occurs twice"
        reversed_pairs = {(b, a) for a, b in pairs}
        if edges.src == edges.dst and preset.reverse == "cross-type":
            assert reversed_pairs == pairs
        else:
            reverse = graph.topology(Relation(edges.dst, f"rev_{edges.rel}", edges.src))
            ends = np.repeat(np.arange(reverse.in_degrees.size), reverse.in_degrees)
            assert set(zip(reverse.indices.tolist(), ends.tolist(), strict=True)) == reversed_pairs
    sizes = schema.splits
    assert all(size > 0 for size in sizes.values())
    ids = np.concatenate([graph.split(split) for split in sizes])
    assert np.unique(ids).size == ids.size


def test_no_single_relation_reveals_the_class(graphs: dict[str, GraphDirectory]) -> None:
    name = "mag-like"
    preset, graph = TYPED_PRESETS[name], graphs[name]
    key = key_of(SYNTHESIS, *name.encode(), 0)
    parts = synthesise_typed._parts_per_structure(preset.classes)
    level = synthesise_typed._label_level(preset, graph.schema)
    types = {
        node_type: synthesise_typed._make_type(
            key_of(key, *node_type.encode()), key, preset, kind.count, parts, level
        )
        for node_type, kind in graph.schema.node_types.items()
    }
    paper = types["paper"]
    labels_without_noise = synthesise_typed._combine_parts(*paper.classes, parts, preset.classes)
    share_kept = np.mean(labels_without_noise == np.asarray(graph.labels("paper")))
    assert 0.94 < share_kept < 0.97
    for edges in preset.relations:
        topology = graph.topology(Relation(edges.src, edges.rel, edges.dst))
        dst = np.repeat(np.arange(topology.in_degrees.size), topology.in_degrees)
        share_of_equal_classes = [
            float(np.mean(types[edges.src].classes[s][topology.indices]
                          == types[edges.dst].classes[s][dst]))
            for s in (0, 1)
        ]  # fmt: skip
        chance = np.mean(paper.classes[1] == np.random.default_rng(0).permutation(paper.classes[1]))
        assert share_of_equal_classes[edges.structure] > 0.3
        assert share_of_equal_classes[1 - edges.structure] < chance + 0.1


def test_same_seed_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    def contents(directory: Path) -> dict[str, bytes]:
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        return {str(path.relative_to(directory)): path.read_bytes() for path in files}

    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        first = contents(make("donor-like", tmp_path / "a", scale=0.001, seed=3))
        numba.set_num_threads(1)
        assert contents(make("donor-like", tmp_path / "b", scale=0.001, seed=3)) == first
    finally:
        numba.set_num_threads(threads)
    other_seed = contents(make("donor-like", tmp_path / "c", scale=0.001, seed=4))
    assert [name for name in first if first[name] == other_seed.get(name)] != list(first)


def test_unusable_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="scale: expected more than 0 and at most 1, given 2"):
        make("mag-like", tmp_path / "a", scale=2)
    with pytest.raises(RequestError, match="feature dim: mag-like has several"):
        make("mag-like", tmp_path / "a", scale=0.01, feature_dim=3)
    with pytest.raises(RequestError, match=r"arxiv-like, .* mag-like, .*, given 'mag'"):
        make("mag", tmp_path / "a")
    with pytest.raises(RequestError, match=r"too little memory: about .* for the largest relation"):
        make("mag240m-like", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
