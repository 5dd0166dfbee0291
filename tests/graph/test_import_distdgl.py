"""Graphs that DistDGL has divided become graph directories, and keep their parts."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, import_graph
from hopper.partition import partition_graph

os.environ.setdefault("DGLBACKEND", "pytorch")
dgl = pytest.importorskip("dgl", reason="DGL is not installed", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")  # of DGL
COUNTS = {"user": 40, "item": 30}


def shop() -> Any:
    """A graph whose node features and edge weights tell the original ids."""
    torch.manual_seed(0)
    ends = {
        ("user", "buys", "item"): (torch.randint(0, 40, (200,)), torch.randint(0, 30, (200,))),
        ("item", "like", "item"): (torch.randint(0, 30, (90,)), torch.randint(0, 30, (90,))),
    }
    graph = dgl.heterograph(ends, num_nodes_dict=COUNTS)
    for name, count in COUNTS.items():
        graph.nodes[name].data["feat"] = torch.arange(2.0 * count).view(count, 2)
    graph.nodes["item"].data["label"] = torch.arange(30) % 3
    graph.nodes["item"].data["train_mask"] = torch.arange(30) < 20
    graph.edges["buys"].data["weight"] = torch.arange(1.0, 201.0)
    return graph


def web() -> Any:
    graph = dgl.graph((torch.arange(60) % 25, torch.arange(60) * 7 % 25), num_nodes=25)
    graph.ndata["feat"] = torch.arange(50.0).view(25, 2)
    graph.ndata["label"] = torch.arange(25) % 2
    return graph


def divided(graph: Any, folder: Path, parts: int) -> tuple[Path, Any, Any]:
    """Divide a graph as DistDGL's users do; return its file, and where ids come from."""
    mapping = dgl.distributed.partition_graph(
        graph, "shop", parts, str(folder), part_method="random", return_mapping=True
    )
    return folder / "shop.json", *mapping


@pytest.mark.parametrize("make", [shop, web])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_divided_graph_is_whole_again(make, parts, tmp_path):
    before = make()
    file, nodes, edges = divided(before, tmp_path / "parts", parts)
    import_graph("distdgl", str(file), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    original = nodes if isinstance(nodes, dict) else {before.ntypes[0]: nodes}
    original_edges = edges if isinstance(edges, dict) else {before.etypes[0]: edges}
    for name, ids in original.items():
        feat = before.nodes[name].data["feat"]
        np.testing.assert_array_equal(graph.features(name), feat[ids])
    target = graph.schema.target_type()
    labels = before.nodes[target].data["label"]
    np.testing.assert_array_equal(graph.labels(target), labels[original[target]])
    if make is shop:
        train = before.nodes["item"].data["train_mask"][original["item"]]
        np.testing.assert_array_equal(graph.split("train"), np.flatnonzero(train))
    for triple in before.canonical_etypes:
        topology = graph.topology(triple)
        src, dst = (ids.numpy() for ids in before.edges(etype=triple, order="eid"))
        found = np.empty((2, src.size), np.int64)
        found[0, topology.edge_ids] = original[triple[0]].numpy()[topology.indices]
        found[1, topology.edge_ids] = original[triple[2]].numpy()[topology.list_destinations()]
        order = original_edges[triple if triple in original_edges else triple[1]].numpy()
        np.testing.assert_array_equal(found, np.stack((src, dst))[:, order])
    # Its servers are the parts.
    placed = partition_graph(graph, tmp_path / "divided", parts, "given")
    for name, ranges in json.loads(file.read_text())["node_map"].items():
        sizes = [stop - start for start, stop in ranges]
        assert [placed.stored(name, server).count for server in range(parts)] == sizes


def test_what_is_missing_is_told(tmp_path):
    file, *_ = divided(web(), tmp_path / "parts", 2)
    described = json.loads(file.read_text())
    for field in ("node_map", "num_parts"):
        file.write_text(json.dumps({k: v for k, v in described.items() if k != field}))
        with pytest.raises(GraphError, match=f"{field}: missing field"):
            import_graph("distdgl", str(file), tmp_path / "graph")
    file.write_text(json.dumps(described))
    (tmp_path / "parts/part1/graph.dgl").unlink()
    with pytest.raises(GraphError, match=r"part1/graph\.dgl: part_graph: missing file"):
        import_graph("distdgl", str(file), tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_servers_have_to_be_given(library, tmp_path):
    with pytest.raises(RequestError, match=r"--method given: .*no such file"):
        partition_graph(GraphDirectory.open(library), tmp_path / "parts", 2, "given")


def test_chunks_keep_the_servers_that_were_assigned(tmp_path):
    chunks = {"format": {"name": "csv", "delimiter": ","}, "data": ["edges-0.csv", "edges-1.csv"]}
    described = {
        "node_type": ["user", "item"],
        "num_nodes_per_type": [3, 2],
        "edge_type": ["user:buys:item"],
        "num_edges_per_type": [3],
        "edges": {"user:buys:item": chunks},
    }
    file, out = tmp_path / "metadata.json", tmp_path / "graph"
    (tmp_path / "edges-0.csv").write_text("2,1\n0,0\n")
    (tmp_path / "edges-1.csv").write_text("1,0\n")
    (tmp_path / "user.txt").write_text("1\n0\n1\n")
    (tmp_path / "item.txt").write_text("0\n1\n")
    file.write_text(json.dumps(described))
    notes = import_graph("distdgl", str(file), out, ImportOptions(targets=("buys",)))
    assert "hopper partition DIR --servers 2 --method given" in notes[0]
    topology = GraphDirectory.open(out).topology(("user", "buys", "item"))
    assert (topology.indptr.tolist(), topology.indices.tolist()) == ([0, 2, 3], [0, 1, 2])
    parts = partition_graph(GraphDirectory.open(out), tmp_path / "parts", 2, "given")
    assert [parts.stored("user", server).count for server in range(2)] == [1, 2]
    for changes, wrong in (
        ({"num_nodes_per_type": [3]}, "num_nodes_per_type: expected 2, given 1"),
        ({"num_nodes_per_type": [4, 2]}, r"user\.txt: expected 4 lines, .* given 3 of int64"),
        ({"num_edges_per_type": [4]}, r"num_edges_per_type: expected \[4\], found \[3\] edges"),
        ({"edge_type": ["buys"]}, "edge_type: expected src:rel:dst, given 'buys'"),
        ({"edges": {}}, "edges: user:buys:item: missing field"),
        ({"edge_type": None}, "edge_type: expected a valid tuple, given None"),
        (
            {"edges": {"user:buys:item": chunks | {"format": {"name": "avro"}}}},
            "expected format csv, numpy or parquet, given 'avro'",
        ),
        (
            {"node_data": {"user": {"feat": chunks | {"data": ["edges-0.csv", "user.txt"]}}}},
            r"data feat of user: expected chunks .* of one width, given \[\[2, 2\], \[3, 1\]\]",
        ),
    ):
        file.write_text(json.dumps(described | changes))
        with pytest.raises(GraphError, match=wrong):
            import_graph("distdgl", str(file), tmp_path / "other")
