"""build_topology against a naive sort: order, ties, degrees; and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import GraphError
from hopper.graph import build_topology
from hopper.graph.layout import TOPOLOGY_ARRAYS, topology_arrays


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40),
    st.integers(6, 8),
    st.sampled_from([np.int32, np.int64]),
)
def test_equals_a_naive_sort(edges: list[tuple[int, int]], num_src: int, dtype: type) -> None:
    """Edge lists have parallel edges and isolated nodes, or no edges at all."""
    src, dst = np.array(edges, dtype).reshape(-1, 2).T.copy()
    num_dst = 6 if edges else 0
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
    src, dst = np.array([69_999, 5, 69_999], np.int32), np.full(3, 69_998, np.int32)
    topology = build_topology(src, dst, 70_000, 70_000)
    assert topology.indices.tolist() == [5, 69_999, 69_999]
    assert topology.edge_ids.tolist() == [1, 0, 2]
    assert (topology.indptr[69_998], topology.indptr[69_999]) == (0, 3)
    # Ids that do not fit have eight bytes.
    wide = topology_arrays(1 << 31, 1 << 31, 1)
    assert {wide["indices"][0], wide["edge_ids"][0]} == {np.dtype(np.int64)}


def test_refused_edges() -> None:
    cases: list[tuple[list[float], list[int], str]] = [
        ([0, 2], [0, 0], r"citations: src of edge 1: expected an id in \[0, 2\), given 2"),
        ([0, 1], [0, -1], r"citations: dst of edge 1: expected an id in \[0, 3\), given -1"),
        ([0], [0, 1], "citations: expected as many sources as destinations, given 1 and 2"),
        ([0.0], [0], "src: expected a one-dimensional int32 or int64 array"),
    ]
    for src, dst, text in cases:
        with pytest.raises(GraphError, match=text):
            build_topology(np.array(src), np.array(dst), 2, 3, where="citations")
