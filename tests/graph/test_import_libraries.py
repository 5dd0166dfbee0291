"""Graphs of PyTorch Geometric, DGL, OGB, NetworkX and arrays: what only one of them has, and what
is refused. What all have in common is in test_import_kinds.py."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest
import torch

from hopper import GraphDirectory, GraphError
from hopper.errors import RequestError
from hopper.graph import Labels, Relation
from hopper.graph.importers import ImportOptions, import_graph, ogb, pyg, write_tables
from hopper.graph.importers.dgl import read_dgl
from hopper.graph.importers.graphml import tables_from_networkx
from hopper.graph.importers.pyg import tables_from_pyg
from hopper.graph.layout import names_file

os.environ.setdefault("DGLBACKEND", "pytorch")
EDGES = Relation("node", "edge", "node")


def homogeneous() -> dict[str, Any]:
    """As ``Data.to_dict()`` returns it."""
    return {
        "x": torch.arange(8.0).view(4, 2),
        "edge_index": torch.tensor([[3, 0, 3, 1, 2], [0, 1, 0, 0, 2]]),
        "edge_attr": torch.arange(5.0),
        "edge_type": torch.zeros(5),
        "y": torch.tensor([1, 0, 2, 1]),
        "train_mask": torch.tensor([True, False, True, False]),
        "val_mask": torch.tensor([False, True, False, False]),
        "pos": torch.zeros(4, 3),
    }


def typed() -> dict[Any, Any]:
    """As ``HeteroData.to_dict()`` returns it."""
    return {
        "_global_store": {},
        "author": {"num_nodes": 3},
        "paper": {
            "x": torch.ones(2, 5),
            "y": torch.tensor([[0.0, 1.0], [1.0, 1.0]]),
            "train_mask": torch.tensor([True, True]),
        },
        ("author", "writes", "paper"): {"edge_index": torch.tensor([[0, 2], [1, 0]])},
        ("paper", "rev writes", "author"): {"edge_index": torch.tensor([[1, 0], [0, 2]])},
    }


def import_file(file: Path, content: Any, *, kind: str = "pyg") -> tuple[GraphDirectory, list[str]]:
    """Import what ``torch.save`` writes."""
    torch.save(content, file)
    notes = import_graph(kind, str(file), file.with_suffix(""))
    return GraphDirectory.open(file.with_suffix("")), notes


class Harmful:
    """Unpickling this would run code of its choice."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm-was-done"),))


def test_pyg(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match="y of paper: all are 0 or 1"):
        graph = GraphDirectory.from_pyg(typed(), tmp_path / "typed")
    assert (graph.schema.target, graph.schema.labels["paper"].kind) == ("paper", "multi_hot")
    counts = {name: kind.count for name, kind in graph.schema.node_types.items()}
    assert counts == {"author": 3, "paper": 2}
    rels = [Relation("author", "writes", "paper"), Relation("paper", "rev_writes", "author")]
    assert list(graph.schema.relations) == rels
    # PyG is imported only for files of its classes: it takes longer than most files to read.
    with monkeypatch.context() as patched:
        patched.setattr(pyg, "_plain_classes", lambda: pytest.fail("PyG was imported"))
        graph, notes = import_file(tmp_path / "plain.pt", homogeneous())
    assert notes == ["data of node/edge/node left out: edge_type", "data of node left out: pos"]
    np.testing.assert_array_equal(graph.features(EDGES)[:, 0], np.arange(5.0))
    # As a dataset keeps its only graph, but for the class, which is PyG's.
    slices = {"x": torch.tensor([0, 4]), "edge_index": torch.tensor([0, 5])}
    graph, _ = import_file(tmp_path / "dataset.pt", (homogeneous(), slices))
    assert graph.schema.splits == {"train": 2, "val": 1}
    with pytest.raises(GraphError, match="expected a dataset of one graph, given 2 graphs"):
        import_file(tmp_path / "two.pt", (homogeneous(), {"x": torch.tensor([0, 2, 4])}))


