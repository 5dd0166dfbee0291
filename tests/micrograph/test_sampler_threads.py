"""The sampler on one thread, on several, and called from several: always the same result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.graph import build_topology
from hopper.graph.schema import Relation
from hopper.kernel_threads import threads_for
from hopper.micrograph import frontier_kernels
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph

EDGE = Relation("node", "edge", "node")


def are_identical(subgraph: Subgraph, other: Subgraph) -> bool:
    """Compare two subgraphs bit for bit, in global ids."""
    return (
        all(np.array_equal(subgraph.nodes[t], other.nodes[t]) for t in subgraph.nodes)
        and subgraph.sizes == other.sizes
        and all(
            np.array_equal(x, y)
            for one_hop, other_hop in zip(subgraph.hops, other.hops, strict=True)
            for relation in one_hop
            for x, y in zip(one_hop[relation], other_hop[relation], strict=True)
        )
    )


def random_sampler(
    nodes: int, edges: int, fanouts: Sequence[int], kind: type[NeighborSampler] = NeighborSampler
) -> NeighborSampler:
    """A sampler over a random homogeneous graph, its nodes relabelled at random."""
    generator = np.random.default_rng(17)
    src, dst = generator.integers(0, nodes, (2, edges))
    topology = build_topology(src, dst, nodes, nodes)
    return kind({EDGE: topology}, {"node": np.arange(nodes)}, "node", fanouts, 0)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Set two threads, and restore their number afterwards."""
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("numba was started with a single thread")
    threads_before = numba.get_num_threads()
    numba.set_num_threads(2)
    yield
    numba.set_num_threads(threads_before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(NeighborSampler, [5, 6]), (LayerSampler, [9000, 4000]), (LaborSampler, [5, 6])],
)
def test_one_thread_or_two(kind: type[NeighborSampler], sizes: list[int]) -> None:
    roots = np.random.default_rng(0).permutation(20_000)[:5000]
    sampler = random_sampler(20_000, 200_000, sizes, kind)
    on_two = sampler.sample(roots, 0, 0)
    numba.set_num_threads(1)
    assert are_identical(sampler.sample(roots, 0, 0), on_two)


@pytest.mark.usefixtures("two_threads")
def test_few_destinations_are_drawn_on_one_thread() -> None:
    for destinations, threads in ((0, 1), (1500, 1), (5000, 2)):
        with threads_for(destinations):
            assert numba.get_num_threads() == threads
        assert numba.get_num_threads() == 2
    with pytest.raises(RuntimeError, match="drawing"), threads_for(1):
        raise RuntimeError("drawing")
    assert numba.get_num_threads() == 2


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 300), max_size=200),
    st.lists(st.integers(0, 300), unique=True, max_size=40),
)
def test_discovery_names_nodes_in_order_of_first_appearance(
    sources: list[int], known_nodes: list[int]
) -> None:
    table = np.full(301, frontier_kernels.UNSEEN, np.int32)
    table[known_nodes] = np.arange(len(known_nodes))
    rows, new_nodes = frontier_kernels.discover(
        np.array(sources, np.int64), table, len(known_nodes)
    )
    order = list(dict.fromkeys(known_nodes + sources))
    assert [order[row] for row in rows] == sources
    assert known_nodes + new_nodes.tolist() == order
    assert [table[node] for node in order] == list(range(len(order)))


def test_concurrent_calls() -> None:
    """Tables are shared between calls: a call must neither see nor disturb another's."""
    sampler = random_sampler(5000, 60_000, [4, 4, 3])
    generator = np.random.default_rng(1)
    batches = [generator.permutation(5000)[:200] for _ in range(24)]
    expected = [
        random_sampler(5000, 60_000, [4, 4, 3]).sample(roots, 0, i)
        for i, roots in enumerate(batches)
    ]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            subgraphs = list(pool.map(sampler.sample, batches, [0] * 24, range(24)))
            assert all(map(are_identical, subgraphs, expected))
