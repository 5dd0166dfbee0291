"""Draws in time under every engine that makes them: the gradient and the scores of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request, engines_of
from hopper.engines.assemble import make_full_sampler, make_model
from hopper.engines.checks import check_request
from hopper.engines.unused import describe_unused
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.hetero.divide import divide_graph
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Scene, Wanted, make_inference
from hopper.models import run_model
from hopper.partition import PartitionedGraph, partition_graph
from tests.graphs import draw_ends

from .conftest import merged

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.2},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2},
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8, "dropout": 0.2},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2, "edge_features": True},
}
PICKS = ("uniform", "recent")
PAYS = ("account", "pays", "shop")


def make_graph(out: Path, *, typed: bool) -> GraphDirectory:
    """Write accounts and shops, or nodes of one type with times of their own.

    Payments have times and features. Accounts have no features: their rows are learned.
    """
    generator = np.random.default_rng(4)

    options = ImportOptions(split=RandomSplit(0.5, 0.2))
    if not typed:
        return GraphDirectory.from_arrays(
            out,
            draw_ends(generator, 120, 120, 1500),
            features=generator.random((120, 6)),
            labels=generator.integers(0, 4, 120),
            times=generator.integers(0, 30, 120),
            options=options,
        )
    pays = draw_ends(generator, 50, 60, 700)
    when = generator.integers(0, 30, 700)
    return GraphDirectory.from_arrays(
        out,
        {
            PAYS: pays,
            ("shop", "paid_by", "account"): pays[::-1],
            ("shop", "near", "shop"): draw_ends(generator, 60, 60, 90),
        },
        features={"shop": generator.random((60, 5))},
        labels={"shop": generator.integers(0, 3, 60)},
        counts={"account": 50},
        edge_features={PAYS: generator.random((700, 2))},
        times={
            "shop": generator.integers(0, 30, 60),
            PAYS: when,
            ("shop", "paid_by", "account"): when,
        },
        options=options,
    )


def values_of(parts: Path, kind: str, pick: str = "uniform", /, **sections: Any) -> dict[str, Any]:
    train = {"batch_size": 9, "epochs": 1, "dtype": "float64", "seed": 3}
    values = {"data": {"partitioned": str(parts)}, "train": train}
    return merged(values, sections_of(kind, pick), sections)


def sections_of(kind: str, pick: str) -> dict[str, Any]:
    sampler = {"kind": "temporal", "fanouts": [3, 2], "kind_options": {"pick": pick}}
    return {"model": MODELS[kind], "sampler": sampler}


def test_scores_are_those_of_whole_neighbourhoods_in_time(tmp_path: Path) -> None:
    """Scores of all nodes at once are those of each node by itself."""
    parts = tmp_path / "parts"
    partition_graph(make_graph(tmp_path / "graph", typed=False), parts, 1)
    graph = PartitionedGraph.open(parts)
    request = Request(make_config(values_of(parts, "sage")), graph)
    rows, cluster = PartitionedRows(graph, 0, None), Cluster(0, 1, 1, torch.device("cpu"), 1.0)
    scene = Scene(request, cluster, rows, torch.float64, LearnableRows(cluster), 4)
    model = make_model(request).eval()
    inference = make_inference(scene, model)
    with torch.no_grad():
        ids, logits = inference.rows(model, inference.split("val"))
        sampler = make_full_sampler(request, 0)
        for place, node in enumerate(ids[:20]):
            subgraph = sampler.sample(np.array([node]), 0, 0)
            assert len(set(subgraph.times["node"].tolist())) == 1
            inputs = rows.gather("features", "node", subgraph.nodes["node"])
            node_logits = run_model(
                model, subgraph.typed_blocks(), {"node": torch.from_numpy(inputs).double()}
            )
            assert torch.allclose(logits[place], node_logits[0], rtol=0, atol=1e-12)
        with pytest.raises(RequestError, match=r"embeddings: with sampler\.kind = 'temporal'"):
            inference.rows(model, Wanted("some", ids[:3], "embeddings"))


def test_wrong_requests_are_refused_and_unused_times_are_reported(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    directory = make_graph(tmp_path / "graph", typed=True)
    partition_graph(directory, parts, 2, "random")
    graph = PartitionedGraph.open(parts)

    def request(name: str, **keys: Any) -> Request:
        return Request(make_config(values_of(parts, name, **keys)), graph)

    unused = describe_unused(request("rgcn", sampler={"kind": "node", "kind_options": {}}))
    assert (
        "not used: times of account/pays/shop, shop, shop/paid_by/account: only sampler.kind = "
        '"temporal" reads them'
    ) in unused
    check_request(request("rgcn"))
    auto = {engine.spec.name for engine in engines_of(request("rgcn", train={"engine": "auto"}))}
    assert auto == {"zero_hop", "hop", "model_centric", "cooperative"}
    divide_graph(directory, tmp_path / "divided", 2, "meta", layers=2)
    divided = PartitionedGraph.open(tmp_path / "divided")
    by_relation = values_of(tmp_path / "divided", "rgcn", train={"engine": "auto"})
    check_request(Request(make_config(by_relation), divided))
    assert [
        engine.spec.name for engine in engines_of(Request(make_config(by_relation), divided))
    ] == ["raf"]
    plain_parts = tmp_path / "one"
    partition_graph(make_graph(tmp_path / "graph-1", typed=False), plain_parts, 1)
    plain = PartitionedGraph.open(plain_parts)
    gcn = make_config(values_of(plain_parts, "sage", model={"name": "gcn"}))
    with pytest.raises(RequestError, match="gcn weighs neighbours by their out-degrees"):
        check_request(Request(gcn, plain))
