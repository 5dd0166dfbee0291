"""PyG's own loaders over Hopper's servers, with and without workers."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hopper

pytest.importorskip("torch_geometric")

from torch_geometric.loader import LinkLoader, NodeLoader

from hopper.pyg import FeatureStore, GraphStore, Sampler
from tests.server_processes import run_python

CITES = ("paper", "to", "paper")


@pytest.fixture(scope="module")
def connected(parts_of, serve_partitions) -> Iterator[hopper.ConnectedGraph]:
    parts = parts_of("bare")
    with hopper.connect(parts, serve_partitions(parts, 2)) as connected:
        yield connected


def test_pyg_s_loader_of_nodes_reads_from_servers(graph_of, connected):
    typed = graph_of("bare")
    train = torch.from_numpy(np.array(typed.split("train")))
    loader = NodeLoader(
        (FeatureStore(connected), GraphStore(connected)),
        node_sampler=Sampler(connected, [3, 3]),
        input_nodes=("paper", train),
        batch_size=10,
        shuffle=True,
    )
    features, labels = typed.features("paper"), typed.labels("paper")
    roots = []
    for batch in loader:
        paper = batch["paper"]
        roots.append(paper.n_id[: paper.batch_size])
        assert np.array_equal(paper.x, np.array(features)[paper.n_id])
        assert np.array_equal(paper.y, np.array(labels)[paper.n_id])
        topology = typed.topology(hopper.Relation(*CITES))
        places = np.argsort(topology.edge_ids)[batch[CITES].e_id]
        sources = paper.n_id[batch[CITES].edge_index[0]]
        assert np.array_equal(sources, topology.indices[places])
    assert torch.equal(torch.cat(roots).sort().values, train)


def test_workers_connect_by_themselves(connected):
    """Forked ones and spawned ones, of a process that has not drawn; then of one that has."""
    servers = connected.__reduce__()[0].args[1]
    script = str(Path(__file__).with_name("workers.py"))
    ended = run_python(script, str(connected.graph.path), *servers, limit=240)
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert counts["fork"] == counts["spawn"] == 50
    assert "num_workers: this process drew neighbors before it forked" in counts["drew"]


def test_pyg_s_loader_of_links_reads_from_servers(connected):
    stores = FeatureStore(connected), GraphStore(connected)
    row, col, _ = stores[1].coo([CITES])
    loader = LinkLoader(
        stores,
        link_sampler=Sampler(connected, [2]),
        edge_label_index=(CITES, None),
        neg_sampling="binary",
        batch_size=100,
    )
    seen = 0
    for batch in loader:
        store = batch[CITES]
        count = store.input_id.numel()
        ends = batch["paper"].n_id[store.edge_label_index[:, :count]]
        assert torch.equal(ends[0], row[CITES][store.input_id])
        assert torch.equal(ends[1], col[CITES][store.input_id])
        assert store.edge_label.sum() == count == store.edge_label.numel() / 2
        seen += count
    assert seen == 400


def test_edges_have_no_ids_where_topology_is_on_other_servers(parts_of, serve_partitions):
    """Their places in the servers' lists are not ids of the user's."""
    parts = parts_of("bare", "partitioned")
    with hopper.connect(parts, serve_partitions(parts, 2)) as divided:
        loader = NodeLoader(
            (FeatureStore(divided), GraphStore(divided)),
            node_sampler=Sampler(divided, [3]),
            input_nodes=("paper", torch.arange(20)),
            batch_size=20,
        )
        batch = next(iter(loader))
    assert batch[CITES].edge_index.shape[1] > 20
    assert "e_id" not in batch[CITES]


def test_stores_can_only_be_read(connected):
    features = FeatureStore(connected)
    assert features.get_tensor_size("paper", "x", None) == (120, 7)
    assert features.get_tensor("paper", "x", torch.tensor([3, 1])).shape == (2, 7)
    with pytest.raises(hopper.RequestError, match="only be read"):
        features.put_tensor(torch.ones(1), "paper", "x", torch.tensor([3]))
    with pytest.raises(hopper.RequestError, match="time_attr"):
        Sampler(connected, [3], time_attr="time")
