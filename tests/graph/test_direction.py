"""Symmetrising edge lists and adding reverse relations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import RequestError
from hopper.graph import Relation
from hopper.graph.importers.direction import (
    add_reverse_relations,
    symmetrize,
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


def test_given_edges_first_then_their_reverses() -> None:
    result = symmetrize(np.array([2, 0, 2, 1, 1]), np.array([0, 1, 0, 0, 1]), 3)
    assert result is not None
    assert list(zip(result.src, result.dst, strict=True)) == [
        (2, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (0, 2),
    ]
    assert result.origin.tolist() == [0, 1, 3, 4, 0]
    assert (result.added, result.duplicates) == (1, 1)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_equals_sets_of_pairs(pairs: list[tuple[int, int]]) -> None:
    src = np.array([u for u, _ in pairs], np.int32)
    dst = np.array([v for _, v in pairs], np.int32)
    result = symmetrize(src, dst, 5)
    expected = {*pairs, *((v, u) for u, v in pairs)}
    if result is None:
        assert sorted(pairs) == sorted((v, u) for u, v in pairs)
        return
    edges = list(zip(result.src.tolist(), result.dst.tolist(), strict=True))
    assert len(edges) == len(set(edges))
    assert set(edges) == expected
    assert result.duplicates == len(pairs) - len(set(pairs))
    assert result.added == len(expected) - len(set(pairs))
    for edge, given_edge in zip(edges, result.origin, strict=True):
        assert pairs[given_edge] in (edge, edge[::-1])


def test_symmetric_relations_are_left_alone_parallel_edges_included() -> None:
    tables = make_tables([0, 1, 0, 1], [1, 0, 1, 0])
    given_src = tables.edges[KNOWS][0]
    symmetrize_tables(tables)
    assert tables.edges[KNOWS][0] is given_src
    assert tables.notes == ["person/knows/person: already symmetric, left as it is"]


def test_only_relations_within_a_type_and_features_follow() -> None:
    tables = make_tables([0, 0, 1], [1, 1, 2])
    symmetrize_tables(tables)
    src, dst = tables.edges[KNOWS]
    assert list(zip(src, dst, strict=True)) == [(0, 1), (1, 2), (1, 0), (2, 1)]
    (_, weights), *_ = tables.edge_features[KNOWS].chunks()
    assert weights[:, 0].tolist() == [0, 2, 0, 2]
    assert tables.edges[OWNS][0].size == 2
    assert tables.notes == [
        "person/knows/person: 2 reverse edges added, 1 duplicates removed, 4 edges in all"
    ]


def test_edge_splits_forbid_symmetrising() -> None:
    tables = make_tables([0], [1])
    tables.target, tables.splits = KNOWS, {"train": np.array([0])}
    with pytest.raises(RequestError, match="the splits are edge ids of person/knows/person"):
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
