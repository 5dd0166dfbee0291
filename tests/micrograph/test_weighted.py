"""Draws by weight and with replacement: as docs/inside/draws.md says, in the right proportions, and
the same wherever the nodes are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from cache_server.alias_table import LONGEST, fill_columns, write_tables
from cache_server.draw import GOLDEN, absorb_each, key_of, mix, variate
from cache_server.left_out import LeftOut
from hopper.errors import GraphError
from hopper.graph import GraphDirectory
from hopper.graph.layout import topology_file
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.weighted_sampler import ReplacementSampler, WeightedSampler
from hopper.partition import PartitionedGraph, partition_graph

EDGE = Relation("node", "edge", "node")
SEED = 9
NODES = 250


def make_lists(weights: Sequence[Sequence[float]], sources: int) -> Topology:
    """Make a topology whose destination i has neighbours 0, 1, ... with these weights."""
    degrees = np.array([len(row) for row in weights])
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    indices = np.concatenate([np.arange(n) for n in degrees]).astype(np.int64)
    largest = max(max(row, default=0.0) for row in weights)
    sums = [np.cumsum([max(1, math.floor(w / largest * 2**32)) for w in row]) for row in weights]
    degrees = np.concatenate((degrees, np.zeros(sources - degrees.size, np.int64)))
    indptr = np.concatenate((indptr, np.full(sources + 1 - indptr.size, indptr[-1])))
    all_sums = np.concatenate(sums).astype(np.int64)
    table = np.empty(all_sums.size, np.uint32)
    write_tables(all_sums, indptr, 0, sources, table)
    return Topology(
        indptr,
        indices,
        np.arange(indices.size),
        degrees,
        np.bincount(indices, minlength=sources),
        weight_sums=all_sums,
        alias_table=table,
    )


def make_sampler(
    topology: Topology,
    fanout: int,
    kind: type[NeighborSampler] = WeightedSampler,
    **options: bool,
) -> NeighborSampler:
    ids = np.arange(topology.in_degrees.size)
    return kind({EDGE: topology}, {"node": ids}, "node", [fanout], SEED, **options)


def make_columns(units: list[int]) -> tuple[int, list[int], list[int]]:
    """Make the columns of a list as docs/inside/draws.md says.

    Returns the capacity of a column, the units of each column that belong to its own position, and
    the position that has the rest of it.
    """
    degree, capacity = len(units), -(-sum(units) // len(units))
    light = [place for place in range(degree) if units[place] <= capacity]
    heavy = [place for place in range(degree) if units[place] > capacity]
    own_units, others, remaining = [0] * degree, [degree] * degree, list(units)
    column = light.pop(0)
    for _ in range(degree):
        own_units[column] = remaining[column]
        spare = capacity - remaining[column]
        if spare == 0:
            others[column] = column
        elif heavy:
            others[column] = heavy[0]
            remaining[heavy[0]] -= spare
        if heavy and remaining[heavy[0]] <= capacity:
            column = heavy.pop(0)
        elif light:
            column = light.pop(0)
    assert not light
    assert not heavy
    return capacity, own_units, others


def draw_by_specification(
    topology: Topology, node: int, fanout: int, left_out: Sequence[int], moment: tuple[int, int]
) -> tuple[list[int], float]:
    """Return the positions that a node draws, and the time of the next arrival, by the page."""
    first, last = topology.indptr[node : node + 2].tolist()
    assert topology.weight_sums is not None
    units = np.diff(topology.weight_sums[first:last].tolist(), prepend=0).tolist()
    remaining = [place for place in range(last - first) if place not in left_out]
    if len(remaining) <= fanout:
        return remaining, math.inf
    words = (SEED, *moment, 0, EDGE.draw_key(), node)
    key, arrivals = (key_of(word, *words) for word in (1, 11))
    drawn = [] if left_out else draw_by_columns(units, key, fanout)
    for i in range(len(drawn), fanout):
        excluded = {*drawn, *left_out}
        total = sum(units) - sum(units[place] for place in excluded)
        x = variate_of(key, 2**32 + i) * total >> 64
        for place in remaining:
            if place in excluded:
                continue
            if x < units[place]:
                break
            x -= units[place]
        drawn.append(place)
    total, time = sum(units[place] for place in remaining), 0.0
    for i, place in enumerate([*drawn, None]):
        u = ((variate_of(arrivals, i) >> 11) + 0.5) * 2.0**-53
        time -= math.log(u) / total
        total -= units[place] if place is not None else 0
    return drawn, time


def draw_by_columns(units: list[int], key: int, fanout: int) -> list[int]:
    """Return the positions that a list's columns give, by the page."""
    drawn: list[int] = []
    if len(units) > LONGEST:
        return drawn
    capacity, own_units, others = make_columns(units)
    for first_attempt in itertools.count(0, 16):
        count_before = len(drawn)
        for attempt in range(first_attempt, first_attempt + 16):
            product = variate_of(key, attempt) * len(units)
            column, unit = product >> 64, (product % 2**64) * capacity >> 64
            place = column if unit < own_units[column] else others[column]
            if place < len(units) and place not in drawn:
                drawn.append(place)
                if len(drawn) == fanout:
                    return drawn
        if len(drawn) == count_before:
            break
    return drawn


