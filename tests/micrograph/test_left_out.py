"""Draws without some edges: as of lists that never had them, with positions of the whole lists."""

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


def make_topology(seed: int, originals: np.ndarray) -> Topology:
    """Random in-edges, parallel ones included, in order of original id."""
    generator = np.random.default_rng(seed)
    lists = []
    for _ in range(NODES):
        sources = generator.integers(0, NODES, generator.integers(0, 14))
        lists.append(sources[np.argsort(originals[sources], kind="stable")])
    counts = np.array([each.size for each in lists])
    indices = np.concatenate([*lists, np.empty(0, np.int64)]).astype(np.int64)
    return Topology(
        indptr=np.concatenate(([0], np.cumsum(counts))),
        indices=indices,
        edge_ids=np.arange(indices.size),
        in_degrees=counts,
        out_degrees=np.bincount(indices, minlength=NODES),
    )


def make_sampler(topology: Topology, originals: np.ndarray, fanout: int) -> NeighborSampler:
    return NeighborSampler({RELATION: topology}, {"item": originals}, "item", [fanout], 5)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([-1, 1, 3, 5]), st.integers(0, 40))
def test_draws_are_those_of_lists_without_the_edges(seed: int, fanout: int, pairs: int) -> None:
    generator = np.random.default_rng(seed)
    originals = generator.permutation(NODES)
    topology = make_topology(seed, originals)
    src, dst = generator.integers(0, NODES, (2, pairs))
    left_out = leave_out(topology.indptr, topology.indices, originals, src, dst)
    gone = set(zip(src.tolist(), dst.tolist(), strict=True))
    kept = [
        [
            place
            for place in range(topology.in_degrees[node])
            if (int(topology.indices[topology.indptr[node] + place]), node) not in gone
        ]
        for node in range(NODES)
    ]
    counts = np.array([len(each) for each in kept])
    indices = np.concatenate(
        [
            topology.indices[topology.indptr[node] + np.array(kept[node], np.int64)]
            for node in range(NODES)
        ]
    )
    fewer = Topology(
        indptr=np.concatenate(([0], np.cumsum(counts))),
        indices=indices,
        edge_ids=np.arange(indices.size),
        in_degrees=counts,
        out_degrees=np.bincount(indices, minlength=NODES),
    )
    sampler = make_sampler(topology, originals, fanout)
    sampler.left_out = lambda _: {RELATION: left_out}
    nodes = generator.permutation(NODES)
    offsets, sources, positions = sampler.draw(0, RELATION, nodes, (1, 2))
    expected = make_sampler(fewer, originals, fanout).draw(0, RELATION, nodes, (1, 2))
    np.testing.assert_array_equal(offsets, expected[0])
    np.testing.assert_array_equal(sources, expected[1])
    owners = np.repeat(nodes, np.diff(offsets))
    whole = [kept[node][place] for node, place in zip(owners, expected[2], strict=True)]
    np.testing.assert_array_equal(positions, np.array(whole, np.int64))


def test_what_is_left_is_drawn_evenly() -> None:
    originals = np.arange(NODES)
    topology = Topology(
        indptr=np.array([0, 12] + [12] * (NODES - 1)),
        indices=np.arange(12),
        edge_ids=np.arange(12),
        in_degrees=np.array([12] + [0] * (NODES - 1)),
        out_degrees=np.ones(NODES, np.int64),
    )
    sampler = make_sampler(topology, originals, 3)
    left_out = LeftOut(np.array([0]), np.array([0, 3]), np.array([0, 5, 11]))
    sampler.left_out = lambda _: {RELATION: left_out}
    counts = np.zeros(12, np.int64)
    for iteration in range(3000):
        counts[sampler.draw(0, RELATION, np.array([0]), (0, iteration))[1]] += 1
    assert not counts[[0, 5, 11]].any()
    assert chisquare(np.delete(counts, [0, 5, 11])).pvalue > 1e-3
