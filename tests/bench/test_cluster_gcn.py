"""ClusterGCN's batches consist of whole clusters."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.cluster_gcn import ClusterBatches, ClusterSampler
from hopper.config import change_config, make_config
from hopper.engines import Request
from hopper.engines.assemble import make_sampler, make_schedule
from hopper.errors import RequestError
from hopper.partition import PartitionedGraph

CLUSTERS = 12


def graph_nodes(graph: PartitionedGraph) -> np.ndarray:
    """Return the original id of every node of a graph of one node type."""
    return graph.original_ids(graph.schema.target_type())


@pytest.fixture
def clusters(tiny_graph, tmp_path) -> Path:
    """A file that assigns nodes to twelve clusters at random."""
    path = tmp_path / "clusters.npy"
    count = graph_nodes(tiny_graph).size
    np.save(path, np.random.default_rng(5).permutation(count) % CLUSTERS)
    return path


@pytest.fixture
def cluster_request(tiny_config, tiny_graph, clusters) -> Request:
    """A request for two ranks, with two clusters a batch and all neighbours."""
    plug_in = ClusterSampler.__module__
    options = f'{{clusters = "{clusters}", per_batch = 2}}'
    words = [
        f"--train.engine={plug_in}:{ClusterBatches.__name__}",
        f"--sampler.kind={plug_in}:{ClusterSampler.__name__}",
        *(f"--sampler.kind_options={options}", "--sampler.fanouts=[-1, -1]"),
    ]
    return Request(make_config(tiny_config.model_dump(), words), tiny_graph)


def test_every_root_is_in_one_batch_of_whole_clusters(cluster_request, clusters):
    schedule, graph = make_schedule(cluster_request), cluster_request.graph
    assert schedule.iterations == CLUSTERS // 2 // 2
    of_node = np.load(clusters)[graph_nodes(graph)]
    by_epoch = []
    for epoch in range(2):
        batches = [schedule.batch(epoch, index) for index in range(schedule.iterations)]
        parts = [batch.of_model(model) for batch in batches for model in range(2)]
        roots = np.concatenate(parts)
        assert sorted(graph_nodes(graph)[roots]) == sorted(graph.split("train"))
        batch_clusters = [frozenset(of_node[part].tolist()) for part in parts]
        assert [len(members) for members in batch_clusters] == [2] * len(parts)
        assert len(frozenset().union(*batch_clusters)) == CLUSTERS
        by_epoch.append(set(batch_clusters))
    assert by_epoch[0] != by_epoch[1]


def test_edges_that_leave_the_batch_are_dropped_and_no_others(cluster_request, clusters):
    batch = make_schedule(cluster_request).batch(1, 0)
    roots = batch.of_model(0)
    subgraph = make_sampler(cluster_request).sample(roots, 1, 0)
    node_wise, train = {"kind": "node", "kind_options": {}}, {"engine": "model_centric"}
    plain = change_config(cluster_request.config, sampler=node_wise, train=train)
    unfiltered = make_sampler(Request(plain, cluster_request.graph)).sample(roots, 1, 0)
    of_node = np.load(clusters)[graph_nodes(cluster_request.graph)]
    batch_clusters = np.unique(of_node[roots])
    (relation,) = subgraph.hops[0]
    # Of the first hop, from the roots alone, all edges to nodes of these clusters stay.
    sources = unfiltered.nodes[relation.src][unfiltered.hops[0][relation].indices]
    drawn = subgraph.hops[0][relation].indices.size
    assert 0 < drawn == np.isin(of_node[sources], batch_clusters).sum()
    assert np.isin(of_node[subgraph.nodes[relation.src]], batch_clusters).all()


def test_a_batch_without_training_nodes_is_refused(cluster_request, clusters, tiny_graph):
    np.save(clusters, np.arange(graph_nodes(tiny_graph).size))
    schedule = make_schedule(cluster_request)
    assert schedule.iterations > 130 // 4
    with pytest.raises(RequestError, match=r"no training node in epoch 0, .* more clusters"):
        _ = [schedule.batch(0, index) for index in range(schedule.iterations)]
