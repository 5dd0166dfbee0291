"""Features of edges: every engine reads those of the edges that it draws, and computes the gradient
of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cache_server.store.shard import Shard
from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_full_sampler, make_model, make_sampler
from hopper.engines.checks import check_request
from hopper.engines.reference import EveryServersRows
from hopper.engines.unused import describe_unused
from hopper.errors import ConfigError, GraphError, RequestError
from hopper.features import PartitionedRows
from hopper.graph import GraphDirectory
from hopper.graph.block import Block
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Scene, make_inference
from hopper.models import run_model
from hopper.models.gcn import GCNLayer
from hopper.models.sage import SAGELayer
from hopper.partition import PartitionedGraph, partition_graph
from tests.graphs import EDGE, EDGES, NODES, make_library, make_nodes

from .conftest import merged

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.2},
    # Wider than the input: sources are added up before they are multiplied.
    "wide sage": {"name": "sage", "layers": 2, "hidden": 12},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2},
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8},
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8},
    "rgcn, one by one": {"name": "rgcn", "layers": 2, "hidden": 8, "merge": False},
    "rgat": {"name": "rgat", "layers": 2, "hidden": 4, "heads": 2},
    "rgat, one by one": {"name": "rgat", "layers": 2, "hidden": 4, "heads": 2, "merge": False},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2},
    "hgt, one by one": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2, "merge": False},
    "own": {
        "name": "hgnn",
        "layers": 2,
        "hidden": 8,
        "aggregate": "tests.engines.own_aggregations:Gated",
    },
}


@pytest.fixture(scope="module")
def one_type(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    return make_nodes(tmp_path_factory.mktemp("edges") / "graph", edge_features=True)


def values_of(parts: Path, kind: str, /, **sections: Any) -> dict[str, Any]:
    return merged(
        {
            "data": {"partitioned": str(parts)},
            "model": MODELS[kind] | {"edge_features": True},
            "sampler": {"fanouts": [3, 2]},
            "train": {"batch_size": 9, "epochs": 1, "dtype": "float64", "seed": 3},
        },
        sections,
    )


def test_every_edge_has_its_own_features(one_type: GraphDirectory, tmp_path: Path) -> None:
    """Features that hold an edge's ends stay with that edge, whichever server stores them."""
    parts = tmp_path / "parts"
    partition_graph(one_type, parts, 3, "random")
    graph = PartitionedGraph.open(parts)
    sampler = make_sampler(Request(make_config(values_of(parts, "sage")), graph))
    subgraph = sampler.sample(np.arange(0, 60, 4), 0, 1).with_edges([EDGE])
    edges = subgraph.edges[EDGE]
    rows = EveryServersRows(graph).stored(edges.table, edges.ids)
    blocks = subgraph.blocks(edge_features={EDGE: rows})
    assert sum(block.num_edges for block in blocks) > 50
    for block in blocks:
        assert block.edge_features is not None
        src, dst = block.src.original[block.indices], block.dst.original[block.destinations()]
        ends = (block.edge_features[:, :2].double() * NODES).round().long()
        assert torch.equal(ends, torch.stack([src, dst], 1))


