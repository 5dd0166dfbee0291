"""Draws that leave edges out equal those of lists without them, but for the positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from cache_server.left_out import LeftOut, leave_out
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.micrograph.sample import NeighborSampler

NODES = 30
RELATION = Relation("item", "near", "item")


def make_topology(seed: int, original_ids: np.ndarray) -> Topology:
    """Make random in-edges, parallel ones included, in order of original id."""
    generator = np.random.default_rng(seed)
    lists = []
    for _ in range(NODES):
        sources = generator.integers(0, NODES, generator.integers(0, 14))
        lists.append(sources[np.argsort(original_ids[sources], kind="stable")])
    counts = np.array([sources.size for sources in lists])
    indices = np.concatenate([*lists, np.empty(0, np.int64)]).astype(np.int64)
    return Topology(
        indptr=np.concatenate(([0], np.cumsum(counts))),
        indices=indices,
        edge_ids=np.arange(indices.size),
        in_degrees=counts,
        out_degrees=np.bincount(indices, minlength=NODES),
    )


def make_sampler(topology: Topology, original_ids: np.ndarray, fanout: int) -> NeighborSampler:
    return NeighborSampler({RELATION: topology}, {"item": original_ids}, "item", [fanout], 5)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([-1, 1, 3, 5]), st.integers(0, 40))
def test_draws_equal_those_of_lists_without_the_edges(seed: int, fanout: int, pairs: int) -> None:
    generator = np.random.default_rng(seed)
    original_ids = generator.permutation(NODES)
    topology = make_topology(seed, original_ids)
    src, dst = generator.integers(0, NODES, (2, pairs))
    left_out = leave_out(topology.indptr, topology.indices, original_ids, src, dst)
    left_out_edges = set(zip(src.tolist(), dst.tolist(), strict=True))
    remaining = [
        [
            place
            for place in range(topology.in_degrees[node])
            if (int(topology.indices[topology.indptr[node] + place]), node) not in left_out_edges
        ]
        for node in range(NODES)
    ]
    counts = np.array([len(places) for places in remaining])
    indices = np.concatenate(
        [
            topology.indices[topology.indptr[node] + np.array(remaining[node], np.int64)]
            for node in range(NODES)
        ]
    )
    smaller = Topology(
        indptr=np.concatenate(([0], np.cumsum(counts))),
        indices=indices,
        edge_ids=np.arange(indices.size),
        in_degrees=counts,
        out_degrees=np.bincount(indices, minlength=NODES),
    )
    sampler = make_sampler(topology, original_ids, fanout)
    sampler.left_out = lambda _: {RELATION: left_out}
    nodes = generator.permutation(NODES)
    offsets, sources, positions = sampler.draw(0, RELATION, nodes, (1, 2))
    expected = make_sampler(smaller, original_ids, fanout).draw(0, RELATION, nodes, (1, 2))
    np.testing.assert_array_equal(offsets, expected[0])
    np.testing.assert_array_equal(sources, expected[1])
    owners = np.repeat(nodes, np.diff(offsets))
    expected_positions = [
        remaining[node][place] for node, place in zip(owners, expected[2], strict=True)
    ]
    np.testing.assert_array_equal(positions, np.array(expected_positions, np.int64))


def test_the_remaining_edges_are_drawn_evenly() -> None:
    original_ids = np.arange(NODES)
    topology = Topology(
        indptr=np.array([0, 12] + [12] * (NODES - 1)),
        indices=np.arange(12),
        edge_ids=np.arange(12),
        in_degrees=np.array([12] + [0] * (NODES - 1)),
        out_degrees=np.ones(NODES, np.int64),
    )
    sampler = make_sampler(topology, original_ids, 3)
    left_out = LeftOut(np.array([0]), np.array([0, 3]), np.array([0, 5, 11]))
    sampler.left_out = lambda _: {RELATION: left_out}
    counts = np.zeros(12, np.int64)
    for iteration in range(3000):
        counts[sampler.draw(0, RELATION, np.array([0]), (0, iteration))[1]] += 1
    assert not counts[[0, 5, 11]].any()
    assert chisquare(np.delete(counts, [0, 5, 11])).pvalue > 1e-3
