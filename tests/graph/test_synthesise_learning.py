"""What the presets are tuned for: labels that a GNN can learn, and METIS's published locality."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.typing import NDArray

from hopper.graph import GraphDirectory
from hopper.graph.synthesise import EDGE, NODE, make

# HopGNN Table 1, METIS, node-wise sampling, two layers: R_micro in percent by number of servers.
PUBLISHED = {"arxiv-like": {2: 75, 4: 66}, "products-like": {2: 95, 4: 92}}
SCALES = {"arxiv-like": 0.2, "products-like": 0.02}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphDirectory]:
    root = tmp_path_factory.mktemp("tuned")
    return {
        name: GraphDirectory.open(make(name, root / name, scale=scale), check="shapes")
        for name, scale in SCALES.items()
    }


def neighbour_means(graph: GraphDirectory, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    topology = graph.topology(EDGE)
    ones = np.ones(topology.indices.size, np.float32)
    adjacency = scipy.sparse.csr_array(
        (ones, np.array(topology.indices), np.array(topology.indptr)),
        shape=(topology.in_degrees.size, topology.out_degrees.size),
    )
    return adjacency @ rows / np.maximum(topology.in_degrees, 1)[:, None].astype(np.float32)


def measure_accuracy(graph: GraphDirectory, inputs: NDArray[np.float32]) -> float:
    """Return the test accuracy of a linear classifier (ridge regression on one-hot classes)."""
    labels = np.asarray(graph.labels(NODE))
    train, test = graph.split("train"), graph.split("test")
    rows = (inputs - inputs[train].mean(0)) / inputs[train].std(0)
    one_hot = np.eye(graph.schema.labels[NODE].classes, dtype=np.float32)[labels[train]]
    training_rows = rows[train]
    gram = training_rows.T @ training_rows + 10.0 * np.eye(training_rows.shape[1], dtype=np.float32)
    weight = np.linalg.solve(gram, training_rows.T @ (one_hot - one_hot.mean(0)))
    predicted = (rows[test] @ weight + one_hot.mean(0)).argmax(1)
    return float(np.mean(predicted == labels[test]))


@pytest.mark.parametrize("name", SCALES)
def test_neighbours_say_more_of_the_class_than_own_features(
    name: str, graphs: dict[str, GraphDirectory]
) -> None:
    features = np.array(graphs[name].features(NODE))
    accuracy = measure_accuracy(graphs[name], features)
    accuracy_with_neighbours = measure_accuracy(
        graphs[name], np.hstack([features, neighbour_means(graphs[name], features)])
    )
    assert accuracy > 0.15, "features alone should say something"
    assert accuracy < 0.6, "features alone should not say everything"
    assert accuracy_with_neighbours > accuracy + 0.1


def divide_by_metis(graph: GraphDirectory, servers: int) -> NDArray[np.int64]:
    os.environ.setdefault("DGLBACKEND", "pytorch")
    dgl = pytest.importorskip("dgl", reason="needs DGL for METIS")
    topology = graph.topology(EDGE)
    destinations = np.repeat(np.arange(topology.in_degrees.size), topology.in_degrees)
    dgl_graph = dgl.graph(
        (torch.from_numpy(np.array(topology.indices)), torch.from_numpy(destinations)),
        num_nodes=topology.in_degrees.size,
    )
    training = torch.zeros(topology.in_degrees.size, dtype=torch.int64)
    training[torch.from_numpy(np.array(graph.split("train")))] = 1
    parts = dgl.metis_partition_assignment(
        dgl_graph, servers, balance_ntypes=training, balance_edges=True, objtype="cut"
    )
    return np.asarray(parts.numpy())


def micrograph_locality(graph: GraphDirectory, parts: NDArray[np.int64], roots: int) -> float:
    """Return R_micro in percent for two hops of ten neighbours, without replacement."""
    topology = graph.topology(EDGE)
    indptr, indices = np.asarray(topology.indptr), np.asarray(topology.indices)
    generator = np.random.default_rng(0)
    shares = []
    for root in generator.choice(graph.split("train"), roots, replace=False).tolist():
        micrograph = {root}
        for _ in range(2):
            for node in sorted(micrograph):
                neighbours = indices[indptr[node] : indptr[node + 1]]
                if neighbours.size > 10:
                    neighbours = generator.choice(neighbours, 10, replace=False)
                micrograph.update(neighbours.tolist())
        neighbours_of_root = np.array(sorted(micrograph - {root}), dtype=np.int64)
        shares.append(np.sum(parts[neighbours_of_root] == parts[root]) / len(micrograph))
    return 100 * float(np.mean(shares))


# DGL leaves /proc/self/status open when it reports its memory.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize("name", SCALES)
def test_locality_under_metis_is_the_published_one(
    name: str, servers: int, graphs: dict[str, GraphDirectory]
) -> None:
    parts = divide_by_metis(graphs[name], servers)
    measured = micrograph_locality(graphs[name], parts, roots=400)
    assert measured == pytest.approx(PUBLISHED[name][servers], abs=10)
