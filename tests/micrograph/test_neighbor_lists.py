"""All methods of drawing from neighbor lists: one suite that each of them passes.

A draw is compared with docs/inside/draws.md in plain Python. It depends on the node's own list
alone, and a list that lacks edges is drawn from as if these did not exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from cache_server.draws.counter import NEIGHBORS, draw_key
from cache_server.draws.kernels import draw_uniformly
from cache_server.draws.neighbor_lists import NOTHING, NeighborLists
from cache_server.draws.spec import METHODS, ExcludedEdges, Method, SamplingSpec
from cache_server.kernel import read_only
from tests.micrograph import reference

NODES, RELATION_KEY = 40, 77
every_method = pytest.mark.parametrize("method", METHODS)


@dataclass
class Edges:
    """Edges in order of destination and of the sources' original ids, by destination."""

    sources: list[list[int]]
    units: list[list[int]]
    times: list[list[int]]

    def without(self, places: Sequence[Sequence[int]]) -> Edges:
        """Return the edges that are left without some places of each list."""

        def keep(lists: list[list[int]]) -> list[list[int]]:
            return [
                [value for place, value in enumerate(row) if place not in gone]
                for row, gone in zip(lists, places, strict=True)
            ]

        return Edges(keep(self.sources), keep(self.units), keep(self.times))

    def lists(self, ids: NDArray[np.int64]) -> NeighborLists:
        """Make the lists. ``ids`` are the original ids; sources are given as original ids."""
        rows = [self.sources[original] for original in ids]
        global_ids = np.argsort(ids)
        order = [np.argsort(self.times[original], kind="stable") for original in ids]
        times = [np.array(self.times[o])[by] for o, by in zip(ids, order, strict=True)]
        sums = [np.cumsum(self.units[original]) for original in ids]
        return NeighborLists(
            np.cumsum([0, *map(len, rows)]),
            global_ids[np.array(list(itertools.chain(*rows)), np.int64)],
            ids,
            ids,
            np.concatenate(sums).astype(np.int32),
            np.concatenate(times).astype(np.int64),
            np.concatenate(order).astype(np.int64),
        )


def make_edges(seed: int, longest: int = 25) -> Edges:
    """Random lists with parallel edges, ties of times, and weights of many magnitudes."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, longest, NODES)
    sources = [np.sort(generator.integers(0, NODES, size)).tolist() for size in sizes]
    units = [
        np.exp2(generator.uniform(0, generator.integers(1, 24), size)).astype(int).tolist()
        for size in sizes
    ]
    return Edges(sources, units, [generator.integers(0, 12, size).tolist() for size in sizes])


def times_of(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    return nodes * 7 % 15


def draw(
    edges: Edges,
    ids: NDArray[np.int64],
    originals: NDArray[np.int64],
    spec: SamplingSpec,
    gone: Sequence[Sequence[int]] | None = None,
) -> list[list[tuple[int, int]]]:
    """Return (position, source) of each node's draws, in original ids."""
    lists, nodes = edges.lists(ids), np.argsort(ids)[originals]
    excluded, until = NOTHING, times_of(originals)
    if gone is not None:
        places = [gone[original] for original in ids]
        bounds = np.cumsum([0, *map(len, places)])
        flat, none = np.array(list(itertools.chain(*places)), np.int64), np.empty(0, np.int64)
        excluded = ExcludedEdges(np.arange(NODES), bounds, flat, none, none)
        excluded = lists.in_time(excluded) if spec.in_time else excluded
    offsets, sources, positions = lists.draw(nodes, spec, excluded, until)
    pairs = list(zip(positions.tolist(), ids[sources].tolist(), strict=True))
    return [pairs[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]


def expected(
    edges: Edges, node: int, method: Method, fanout: int, moment: Any, k: int
) -> list[int]:
    """Return the positions that a node draws, by the page."""
    sources, units, times = edges.sources[node], edges.units[node], edges.times[node]
    key = reference.node_key(NEIGHBORS, moment, node, dependence=k)
    degree, until = len(sources), int(times_of(np.array(node)))
    there = sorted(range(degree), key=lambda place: times[place])
    there = [place for place in there if times[place] <= until]
    if method == "recent":
        return there[::-1][: len(there) if fanout < 0 else fanout]
    if method == "temporal":
        count = len(there) if fanout < 0 else min(fanout, len(there))
        places = reference.positions(reference.absorb(key, until), len(there), count)
        return [there[place] for place in places]
    if fanout < 0:
        return list(range(degree))
    if method == "labor":
        keys = [reference.node_key(NEIGHBORS, moment, u, dependence=k) for u in sources]
        shared = [reference.below(reference.variate(of, 0), max(1, degree)) for of in keys]
        return [place for place, x in enumerate(shared) if x < fanout]
    if method == "replacement":
        count = fanout if degree else 0
        return [reference.below(reference.variate(key, i), degree) for i in range(count)]
    if method == "uniform":
        return reference.positions(key, degree, min(degree, fanout))
    return reference.by_weight(key, units, fanout, method == "weighted_replacement")


@every_method
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), fanout=st.sampled_from([-1, 1, 3, 10]), k=st.integers(1, 4))
def test_draws_are_as_specified_under_any_numbering(method, seed, fanout, k):
    generator, edges = np.random.default_rng(seed), make_edges(seed)
    moment = (3, 1, seed % 9, 1, RELATION_KEY)
    spec = SamplingSpec(method, fanout, draw_key(NEIGHBORS, *moment, k))
    originals = generator.permutation(NODES)[: generator.integers(0, NODES)]
    drawn = draw(edges, generator.permutation(NODES), originals, spec)
    for node, pairs in zip(originals.tolist(), drawn, strict=True):
        places = expected(edges, node, method, fanout, moment, k)
        assert [place for place, _ in pairs] == places
        assert [source for _, source in pairs] == [edges.sources[node][place] for place in places]