def variate_of(key: int, counter: int) -> int:
    return int(variate(np.uint64(key), np.uint64(counter)))


def random_lists(seed: int, nodes: int) -> list[list[float]]:
    """Weights over many orders of magnitude, and some that are all the same."""
    generator = np.random.default_rng(seed)
    return [
        np.exp(generator.normal(0, generator.integers(0, 9), generator.integers(0, 60)))
        .astype(np.float32)
        .tolist()
        for _ in range(nodes)
    ]


@pytest.mark.parametrize("fanout", [1, 3, 10, 50])
@pytest.mark.parametrize("with_left_out", [False, True])
def test_draws_are_as_specified(fanout: int, with_left_out: bool) -> None:
    lists = random_lists(fanout, NODES)
    topology = make_lists(lists, NODES)
    sampler = make_sampler(topology, fanout, unbiased=True)
    left_out_places: list[list[int]] = [[] for _ in lists]
    if with_left_out:
        generator = np.random.default_rng(1)
        left_out_places = [
            sorted(generator.choice(len(row), generator.integers(0, len(row) + 1), False).tolist())
            for row in lists
        ]
        places = np.array(list(itertools.chain(*left_out_places)), np.int64)
        bounds = np.cumsum([0, *map(len, left_out_places)])
        left_out = LeftOut(np.arange(NODES), bounds, places)
        sampler.left_out = lambda moment: {EDGE: left_out}
    nodes = np.random.default_rng(2).permutation(NODES)
    subgraph = sampler.sample(nodes, 4, 7)
    (edges,) = subgraph.hops[0].values()
    (block,) = subgraph.blocks()
    inverse = block.inverse_probability(torch.float64).numpy()
    for row, node in enumerate(nodes.tolist()):
        edges_of_node = slice(edges.indptr[row], edges.indptr[row + 1])
        drawn, time = draw_by_specification(topology, node, fanout, left_out_places[node], (4, 7))
        assert edges.positions[edges_of_node].tolist() == drawn
        first = topology.indptr[node]
        assert topology.weight_sums is not None
        units = np.diff(topology.weight_sums[first : first + len(lists[node])], prepend=0)[drawn]
        expected_inverse = (
            1.0 / -np.expm1(-units * time) if math.isfinite(time) else np.ones(len(drawn))
        )
        np.testing.assert_allclose(inverse[edges_of_node], expected_inverse, rtol=1e-9)


@pytest.mark.parametrize("spread", [0, 1, 8, 30])
def test_every_edge_has_as_many_units_of_columns_as_it_weighs(spread: int) -> None:
    generator = np.random.default_rng(spread)
    for degree in (1, 2, 3, 17, 64, 400):
        units = np.maximum(1, np.exp2(32 - generator.exponential(spread, degree))).astype(np.int64)
        own_units, others = np.empty(degree, np.int64), np.empty(degree, np.int64)
        capacity = fill_columns(np.cumsum(units), 0, degree, own_units, others)
        columns = make_columns(units.tolist())
        assert (capacity, own_units.tolist(), others.tolist()) == columns
        shares = np.bincount(np.arange(degree), own_units, degree + 1)
        shares += np.bincount(others, capacity - own_units, degree + 1)
        np.testing.assert_array_equal(shares[:-1], units)
        # Less than a unit a column is nobody's.
        assert 0 <= shares[-1] == degree * capacity - units.sum() < degree


