"""Scores of links and labelled edges on ranks that are threads, against all predictions."""

from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional import classification

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.training_parts import make_objective
from hopper.features import PartitionedRows, open_graph
from hopper.graph import GraphDirectory
from hopper.hetero.learnable import LearnableRows
from hopper.inference import EndRows, Scene, Wanted, make_inference
from hopper.rehearsal.world import ThreadCluster, rehearse, run_ranks
from hopper.tasks import decoder_of, find_target
from hopper.train.evaluate import Scored
from hopper.train.evaluate_links import make_evaluator

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")
NODES = 300


def test_only_the_rows_that_a_rank_needs_are_sent_to_it_and_their_bits_stay():
    nodes = np.array([2, 3, 5, 7, 11, 13])
    rows = torch.tensor([[-0.0], [1.0], [float("nan")], [-3.0], [4.0], [5.0]])
    wanted = [np.array([13, 2, 2, 5]), np.array([], np.int64), np.array([7])]

    def work(cluster: ThreadCluster) -> tuple[list[Any], int]:
        mine = np.arange(cluster.rank, 6, 2) if cluster.rank < 2 else np.arange(0)
        ends = EndRows.of(cluster, nodes, nodes[mine], rows[mine], "telling")
        cluster.traffic.take()
        fetched = ends.fetch(wanted, "fetching"), ends.fetch_everywhere(nodes[::-1].copy(), "all")
        sent = cluster.traffic.take()["partial"]
        picked = ends.pick(nodes[2:4]).fetch_everywhere(nodes[3:4], "picked")
        return [found.numpy().view(np.int32)[:, 0].tolist() for found in (*fetched, picked)], sent

    bits = dict(zip(nodes.tolist(), rows.numpy().view(np.int32)[:, 0].tolist(), strict=True))
    results = run_ranks(3, 1, work)
    for rank, (found, _) in enumerate(results):
        expected = wanted[rank].tolist(), nodes[::-1].tolist(), [7]
        assert found == [[bits[node] for node in ids] for ids in expected]
    # Each rank sends its three rows to both others, and what others alone need.
    assert [sent for _, sent in results] == [6 * 4, (6 + 1 + 1) * 4, 0]


def evaluate(
    graph: GraphDirectory, servers: int, ranks: int, **values: Any
) -> tuple[list[Scored], torch.nn.Module, torch.Tensor]:
    """Score a new model on the test split.

    Returns
    -------
    The scores on every rank, the model, and its rows of all nodes by original id.
    """
    config = make_config(
        {
            "data": {"partitioned": str(graph.path.parent / str(servers))},
            "model": {"name": "sage", "layers": 2, "hidden": 8},
            "sampler": {"fanouts": [5, 5]},
            "task": values.pop("task", {}),
            "train": {"dtype": "float64", "engine": "zero_hop"} | values,
            "cluster": {"ranks_per_server": ranks},
        }
    )
    request = Request(config, open_graph(config))
    model, target = make_model(request).double(), find_target(config, request.schema)

    def work(cluster: ThreadCluster, rows: PartitionedRows) -> tuple[Scored, Any, torch.Tensor]:
        scene = Scene(request, cluster, rows, torch.float64, LearnableRows(cluster), target.width)
        inference = make_inference(scene, model)
        evaluator = make_evaluator(inference, make_objective(config, request.schema))
        with torch.no_grad():
            own = inference.rows(model, Wanted("all", np.arange(NODES), node_type="item"))
        return evaluator.score(model, "test", by_class=True), *own

    results = rehearse(request, work, None, 60.0)
    by_id = torch.empty(NODES, target.width, dtype=torch.float64)
    for _, ids, rows in results:
        by_id[torch.from_numpy(request.graph.original_ids("item")[ids])] = rows
    return [scored for scored, *_ in results], model, by_id