def test_nothing_in_a_file_of_pyg_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphError, match="torch cannot read it without unpickling"):
        import_file(Path("harmful.pt"), {"x": Harmful()})
    assert not Path("harm-was-done").exists()
    Path("junk.pt").write_bytes(b"junk")
    with pytest.raises(GraphError, match=r"junk\.pt: torch cannot read it"):
        import_graph("pyg", "junk.pt", "out")
    # The advice on arrays of NumPy helps.
    texts = np.array(["a", "b", "c", "d"])
    with pytest.raises(
        GraphError, match=r"holds NumPy's data; .*texts as lists \(array.tolist"
    ) as e:
        import_file(Path("texts.pt"), homogeneous() | {"name": texts})
    assert str(e.value).isprintable()
    _, notes = import_file(Path("lists.pt"), homogeneous() | {"name": texts.tolist()})
    assert "data of node left out: name, pos" in notes


def test_what_pyg_does_not_have_is_named():
    for changes, match in (
        ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, r"node: expected integers of shape"),
        ({"edge_index": torch.zeros(2, 2)}, r"edges of node/edge/node: expected integers of"),
        ({"x": torch.zeros(2, 2, 2)}, r"x of node: expected shape \[n, d\]"),
        ({"train_mask": torch.tensor([4, 0, 0, 0])}, "train_mask of node: expected a mask"),
        ({"adj_t": object()}, "adj_t: a sparse matrix of another library"),
    ):
        with pytest.raises(GraphError, match=match):
            tables_from_pyg(homogeneous() | changes, "graph", "graph")
    with pytest.raises(GraphError, match="expected a PyG Data or HeteroData, given int"):
        tables_from_pyg(3, "graph", "graph")


def test_the_classes_of_pyg(tmp_path):
    data = pytest.importorskip("torch_geometric.data", reason="PyG is not installed")
    graph_of_pyg = data.Data(**homogeneous())
    with pytest.warns(UserWarning, match="several labels"):
        GraphDirectory.from_pyg(data.HeteroData.from_dict(typed()), tmp_path / "typed")
    data.InMemoryDataset.save([graph_of_pyg], str(tmp_path / "processed.pt"))
    import_graph("pyg", str(tmp_path / "processed.pt"), tmp_path / "again")
    for graph in (
        import_file(tmp_path / "data.pt", graph_of_pyg)[0],
        GraphDirectory.open(tmp_path / "again"),
    ):
        np.testing.assert_array_equal(graph.features("node"), np.arange(8.0).reshape(4, 2))


@pytest.fixture(scope="module")
def dgl() -> Any:
    """Return the library, or skip the test."""
    return pytest.importorskip("dgl", reason="DGL is not installed")


@pytest.fixture
def import_dgl(dgl, tmp_path) -> Callable[..., tuple[GraphDirectory, list[str]]]:
    """A function that saves with DGL, imports, and opens with all checks."""

    def save_and_import(*graphs: Any) -> tuple[GraphDirectory, list[str]]:
        dgl.save_graphs(str(tmp_path / "saved.bin"), list(graphs))
        notes = import_graph("dgl", str(tmp_path / "saved.bin"), tmp_path / "out")
        return GraphDirectory.open(tmp_path / "out"), notes

    return save_and_import


def test_dgl(dgl, import_dgl, tmp_path):
    pair = (torch.tensor([0, 1]), torch.tensor([0, 0]))
    triples = {
        ("author", "linked", "paper"): pair,
        ("paper", "linked", "author"): (pair[1], pair[0]),
        ("paper", "is about", "topic"): ([], []),
    }
    graph = dgl.heterograph(triples, num_nodes_dict={"author": 2, "paper": 1, "topic": 0})
    graph.nodes["author"].data["feat"] = torch.ones(2, 3, dtype=torch.float64)
    graph.nodes["author"].data["label"] = torch.tensor([[0, 1], [1, 1]])
    graph.nodes["author"].data["test_mask"] = torch.tensor([[False, True], [True, False]])
    result, notes = import_dgl(graph)
    assert result.schema.target == "author"
    assert result.schema.labels["author"] == Labels("multi_hot", 2)
    assert result.features("author").dtype == np.float32
    assert result.topology(Relation("author", "linked", "paper")).indices.tolist() == [0, 1]
    assert result.topology(Relation("paper", "linked", "author")).indices.tolist() == [0, 0]
    assert result.schema.relations[Relation("paper", "is_about", "topic")].count == 0
    assert result.split("test").tolist() == [1]
    assert notes == ["test_mask of author: the first of 2 splits was taken"]
    # Masks of edges make the relation the target.
    graph = dgl.graph(([0, 1, 2], [1, 2, 0]))
    graph.edata["train_mask"] = torch.tensor([True, False, True])
    result = GraphDirectory.from_dgl(graph, tmp_path / "edges")
    assert result.schema.target == Relation("_N", "_E", "_N")
    assert result.split("train").tolist() == [0, 2]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the library leaves files open
