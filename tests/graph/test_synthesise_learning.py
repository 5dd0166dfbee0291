"""What the presets are tuned for: labels that a GNN can learn, and METIS's published locality."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from hopper.graph import GraphDirectory
from hopper.graph.synthesise import EDGE, NODE, make
from hopper.micrograph.locality import measure_locality
from hopper.partition import partition_graph

# HopGNN Table 1, METIS, node-wise sampling, two layers: R_micro in percent, of servers.
PUBLISHED = {("arxiv-like", 4): 66, ("products-like", 2): 95}
SCALES = {"arxiv-like": 0.1, "products-like": 0.01}


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
    adjacency = scipy.sparse.csr_array((ones, topology.indices, topology.indptr))
    return adjacency @ rows / np.maximum(topology.in_degrees, 1)[:, None].astype(np.float32)


def measure_accuracy(graph: GraphDirectory, inputs: NDArray[np.float32]) -> float:
    """Return the test accuracy of a linear classifier (ridge regression on one-hot classes)."""
    labels = np.asarray(graph.labels(NODE))
    train, test = graph.split("train"), graph.split("test")
    rows = (inputs - inputs[train].mean(0)) / inputs[train].std(0)
    one_hot = np.eye(graph.schema.labels[NODE].classes, dtype=np.float32)[labels[train]]
    gram = rows[train].T @ rows[train] + 10.0 * np.eye(rows.shape[1], dtype=np.float32)
    weight = np.linalg.solve(gram, rows[train].T @ (one_hot - one_hot.mean(0)))
    predicted = (rows[test] @ weight + one_hot.mean(0)).argmax(1)
    return float(np.mean(predicted == labels[test]))


@pytest.mark.parametrize("name", SCALES)
def test_neighbours_say_more_of_the_class_than_own_features(
    name: str, graphs: dict[str, GraphDirectory]
) -> None:
    features = np.array(graphs[name].features(NODE))
    accuracy = measure_accuracy(graphs[name], features)
    both = np.hstack([features, neighbour_means(graphs[name], features)])
    assert 0.15 < accuracy < 0.6, "features alone should say something, and not everything"
    assert measure_accuracy(graphs[name], both) > accuracy + 0.1


# DGL leaves /proc/self/status open when it reports its memory.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(("name", "servers"), PUBLISHED)
def test_locality_under_metis_is_the_published_one(
    name: str, servers: int, graphs: dict[str, GraphDirectory], tmp_path: Path
) -> None:
    pytest.importorskip("dgl", reason="needs DGL for METIS")
    parts = partition_graph(graphs[name], tmp_path / "parts", servers, "metis")
    measured = 100 * measure_locality(parts, (10, 10), roots=400).micrograph
    assert measured == pytest.approx(PUBLISHED[name, servers], abs=10)
