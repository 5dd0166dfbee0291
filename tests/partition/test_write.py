"""What is refused, what an interruption leaves, and what opening checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from cache_server.shard import Shard
from hopper.errors import GraphError, RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph, build, partition_graph
from hopper.partition.build_context import BuildContext
from hopper.partition.by_node import Replicated

MakeGraph = Callable[..., GraphDirectory]


@pytest.mark.parametrize(
    ("servers", "method", "text"),
    [
        (
            2,
            "meta",
            "unknown partition method 'meta'; expected one of: metis, stream, random, which",
        ),
        (
            2,
            "spectral",
            "unknown partition method 'spectral'; expected one of: metis, stream, random",
        ),
        (0, "random", "number of servers: expected at least 1, given 0"),
        (59, "random", "graph 'library' has 58 nodes, too few for 59 servers; use at most 58"),
    ],
)
def test_impossible_requests_are_refused_before_any_work(
    library: GraphDirectory, servers: int, method: str, text: str
) -> None:
    out = library.path.parent / "out"
    with pytest.raises(RequestError, match=text):
        partition_graph(library, out, servers, method)
    assert not out.exists()


def test_graphs_that_cannot_be_divided_are_refused(make_graph: MakeGraph, tmp_path: Path) -> None:
    empty = make_graph("empty", 0, [], [], [])
    with pytest.raises(RequestError, match="graph 'empty' is empty"):
        partition_graph(empty, tmp_path / "out", 1)
    without_edges = make_graph("loose", 4, [], [], [])
    with pytest.raises(
        RequestError, match=r"graph 'loose' has no edges.*--method stream or random"
    ):
        partition_graph(without_edges, tmp_path / "out", 2)
    assert (
        partition_graph(without_edges, tmp_path / "out", 2, "random").description["edge_cut"] == 0
    )


def test_an_occupied_destination_is_refused_and_kept(library: GraphDirectory) -> None:
    out = library.path.parent / "out"
    out.mkdir()
    (out / "precious").write_text("kept")
    with pytest.raises(RequestError, match="already exists and is not empty"):
        partition_graph(library, out, 2, "random")
    assert (out / "precious").read_text() == "kept"
    (out / "precious").unlink()
    assert partition_graph(library, out, 2, "random").book.servers == 2


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError("disk full")])
def test_an_interrupted_write_leaves_nothing(
    library: GraphDirectory, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    work_folders = []
    write_server = build.write_server

    def fail_on_second(construction: BuildContext, progress: Any, server: int, *rest: Any) -> int:
        if server == 1:
            raise failure
        work_folders.append(construction.work)
        return write_server(construction, progress, server, *rest)

    monkeypatch.setattr(build, "write_server", fail_on_second)
    with pytest.raises(type(failure)):
        partition_graph(library, library.path.parent / "out", 2, "random")
    assert len(work_folders) == 1
    assert not work_folders[0].exists()
    assert [path.name for path in library.path.parent.iterdir()] == ["library"]


def test_the_feature_server_opens_every_shard(library: GraphDirectory) -> None:
    divided = partition_graph(library, library.path.parent / "out", 3, "random", seed=2)
    for server in range(3):
        shard = Shard.open(divided.path / f"server-{server}")
        assert (shard.server, shard.servers) == (server, 3)
        table = shard.table("features", "paper")
        assert table.spec.first_id == divided.book.offsets["paper"][server]
        np.testing.assert_array_equal(table.array, divided.features("paper", server))
        assert shard.table("labels", "paper").spec.dim == 1
        assert shard.table("labels", "author").spec.dim == 6
        assert shard.table("features", "keyword").spec.count == 0


def test_opening_names_damaged_fields_and_files(library: GraphDirectory) -> None:
    out = library.path.parent / "out"
    with pytest.raises(GraphError, match=r"partition\.json: no such file"):
        PartitionedGraph.open(library.path)
    divided = partition_graph(library, out, 2, "random")
    file = out / "partition.json"
    description = json.loads(file.read_text())
    offsets = description["offsets"]
    for changes, text in [
        ({"schema": 9}, "field 'schema': .* less than or equal to 2, found 9"),
        ({"servers": "two"}, "field 'servers': Input should be a valid integer, found 'two'"),
        ({"offsets": {**offsets, "paper": [0, 1, 2]}}, r"'offsets\.paper': expected to end at 40"),
        ({"offsets": {"paper": offsets["paper"]}}, "field 'offsets': expected the node types"),
    ]:
        file.write_text(json.dumps({**description, **changes}))
        with pytest.raises(GraphError, match=text):
            PartitionedGraph.open(out)
    file.write_text("{")
    with pytest.raises(GraphError, match="not valid JSON"):
        PartitionedGraph.open(out)
    with pytest.raises(GraphError, match=r"node type 'editor': expected one of \['author'"):
        divided.features("editor", 0)
    with pytest.raises(GraphError, match="relation a/b/c: expected one of"):
        divided.topology(Relation("a", "b", "c"))
    with pytest.raises(GraphError, match="split 'test': expected one of"):
        divided.split("test")
    with pytest.raises(GraphError, match="server 2 of 2 does not exist"):
        divided.labels("paper", 2)
    (out / "maps" / "paper" / "original_ids.npy").unlink()
    with pytest.raises(GraphError, match="original_ids of paper: missing file"):
        divided.original_ids("paper")


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_locality_is_measured_before_a_partition_appears(
    topology: Literal["replicated", "partitioned"], library: GraphDirectory
) -> None:
    locality = {"fanouts": [2], "roots": 3, "micrograph": 0.5, "subgraph": 0.25}
    out, edge_counts = library.path.parent / "out", []

    def measure(parts: PartitionedGraph) -> dict[str, Any]:
        assert not out.exists()
        # Mapped as a whole, whatever becomes of it.
        assert isinstance(parts.layout, Replicated)
        edge_counts.extend(
            parts.topology(relation).indices.size for relation in parts.schema.relations
        )
        return locality

    divided = partition_graph(library, out, 2, "random", topology=topology, measure=measure)
    assert edge_counts == [kind.count for kind in divided.schema.relations.values()]
    assert divided.description["locality"] == locality
    assert divided.description["topology"] == topology
    assert "measure locality" in divided.description["seconds"]
    assert [p.name for p in divided.path.iterdir() if p.name.startswith(".")] == []