def test_files_of_dgl_that_are_refused(dgl, import_dgl, tmp_path, monkeypatch):
    with pytest.raises(GraphError, match=r"nowhere\.bin: saved graphs: missing file"):
        read_dgl(tmp_path / "nowhere.bin")
    (tmp_path / "junk.bin").write_bytes(b"junk" * 100)
    with pytest.raises(GraphError, match=r"junk\.bin: DGL cannot read it as saved graphs"):
        import_graph("dgl", str(tmp_path / "junk.bin"), tmp_path / "out")
    graph = dgl.graph(([0, 1], [1, 0]))
    with pytest.raises(GraphError, match="expected one graph, given 2"):
        import_dgl(graph, graph)
    graph.ndata["test_mask"] = torch.tensor([0.5, 0])
    with pytest.raises(GraphError, match="test_mask of _N: expected a mask of 0 and 1"):
        import_dgl(graph)
    with pytest.raises(GraphError, match=r"target: expected splits or labels of .*, given a, b"):
        import_dgl(dgl.heterograph({("a", "to", "b"): ([0], [0])}))
    dgl.distributed.partition_graph(dgl.rand_graph(50, 200), "shop", 2, str(tmp_path / "parts"))
    with pytest.raises(
        GraphError, match=r"one part of a .* \(it has inner_edge, inner_node\).*; give hopper "
    ):
        read_dgl(tmp_path / "parts/part0/graph.dgl")
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(RequestError, match=r"pip install dgl==1\.1\.3"):
        read_dgl(tmp_path / "saved.bin")


def test_damaged_files_of_dgl_leave_nothing(dgl, tmp_path):
    """The library may refuse them, or die of them, and the process with it."""
    file, out = tmp_path / "saved.bin", tmp_path / "out"
    dgl.save_graphs(str(file), [dgl.rand_graph(20, 60)])
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    command = [sys.executable, "-m", "hopper.cli", "dataset", "import", "dgl", str(file)]
    ended = subprocess.run([*command, "--out", str(out)], capture_output=True, check=False)
    assert ended.returncode < 0 or ended.stderr.count(b"error: ") == ended.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["saved.bin"]


ARXIV: dict[str, Any] = {
    "edge_index": np.array([[0, 2], [1, 1]]),
    "edge_feat": None,
    "node_feat": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
    "node_year": np.zeros((3, 1)),
    "num_nodes": 3,
}
ARXIV_SPLITS = {"train": np.array([0]), "valid": np.array([2]), "test": np.array([1])}
MAG: dict[str, Any] = {
    "edge_index_dict": {
        ("author", "affiliated with", "institution"): np.array([[0, 1], [0, 0]]),
        ("paper", "cites", "paper"): np.array([[2], [0]]),
    },
    "edge_feat_dict": {("paper", "cites", "paper"): np.array([[0.5]], np.float32)},
    "node_feat_dict": {"paper": np.ones((3, 4), np.float16)},
    "num_nodes_dict": {"author": 2, "institution": 1, "paper": 3},
    "edge_reltype": {},
}


