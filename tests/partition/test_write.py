"""What is refused, what an interruption leaves, and what opening checks."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Relation, Topology
from hopper.partition import PartitionedGraph, build, partition_graph
from hopper.partition.layout import Replicated
from hopper.partition.write import BuildContext, number_nodes
from hopper.partition.write_topology import fill_topology, lay_out_topology
from hopper.timing.phases import Silent

RELATION = Relation("paper", "links", "paper")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"servers": 0}, "number of servers: expected at least 1, given 0"),
    ({"servers": 59}, "graph 'library' has 58 nodes, too few for 59 servers; use at most 58"),
    ({"method": "spectral"}, "unknown partition method 'spectral'; expected one of: metis, stream"),
    ({"topology": "halo:1"}, "topology: expected replicated or partitioned, given 'halo:1'"),
    ({"features": "whole"}, "features: expected by-node or by-dimension, given 'whole'"),
    ({"features": "by-dimension", "topology": "partitioned"},
     "by-dimension wants topology replicated.* given partitioned"),
    ({"features": "by-dimension", "servers": 4},
     "wants a column a server at least; node type 'author' has 3 for 4 servers"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_impossible_requests_are_refused_before_any_work(shared_library, tmp_path, options, text):
    options = {"servers": 2, "method": "random"} | options
    with pytest.raises(RequestError, match=text) as error:
        partition_graph(shared_library, tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_graphs_and_destinations_that_do_not_fit_are_refused_and_kept(make_graph, tmp_path):
    out, loose = tmp_path / "out", make_graph("loose", 4, [], [], [])
    with pytest.raises(RequestError, match="graph 'empty' is empty"):
        partition_graph(make_graph("empty", 0, [], [], []), out, 1)
    with pytest.raises(RequestError, match=r"'loose' has no edges.*--method stream or random"):
        partition_graph(loose, out, 2)
    out.mkdir()
    (out / "precious").write_text("kept")
    with pytest.raises(RequestError, match="already exists and is not empty"):
        partition_graph(loose, out, 2, "random")
    assert (out / "precious").read_text() == "kept"
    (out / "precious").unlink()
    assert partition_graph(loose, out, 2, "random").description["edge_cut"] == 0


def test_an_interrupted_write_leaves_nothing(library, monkeypatch):
    work_folders, write_server = [], build.write_server

    def fail_on_second(context: BuildContext, progress: Any, server: int, *rest: Any) -> int:
        if server == 1:
            raise KeyboardInterrupt
        work_folders.append(context.work)
        return write_server(context, progress, server, *rest)

    monkeypatch.setattr(build, "write_server", fail_on_second)
    with pytest.raises(KeyboardInterrupt):
        partition_graph(library, library.path.parent / "out", 2, "random")
    assert [folder.exists() for folder in work_folders] == [False]
    assert [path.name for path in library.path.parent.iterdir()] == ["library"]


def test_opening_names_damaged_fields_and_files(library):
    out = library.path.parent / "out"
    with pytest.raises(GraphError, match=r"partition\.json: no such file"):
        PartitionedGraph.open(library.path)
    divided = partition_graph(library, out, 2, "random")
    file = out / "partition.json"
    description = json.loads(file.read_text())
    offsets = description["offsets"]
    for changes, text in [
        ({"schema": 1}, r"json: schema: expected 2, given 1"),
        ({"servers": "two"}, "json: servers: expected a valid integer, given 'two'"),
        ({"topology": "halved"}, "json: topology: expected 'replicated', .* given 'halved'"),
        ({"offsets": {**offsets, "paper": [0, 1, 2]}}, r"'offsets\.paper': expected to end at 40"),
        ({"offsets": {"paper": offsets["paper"]}}, "field 'offsets': expected the node types"),
    ]:
        file.write_text(json.dumps({**description, **changes}))
        with pytest.raises(GraphError, match=text):
            PartitionedGraph.open(out)
    file.write_text("{")
    with pytest.raises(GraphError, match="not valid JSON"):
        PartitionedGraph.open(out)
    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: divided.features("editor", 0), r"node type 'editor': expected one of \['author'"),
        (lambda: divided.topology(Relation("a", "b", "c")), "relation a/b/c: expected one of"),
        (lambda: divided.split("test"), "split 'test': expected one of"),
        (lambda: divided.labels("paper", 2), "server 2 of 2 does not exist"),
        (lambda: divided.times("paper"), "node type 'paper' has no times"),
        (lambda: divided.links("train"), "nodes of paper are predicted, not links"),
    ]
    for ask, text in asked:
        with pytest.raises(GraphError, match=text):
            ask()
    (out / "maps" / "paper" / "original_ids.npy").unlink()
    with pytest.raises(GraphError, match="original_ids of paper: missing file"):
        divided.original_ids("paper")


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_locality_is_measured_before_a_partition_appears(topology, library):
    locality = {"fanouts": [2], "roots": 3, "micrograph": 0.5, "subgraph": 0.25}
    out, edge_counts = library.path.parent / "out", []

    def measure(parts: PartitionedGraph) -> dict[str, Any]:
        assert not out.exists()
        # Mapped as a whole, whatever becomes of it.
        assert isinstance(parts.layout, Replicated)
        edge_counts.extend(parts.topology(r).indices.size for r in parts.schema.relations)
        return locality

    divided = partition_graph(library, out, 2, "random", topology=topology, measure=measure)
    assert edge_counts == [kind.count for kind in divided.schema.relations.values()]
    assert divided.description["locality"] == locality
    assert divided.description["topology"] == topology
    assert "measure locality" in divided.description["seconds"]
    assert [p.name for p in divided.path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_of_edges_are_as_wide_as_in_the_graph(shared_library, tmp_path, dtype):
    class Narrow(GraphDirectory):
        def topology(self, relation: Relation) -> Topology:
            whole = super().topology(relation)
            ids = whole.indices.astype(dtype), whole.edge_ids.astype(dtype)
            return replace(whole, indices=ids[0], edge_ids=ids[1])

    graph, name = Narrow(shared_library.path, shared_library.schema), "paper"
    homes = {t: np.arange(kind.count) % 2 for t, kind in graph.schema.node_types.items()}
    offsets = {t: number_nodes(of.astype(np.int32), 2, tmp_path, t) for t, of in homes.items()}
    context = BuildContext(graph, tmp_path, offsets)
    for relation in graph.schema.relations:
        lay_out_topology(context, relation)
    cut = sum(fill_topology(context, Silent(), server)[RELATION][1] for server in (0, 1))
    stored, whole = context.whole(RELATION, "indices"), shared_library.topology(RELATION)
    assert stored.dtype == context.whole(RELATION, "edge_ids").dtype == dtype
    dst = whole.list_destinations()
    assert cut == int((homes[name][whole.indices] != homes[name][dst]).sum())
    global_ids = context.map(name, "global_ids")
    order = np.argsort(global_ids[dst], kind="stable")
    np.testing.assert_array_equal(stored, global_ids[whole.indices[order]])
