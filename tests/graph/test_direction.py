"""Symmetrising edge lists and adding reverse relations."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import RequestError
from hopper.graph import Relation
from hopper.graph.importers.direction import (
    add_reverse_relations,
    find_one_way,
    symmetrize_tables,
)
from hopper.graph.importers.tables import ArrayFeatures, GraphTables

KNOWS = Relation("person", "knows", "person")
OWNS = Relation("person", "owns", "robot")


def make_tables(src: list[int], dst: list[int]) -> GraphTables:
    """Three people who know each other and own one robot; edges know their position."""
    edges = {
        KNOWS: (np.array(src), np.array(dst)),
        OWNS: (np.array([2, 1]), np.array([0, 0])),
    }
    weights = ArrayFeatures(np.arange(len(src), dtype=np.float32)[:, None])
    return GraphTables(
        "g", "", "person", {"person": 3, "robot": 1}, edges, edge_features={KNOWS: weights}
    )


def test_one_way_edges_are_those_without_a_counterpart() -> None:
    src, dst = np.array([2, 0, 2, 1, 1]), np.array([0, 1, 0, 0, 1])
    assert find_one_way(src, dst, 3).tolist() == [0, 2]
    # At another time, the edge from 1 to 0 is no counterpart of the one from 0 to 1.
    assert find_one_way(src, dst, 3, np.array([5, 6, 5, 7, 8])).tolist() == [0, 1, 2, 3]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 2, st.integers(0, 1)), max_size=12))
def test_as_many_edges_each_way_and_no_more_than_that_takes(
    edges: list[tuple[int, int, int]],
) -> None:
    src, dst, times = np.array(edges, np.int64).reshape(-1, 3).T
    for given_times in (None, times):
        given = Counter((u, v, t if given_times is not None else 0) for u, v, t in edges)
        expected = given | Counter({(v, u, t): n for (u, v, t), n in given.items()})
        one_way = find_one_way(src, dst, 4, given_times).tolist()
        added = (
            (v, u, t if given_times is not None else 0) for u, v, t in (edges[i] for i in one_way)
        )
        assert given + Counter(added) == expected


def test_symmetric_relations_are_left_alone_parallel_edges_included() -> None:
    tables = make_tables([0, 1, 0, 1], [1, 0, 1, 0])
    given_src = tables.edges[KNOWS][0]
    symmetrize_tables(tables)
    assert tables.edges[KNOWS][0] is given_src
    assert tables.notes == ["person/knows/person: already symmetric, left as it is"]


def test_only_relations_within_a_type_and_data_of_parallel_edges_follow() -> None:
    tables = make_tables([0, 0, 1], [1, 1, 2])
    tables.times[KNOWS] = np.array([10, 20, 30])
    symmetrize_tables(tables)
    src, dst = tables.edges[KNOWS]
    assert list(zip(src, dst, strict=True)) == [(0, 1), (0, 1), (1, 2), (1, 0), (1, 0), (2, 1)]
    (_, features), *_ = tables.edge_features[KNOWS].chunks()
    assert features[:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert tables.times[KNOWS].tolist() == [10, 20, 30, 10, 20, 30]
    assert tables.edges[OWNS][0].size == 2
    assert tables.notes == ["person/knows/person: 3 reverse edges added, 6 edges in all"]


def test_edge_splits_forbid_symmetrising() -> None:
    tables = make_tables([0], [1])
    tables.target, tables.splits = KNOWS, {"train": np.array([0])}
    with pytest.raises(RequestError, match="the splits name edges of person/knows/person"):
        symmetrize_tables(tables)


def test_reverse_relations() -> None:
    tables = make_tables([0, 1], [1, 2])
    add_reverse_relations(tables)
    src, dst = tables.edges[Relation("robot", "rev_owns", "person")]
    assert (src.tolist(), dst.tolist()) == ([0, 0], [2, 1])
    reverse = Relation("person", "rev_knows", "person")
    assert tables.edge_features[reverse] is tables.edge_features[KNOWS]
    assert tables.notes == ["2 reverse relations added"]
    with pytest.raises(RequestError, match="person/rev_knows/person exists already"):
        add_reverse_relations(tables)


def test_reverse_relations_of_what_was_not_symmetrised() -> None:
    tables = make_tables([0, 1], [1, 2])
    add_reverse_relations(tables, skip_same_type=True)
    assert set(tables.edges) == {KNOWS, OWNS, Relation("robot", "rev_owns", "person")}
