"""Scores, computed layer by layer, are those of whole neighbourhoods read at once."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_full_sampler, make_model
from hopper.engines.build import make_learnable
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Inference, Scene, Wanted, make_inference
from hopper.models import run_model
from hopper.partition import PartitionedGraph, partition_graph
from hopper.tasks import find_target

from .features import FEATURES, GRAPHS, Case, World, case_of

pytestmark = pytest.mark.filterwarnings("ignore:split ", "ignore:labels of")

ALONE = World(1, 1)
# Whose rows of nodes all come from features.
OF_NODES = [
    ("node", "pool"),
    ("features of edges", "sage"),
    ("features of edges", "gat"),
    ("in time", "sage"),
    ("several tasks", "sage"),
    ("types", "rgat"),
    ("types, features of edges", "rgcn, one by one"),
    ("types, features of edges", "hgt"),
    ("own model", "shared"),
]


def infer(
    case: Case, parts: PartitionedGraph, at: int | None = None
) -> tuple[Request, torch.nn.Module, Inference]:
    """Return a case's request, its first model, and what computes its scores."""
    request = Request(make_config(case.values(parts, parts.path / "run")), parts)
    cluster, rows = Cluster(0, 1, 1, torch.device("cpu"), 1.0), PartitionedRows(parts, 0, None)
    has_tables = bool(request.reads.tables)
    learnable = make_learnable(request, cluster) if has_tables else LearnableRows(cluster)
    width = find_target(request.config, parts.schema).width
    # So few bytes that layers are computed in chunks.
    scene = Scene(request, cluster, rows, torch.float64, learnable, width, 2048, at)
    model = make_model(request).eval()
    return request, model, make_inference(scene, model)


@pytest.mark.parametrize(("feature", "model"), OF_NODES)
def test_scores_are_those_of_whole_neighbourhoods(feature: str, model: str, tmp_path: Path) -> None:
    case = case_of(feature, "model_centric", ALONE, 0, model)
    parts = case.divide(GRAPHS[FEATURES[feature].graph](tmp_path / "graph"), tmp_path / "parts")
    request, network, inference = infer(case, parts)
    rows, sampler = PartitionedRows(parts, 0, None), make_full_sampler(request, 0)
    with torch.no_grad():
        ids, logits = inference.rows(network, inference.split("val"))
        is_timed = request.reads_times
        # In time every node is looked at by itself.
        for roots in [ids[place : place + 1] for place in range(15)] if is_timed else [ids]:
            subgraph = sampler.sample(roots, 0, 0).with_edges(request.reads.edges)
            assert not is_timed or len({*subgraph.times["node"].tolist()}) == 1
            inputs = {
                name: torch.from_numpy(rows.gather("features", name, nodes)).double()
                for name, nodes in subgraph.nodes.items()
                if nodes.size
            }
            edges = {
                name: torch.from_numpy(rows.gather("features", of.table, of.ids)).double()
                for name, of in subgraph.edges.items()
            }
            expected = run_model(network, subgraph.typed_blocks(None, edges), inputs)
            found = logits[np.searchsorted(ids, roots)]
            assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        if is_timed:
            with pytest.raises(RequestError, match=r"embeddings: with sampler\.kind = 'temporal'"):
                inference.rows(network, Wanted("some", ids[:3], "embeddings"))


@pytest.mark.parametrize("pick", [0, 1])
def test_divided_relations_have_the_scores_of_divided_nodes(pick: int, tmp_path: Path) -> None:
    """Scores are taken at the roots' own times, and at one time for all of them."""
    graph = GRAPHS["drawn"](tmp_path / "graph")
    scores: dict[int | None, list[torch.Tensor]] = {None: [], 3: []}
    for engine, at in itertools.product(("raf", "zero_hop in passes"), scores):
        case = case_of("types, in time", engine, ALONE, pick * 3, "hgt, three layers")
        parts = tmp_path / engine
        divided = PartitionedGraph.open(parts) if parts.exists() else case.divide(graph, parts)
        _, network, inference = infer(case, divided, at)
        with torch.no_grad():
            ids, logits = inference.rows(network, inference.split("val"))
        scores[at].append(logits[np.argsort(ids)])
    for by_relation, by_node in scores.values():
        assert torch.allclose(by_relation, by_node, rtol=0, atol=1e-12)
    assert not torch.allclose(scores[None][0], scores[3][0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_stored_forms_have_the_scores_of_the_same_numbers(dtype: str, tmp_path: Path) -> None:
    graph, case = GRAPHS["items"](tmp_path / "graph"), case_of("node", "model_centric", ALONE, 1)
    small = partition_graph(graph, tmp_path / "small", 1, "random", feature_dtypes=[dtype])
    plain = partition_graph(graph, tmp_path / "plain", 1, "random")
    rows = PartitionedRows(small, 0, None).stored("item", np.arange(300)).to(torch.float32)
    (tmp_path / "plain/server-0/features/item.npy").unlink()
    np.save(tmp_path / "plain/server-0/features/item.npy", rows.to_tensor().numpy())
    scores = []
    for parts in (small, plain):
        _, network, inference = infer(case, parts)
        with torch.no_grad():
            scores.append(inference.rows(network, inference.split("val"))[1])
    assert torch.equal(*scores)
