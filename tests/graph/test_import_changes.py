"""What options change while a graph is imported: directions, components and random splits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import RequestError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.importers import GraphTables, ImportOptions, RandomSplit, write_tables
from hopper.graph.importers.tables import Table, array_features
from hopper.graph.importers.transforms import (
    add_reverse_relations,
    draw_split,
    find_one_way,
    keep_largest_component,
    symmetrize,
)

KNOWS = Relation("person", "knows", "person")
OWNS = Relation("person", "owns", "robot")


def edges(src: list[int], dst: list[int], **columns: Any) -> Table:
    """A relation whose edges have their position as feature."""
    features = array_features(np.arange(len(src), dtype=np.float32)[:, None])
    return Table(len(src), np.array(src), np.array(dst), features=features, **columns)


def make_tables(knows: Table, target: str | Relation = "person") -> GraphTables:
    """Persons 1, 3, 4 and robot 1 may belong together; robot 0 is alone."""
    person = Table(
        5,
        features=array_features(np.arange(5, dtype=np.float32)[:, None]),
        labels=(Labels("class", 5), np.arange(5)),
        times=np.arange(5) * 10,
        splits={"train": np.array([1, 2])},
    )
    robot = Table(2, names=["r0", "r1"])
    relations = {KNOWS: knows, OWNS: edges([3], [1])}
    return GraphTables("g", "", {"person": person, "robot": robot}, relations, (target,))


def test_everything_follows_the_nodes_that_stay(tmp_path: Path) -> None:
    tables = make_tables(edges([0, 4, 1], [2, 3, 4], weights=np.array([1, 2, 3], np.float32)))
    notes = write_tables(tables, tmp_path / "g", ImportOptions(largest_component=True))
    assert notes == ["3 nodes outside the largest connected component left out"]
    graph = GraphDirectory.open(tmp_path / "g")
    counts = {name: kind.count for name, kind in graph.schema.node_types.items()}
    assert counts == {"person": 3, "robot": 1}
    assert graph.features("person")[:, 0].tolist() == [1.0, 3.0, 4.0]
    assert graph.labels("person").tolist() == [1, 3, 4]
    assert graph.times("person").tolist() == [10, 30, 40]
    assert graph.split("train").tolist() == [0]
    knows = graph.topology(KNOWS)
    assert (knows.indptr.tolist(), knows.indices.tolist()) == ([0, 0, 1, 2], [2, 0])
    # Edge ids are positions in the list of edges that stayed: 4 -> 3 came before 1 -> 4.
    assert knows.edge_ids.tolist() == [0, 1]
    assert graph.edge_features(KNOWS)[:, 0].tolist() == [1.0, 2.0]
    assert graph.edge_weights(KNOWS).tolist() == [2.0, 3.0]
    assert (tmp_path / "g/names/robot.txt").read_text() == "r1\n"
    # Edges of splits are renumbered.
    splits = {"train": np.array([0, 2]), "val": np.array([1])}
    tables = make_tables(edges([0, 4, 1], [2, 3, 4], splits=splits), target=KNOWS)
    keep_largest_component(tables)
    joined = {name: ids.tolist() for name, ids in tables.join_splits().items()}
    assert joined == {"train": [1], "val": [0]}
    connected = GraphTables("g", "", {"n": Table(3)}, {})
    connected.edges[Relation("n", "to", "n")] = edges([0, 2], [1, 1])
    keep_largest_component(connected)
    assert connected.nodes["n"].count == 3
    assert connected.notes == ["0 nodes outside the largest connected component left out"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 2, st.integers(0, 1)), max_size=12))
def test_as_many_edges_each_way_and_no_more_than_that_takes(
    given_edges: list[tuple[int, int, int]],
) -> None:
    src, dst, times = np.array(given_edges, np.int64).reshape(-1, 3).T
    for given_times in (None, times):
        has_times = given_times is not None
        before = Counter((u, v, t * has_times) for u, v, t in given_edges)
        expected = before | Counter({(v, u, t): n for (u, v, t), n in before.items()})
        one_way = find_one_way(src, dst, 4, given_times).tolist()
        added = ((v, u, t * has_times) for u, v, t in (given_edges[i] for i in one_way))
        assert before + Counter(added) == expected


def test_reverses_of_parallel_edges_bring_their_data() -> None:
    labels = (Labels("class", 3), np.array([2, 1, 0]))
    tables = make_tables(edges([0, 0, 1], [1, 1, 2], times=np.array([10, 20, 30]), labels=labels))
    symmetrize(tables)
    knows = tables.edges[KNOWS]
    pairs = list(zip(knows.src.tolist(), knows.dst.tolist(), strict=True))
    assert pairs == [(0, 1), (0, 1), (1, 2), (1, 0), (1, 0), (2, 1)]
    assert knows.features is not None
    assert next(knows.features.chunks())[1][:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(knows.times, [10, 20, 30, 10, 20, 30])  # type: ignore[arg-type]
    assert knows.labels is not None
    assert knows.labels[1].tolist() == [2, 1, 0, 2, 1, 0]
    assert tables.edges[OWNS].count == 1
    assert tables.notes == ["person/knows/person: 3 reverse edges added, 6 edges in all"]
    symmetrize(tables)
    assert tables.edges[KNOWS] is knows
    assert tables.notes[1] == "person/knows/person: already symmetric, left as it is"
    tables = make_tables(edges([0], [1], splits={"train": np.array([0])}), target=KNOWS)
    with pytest.raises(RequestError, match="the splits name edges of person/knows/person"):
        symmetrize(tables)


def test_reverse_relations() -> None:
    tables = make_tables(edges([0, 1], [1, 2], splits={"train": np.array([0])}))
    add_reverse_relations(tables)
    reverse = tables.edges[Relation("robot", "rev_owns", "person")]
    assert (reverse.src.tolist(), reverse.dst.tolist()) == ([1], [3])
    knows = tables.edges[Relation("person", "rev_knows", "person")]
    assert knows.features is tables.edges[KNOWS].features
    assert (knows.labels, knows.splits) == (None, None)
    assert tables.notes == ["2 reverse relations added"]
    with pytest.raises(RequestError, match="person/rev_knows/person exists already"):
        add_reverse_relations(tables)
    tables = make_tables(edges([0, 1], [1, 2]))
    add_reverse_relations(tables, skip_same_type=True)
    assert set(tables.edges) == {KNOWS, OWNS, Relation("robot", "rev_owns", "person")}


VALUES = np.array(([0, 1, 2, -1] * 25), np.int64)
CLASSES = Labels("class", 3)


def test_splits() -> None:
    split = draw_split(RandomSplit.parse("random:5:8"), CLASSES, VALUES, seed=3)
    counts = {name: np.bincount(VALUES[ids]).tolist() for name, ids in split.items()}
    assert counts == {"train": [5] * 3, "val": [8] * 3, "test": [12] * 3}
    assert sorted(np.concatenate(list(split.values()))) == np.flatnonzero(VALUES >= 0).tolist()
    assert all((np.diff(ids) > 0).all() for ids in split.values())
    first, repeated, other_seed = (
        draw_split(RandomSplit(5, 8), CLASSES, VALUES, seed)["train"].tolist() for seed in (1, 1, 2)
    )
    assert first == repeated != other_seed
    # Written down once: a change of the draw would change published splits.
    assert first == [0, 1, 6, 12, 16, 22, 24, 28, 29, 45, 50, 70, 74, 85, 97]
    # Fractions of the labelled nodes.
    table = np.array([[0.5], [np.nan], [1], [2], [3]] * 4, np.float32)
    split = draw_split(RandomSplit.parse("random:0.5:0.25"), Labels("float", 1), table, 0)
    assert {name: ids.size for name, ids in split.items()} == {"train": 8, "val": 4, "test": 4}
    assert not np.isnan(table[np.concatenate(list(split.values()))]).any()


def test_splits_that_cannot_be_drawn() -> None:
    for text in ("random", "random:20", "random:a:b", "random:0.9:0.2", "random:0.5:20", "x:1:2"):
        with pytest.raises(RequestError, match=f"--split: expected random:TRAIN:VAL, .* '{text}'"):
            RandomSplit.parse(text)
    with pytest.raises(RequestError, match=r"class 0: expected at least 20 \+ 30 nodes, given 25"):
        draw_split(RandomSplit(20, 30), CLASSES, VALUES, 0)
    with pytest.raises(RequestError, match="nodes per class need class labels, given multi_hot"):
        draw_split(RandomSplit(1, 1), Labels("multi_hot", 2), np.zeros((4, 2), np.uint8), 0)