def test_draws_that_16_bits_cannot_decide_read_the_exact_sums() -> None:
    """The share of a column is stored in 16 bits, and a few of these draws need more of them."""
    nodes, fanout = 20_000, 2
    topology = make_equal_lists([5.0, 1.0, 3.0], nodes)
    sampler = make_sampler(topology, fanout)
    assert topology.alias_table is not None
    shares, undecided = topology.alias_table[:3] >> 16, 0
    for iteration in range(20):
        (edges,) = sampler.sample(np.arange(nodes), 0, iteration).hops[0].values()
        drawn = edges.positions.reshape(nodes, fanout).tolist()
        hop = np.uint64(key_of(1, SEED, 0, iteration, 0, EDGE.draw_key()))
        keys = absorb_each(hop, np.arange(nodes))
        first = mix.py_func(keys + np.uint64(GOLDEN))
        assert int(first[7]) == variate_of(int(keys[7]), 0)
        # The high words of products with 3, and the 16 bits below them.
        product = (first >> np.uint64(32)) * np.uint64(3)
        product += (first % np.uint64(2**32)) * np.uint64(3) >> np.uint64(32)
        share = shares[product >> np.uint64(32)]
        for node in np.flatnonzero((product >> np.uint64(16)) % np.uint64(2**16) == share).tolist():
            undecided += 1
            assert (
                drawn[node] == draw_by_specification(topology, node, fanout, [], (0, iteration))[0]
            )
    assert undecided > 0


def test_lists_without_a_table_are_drawn_as_specified() -> None:
    generator = np.random.default_rng(8)
    weights = np.exp(generator.normal(0, 1, LONGEST + 1)).tolist()
    for length in (LONGEST, LONGEST + 1):
        topology = make_lists([weights[:length]], length)
        (edges,) = make_sampler(topology, 20).sample(np.array([0]), 2, 3).hops[0].values()
        assert edges.positions.tolist() == draw_by_specification(topology, 0, 20, [], (2, 3))[0]


def make_equal_lists(weights: Sequence[float], nodes: int) -> Topology:
    return make_lists([weights] * nodes, nodes)


def sample_positions(sampler: NeighborSampler, nodes: int) -> NDArray[np.int64]:
    """[nodes, drawn]"""
    (edges,) = sampler.sample(np.arange(nodes), 0, 0).hops[0].values()
    return edges.positions.reshape(nodes, -1)


