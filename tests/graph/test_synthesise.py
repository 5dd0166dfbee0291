"""What `make` promises of a synthetic graph: a pure function, its schema and its edges."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph import GraphDirectory, synthesise
from hopper.graph.degree_corrected import add_reverse_edges
from hopper.graph.presets import PRESETS
from hopper.graph.synthesise import EDGE, NODE, make

SMALL = {
    "arxiv-like": 0.05,
    "products-like": 0.003,
    "uk-like": 0.006,
    "in-like": 0.003,
    "it-like": 0.0001,
    "scattered": 0.03,
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphDirectory]:
    """Every preset at a small scale, opened with all checks (order, ranges, degrees)."""
    root = tmp_path_factory.mktemp("presets")
    return {
        name: GraphDirectory.open(make(name, root / name, scale=scale), check="full")
        for name, scale in SMALL.items()
    }


def read_files(directory: Path) -> dict[str, bytes]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def edge_ends(graph: GraphDirectory) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    topology = graph.topology(EDGE)
    destinations = np.repeat(np.arange(topology.in_degrees.size), topology.in_degrees)
    return np.asarray(topology.indices), destinations


@pytest.mark.parametrize("name", ["arxiv-like", "in-like"])
def test_same_seed_same_bytes_whatever_the_threads_and_chunks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = SMALL[name]
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        first = read_files(make(name, tmp_path / "a", scale=scale, seed=7))
        monkeypatch.setattr(synthesise, "_CHUNK_EDGES", 1000)
        monkeypatch.setattr(synthesise, "_CHUNK_VALUES", 12_345)
        numba.set_num_threads(1)
        second = read_files(make(name, tmp_path / "b", scale=scale, seed=7))
    finally:
        numba.set_num_threads(threads)
    assert first == second


def test_another_seed_is_another_graph(tmp_path: Path) -> None:
    first = read_files(make("arxiv-like", tmp_path / "a", scale=0.02, seed=0))
    second = read_files(make("arxiv-like", tmp_path / "b", scale=0.02, seed=1))
    assert first.keys() == second.keys()
    equal_files = [name for name in first if first[name] == second[name]]
    assert [Path(name).name for name in equal_files] == ["edge_ids.npy"]


@pytest.mark.parametrize("name", PRESETS)
def test_schema_follows_the_published_figures(name: str, graphs: dict[str, GraphDirectory]) -> None:
    preset, schema = PRESETS[name], graphs[name].schema
    kind = schema.node_types[NODE]
    stored = preset.edges * (2 if preset.undirected else 1)
    assert kind.count == round(preset.nodes * SMALL[name])
    assert (kind.feature_dim, kind.feature_dtype) == (preset.feature_dim, "float32")
    assert schema.labels[NODE].classes == preset.classes
    assert schema.relations[EDGE].count / kind.count == pytest.approx(
        stored / preset.nodes, rel=1e-3
    )
    for split, share in preset.splits.items():
        assert schema.splits[split] / kind.count == pytest.approx(share, abs=1e-3)
    ids = np.concatenate([graphs[name].split(split) for split in schema.splits])
    assert np.unique(ids).size == ids.size


@pytest.mark.parametrize("name", PRESETS)
def test_edges_are_simple_and_symmetric_where_promised(
    name: str, graphs: dict[str, GraphDirectory]
) -> None:
    sources, destinations = edge_ends(graphs[name])
    count = graphs[name].schema.node_types[NODE].count
    assert not np.any(sources == destinations)
    pairs = destinations * count + sources
    assert np.all(np.diff(pairs) > 0)
    reversed_pairs = np.sort(sources * count + destinations)
    assert np.array_equal(pairs, reversed_pairs) == PRESETS[name].undirected


@pytest.mark.parametrize("name", PRESETS)
def test_degrees_have_a_power_law_tail(name: str, graphs: dict[str, GraphDirectory]) -> None:
    topology = graphs[name].topology(EDGE)
    degrees = np.sort(topology.in_degrees)[::-1]
    assert degrees[0] > 5 * degrees.mean()
    assert np.median(degrees) < 0.8 * degrees.mean()
    # Hill's estimate over the nodes that neither the cap nor the minimum bends.
    tail = degrees[degrees.size // 100 : degrees.size // 10].astype(float)
    exponent = 1 + 1 / np.mean(np.log(tail / tail[-1])) * (1 - 0.1 * np.log(10) / 0.9)
    assert 1.8 < exponent < 3.5


def test_ids_do_not_depend_on_communities(graphs: dict[str, GraphDirectory]) -> None:
    sources, destinations = edge_ends(graphs["products-like"])
    count = graphs["products-like"].schema.node_types[NODE].count
    # Edges between the halves of the id order: half of them, as for ids dealt at random.
    crossing = np.mean((sources < count // 2) != (destinations < count // 2))
    assert crossing == pytest.approx(0.5, abs=0.03)


def test_every_class_occurs_and_labels_agree_along_edges(
    graphs: dict[str, GraphDirectory],
) -> None:
    for name, graph in graphs.items():
        labels = np.asarray(graph.labels(NODE))
        sources, destinations = edge_ends(graph)
        shares = np.bincount(labels, minlength=PRESETS[name].classes) / labels.size
        assert shares.min() > 0
        share_of_equal_labels = np.mean(labels[sources] == labels[destinations])
        assert share_of_equal_labels > 3 * np.sum(shares**2), name


def test_both_directions_of_a_path() -> None:
    indptr, indices = add_reverse_edges(np.array([0, 2, 2, 3]), np.array([1, 2, 1]))
    assert indptr.tolist() == [0, 2, 4, 6]
    assert indices.tolist() == [1, 2, 0, 2, 0, 1]


@pytest.mark.parametrize("scale", [0.0, -0.1, 1.5, float("nan"), float("inf")])
def test_a_scale_outside_its_range_is_refused(scale: float, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="scale: expected more than 0 and at most 1"):
        make("arxiv-like", tmp_path / "g", scale=scale)
    assert not (tmp_path / "g").exists()


def test_a_scale_with_too_few_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"arxiv-like needs at least \d+ nodes.*\(17 nodes\)"):
        make("arxiv-like", tmp_path / "g", scale=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_the_smallest_scale_works(name: str, tmp_path: Path) -> None:
    preset = PRESETS[name]
    scale = (preset.smallest_count() + 1) / preset.nodes
    graph = GraphDirectory.open(make(name, tmp_path / "g", scale=scale), check="full")
    assert graph.topology(EDGE).in_degrees.max() > 0


def test_an_unknown_preset_is_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError,
        match=r"expected one of arxiv-like, .*it-like, scattered, mag-like, .*given 'cora'",
    ):
        make("cora", tmp_path / "g")


def test_an_occupied_destination_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match="already exists"):
        make("arxiv-like", tmp_path, scale=0.05)
    assert read_files(tmp_path) == {"file": b"mine"}


def test_too_little_disk_or_memory_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 1 << 20)
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(RequestError, match="too little disk space"):
            make("arxiv-like", tmp_path / "g", scale=0.05)

    # Stands for a control group's limit too: both are read by ``available_memory``.
    monkeypatch.setenv("HOPPER_MEMORY_LIMIT", "1")
    for name in ("arxiv-like", "am-like"):
        with pytest.raises(RequestError, match=r"too little memory: about .* GiB needed"):
            make(name, tmp_path / "g", scale=0.05)
    assert list(tmp_path.iterdir()) == []
