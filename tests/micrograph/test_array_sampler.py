"""Sampling in whole arrays draws what the kernels draw: by NumPy always, by CuPy where there is a
device."""

from dataclasses import replace

import numpy as np
import pytest

from cache_server.draws.counter import draw_key
from hopper.config import make_config
from hopper.device.array_module import on_host
from hopper.engines import Request, assemble
from hopper.engines.checks import check_request
from hopper.errors import RequestError
from hopper.graph import Relation, Topology, build_topology
from hopper.micrograph.array_sampler import ArraySampler
from hopper.micrograph.sample import NeighborSampler, SamplerOptions
from hopper.micrograph.subgraph import StoredNames
from hopper.partition import partition_graph

COUNTS = {"author": 200, "nobody": 0, "paper": 400}
EDGES = {
    Relation("author", "writes", "paper"): 3000,
    Relation("nobody", "reads", "paper"): 0,
    Relation("paper", "by", "author"): 900,
    Relation("paper", "cites", "paper"): 6000,
}
ORIGINAL = {
    name: np.random.default_rng(1).permutation(count) + (1 << 40) for name, count in COUNTS.items()
}
ROOTS = np.random.default_rng(2).permutation(COUNTS["paper"])[:40]


def topologies() -> dict[Relation, Topology]:
    generator, built = np.random.default_rng(3), {}
    for relation, count in EDGES.items():
        src = generator.integers(0, max(1, COUNTS[relation.src]), count)
        dst = generator.integers(0, max(1, COUNTS[relation.dst]), count)
        # A hub: more in-neighbours than any fanout, parallel edges among them.
        dst[: count // 3] = 7
        built[relation] = build_topology(src, dst, COUNTS[relation.src], COUNTS[relation.dst])
    return built


def compare(
    array_sampler: ArraySampler, sampler: NeighborSampler, roots: np.ndarray = ROOTS
) -> None:
    for moment in ((0, 0), (3, 11)):
        subgraph, expected = array_sampler.sample(roots, *moment), sampler.sample(roots, *moment)
        assert subgraph.sizes == expected.sizes
        assert subgraph.iteration_key == expected.iteration_key
        for name, ids in expected.nodes.items():
            assert np.array_equal(subgraph.nodes[name], ids)
        for hop, edges in zip(subgraph.hops, expected.hops, strict=True):
            assert hop.keys() == edges.keys()
            for relation, arrays in edges.items():
                for device_array, host_array in zip(hop[relation], arrays, strict=True):
                    assert device_array.dtype == np.int64
                    assert np.array_equal(on_host(device_array), host_array)


@pytest.mark.parametrize("fanouts", [[3, 2], [1], [60, -1], [-1, 60, 1]])
def test_the_same_subgraph(module, fanouts):
    graph = topologies(), ORIGINAL, "paper", fanouts, 5
    compare(ArraySampler(*graph, module), NeighborSampler(*graph))
    dependent = ArraySampler(*graph, module, dependence=3), NeighborSampler(*graph, dependence=3)
    compare(*dependent, np.empty(0, np.int64))


def test_relations_under_other_names_and_of_some_hops(module):
    """One topology has two names and is stored once; one relation is drawn at the first hop."""
    graph = topologies()
    cites, cites_twice = Relation("paper", "cites", "paper"), Relation("paper", "cites@2", "paper")
    graph[cites_twice] = graph[cites]
    options: SamplerOptions = {
        "names": StoredNames({cites_twice: cites}),
        "hops": {Relation("author", "writes", "paper"): 1},
    }
    array_sampler = ArraySampler(graph, ORIGINAL, "paper", [4, 3, 2], 5, module, **options)
    compare(array_sampler, NeighborSampler(graph, ORIGINAL, "paper", [4, 3, 2], 5, **options))
    graph[Relation("paper", "cites", "paper@2")] = graph[cites]
    of_types = ArraySampler(graph, ORIGINAL | {"paper@2": ORIGINAL["paper"]}, "paper", [2], 5)
    for made in (array_sampler, of_types):
        assert len(made._indices) == sum(EDGES.values())


def test_bad_roots_and_divided_relations_are_refused():
    graph = topologies()
    sampler = ArraySampler(graph, ORIGINAL, "paper", [2], 5)
    with pytest.raises(ValueError, match="a root occurs twice"):
        sampler.sample(np.array([3, 3]), 0, 0)
    with pytest.raises(ValueError, match=r"roots: expected ids in \[0, 400\), got 3 to 400"):
        sampler.sample(np.array([3, 400]), 0, 0)
    relation, topology = next(iter(graph.items()))
    graph[relation] = replace(topology, positions=np.zeros(topology.indices.size, np.int64))
    with pytest.raises(RequestError, match=r"sampler\.device: a server has some of the edges of"):
        ArraySampler(graph, ORIGINAL, "paper", [2], 5)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"device": "cpu"}, 'sampler.device: "cuda" needs a device; expected train'),
        ({"engine": "cooperative"}, "sampler.device: cooperative plans in host memory"),
        ({"engine": "auto"}, "sampler.device: cooperative plans in host memory; .* with auto"),
    ],
)
def test_a_device_that_cannot_sample_is_refused(community_graph, tmp_path, train, expected):
    parts = partition_graph(community_graph, tmp_path / "parts", 1, "random")
    config = make_config(
        {"data": {"partitioned": str(parts.path)}, "train": train, "sampler": {"device": "cuda"}}
    )
    with pytest.raises(RequestError, match=expected):
        check_request(Request(config, parts))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_settings_of_the_key_reach_the_sampler(community_graph, tmp_path, device, monkeypatch):
    monkeypatch.setattr(assemble, "array_module", lambda _: np)
    parts = partition_graph(community_graph, tmp_path / "parts", 1, "random")
    sampler = {"expansion": "once", "dependence": 5, "device": device}
    config = make_config({"data": {"partitioned": str(parts.path)}, "sampler": sampler})
    made = assemble.make_sampler(Request(config, parts))
    relation = next(iter(made.topologies))
    key = made.hop_key(1, (0, 13), 2, relation)
    assert key == draw_key(1, config.train.seed, 0, 13, 0, relation.draw_key(), 5)
    assert isinstance(made, ArraySampler) is (device == "cuda")