def test_ogb(tmp_path):
    splits = {name: {"paper": ids} for name, ids in ARXIV_SPLITS.items()}
    tables = ogb.tables_from_ogb("ogbn-mag", MAG, {"paper": np.array([[1], [0], [1]])}, splits)
    write_tables(tables, tmp_path / "out", ImportOptions())
    graph = GraphDirectory.open(tmp_path / "out")
    assert graph.schema.target == "paper"
    affiliated = Relation("author", "affiliated_with", "institution")
    assert graph.topology(affiliated).indices.tolist() == [0, 1]
    assert graph.features(Relation("paper", "cites", "paper")).tolist() == [[0.5]]
    assert graph.features("paper").dtype == np.float16
    assert graph.schema.node_types["author"].feature_dim is None
    assert graph.split("val").tolist() == [2]
    for values, kind, expected in (
        (np.eye(3, dtype=np.int64), Labels("multi_hot", 3), np.eye(3).tolist()),
        (np.array([[1.0], [np.nan], [0.0]], np.float32), Labels("class", 2), [1, -1, 0]),
        (np.array([[0.5], [1], [2]]), Labels("float", 1), [0.5, 1, 2]),
    ):
        labels = ogb.tables_from_ogb("x", ARXIV, values, ARXIV_SPLITS).nodes["node"].labels
        assert labels is not None
        assert (labels[0], labels[1].tolist()) == (kind, expected)
    with pytest.raises(GraphError, match="ogb dataset x: num_nodes: missing entry"):
        ogb.tables_from_ogb("x", {"edge_index": np.zeros((2, 0), int)}, np.zeros(0), {})
    bad = ARXIV | {"edge_index": np.zeros((3, 2), int)}
    with pytest.raises(GraphError, match=r"expected integers of shape \[2, edges\], .* \[3, 2\]"):
        ogb.tables_from_ogb("x", bad, np.zeros((3, 1), int), ARXIV_SPLITS)
    with pytest.raises(GraphError, match=r"splits of one node type, given \['author', 'paper'\]"):
        ogb.tables_from_ogb("x", MAG, {}, {"train": {"paper": [0], "author": [0]}})


def columns(**arrays: Any) -> dict[str, Any]:
    return {key: np.array(values) for key, values in arrays.items()}


OGB_LINKS: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "collab": (
        {"num_nodes": 3, "edge_index": np.array([[0, 1], [1, 0]]), "node_feat": np.eye(3)},
        {
            "train": columns(edge=[[0, 1], [0, 1]], weight=[1, 2], year=[2000, 2001]),
            "valid": columns(edge=[[2, 0]], weight=[3], year=[2002], edge_neg=[[1, 1]]),
            "test": columns(edge=np.zeros((0, 2), int), weight=[], year=np.zeros(0, int)),
        },
        {("node", "edge", "node"): ([[0, 1], [0, 1], [2, 0]], [[0, 1], [2], []])},
    ),
    "citation2": (
        {"num_nodes": 3, "edge_index": np.zeros((2, 0), int), "node_feat": None},
        {"test": columns(source_node=[1], target_node=[2], target_node_neg=[[0, 1]])},
        {("node", "edge", "node"): ([[1, 2]], [[0]])},
    ),
    "wikikg2": (
        {"num_nodes": 3, "edge_index": np.zeros((2, 0), int), "edge_reltype": np.zeros((0, 1))},
        {
            "train": columns(head=[0, 1, 2], relation=[4, 0, 4], tail=[1, 1, 1]),
            "valid": columns(head=[2], relation=[4], tail=[0]),
        },
        {
            ("node", "relation_0", "node"): ([[1, 1]], [[0], []]),
            ("node", "relation_4", "node"): ([[0, 1], [2, 1], [2, 0]], [[0, 1], [2]]),
        },
    ),
    "biokg": (
        {
            "num_nodes_dict": {"drug": 2, "protein": 3},
            "edge_index_dict": {},
            "edge_reltype": {
                ("drug", "binds", "protein"): np.full((2, 1), 1),
                ("protein", "meets", "protein"): np.full((1, 1), 0),
            },
        },
        {
            "train": columns(head=[1, 2], relation=[1, 0], tail=[2, 0])
            | {"head_type": ["drug", "protein"], "tail_type": ["protein", "protein"]},
            "test": columns(head=[0], relation=[1], tail=[0])
            | {"head_type": ["drug"], "tail_type": ["protein"]},
        },
        {
            ("drug", "binds", "protein"): ([[1, 2], [0, 0]], [[0], [1]]),
            ("protein", "meets", "protein"): ([[2, 0]], [[0], []]),
        },
    ),
}