def test_sets_are_drawn_as_often_as_successive_draws_make_them() -> None:
    weights, nodes = [5.0, 1.0, 3.0, 0.5, 2.0], 30_000
    drawn = sample_positions(make_sampler(make_equal_lists(weights, nodes), 2), nodes)
    pairs = list(itertools.permutations(range(5), 2))
    total = sum(weights)
    chances = [weights[a] / total * weights[b] / (total - weights[a]) for a, b in pairs]
    counts = [int(((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum()) for a, b in pairs]
    assert sum(counts) == nodes
    assert stats.chisquare(counts, np.array(chances) * nodes).pvalue > 1e-4


def test_equal_weights_are_equally_likely() -> None:
    nodes = 20_000
    drawn = sample_positions(make_sampler(make_equal_lists([0.3] * 7, nodes), 3), nodes)
    counts = np.bincount(np.sort(drawn, 1) @ [49, 7, 1])
    counts = counts[counts > 0]
    assert counts.size == math.comb(7, 3)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("weighted", [False, True])
def test_with_replacement_each_draw_is_from_all(weighted: bool) -> None:
    weights, nodes = [5.0, 1.0, 3.0, 0.5], 20_000
    topology = make_equal_lists(weights, nodes)
    sampler = (
        make_sampler(topology, 6, replace=True)
        if weighted
        else make_sampler(topology, 6, ReplacementSampler)
    )
    drawn = sample_positions(sampler, nodes)
    assert drawn.shape == (nodes, 6)
    chances = np.array(weights) / sum(weights) if weighted else np.full(4, 0.25)
    for column in drawn.T:
        counts = np.bincount(column, minlength=4)
        assert stats.chisquare(counts, chances * nodes).pvalue > 1e-4
    # Independent of each other.
    pairs = np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16)
    assert stats.chisquare(pairs, np.outer(chances, chances).ravel() * nodes).pvalue > 1e-4


def test_edges_left_out_are_never_drawn_with_replacement() -> None:
    weights, nodes = [5.0, 1.0, 3.0, 0.5], 5_000
    places = np.tile([0, 2], nodes)
    left_out = LeftOut(np.arange(nodes), np.arange(0, 2 * nodes + 1, 2), places)
    for weighted in (False, True):
        topology = make_equal_lists(weights, nodes)
        sampler = (
            make_sampler(topology, 4, replace=True)
            if weighted
            else make_sampler(topology, 4, ReplacementSampler)
        )
        sampler.left_out = lambda moment: {EDGE: left_out}
        counts = np.bincount(sample_positions(sampler, nodes).ravel(), minlength=4)
        assert counts[0] == counts[2] == 0
        chances = np.array([2, 1]) / 3 if weighted else np.full(2, 0.5)
        assert stats.chisquare(counts[[1, 3]], chances * 4 * nodes).pvalue > 1e-4


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_weighted_sums_have_sums_over_all_as_their_expectation(
    replace: bool, spread: float
) -> None:
    generator = np.random.default_rng(3)
    weights = np.exp(generator.normal(0, spread, 12)).tolist()
    values, nodes = torch.from_numpy(generator.normal(2.0, 1.0, 12)), 60_000
    # In proportion to the weights, as who draws by them hopes, and otherwise.
    values = values * torch.tensor(weights).double().sqrt()
    sampler = make_sampler(make_equal_lists(weights, nodes), 4, unbiased=True, replace=replace)
    (block,) = sampler.sample(np.arange(nodes), 0, 0).blocks()
    products = block.inverse_probability(torch.float64) * values[block.positions]
    sums = products.view(nodes, -1).sum(1)
    error = sums.std() / math.sqrt(nodes)
    assert abs(float(sums.mean() - values.sum())) < 4.5 * float(error)
    # Draws without replacement know the sum of all weights no better than their number says.
    assert float(error) < 0.05 * float(values.sum().abs())


def test_draws_do_not_depend_on_the_partition(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    edges = generator.integers(0, 200, (2, 3000))
    GraphDirectory.from_arrays(
        tmp_path / "graph",
        edges,
        labels=np.zeros(200, np.int64),
        edge_weights=np.exp(generator.normal(0, 2, 3000)),
    )
    graph, results = GraphDirectory.open(tmp_path / "graph"), []
    for servers, topology in ((1, "replicated"), (3, "replicated"), (2, "partitioned")):
        parts = tmp_path / f"{servers}-{topology}"
        partition_graph(graph, parts, servers, "random", seed=servers, topology=topology)
        partitioned = PartitionedGraph.open(parts)
        sampler = WeightedSampler(
            {EDGE: partitioned.topology(EDGE)},
            {"node": partitioned.original_ids("node")},
            "node",
            [5, 3],
            SEED,
            unbiased=True,
        )
        roots = partitioned.global_ids("node")[np.arange(40)]
        subgraph = sampler.sample(np.asarray(roots), 1, 2)
        blocks = subgraph.blocks()
        names = partitioned.original_ids("node")[subgraph.nodes["node"]]
        results.append(
            (
                names,
                *(np.asarray(block.positions) for block in blocks),
                *(block.inverse_probability(torch.float64).numpy() for block in blocks),
            )
        )
    assert len(results[0][0]) > 100
    for result in results[1:]:
        for expected_array, array in zip(results[0], result, strict=True):
            np.testing.assert_array_equal(expected_array, array)


def test_a_graph_that_was_divided_without_tables_is_refused(tmp_path: Path) -> None:
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        np.array([[0, 1, 2], [1, 2, 0]]),
        labels=np.zeros(3, np.int64),
        edge_weights=np.ones(3),
    )
    partition_graph(graph, tmp_path / "parts", 1, "random")
    partitioned = PartitionedGraph.open(tmp_path / "parts")
    (relation,) = partitioned.schema.relations
    file = topology_file(tmp_path / "parts", relation, "alias_table")
    file.unlink()
    with pytest.raises(GraphError, match=r"alias_table.npy: .*missing file.* divide it again with"):
        partitioned.topology(relation)
