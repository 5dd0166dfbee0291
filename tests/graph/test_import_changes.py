"""What changes while a graph is imported: directions, components, targets, splits and times."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.cli import main
from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.importers import GraphTables, ImportOptions, RandomSplit, import_graph
from hopper.graph.importers.arrays import set_column
from hopper.graph.importers.tables import Table, array_features
from hopper.graph.importers.transforms import (
    add_reverse_relations,
    draw_split,
    find_one_way,
    symmetrize,
)
from hopper.partition import partition_graph
from tests.graph.conftest import write_frames

pytestmark = pytest.mark.filterwarnings("ignore:split drawn", "ignore:split by time")

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


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 2, st.integers(0, 1)), max_size=12))
def test_as_many_edges_each_way_and_no_more_than_that_takes(given_edges):
    src, dst, times = np.array(given_edges, np.int64).reshape(-1, 3).T
    for given_times in (None, times):
        has_times = given_times is not None
        before = Counter((u, v, t * has_times) for u, v, t in given_edges)
        expected = before | Counter({(v, u, t): n for (u, v, t), n in before.items()})
        one_way = find_one_way(src, dst, 4, given_times).tolist()
        added = ((v, u, t * has_times) for u, v, t in (given_edges[i] for i in one_way))
        assert before + Counter(added) == expected


def test_reverses_of_parallel_edges_bring_their_data():
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


def test_reverse_relations():
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


def test_splits():
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


def test_splits_that_cannot_be_drawn():
    for text in ("random", "random:20", "random:a:b", "random:0.9:0.2", "random:0.5:20", "x:1:2"):
        with pytest.raises(RequestError, match=f"--split: expected random:TRAIN:VAL, .* '{text}'"):
            RandomSplit.parse(text)
    with pytest.raises(RequestError, match=r"class 0: expected at least 20 \+ 30 nodes, given 25"):
        draw_split(RandomSplit(20, 30), CLASSES, VALUES, 0)
    with pytest.raises(RequestError, match="nodes per class need class labels, given multi_hot"):
        draw_split(RandomSplit(1, 1), Labels("multi_hot", 2), np.zeros((4, 2), np.uint8), 0)


LIKES = Relation("person", "likes", "person")


def write_links(folder: Path, *, splits: bool) -> dict[str, list[str]]:
    """Write two relations over one type, as CSV; return the lines of each."""
    folder.mkdir()
    nodes = "".join(f"{i},{i / 10},{i % 2}\n" for i in range(12))
    (folder / "nodes__person.csv").write_text("id,weight,label\n" + nodes)
    generator, lines = np.random.default_rng(0), {}
    for name, count in (("likes", 30), ("knows", 20)):
        lines[name] = [
            f"{u},{v}" + (f",{('train', 'val', 'test', '')[i % 4]}" if splits else "")
            for i, (u, v) in enumerate(generator.integers(0, 12, (count, 2)).tolist())
        ]
        head = "src,dst,split" if splits else "src,dst"
        file = folder / f"edges__person__{name}__person.csv"
        file.write_text("\n".join([head, *lines[name]]) + "\n")
    return lines


def test_splits_of_several_tables(tmp_path):
    lines = write_links(tmp_path / "tables", splits=True)
    import_graph("csv", str(tmp_path / "tables"), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.schema.target_relations == (KNOWS, LIKES)
    links = graph.links("val")
    assert links.ids.tolist() == [*range(1, 20, 4), *range(21, 50, 4)]
    assert links.relations.tolist() == [0] * 5 + [1] * 8
    pairs = zip(links.src.tolist(), links.dst.tolist(), strict=True)
    rows = [*lines["knows"], *lines["likes"]]
    assert [f"{u},{v},val" for u, v in pairs] == [rows[link] for link in links.ids]


def test_targets_on_the_command_line(tmp_path, capsys):
    write_links(tmp_path / "tables", splits=False)

    def run(out: str, *options: str) -> str:
        """Import, and return what is wrong."""
        arguments = ["dataset", "import", "csv", str(tmp_path / "tables"), *options]
        code, error = main([*arguments, "--out", str(tmp_path / out)]), capsys.readouterr().err
        assert (code == 0) == (tmp_path / out).exists()
        return " ".join(error.split()) if code else ""

    both = ["--target", "likes", "--target", "person/knows/person"]
    assert run("graph", *both, "--split", "random:0.6:0.2") == ""
    schema = GraphDirectory.open(tmp_path / "graph").schema
    assert schema.target_relations == (LIKES, KNOWS)
    assert sum(schema.splits.values()) == schema.target_count == 50
    assert schema.splits["train"] == pytest.approx(30, abs=3)
    assert run("all", "--target", "all") == ""
    assert GraphDirectory.open(tmp_path / "all").schema.target_relations == (KNOWS, LIKES)
    assert "one of person/knows/person, person/likes/person by its" in run("b", "--target", "hates")
    # Without labels of one type only, there is no target by default.
    (tmp_path / "tables/nodes__person.csv").write_text(
        "id\n" + "".join(f"{i}\n" for i in range(12))
    )
    (tmp_path / "tables/nodes__item.csv").write_text("id,price\n0,5\n1,6\n")
    assert "chosen by --target RELATION), given item, person" in run("none")
    assert run("one", "--target", "likes", "--split", "random:0.5:0.2") == ""
    assert GraphDirectory.open(tmp_path / "one").schema.target_relations == (LIKES,)


def test_pairs_share_a_split_whatever_their_direction_and_relation(tmp_path):
    edges = np.random.default_rng(1).integers(0, 30, (2, 400))
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        {tuple(LIKES): edges, tuple(KNOWS): edges[::-1]},
        counts={"person": 30},
        options=ImportOptions(targets=("all",), split=RandomSplit(0.5, 0.25), seed=4),
    )
    of_pair: dict[frozenset[int], str] = {}
    for name in ("train", "val", "test"):
        links = graph.links(name)
        for pair in zip(links.src.tolist(), links.dst.tolist(), strict=True):
            assert of_pair.setdefault(frozenset(pair), name) == name
    assert graph.schema.splits["train"] == pytest.approx(400, abs=8)


def test_targets_that_do_not_fit_are_named(tmp_path):
    edges, edge = np.array([[0, 1, 2], [1, 2, 0]]), ("node", "edge", "node")
    by_number = ImportOptions(targets=("edge",), split=RandomSplit(1, 1))
    cases: list[tuple[type[Exception], dict[str, Any], str]] = [
        (RequestError, {"options": by_number}, "edges have no classes"),
        (GraphError, {"target": ("node", "o", "node")}, "target: expected a relation of node/edge"),
    ]
    for error, arguments, text in cases:
        with pytest.raises(error, match=text):
            GraphDirectory.from_arrays(tmp_path / "refused", edges, **arguments)
    splits = {"train": np.array([True, False, True]), "val": [1]}
    graph = GraphDirectory.from_arrays(tmp_path / "graph", edges, target=edge, splits=splits)
    assert graph.links("train").ids.tolist() == [0, 2]
    with pytest.raises(GraphError, match="split 'test'"):
        graph.links("test")


EDGE = Relation("node", "edge", "node")
BY_TIME = RandomSplit(0.5, 0.25, by_time=True)
DATES = ["2026-05-31", "2026-05-31T12:00:00+02:00"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_times_are_read_from_tables(kind, tmp_path):
    """Dates become seconds since 1970, in UTC unless they name a zone, and are no features."""
    midnight = int(np.datetime64("2026-05-31", "s").astype(np.int64))
    times: Any = [*DATES, "-5", "7"]
    if kind == "parquet":
        times = pandas.to_datetime(DATES * 2, format="ISO8601", utc=True).tz_localize(None)
    nodes = {"id": list("abcd"), "label": [0, 1, 0, 1], "time": times, "size": range(4)}
    edges = {"src": list("abd"), "dst": list("bcc"), "time": [30, 10, 20], "sum": [1.5, 2.5, 3.5]}
    folder = write_frames(tmp_path / "tables", kind, {"nodes": nodes, "edges": edges})
    options = ImportOptions(add_reverse="all", split=BY_TIME)
    notes = import_graph(kind, folder, tmp_path / "graph", options)
    assert "split by time: 2 train, 1 val, 1 test" in notes or kind == "parquet"
    graph, reverse = GraphDirectory.open(tmp_path / "graph"), Relation("node", "rev_edge", "node")
    later = [-5, 7] if kind == "csv" else [midnight, midnight + 10 * 3600]
    assert graph.times("node").tolist() == [midnight, midnight + 10 * 3600, *later]
    kinds = graph.schema.node_types["node"], graph.schema.relations[EDGE]
    assert [[one.name for one in of.columns] for of in kinds] == [["size"], ["sum"]]
    assert graph.times(reverse).tolist() == [30, 10, 20]
    assert graph.schema.timed == ["node", EDGE, reverse]
    assert graph.split("train").tolist() == ([2, 3] if kind == "csv" else [0, 2])
    if kind == "csv":
        for text, error, match in (
            ("id,label,time\na,0,yesterday\n", GraphError, "line 2: column time: expected an int"),
            ("id,label\na,0\nb,1\nc,0\nd,1\n", RequestError, "--split: expected times of node"),
        ):
            (tmp_path / "tables/nodes.csv").write_text(text)
            with pytest.raises(error, match=match):
                import_graph(kind, folder, tmp_path / "refused", options)


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_neighbour_lists_by_time(topology, tmp_path):
    """An edge may be seen from its own time on, or from its source's if that is later."""
    generator = np.random.default_rng(3)
    edges, edge_times = generator.integers(0, 30, (2, 400)), generator.integers(0, 9, 400)
    node_times = generator.integers(0, 9, 30)
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        edges,
        features=np.ones((30, 2)),
        labels=np.arange(30) % 3,
        times={"node": node_times, EDGE: edge_times},
        splits={"train": np.arange(10)},
    )
    parts = partition_graph(graph, tmp_path / "parts", 3, "random", topology=topology)
    original = parts.original_ids("node")
    assert np.array_equal(parts.times("node"), node_times)
    for server in (None, 0, 1, 2):
        topology_of_server = parts.topology(EDGE, server)
        assert topology_of_server.times is not None
        assert topology_of_server.by_time is not None
        edges_seen = 0
        for start, stop in itertools.pairwise(topology_of_server.indptr):
            in_edges = slice(start, stop)
            expected = np.maximum(
                edge_times[topology_of_server.edge_ids[in_edges]],
                node_times[original[topology_of_server.indices[in_edges]]],
            )
            order = np.argsort(expected, kind="stable")
            assert np.array_equal(topology_of_server.by_time[in_edges], order)
            assert np.array_equal(topology_of_server.times[in_edges], expected[order])
            edges_seen += expected.size
        assert edges_seen == 400 or (
            topology == "partitioned" and server is not None and 0 < edges_seen < 400
        )


def test_bad_times_are_refused(tmp_path):
    table = Table(2)
    set_column(table, "times", np.array([[1.0], [2.0]]), "x")
    assert table.times is not None
    assert table.times.tolist() == [1, 2]
    for bad_times in ([1.5], ["a"], np.ones((2, 2), np.int64), [np.nan]):
        with pytest.raises(GraphError, match="x: expected integers"):
            set_column(table, "times", np.array(bad_times), "x")
    for columns, wrong in (
        ({"labels": [0, 0, 0], "times": [1, 2]}, "times"),
        ({"labels": [0, 1]}, "labels"),
    ):
        arguments: dict[str, Any] = {"features": np.ones((3, 1)), **columns}
        with pytest.raises(GraphError, match=f"{wrong} of node: expected 3, one for each node, gi"):
            GraphDirectory.from_arrays(tmp_path / "graph", np.array([[0], [1]]), **arguments)
    with pytest.raises(RequestError, match=r"--split: expected random:TRAIN:VAL.* or fractions in"):
        RandomSplit.parse("time:20:30")
    assert RandomSplit.parse("time:0.5:0.25") == BY_TIME
