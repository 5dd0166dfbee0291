"""Inverse inclusion probabilities of every sampler: what they are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopper.graph import Relation, Topology, build_topology
from hopper.graph.block import Block
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler, inverse_probabilities, make_thresholds
from hopper.micrograph.sample import NeighborSampler

EDGE = Relation("node", "edge", "node")
NODES = 50


@pytest.fixture(scope="module")
def topology() -> Topology:
    """50 nodes, 500 edges whose sources are skewed; node 49 has no in-edge."""
    generator = np.random.default_rng(2)
    src = (NODES * generator.random(500) ** 2).astype(np.int64)
    return build_topology(src, generator.integers(0, NODES - 1, 500), NODES, NODES)


def make_sampler(
    sampler_class: type[NeighborSampler], topology: Topology, sizes: list[int]
) -> NeighborSampler:
    nodes = topology.in_degrees.size
    return sampler_class({EDGE: topology}, {"node": np.arange(nodes)}, "node", sizes, 3)


def whole_block(sampler: NeighborSampler, iteration: int) -> Block:
    """The block of all nodes, in order."""
    roots = np.arange(sampler.original_ids["node"].size)
    (block,) = sampler.sample(roots, 0, iteration).blocks()
    return block


def probabilities(
    kind: type[NeighborSampler], topology: Topology, size: int
) -> NDArray[np.float64]:
    """[destinations, sources] of edges, by the formulas of docs/howto/samplers.md in floats."""
    degrees = np.maximum(1, topology.in_degrees)
    if kind is not LayerSampler:
        return np.broadcast_to(np.minimum(1, size / degrees)[:, None], (NODES, NODES))
    table = np.zeros((NODES, NODES))
    np.add.at(table, (topology.list_destinations(), topology.indices), 1)
    norms = (table / (topology.in_degrees + 1)[:, None]).sum(0) / (topology.out_degrees + 1)
    return np.broadcast_to(np.minimum(1, size * norms / norms.sum()), (NODES, NODES))


every_kind = pytest.mark.parametrize(
    ("kind", "size"), [(NeighborSampler, 3), (LayerSampler, 15), (LaborSampler, 3)]
)


@every_kind
def test_inverse_probabilities_equal_the_documented_formulas(topology, kind, size):
    block = whole_block(make_sampler(kind, topology, [size]), 0)
    sources, heads = block.src.original[block.indices], block.destinations()
    inverse = block.inverse_probability(torch.float64)
    chances = probabilities(kind, topology, size)[heads, sources]
    np.testing.assert_allclose(inverse, 1 / chances, rtol=1e-6)
    assert block.inverse_probability(torch.float32).dtype == torch.float32
    assert block.equally_likely is (kind is not LayerSampler)
    # Nodes drawn twice as often count half as much, whoever asks.
    moved = block.to(torch.device("meta"))
    assert moved.equally_likely is block.equally_likely
    assert moved.draws_a_fixed_number is block.draws_a_fixed_number is (kind is NeighborSampler)
    assert moved.inverse_probability(torch.float64).shape == inverse.shape
    # Weights of means are in proportion to them, and add up to one.
    weights = block.mean_weights(torch.float64)
    np.testing.assert_allclose(np.bincount(heads, weights, NODES), block.sampled_degree() > 0)
    ratio = (weights / inverse).numpy()
    np.testing.assert_allclose(ratio, ratio[block.indptr[:-1][heads]])


@every_kind
def test_all_neighbours_count_once(topology, kind, size):
    # -1, a size that nothing exceeds, and no edges at all.
    for most in (-1, 1 << 40):
        block = whole_block(make_sampler(kind, topology, [most]), 0)
        assert block.num_edges == topology.indices.size
        assert (block.inverse_probability(torch.float64) == 1).all()
    empty = np.empty(0, np.int64)
    block = whole_block(make_sampler(kind, build_topology(empty, empty, 4, 4), [size]), 0)
    assert block.inverse_probability(torch.float64).shape == (0,)
    assert block.mean_weights(torch.float32).shape == (0,)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=30), st.integers(1, 1 << 40))
def test_thresholds_of_any_weights(weights, size):
    """The 64-bit product never wraps, and the probability is as specified."""
    _, factor, certain = make_thresholds(size, np.array(weights, np.uint32))
    total, numbers = sum(weights), np.arange(len(weights))
    limits = np.uint64(factor), np.uint64(certain)
    inverse = inverse_probabilities(np.array(weights, np.uint32), numbers, *limits)
    for weight, inverse_probability in zip(weights, inverse, strict=True):
        is_drawn = weight > 0 and weight * size < total
        assert not is_drawn or weight * int(factor) < 1 << 64
        expected = total / (weight * size) if is_drawn else 1
        assert inverse_probability == pytest.approx(expected, rel=1e-6)


def test_the_first_nodes_of_a_block_keep_their_keys(topology):
    """The first nodes keep key, degrees and ids, also after a copy to another device."""
    block = whole_block(make_sampler(NeighborSampler, topology, [4]), 0).with_dropout_key(77)
    for nodes, count in ((block.src, block.num_src // 2), (block.dst, block.num_dst // 2)):
        first_nodes = nodes.first(count)
        for copy in (first_nodes, first_nodes.to(torch.device("meta"))):
            assert (copy.count, copy.iteration_key) == (count, 77)
            assert copy.degree is not None
            assert copy.original.shape == copy.degree.shape == (count,)
        assert torch.equal(first_nodes.original, nodes.original[:count])
