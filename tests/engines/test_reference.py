"""The single-process gradient: a derivative of its own loss, whatever the partition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hopper.config import Config, make_config
from hopper.engines.reference import EveryServersRows, Reference
from hopper.errors import RequestError
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation
from hopper.models import build_model
from hopper.partition import PartitionedGraph, partition_graph

NODES, DIM, CLASSES, TRAIN = 60, 5, 3, 23


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """A random graph with isolated nodes, for node classification."""
    out = tmp_path_factory.mktemp("reference") / "graph"
    generator = np.random.default_rng(3)
    relation = Relation("paper", "cites", "paper")
    schema = GraphSchema(
        name="random",
        node_types={"paper": NodeType(NODES, DIM, "float32")},
        relations={relation: EdgeType(300)},
        target="paper",
        labels={"paper": Labels("class", CLASSES)},
        splits={"train": TRAIN},
    )
    with GraphWriter(out, schema) as writer:
        src, dst = generator.integers(0, NODES - 5, (2, 300))
        writer.topology(relation, src, dst)
        writer.features("paper")[:] = generator.standard_normal((NODES, DIM), dtype=np.float32)
        writer.labels("paper", generator.integers(0, CLASSES, NODES))
        writer.split("train", generator.permutation(NODES)[:TRAIN])
    return GraphDirectory.open(out)


@pytest.fixture(scope="module")
def partitions(graph: GraphDirectory) -> dict[int, PartitionedGraph]:
    """The graph on one, two and four servers."""
    return {
        servers: partition_graph(graph, graph.path.parent / f"{servers}", servers, "random")
        for servers in (1, 2, 4)
    }


def configure(graph: PartitionedGraph, model: str, batch_size: int) -> Config:
    return make_config(
        {
            "data": {"partitioned": str(graph.path)},
            "model": {"name": model, "layers": 2, "hidden": 4, "heads": 2, "dropout": 0.3},
            "sampler": {"fanouts": [3, 2]},
            "train": {"dtype": "float64", "batch_size": batch_size, "seed": 7},
        }
    )


def make_parameters(config: Config) -> dict[str, Tensor]:
    model = config.model
    module = build_model(
        model.name,
        in_dim=DIM,
        out_dim=CLASSES,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        seed=1,
        dtype=torch.float64,
    )
    return {name: value.detach() for name, value in module.named_parameters()}


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_same_on_any_number_of_servers(partitions: dict[int, PartitionedGraph], model: str) -> None:
    results = {}
    for servers, graph in partitions.items():
        # The same global batch of 16 roots, of which the second iteration has only 7.
        config = configure(graph, model, 16 // servers)
        results[servers] = Reference(config, graph, servers).gradient(2, 1, make_parameters(config))
    loss, gradients = results[1]
    assert loss > 0
    assert any(value.abs().max() > 1e-3 for value in gradients.values())
    for other_loss, other_gradients in (results[2], results[4]):
        assert other_loss == pytest.approx(loss, rel=1e-12)
        for name, value in gradients.items():
            torch.testing.assert_close(other_gradients[name], value, rtol=1e-10, atol=1e-13)


def test_gradient_is_the_derivative_of_the_loss(partitions: dict[int, PartitionedGraph]) -> None:
    config = configure(partitions[2], "sage", 8)
    reference = Reference(config, partitions[2], 2)
    parameters = make_parameters(config)
    _, gradients = reference.gradient(0, 0, parameters)
    generator = torch.Generator().manual_seed(0)
    direction = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in parameters.items()
    }
    step = 1e-6
    losses = [
        reference.gradient(
            0, 0, {n: value + sign * step * direction[n] for n, value in parameters.items()}
        )[0]
        for sign in (1, -1)
    ]
    slope = sum(float((gradients[n] * direction[n]).sum()) for n in parameters)
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)


def test_epochs_differ_and_repeat(partitions: dict[int, PartitionedGraph]) -> None:
    config = configure(partitions[2], "gcn", 8)
    reference = Reference(config, partitions[2], 2)
    parameters = make_parameters(config)
    first = reference.gradient(0, 0, parameters)
    second_epoch = reference.gradient(1, 0, parameters)
    again = reference.gradient(0, 0, parameters)
    assert second_epoch[0] != first[0]
    assert again[0] == first[0]
    assert all(torch.equal(again[1][name], value) for name, value in first[1].items())


def test_another_models_parameters_are_refused(partitions: dict[int, PartitionedGraph]) -> None:
    config = configure(partitions[1], "sage", 8)
    parameters = make_parameters(configure(partitions[1], "gcn", 8))
    with pytest.raises(RequestError, match="parameters of another model"):
        Reference(config, partitions[1], 1).gradient(0, 0, parameters)


def test_rows_of_every_server(
    graph: GraphDirectory, partitions: dict[int, PartitionedGraph]
) -> None:
    divided = partitions[4]
    rows = EveryServersRows(divided)
    original = np.array([41, 3, 59, 3, 0])
    ids = divided.global_ids("paper")[original]
    expected = graph.features("paper")
    assert expected is not None
    assert np.array_equal(rows.gather("features", "paper", ids), expected[original])
    labels = rows.gather("labels", "paper", ids)
    assert labels.shape == (5, 1)
    assert np.array_equal(labels[:, 0], np.asarray(graph.labels("paper"))[original])
    assert rows.gather("features", "paper", np.empty(0, np.int64)).shape == (0, DIM)