@pytest.mark.parametrize("name", OGB_LINKS)
def test_links_of_ogb(name, tmp_path):
    given, splits, expected = OGB_LINKS[name]
    tables = ogb.tables_from_ogb_links(f"ogbl-{name}", given, splits)
    assert tables.targets == tuple(tables.edges)
    for triple, (ends, ids) in expected.items():
        table = tables.edges[Relation(*triple)]
        assert np.stack((table.src, table.dst), 1).tolist() == ends
        assert table.splits is not None
        names = ["val" if split == "valid" else split for split in splits]
        of_table = {key: of.tolist() for key, of in table.splits.items()}
        assert of_table == dict(zip(names, ids, strict=True))
    write_tables(tables, tmp_path / "out", ImportOptions(add_reverse="all"))
    graph = GraphDirectory.open(tmp_path / "out")
    assert graph.schema.target_relations == tuple(Relation(*triple) for triple in expected)
    assert graph.schema.splits == {
        split: sum(len(ids[place]) for _, ids in expected.values())
        for place, split in enumerate(names)
    }
    if name == "collab":
        relation = graph.schema.target_relations[0]
        assert graph.edge_weights(relation).tolist() == [1, 2, 3]
        assert graph.times(relation).tolist() == [2000, 2001, 2002]
    with pytest.raises(GraphError, match="ogb dataset x: train: tail: missing entry"):
        ogb.tables_from_ogb_links("x", given, {"train": {"head": [0]}})


def test_the_library_of_ogb(tmp_path, monkeypatch):
    """Datasets have the interface of the library's, which is not installed."""
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(RequestError, match="pip install ogb"):
        ogb.read_ogb("ogbn-arxiv", tmp_path)

    class Nodes(list[Any]):
        def __init__(self, name: str, root: str) -> None:
            if name != "ogbn-arxiv":
                raise ValueError(f"Invalid dataset name {name}")
            super().__init__([(ARXIV, np.array([[0], [1], [0]]))])

        def get_idx_split(self) -> dict[str, np.ndarray]:
            return ARXIV_SPLITS

    class Links(list[Any]):
        def __init__(self, name: str, root: str) -> None:
            super().__init__([ARXIV])

        def get_edge_split(self) -> dict[str, Any]:
            return {"train": {"edge": torch.tensor([[0, 1]])}}

    monkeypatch.setitem(sys.modules, "ogb", SimpleNamespace())
    for kind, dataset in (("Node", Nodes), ("Link", Links)):
        module = SimpleNamespace(**{f"{kind}PropPredDataset": dataset})
        monkeypatch.setitem(sys.modules, f"ogb.{kind.lower()}proppred", module)
    assert ogb.read_ogb("ogbn-arxiv", tmp_path).nodes["node"].count == 3
    tables = ogb.read_ogb("ogbl-x", tmp_path)
    assert [table.count for table in tables.edges.values()] == [1]
    with pytest.raises(RequestError, match=r"not load 'ogbn-x' into .*: Invalid dataset name"):
        ogb.read_ogb("ogbn-x", tmp_path)


