"""The npy importer on hand-made folders and on the real graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph, tables

LIVES = Relation("person", "onto_lives", "person")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three people (sparse features) and two robots (dense ones); a name that is not path-safe."""
    source = tmp_path / "source"
    source.mkdir()
    np.save(source / "edges__person__lives__person.npy", np.array([[0, 0, 2], [1, 1, 0]], np.int32))
    np.save(source / "edges__robot__helps__person.npy", np.array([[1], [2]], np.int16))
    rows = sparse.csr_matrix(np.array([[1, 3], [0, 0], [0, 2]], np.float32))
    sparse.save_npz(source / "feat__person.npz", rows)
    np.save(source / "feat__robot.npy", np.array([[1.0], [2.0]]))
    np.save(source / "label__person.npy", np.array([1, -1, 0]))
    np.save(source / "split__train.npy", np.array([2, 0]))
    write_meta(source)
    return source


def write_meta(source: Path, **changes: Any) -> None:
    """Write meta.json with some fields replaced."""
    meta = {
        "name": "home",
        "source": "by hand",
        "node_types": {
            "person": {"count": 3, "feat_file": "feat__person.npz"},
            "robot": {"count": 2, "feat_file": "feat__robot.npy"},
        },
        "edge_types": [
            {
                "src": "person",
                "rel": "onto#lives",
                "dst": "person",
                "file": "edges__person__lives__person.npy",
                "count": 3,
            },
            {
                "src": "robot",
                "rel": "helps",
                "dst": "person",
                "file": "edges__robot__helps__person.npy",
            },
        ],
        "target_type": "person",
        "num_classes": 4,
        "labels": {"person": "label__person.npy"},
        "splits": {"train": {"file": "split__train.npy"}},
    }
    (source / "meta.json").write_text(json.dumps(meta | changes), encoding="utf-8")


