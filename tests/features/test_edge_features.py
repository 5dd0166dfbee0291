"""Features of edges: where they are stored, and what a layer makes of them."""

import json

import numpy as np
import pytest
import torch

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_sampler
from hopper.engines.reference import EveryServersRows
from hopper.errors import GraphError
from hopper.graph import GraphDirectory
from hopper.graph.block import Block, Nodes
from hopper.models.gcn import GCNLayer
from hopper.models.sage import SAGELayer
from hopper.partition import PartitionedGraph, partition_graph
from tests.engines.graphs import EDGE, NODES, make_nodes

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")


@pytest.fixture(scope="module")
def one_type(tmp_path_factory) -> GraphDirectory:
    return make_nodes(tmp_path_factory.mktemp("edges") / "graph")


def test_every_edge_has_its_own_features(one_type, tmp_path):
    """Features that hold an edge's ends stay with that edge, whichever server stores them."""
    graph = partition_graph(one_type, tmp_path / "parts", 3, "random")
    values = {"model": {"name": "sage", "layers": 2, "edge_features": True}}
    values |= {"data": {"partitioned": str(graph.path)}, "sampler": {"fanouts": [3, 2]}}
    sampler = make_sampler(Request(make_config(values), graph))
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
def test_messages_add_source_rows_and_edge_features(kind, project_first):
    """A layer yields what the formula, written out over all edges, yields."""
    generator = torch.Generator().manual_seed(2)
    src, dst = torch.tensor([[1, 2, 0, 3, 1], [0, 0, 1, 1, 2]])
    e, x = torch.rand(5, 3, generator=generator), torch.rand(4, 6, generator=generator)
    layer = kind(6, 5, project_first=project_first, edge_dim=3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    out_degree, in_degree = (torch.bincount(end, minlength=4) for end in (src, dst))
    indptr, ids = torch.tensor([0, 2, 4, 5]), torch.arange(4)
    ends = Nodes("node", ids, out_degree), Nodes("node", ids[:3], in_degree[:3])
    block = Block(4, 3, indptr, src, EDGE, torch.zeros(5).long(), *ends)
    block.edge_features = e
    rows = layer(block, x, x[:3])
    if kind is GCNLayer:
        root_rows = x[:3] @ layer.weight / (in_degree[:3, None] + 1) + layer.bias
        source_rows = x @ layer.weight
        share = ((out_degree[src] + 1.0) * (in_degree[dst] + 1)) ** -0.5
    else:
        root_rows, source_rows = layer.self_linear(x[:3]), x @ layer.neighbor_linear.weight.T
        share = 1.0 / in_degree[dst]
    messages = (source_rows[src] + e @ layer.edge_linear.weight.T) * share[:, None]
    expected = root_rows + torch.zeros(3, 5).index_add(0, dst, messages)
    assert torch.allclose(rows, expected, atol=1e-5)


def test_a_partition_without_their_places_is_refused(one_type, tmp_path):
    parts = partition_graph(one_type, tmp_path / "parts", 1)
    description = parts.path / "partition.json"
    stored = json.loads(description.read_text())
    del stored["edge_offsets"]
    description.write_text(json.dumps(stored))
    with pytest.raises(GraphError, match=r"field 'edge_offsets': expected the relations .*write"):
        PartitionedGraph.open(parts.path)
