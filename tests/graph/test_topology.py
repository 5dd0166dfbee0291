"""build_topology against a naive sort: order, ties, degrees; and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import GraphError
from hopper.graph import build_topology
from hopper.graph.layout import TOPOLOGY_ARRAYS, topology_arrays


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Edge lists with parallel edges, isolated nodes and empty types."""
    num_src, num_dst = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    size = draw(st.integers(0, 40)) if num_src and num_dst else 0
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    src = draw(st.lists(st.integers(0, max(0, num_src - 1)), min_size=size, max_size=size))
    dst = draw(st.lists(st.integers(0, max(0, num_dst - 1)), min_size=size, max_size=size))
    return np.array(src, dtype), np.array(dst, dtype), num_src, num_dst


@settings(deadline=None, max_examples=40)
@given(edge_lists())
def test_equals_a_naive_sort(edges: tuple[np.ndarray, np.ndarray, int, int]) -> None:
    src, dst, num_src, num_dst = edges
    topology = build_topology(src, dst, num_src, num_dst)
    order = sorted(range(src.size), key=lambda edge: (dst[edge], src[edge], edge))
    in_degrees = [int((dst == node).sum()) for node in range(num_dst)]
    assert topology.edge_ids.tolist() == order
    assert topology.indices.tolist() == src[order].tolist()
    assert topology.in_degrees.tolist() == in_degrees
    assert topology.out_degrees.tolist() == [int((src == node).sum()) for node in range(num_src)]
    assert topology.indptr.tolist() == [0, *np.cumsum(in_degrees).tolist()]
    for name in TOPOLOGY_ARRAYS:
        is_narrow = name in ("indices", "edge_ids")
        assert getattr(topology, name).dtype == (np.int32 if is_narrow else np.int64)


def test_large_ids_are_not_truncated() -> None:
    # 70000 squared exceeds 32 bits, so a key built from int32 ids would wrap.
    src = np.array([69_999, 5, 69_999], np.int32)
    dst = np.array([69_998, 69_998, 69_998], np.int32)
    topology = build_topology(src, dst, 70_000, 70_000)
    assert topology.indices.tolist() == [5, 69_999, 69_999]
    assert topology.edge_ids.tolist() == [1, 0, 2]
    assert (topology.indptr[69_998], topology.indptr[69_999]) == (0, 3)
    # Ids that do not fit have eight bytes.
    wide = topology_arrays(1 << 31, 1 << 31, 1)
    assert {wide["indices"][0], wide["edge_ids"][0]} == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("src", "dst", "text"),
    [
        ([0, 2], [0, 0], r"citations: src of edge 1: expected an id in \[0, 2\), given 2"),
        ([0, 1], [0, -1], r"citations: dst of edge 1: expected an id in \[0, 3\), given -1"),
        ([0], [0, 1], "citations: expected as many sources as destinations, given 1 and 2"),
        ([0.0], [0], "src: expected a one-dimensional int32 or int64 array"),
    ],
)
def test_refused_edges(src: list[float], dst: list[int], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        build_topology(np.array(src), np.array(dst), 2, 3, where="citations")