@pytest.mark.parametrize("method", [method for method in METHODS if method != "labor"])
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), fanout=st.sampled_from([-1, 1, 3, 10]))
def test_draws_equal_those_of_lists_without_the_excluded_edges(method, seed, fanout):
    generator, edges = np.random.default_rng(seed), make_edges(seed)
    gone = [
        sorted(generator.choice(len(row), generator.integers(0, len(row) + 1), False).tolist())
        for row in edges.sources
    ]
    spec = SamplingSpec(method, fanout, draw_key(NEIGHBORS, 3, 1, 2, 0, RELATION_KEY))
    ids, nodes = generator.permutation(NODES), np.arange(NODES)
    drawn = draw(edges, ids, nodes, spec, gone)
    from_less = draw(edges.without(gone), ids, nodes, spec)
    for node in nodes:
        left = [place for place in range(len(edges.sources[node])) if place not in gone[node]]
        assert drawn[node] == [(left[place], source) for place, source in from_less[node]]


def test_edges_between_pairs_are_found():
    generator = np.random.default_rng(1)
    edges, ids = make_edges(1), generator.permutation(NODES)
    lists, (src, dst) = edges.lists(ids), generator.integers(0, NODES, (2, 300))
    excluded = lists.exclude(src, dst)
    pairs = set(zip(src.tolist(), dst.tolist(), strict=True))
    assert set(zip(excluded.src.tolist(), excluded.dst.tolist(), strict=True)) == pairs
    found = {
        (int(node), int(place))
        for node, (start, stop) in zip(
            excluded.nodes, itertools.pairwise(excluded.bounds), strict=True
        )
        for place in excluded.places[start:stop]
    }
    there = {
        (node, place)
        for node, original in enumerate(ids)
        for place, source in enumerate(edges.sources[original])
        if (int(np.argsort(ids)[source]), node) in pairs
    }
    assert found == there
    assert len(there) > 40