def test_files_of_ogb_may_contain_only_arrays(tmp_path, monkeypatch):
    """The library writes pickles of arrays, which torch by itself refuses to read."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "data_processed"

    def load_arrays() -> Any:
        with ogb.load_arrays_only():
            return torch.load(file, weights_only=True)

    graph = {"edge_index": np.arange(6).reshape(2, 3), "num_nodes": 4, "node_feat": np.ones((4, 2))}
    torch.save({"graph": graph, "labels": np.array([[0.0], [np.nan]])}, file, pickle_protocol=4)
    arrays = load_arrays()
    np.testing.assert_array_equal(arrays["graph"]["edge_index"], graph["edge_index"])
    np.testing.assert_array_equal(arrays["labels"], [[0.0], [np.nan]])
    torch.save({"train": torch.arange(3)}, file)
    assert load_arrays()["train"].tolist() == [0, 1, 2]
    torch.save({"graph": Harmful()}, file, pickle_protocol=4)
    with pytest.raises(GraphError, match="expected arrays and nothing else: it names pathlib"):
        load_arrays()
    assert not Path("harm-was-done").exists()
    file.write_bytes(b"no archive")
    with pytest.raises(GraphError, match="data_processed: "):
        load_arrays()


def test_networkx(tmp_path):
    people = networkx.Graph()
    people.add_node("ann", age=30, height=1.7, label="red", split="train", town="Ulm")
    people.add_node("bob", age=40, height=1.8, label="blue", split="test", town="Bonn")
    people.add_node("cem", age=50, height=1.9)
    people.add_edge("ann", "bob", years=3)
    people.add_edge("bob", "bob", years=4)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        graph = GraphDirectory.from_networkx(people, tmp_path / "graph")
    assert {str(warning.message) for warning in caught_warnings} == {
        "graph: node attributes left out: town (no number, or not there everywhere)",
        "graph: node label: 2 classes, in order of text: 0 = blue, 1 = red",
    }
    np.testing.assert_allclose(graph.features("node"), [[30, 1.7], [40, 1.8], [50, 1.9]])
    np.testing.assert_array_equal(graph.labels("node"), [1, 0, -1])
    np.testing.assert_array_equal(graph.split("test"), [1])
    # Both ways, but a loop once.
    np.testing.assert_array_equal(graph.topology(EDGES).indptr, [0, 1, 3, 3])
    np.testing.assert_array_equal(graph.features(EDGES)[:, 0], [3, 4, 3])
    assert names_file(tmp_path / "graph", "node").read_text().split() == ["ann", "bob", "cem"]
    networkx.write_graphml(people, tmp_path / "people.graphml")
    import_graph("graphml", str(tmp_path / "people.graphml"), tmp_path / "again")
    assert GraphDirectory.open(tmp_path / "again").labels("node").tolist() == [1, 0, -1]
    (tmp_path / "junk.graphml").write_text("<graph")
    with pytest.raises(GraphError, match="not readable as GraphML"):
        import_graph("graphml", str(tmp_path / "junk.graphml"), tmp_path / "junk")
    directed = networkx.DiGraph()
    directed.add_nodes_from([(0, {"features": [1, 2], "label": 4}), (1, {"features": [3, 4]})])
    directed.add_edge(0, 1)
    graph = GraphDirectory.from_networkx(directed, tmp_path / "lists")
    assert graph.features("node").tolist() == [[1, 2], [3, 4]]
    assert graph.labels("node").tolist() == [4, -1]
    assert graph.schema.relations[EDGES].count == 1
    assert not names_file(graph.path, "node").exists()
    for key, value, match in (
        ("features", [1], "node 1: features: expected 2 numbers"),
        ("label", (1, 2), "label: expected integers, numbers or texts"),
    ):
        changed = directed.copy()
        changed.nodes[1][key] = value
        with pytest.raises(GraphError, match=match):
            tables_from_networkx(changed, "graph", "graph")


def test_arrays(tmp_path):
    writes, pair = ("author", "writes", "paper"), [[0], [1]]
    for arguments, match in (
        ({"edges": [[0.5], [1.0]]}, r"edges of node/edge/node: expected integers of shape \[2"),
        ({"edges": {("a", "b"): [[0], [0]]}}, r"expected \(source, relation, destination\)"),
        ({"edges": {("a", "b", "c"): [[0], [0]]}}, "target: expected splits or labels"),
        ({"edges": pair, "features": [[[1]], [[2]]]}, r"node: expected shape \[n, d\]"),
        ({"edges": [[0], [5]], "features": [[1], [2]]}, r"dst of edge 0: expected an id of node"),
        ({"edges": pair, "splits": {"train": [7]}}, r"split train: expected ids of nodes"),
        ({"edges": pair, "labels": [1j, 2j]}, "expected integer or float labels"),
        ({"edges": pair, "edge_weights": {writes: [1]}}, "weights: expected a relation of node/e"),
    ):
        with pytest.raises(GraphError, match=match):
            GraphDirectory.from_arrays(tmp_path / "graph", **arguments)  # type: ignore[arg-type]
        assert not (tmp_path / "graph").exists()
    rows, labels = {"paper": np.ones((2, 3))}, {"paper": np.array([0.5, 1.5])}
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph", {writes: [[0, 1], [1, 1]]}, rows, labels, counts={"author": 7}
    )
    assert (graph.schema.target, graph.schema.labels["paper"].kind) == ("paper", "float")
    assert graph.schema.node_types["author"].count == 7