def test_options(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One row a chunk, so that the seams between chunks are walked over.
    monkeypatch.setattr(tables, "CHUNK_BYTES", 1)
    write_meta(folder, splits={})
    options = ImportOptions(
        symmetrize=True,
        add_reverse="all",
        split=RandomSplit(0.5, 0.5),
        row_normalize=True,
    )
    notes = import_graph("npy", str(folder), tmp_path / "out", options, name="other")
    assert notes == [
        "person/onto_lives/person: 3 reverse edges added, 6 edges in all",
        "1 reverse relations added",
        "split drawn with seed 0: 1 train, 1 val, 0 test",
    ]
    graph = GraphDirectory.open(tmp_path / "out")
    assert graph.schema.name == "other"
    assert graph.features("person").tolist() == [[0.25, 0.75], [0, 0], [0, 1]]
    assert graph.topology(Relation("person", "rev_helps", "robot")).indices.tolist() == [2]


def test_options_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--split: the source has its own splits, \['train'\]"):
        import_graph("npy", str(folder), tmp_path / "out", ImportOptions(split=RandomSplit(1, 1)))
    np.save(folder / "feat__robot.npy", np.array([[-1.0], [2.0]]))
    with pytest.raises(RequestError, match=r"features of robot: .* expected no negative feature"):
        import_graph("npy", str(folder), tmp_path / "out", ImportOptions(row_normalize=True))
    assert not (tmp_path / "out").exists()
    with pytest.raises(
        RequestError,
        match="expected one of npy, ogb, dgl, pyg, csv, parquet, graphml, given 'json'",
    ):
        import_graph("json", str(folder), tmp_path / "out")


def check_refused(folder: Path, text: str) -> None:
    """Check that the import fails with a GraphError of this text, and leaves no files."""
    with pytest.raises(GraphError, match=text):
        import_graph("npy", str(folder), folder.parent / "out")
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_damaged_meta(folder: Path) -> None:
    write_meta(folder, target_type=None)
    check_refused(folder, r"meta\.json: target_type: expected str, given None")
    write_meta(folder, target_type="pet")
    check_refused(folder, r"target: expected one of the node types .* given 'pet'")
    write_meta(folder, node_types={"person": {}})
    check_refused(folder, r"node_types\.person: count: missing field")
    write_meta(folder, node_types={"a b": {"count": 1}, "a#b": {"count": 1}})
    check_refused(folder, "node_types: names are not distinct as parts of paths")
    write_meta(folder, edge_types=[{"src": "person"}])
    check_refused(folder, r"edge_types\[0\]: rel: missing field")
    edge_type = {"src": "person", "rel": "a#b", "dst": "person"}
    edge_type["file"] = "edges__person__lives__person.npy"
    write_meta(folder, edge_types=[edge_type, edge_type | {"rel": "a/b"}])
    check_refused(folder, "given person/a_b/person twice")
    write_meta(folder, edge_types=[edge_type | {"count": 9}])
    check_refused(
        folder, r"edges of person/a_b/person: expected 9 edges, as meta\.json says, given 3"
    )
    write_meta(folder, splits={"train": {"file": "nothing.npy"}})
    check_refused(folder, r"nothing\.npy: split train: missing file")
    (folder / "meta.json").write_text("[]", encoding="utf-8")
    check_refused(folder, r"meta\.json: expected a JSON object, found list")
    (folder / "meta.json").write_text("{", encoding="utf-8")
    check_refused(folder, r"meta\.json: not valid JSON")
    (folder / "meta.json").unlink()
    check_refused(folder, r"meta\.json: missing file")


def test_damaged_arrays(folder: Path) -> None:
    edges = folder / "edges__robot__helps__person.npy"
    np.save(edges, np.array([[0.0], [0.0]]))
    check_refused(
        folder, r"helps__person\.npy: edges of .* shape \[2, edges\], sources first, given float"
    )
    np.save(edges, np.array([[5], [0]]))
    check_refused(folder, r"edges of robot/helps/person: src of edge 0: .* \[0, 2\), given 5")
    np.save(edges, np.array([[1], [0]]))
    np.save(folder / "feat__robot.npy", np.zeros((3, 1)))
    check_refused(folder, "features of robot: expected 2 rows, given 3")
    np.save(folder / "feat__robot.npy", np.zeros(2))
    check_refused(folder, r"feat__robot\.npy: features: expected shape \[n, d\], given \[2\]")
    (folder / "feat__robot.npy").write_bytes(b"no")
    check_refused(folder, r"feat__robot\.npy: features: not a readable \.npy file")
    (folder / "feat__person.npz").write_bytes(b"no")
    check_refused(folder, r"feat__person\.npz: features: not a SciPy sparse matrix")
    (folder / "feat__person.npz").unlink()
    check_refused(folder, r"feat__person\.npz: features: missing file")


REAL = (
    "acm_heco",
    "aifb",
    "amazon_computers",
    "cora",
    "imdb_magnn",
    "ms_academic_cs",
    "mutag",
    "tolokers",
)


@pytest.mark.parametrize("name", REAL)
def test_real_graphs(real_data: Path, tmp_path: Path, name: str) -> None:
    source = real_data / name
    import_graph("npy", str(source), tmp_path / "out")
    graph = GraphDirectory.open(tmp_path / "out", check="full")
    meta = json.loads((source / "meta.json").read_text(encoding="utf-8"))
    assert {type_: kind.count for type_, kind in graph.schema.node_types.items()} == {
        type_: kind["count"] for type_, kind in meta["node_types"].items()
    }
    assert len(graph.schema.relations) == len(meta["edge_types"])
    for entry in meta["edge_types"]:
        relation = Relation(entry["src"], entry["rel"], entry["dst"])
        src, dst = np.load(source / entry["file"])
        assert graph.schema.relations[relation].count == entry["count"]
        topology = graph.topology(relation)
        assert np.array_equal(topology.indices, src[topology.edge_ids])
        rows = np.repeat(np.arange(topology.in_degrees.size), topology.in_degrees)
        assert np.array_equal(rows, dst[topology.edge_ids])
    for split, entry in meta["splits"].items():
        assert np.array_equal(graph.split(split), np.sort(np.load(source / entry["file"])))
    target = meta["target_type"]
    assert np.array_equal(graph.labels(target), np.load(source / meta["labels"][target]))


def test_a_real_random_split(real_data: Path, tmp_path: Path) -> None:
    options = ImportOptions(split=RandomSplit.parse("random:20:30"), seed=7)
    import_graph("npy", str(real_data / "amazon_computers"), tmp_path / "out", options)
    graph = GraphDirectory.open(tmp_path / "out")
    labels = graph.labels("node")
    assert np.bincount(labels[graph.split("train")]).tolist() == [20] * 10
    assert np.bincount(labels[graph.split("val")]).tolist() == [30] * 10
    assert graph.schema.splits["test"] == 13_752 - 500


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "relations"),
    # HiFuse, Table 2.
    [("aifb", 7_262, 48_810, 104), ("mutag", 27_163, 148_100, 50)],
)
def test_real_typed_graphs_have_the_published_counts(
    real_data: Path, tmp_path: Path, name: str, nodes: int, edges: int, relations: int
) -> None:
    options = ImportOptions(add_reverse="all")
    import_graph("npy", str(real_data / name), tmp_path / "out", options)
    schema = GraphDirectory.open(tmp_path / "out").schema
    assert sum(kind.count for kind in schema.node_types.values()) == nodes
    assert sum(kind.count for kind in schema.relations.values()) == edges
    assert len(schema.relations) == relations