def test_long_lists_are_drawn_as_specified():
    """Attempts are enough for most; where few edges have all of the weight, a search follows."""
    generator = np.random.default_rng(8)
    units = [
        np.exp2(generator.uniform(0, spread, size)).astype(int).tolist()
        for spread, size in itertools.product((1, 8, 20), (127, 128, 129, 130, 700))
    ]
    lists = lists_of(units)
    for fanout in (1, 10, 60):
        for replace, method in enumerate(("weighted", "weighted_replacement")):
            key = draw_key(NEIGHBORS, 3, 1, 2, 0, RELATION_KEY)
            spec = SamplingSpec(method, fanout, key)  # type: ignore[arg-type]
            positions = lists.draw(np.arange(len(units)), spec)[2].reshape(len(units), fanout)
            for node, row in enumerate(positions.tolist()):
                node_key = reference.node_key(NEIGHBORS, (3, 1, 2, 0, RELATION_KEY), node)
                assert row == reference.by_weight(node_key, units[node], fanout, bool(replace))


def lists_of(units: Sequence[Sequence[int]]) -> NeighborLists:
    """Make lists whose destination i has sources 0, 1, ... with these units."""
    degrees = [len(row) for row in units]
    indices = np.concatenate([np.arange(degree) for degree in degrees])
    sums = np.concatenate([np.cumsum(row) for row in units]).astype(np.int32)
    ids = np.arange(max(*degrees, len(units)))
    return NeighborLists(np.cumsum([0, *degrees]), indices, ids, ids, sums)


def draw_alike(
    units: Sequence[int], nodes: int, fanout: int, method: Method, dependence: int = 1
) -> NDArray[np.int64]:
    """Return [nodes, fanout] positions that nodes with the same list draw."""
    lists = lists_of([units] * nodes)
    key = draw_key(NEIGHBORS, 5, 0, 1, 0, RELATION_KEY, dependence)
    return lists.draw(np.arange(nodes), SamplingSpec(method, fanout, key))[2].reshape(nodes, fanout)


def fits(counts: Any, chances: Any) -> bool:
    """Chi-square below its 99.9 % quantile; seeds are fixed, so that the verdict is too."""
    counts, chances = np.array(counts), np.array(chances)
    return stats.chisquare(counts, chances / chances.sum() * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("dependence", [1, 5])
@pytest.mark.parametrize("others", [0, 200])
def test_weighted_draws_have_the_chances_of_successive_draws(others, dependence):
    """In short lists, and in long ones, in which 5 positions have most of the weight."""
    units, nodes = [5000, 1000, 3000, 500, 2000] + [1] * others, 30_000
    drawn = np.minimum(draw_alike(units, nodes, 2, "weighted", dependence), 5)
    weights = [5000, 1000, 3000, 500, 2000, others]
    pairs, total = list(itertools.permutations(range(5 if not others else 6), 2)), sum(weights)
    chances = [weights[a] / total * weights[b] / (total - weights[a]) for a, b in pairs]
    counts = [int(((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum()) for a, b in pairs]
    if others:
        # One of the others, and then another one of them.
        pairs_of_others = (drawn == 5).all(1)
        counts.append(int(pairs_of_others.sum()))
        chances.append(others / total * (others - 1) / (total - 1))
        by_first = [i for i, (a, _) in enumerate(pairs) if a == 5]
        for i in by_first:
            chances[i] = others / total * weights[pairs[i][1]] / (total - 1)
    assert sum(counts) == nodes
    assert fits(counts, chances)


def test_mapped_and_new_arrays_are_drawn_from_by_the_same_machine_code():
    """Otherwise every combination of writable and read-only arrays would be compiled."""
    edges = make_edges(2)
    ids, arrays = np.arange(NODES), edges.lists(np.arange(NODES)).arrays
    lists = (*arrays[:2], ids, ids, *arrays[2:])
    spec = SamplingSpec("uniform", 3, draw_key(NEIGHBORS, 3, 1, 2, 0, RELATION_KEY))
    NeighborLists(*lists).draw(np.arange(NODES), spec)
    compiled = len(draw_uniformly.signatures)  # type: ignore[attr-defined]
    for arrays in (lists, tuple(map(np.copy, lists))):
        for nodes in (np.arange(NODES), read_only(np.arange(NODES))):
            NeighborLists(*arrays).draw(nodes, spec)
    assert len(draw_uniformly.signatures) == compiled  # type: ignore[attr-defined]