@pytest.mark.parametrize("project_first", [False, True])
@pytest.mark.parametrize("kind", [GCNLayer, SAGELayer])
def test_messages_add_source_rows_and_edge_features(kind: Any, project_first: bool) -> None:
    """A layer yields what the formula, written out over all edges, yields."""
    generator = torch.Generator().manual_seed(2)
    edges, e = (
        torch.tensor([[1, 2, 0, 3, 1], [0, 0, 1, 1, 2]]),
        torch.rand(5, 3, generator=generator),
    )
    x = torch.rand(4, 6, generator=generator)
    layer = kind(6, 5, project_first=project_first, edge_dim=3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    out_degree, in_degree = (torch.bincount(edges[end], minlength=4) for end in (0, 1))
    block = block_of(edges, 4, 3, out_degree, in_degree)
    block.edge_features = e
    rows = layer(block, x, x[:3])
    if kind is GCNLayer:
        root_rows = x[:3] @ layer.weight / (in_degree[:3, None] + 1)
        source_rows = x @ layer.weight
        share = ((out_degree[edges[0]] + 1.0) * (in_degree[edges[1]] + 1)) ** -0.5
        bias: Any = layer.bias
    else:
        root_rows, bias = layer.self_linear(x[:3]), 0.0
        source_rows = x @ layer.neighbor_linear.weight.T
        share = 1.0 / in_degree[edges[1]]
    messages = (source_rows[edges[0]] + e @ layer.edge_linear.weight.T) * share[:, None]
    expected = root_rows + torch.zeros(3, 5).index_add(0, edges[1], messages) + bias
    assert torch.allclose(rows, expected, atol=1e-5)


def block_of(
    edges: torch.Tensor, num_src: int, num_dst: int, out: torch.Tensor, into: torch.Tensor
) -> Block:
    from hopper.graph.block import Nodes

    counts = torch.bincount(edges[1], minlength=num_dst)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    ids = torch.arange(num_src)
    src, dst = Nodes("node", ids, out), Nodes("node", ids[:num_dst], into[:num_dst])
    return Block(num_src, num_dst, indptr, edges[0], EDGE, torch.zeros(5).long(), src, dst)


@pytest.mark.parametrize("model", ["sage", "gat", "rgcn", "hgt"])
def test_scores_read_edge_features_too(
    model: str, one_type: GraphDirectory, tmp_path: Path
) -> None:
    """Layer by layer, scores are those of whole neighbourhoods at once."""
    typed, parts = model in ("rgcn", "hgt"), tmp_path / "parts"
    graph = make_library(tmp_path / "graph", edge_features=True) if typed else one_type
    partition_graph(graph, parts, 1)
    opened = PartitionedGraph.open(parts)
    request = Request(make_config(values_of(parts, model)), opened)
    cluster, rows = Cluster(0, 1, 1, torch.device("cpu"), 1.0), PartitionedRows(opened, 0, None)
    classes = 3 if typed else 4
    scene = Scene(request, cluster, rows, torch.float64, LearnableRows(cluster), classes, 2048)
    network = make_model(request).eval()
    inference = make_inference(scene, network)
    with torch.no_grad():
        ids, logits = inference.rows(network, inference.split("val"))
        subgraph = make_full_sampler(request, 0).sample(ids, 0, 0).with_edges(request.reads.edges)
        inputs = {
            name: torch.from_numpy(rows.gather("features", name, nodes)).double()
            for name, nodes in subgraph.nodes.items()
            if nodes.size
        }
        edges = {
            name: torch.from_numpy(rows.gather("features", edge_rows.table, edge_rows.ids)).double()
            for name, edge_rows in subgraph.edges.items()
        }
        expected = run_model(network, subgraph.typed_blocks(None, edges), inputs)
    assert torch.allclose(logits, expected, rtol=0, atol=1e-12)


def test_a_cache_keeps_edge_features(
    one_type: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """Losses are the same, bytes are fewer, and hits are counted by table."""
    parts = tmp_path / "parts"
    partition_graph(one_type, parts, 2, "random")
    addresses = serve_partitions(parts, 2)
    configs = [
        values_of(
            parts,
            "sage",
            cache={"policy": policy, "size": "30%"},
            cluster={"servers": addresses},
            train={
                "engine": "model_centric",
                "epochs": 2,
                "run_dir": str(tmp_path / policy),
            },
        )
        for policy in ("none", "lru", "hotness+penalty")
    ]
    plain, *cached = train_cases(configs, 2, tmp_path / "world")
    for result in cached:
        assert result["losses"] == plain["losses"]
        assert result["bytes"]["feature"] < plain["bytes"]["feature"]
        hits, misses = result["lookups"][str(EDGE)]
        assert hits > 0
        assert misses > 0


def test_a_server_stores_edge_features_in_the_order_of_its_edges(
    one_type: GraphDirectory, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    partition_graph(one_type, parts, 2, "random", topology="partitioned")
    graph = PartitionedGraph.open(parts)
    first = 0
    for server in range(2):
        table = Shard.open(parts / f"server-{server}").table("features", str(EDGE))
        topology = graph.topology(EDGE, server)
        assert (table.spec.first_id, table.spec.count) == (first, topology.indices.size)
        assert topology.starts is not None
        assert topology.starts[graph.book.range("node", server)[0]] == first
        first += table.spec.count
    assert first == EDGES


def test_wrong_requests_are_refused_and_unused_features_are_reported(
    one_type: GraphDirectory, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    partition_graph(one_type, parts, 1)
    graph = PartitionedGraph.open(parts)

    def request(**keys: Any) -> Request:
        return Request(make_config(values_of(parts, "sage", **keys)), graph)

    assert describe_unused(request(model={"edge_features": False})) == [
        "not used: edge features of node/edge/node: read with model.edge_features = true, by gcn, "
        "sage, gat, rgcn, rgat, hgt, hgnn"
    ]
    assert describe_unused(request()) == []
    for model, message in (
        ({"name": "deepgcn"}, "deepgcn reads none"),
        ({"name": "sage", "aggregator": "pool"}, 'sage with aggregator = "pool" reads none'),
    ):
        with pytest.raises(ConfigError, match=rf"model\.edge_features: {message}"):
            make_config({"model": model | {"edge_features": True}})
    plain = tmp_path / "plain"
    GraphDirectory.from_arrays(
        tmp_path / "bare",
        np.array([[0, 1], [1, 0]]),
        features=np.ones((2, 2)),
        labels=np.array([0, 1]),
        options=ImportOptions(split=RandomSplit(0.5, 0.0)),
    )
    partition_graph(GraphDirectory.open(tmp_path / "bare"), plain, 1)
    bare = Request(make_config(values_of(plain, "sage")), PartitionedGraph.open(plain))
    with pytest.raises(RequestError, match=r"model\.edge_features: the model reads no relation"):
        check_request(bare)
    description = parts / "partition.json"
    stored = json.loads(description.read_text())
    del stored["edge_offsets"]
    description.write_text(json.dumps(stored))
    message = r"field 'edge_offsets': expected the relations .*write it anew"
    with pytest.raises(GraphError, match=message):
        PartitionedGraph.open(parts)
