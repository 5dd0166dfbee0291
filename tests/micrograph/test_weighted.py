"""Sums over draws by weight are unbiased, and the same wherever the nodes are."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from cache_server.draws.spec import ExcludedEdges
from hopper.errors import GraphError
from hopper.graph import GraphDirectory, Relation, Topology
from hopper.graph.layout import topology_file
from hopper.micrograph.weighted_sampler import WeightedSampler, weigh_drawn
from hopper.partition import partition_graph
from hopper.partition.write_topology import add_up_weights

EDGE = Relation("node", "edge", "node")


def make_sampler(
    weights: Sequence[float], nodes: int, fanout: int, *, unbiased: bool, replace: bool
) -> WeightedSampler:
    """A sampler of nodes that all have neighbors 0, 1, ... with these weights."""
    degree = len(weights)
    all_weights = np.tile(np.array(weights, np.float32), nodes)
    indptr = np.arange(nodes + 1) * degree
    topology = Topology(
        indptr,
        np.tile(np.arange(degree), nodes),
        np.arange(all_weights.size),
        np.full(nodes, degree),
        np.bincount(np.tile(np.arange(degree), nodes), minlength=nodes),
        cumulative_weights=add_up_weights(all_weights, max(weights), indptr),
    )
    graph = {EDGE: topology}, {"node": np.arange(nodes)}, "node"
    return WeightedSampler(*graph, [fanout], 9, unbiased=unbiased, replace=replace)


def possible_draws(
    units: Sequence[int], fanout: int, replace: bool, excluded: Sequence[int]
) -> Iterator[tuple[list[int], float]]:
    """Iterate over all ordered draws, with their probabilities."""
    places = [place for place in range(len(units)) if place not in excluded]
    for drawn in itertools.product(places, repeat=fanout):
        if not replace and len(set(drawn)) < fanout:
            continue
        chance, left = 1.0, sum(units[place] for place in places)
        for place in drawn:
            chance *= units[place] / left
            left -= 0 if replace else units[place]
        yield list(drawn), chance


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("excluded", [[], [0, 3]])
def test_sums_over_draws_have_the_sum_over_all_as_their_expectation(replace, excluded):
    """Exactly, over all possible draws: of one edge alone as of any sum."""
    units, fanout = [700, 40, 3, 210, 1000, 99], 3
    draws, chances = zip(*possible_draws(units, fanout, replace, excluded), strict=True)
    assert sum(chances) == pytest.approx(1, abs=1e-12)
    places = np.array(excluded, np.int64)
    bounds, none = np.array([0, len(excluded)]), np.empty(0, np.int64)
    counts = weigh_drawn(
        np.array([0, len(units)]),
        np.cumsum(units).astype(np.int32),
        np.zeros(len(draws), np.int64),
        np.arange(len(draws) + 1) * fanout,
        np.array(draws).ravel(),
        fanout,
        replace,
        ExcludedEdges(np.array([0]), bounds, places, none, none),
    ).reshape(-1, fanout)
    expectation = np.zeros(len(units))
    for column in range(fanout):
        np.add.at(expectation, np.array(draws)[:, column], counts[:, column] * np.array(chances))
    exact = [0.0 if place in excluded else 1.0 for place in range(len(units))]
    np.testing.assert_allclose(expectation, exact, atol=1e-12)


@pytest.mark.parametrize("replace", [False, True])
def test_edges_in_another_order_count_what_they_counted(replace):
    generator, nodes = np.random.default_rng(3), 500
    weights = np.exp(generator.normal(0, 1, 12)).tolist()
    sampler = make_sampler(weights, nodes, 4, unbiased=True, replace=replace)
    subgraph = sampler.sample(np.arange(nodes), 0, 0)
    (block,), (other,) = subgraph.blocks(), subgraph.shuffled(generator).blocks()
    assert not torch.equal(other.positions, block.positions)
    sums = [
        torch.bincount(
            each.destinations() * 12 + each.positions, each.inverse_probability(torch.float64)
        )
        for each in (block, other)
    ]
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
def test_units_are_in_proportion_to_weights(spread):
    weights = np.exp(np.random.default_rng(5).normal(0, spread, 5000)).astype(np.float32)
    bounds = np.array([0, 0, 3, 4, 2000, 5000])
    sums = add_up_weights(weights, float(weights.max()), bounds)
    assert sums.dtype == np.int32
    for start, stop in itertools.pairwise(bounds.tolist()):
        fine = np.floor(weights[start:stop].astype(float) / weights.max() * 2.0**32)
        units = np.diff(sums[start:stop], prepend=0)
        if not units.size:
            continue
        assert units.min() >= 1
        assert 2**31 - 1 - 2 * units.size < units.sum() < 2**31
        # Weights below 2^-32 of the largest are rounded up.
        shares = np.maximum(fine, 1) / np.maximum(fine, 1).sum()
        np.testing.assert_allclose(units / 2.0**31, shares, rtol=1e-5, atol=2.0**-30)


def test_draws_do_not_depend_on_the_partition(tmp_path):
    generator = np.random.default_rng(4)
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        generator.integers(0, 200, (2, 3000)),
        labels=np.zeros(200, np.int64),
        edge_weights=np.exp(generator.normal(0, 2, 3000)),
    )
    results = []
    for servers, topology in ((1, "replicated"), (2, "partitioned")):
        out = tmp_path / topology
        parts = partition_graph(graph, out, servers, "random", topology=topology)
        ids = parts.original_ids("node")
        arguments = {EDGE: parts.topology(EDGE)}, {"node": ids}, "node"
        sampler = WeightedSampler(*arguments, [5, 3], 9, unbiased=True)
        subgraph = sampler.sample(parts.global_ids("node")[:40], 1, 2)
        blocks = subgraph.blocks()
        inverses = [block.inverse_probability(torch.float64).numpy() for block in blocks]
        positions = [np.asarray(block.positions) for block in blocks]
        results.append((ids[subgraph.nodes["node"]], *positions, *inverses))
    assert len(results[0][0]) > 100
    for expected, array in zip(*results, strict=True):
        np.testing.assert_array_equal(expected, array)
    topology_file(parts.path / "server-0", EDGE, "cumulative_weights").unlink()
    with pytest.raises(GraphError, match=r"cumulative_weights.npy: .*missing file"):
        parts.topology(EDGE, 0)