def ranks_of(graph: GraphDirectory, rows: torch.Tensor, decoder: Any, others: Any) -> np.ndarray:
    """The rank of every test link for each of its ends, by scoring all of ``others``, an array or
    None for all nodes without known links."""
    links = {name: graph.links(name) for name in graph.schema.splits}
    known = {
        pair
        for split in links.values()
        for pair in zip(split.src.tolist(), split.dst.tolist(), strict=True)
    }
    ranks = []
    for side in (1, 0):
        for number, pair in enumerate(
            zip(links["test"].src.tolist(), links["test"].dst.tolist(), strict=True)
        ):
            fixed, true = pair[1 - side], pair[side]
            if others is None:
                found = [
                    node
                    for node in range(NODES)
                    if ((fixed, node) if side else (node, fixed)) not in known
                ]
            else:
                found = [node for node in others[number, 1 - side].tolist() if node != true]
            ends = rows[[true, *found]][None]
            pairs = (rows[fixed][None, None], ends) if side else (ends, rows[fixed][None, None])
            scores = decoder(pairs[0], torch.zeros(1, dtype=torch.int64), pairs[1])[0]
            better, equal = (scores[1:] > scores[0]).sum(), (scores[1:] == scores[0]).sum()
            ranks.append(1 + int(better) + int(equal) / 2)
    return np.array(ranks)


@pytest.mark.parametrize(
    ("how", "decoder"), [("all", "mlp"), ("some", "distmult"), ("file", "distmult")]
)
def test_links_are_ranked_as_by_one_process(how, decoder, edge_graphs, tmp_path):
    graph, task, others = edge_graphs["links"], {"decoder": decoder}, None
    if how == "some":
        task["candidates"] = 40
    elif how == "file":
        generator = np.random.default_rng(3)
        others = generator.integers(0, NODES, (graph.schema.splits["test"], 2, 20))
        np.save(tmp_path / "test.npy", others)
        task["fixed_negatives"] = {"test": str(tmp_path / "test.npy")}
    metrics = {"more_metrics": ["hits@10"]}
    [expected], model, rows = evaluate(graph, 1, 1, task=task, **metrics)
    scored, *_ = evaluate(graph, 2, 2, task=task, **metrics)
    for of_rank in scored:
        assert of_rank == scored[0]
        assert of_rank.by_metric == pytest.approx(expected.by_metric, rel=1e-9)
    if how != "some":
        with torch.no_grad():
            ranks = ranks_of(graph, rows, decoder_of(model), others)
        scores = {"mrr": (1 / ranks).mean(), "hits@10": (ranks <= 10).mean()}
        assert expected.by_metric == pytest.approx(scores, rel=1e-9)
    assert 0 < expected.by_metric["mrr"] < 1


def test_labelled_edges_are_scored_as_by_one_process(edge_graphs):
    """torchmetrics computes the metrics of what the decoder predicts."""
    graph, metrics = edge_graphs["labels"], {"more_metrics": ["macro_f1", "roc_auc"]}
    [expected], model, rows = evaluate(graph, 1, 1, **metrics)
    for of_rank in evaluate(graph, 2, 2, **metrics)[0]:
        assert of_rank.by_metric == pytest.approx(expected.by_metric, rel=1e-9)
        assert of_rank.by_class == expected.by_class
    links = graph.links("test")
    with torch.no_grad():
        ends, relations = (rows[links.src], rows[links.dst]), torch.zeros(links.count).long()
        logits = decoder_of(model)(ends[0], relations, ends[1])
    labels, predicted = torch.from_numpy(np.asarray(links.labels)), logits.argmax(1)
    f1 = classification.multiclass_f1_score(predicted, labels, num_classes=2, average="macro")
    roc_auc = classification.binary_auroc(torch.softmax(logits, 1)[:, 1], labels)
    assert expected.by_metric == pytest.approx(
        {
            "accuracy": float((predicted == labels).double().mean()),
            "macro_f1": float(f1),
            "roc_auc": float(roc_auc),
        },
        abs=1e-6,
    )
