"""Scoring a split layer by layer, in chunks where memory bounds them."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from hopper.graph.block import Block, TypedBlocks
from hopper.hetero.learnable import LearnableRows
from hopper.hetero.relation_first import RelationFirst, Roots
from hopper.inference import Inference, RowSpace, Scene, Wanted, make_inference
from hopper.inference.layer_wise import LayerWise
from hopper.models import run_model
from hopper.partition import PartitionedGraph, partition_graph
from hopper.tasks import find_target
from tests.engines.features import Case, World, case_of

ALONE = World(1, 1)
# Features and models whose input rows all come from features. Some layers read rows that are wider
# than those that they make, and others narrower ones.
CASES = [
    ("node", "pool"),
    ("features of edges", "sage"),
    ("features of edges", "gat"),
    ("in time", "sage"),
    ("several tasks", "sage"),
    ("types", "rgat"),
    ("types", "rgcn"),
    ("types", "hgt"),
    ("types, features of edges", "rgcn"),
    ("types, features of edges", "hgt"),
    ("own model", "shared"),
]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """Compute all rows as evaluation and prediction do."""
    with torch.no_grad():
        yield


def infer(
    case: Case, parts: PartitionedGraph, chunk_bytes: int = 1 << 20, at: int | None = None
) -> tuple[Request, torch.nn.Module, Inference]:
    """Return a case's request, its first model, and what computes its scores."""
    request = Request(make_config(case.values(parts, parts.path / "run")), parts)
    cluster, rows = Cluster(0, 1, 1, torch.device("cpu"), 1.0), PartitionedRows(parts, 0, None)
    has_tables = bool(request.reads.tables)
    learnable = make_learnable(request, cluster) if has_tables else LearnableRows(cluster)
    width = find_target(request.config, parts.schema).width
    scene = Scene(request, cluster, rows, torch.float64, learnable, width, chunk_bytes, at)
    model = make_model(request).eval()
    return request, model, make_inference(scene, model)


@pytest.mark.parametrize(("feature", "model"), CASES)
def test_scores_are_those_of_whole_neighbourhoods(feature, model, divided, monkeypatch):
    case = case_of(feature, "model_centric", ALONE, 0, model)
    parts, chunks, new_rows = divided(case), list[int](), LayerWise._new_rows
    request, network, inference = infer(case, parts)
    rows, sampler = PartitionedRows(parts, 0, None), make_full_sampler(request, 0)
    ids, logits = inference.rows(network, inference.split("val"))
    target = request.reads.target
    assert sorted(parts.original_ids(target)[ids]) == sorted(parts.split("val"))
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

    def count_rows(self: LayerWise, *arguments: Any) -> torch.Tensor:
        rows = new_rows(self, *arguments)
        chunks.append(len(rows))
        return rows

    monkeypatch.setattr(LayerWise, "_new_rows", count_rows)
    inference = infer(case, parts, 2048)[2]
    ids_again, in_chunks = inference.rows(network, inference.split("val"))
    np.testing.assert_array_equal(ids, ids_again)
    assert torch.allclose(logits, in_chunks, rtol=0, atol=1e-12)
    assert is_timed or len(chunks) > 10


@pytest.mark.parametrize("pick", [0, 1])
def test_divided_relations_have_the_scores_of_divided_nodes(pick, divided):
    """Scores are taken at the roots' own times, and at one time for all of them."""
    scores: dict[int | None, list[torch.Tensor]] = {None: [], 3: []}
    for engine, at in itertools.product(("raf", "zero_hop in passes"), scores):
        case = case_of("types, in time", engine, ALONE, pick, "hgt, three layers")
        _, network, inference = infer(case, divided(case), 2048, at)
        ids, logits = inference.rows(network, inference.split("val"))
        scores[at].append(logits[np.argsort(ids)])
    for by_relation, by_node in scores.values():
        assert torch.allclose(by_relation, by_node, rtol=0, atol=1e-12)
    assert not torch.allclose(scores[None][0], scores[3][0])


@pytest.mark.parametrize("model", ["rgcn", "rgat", "hgt, three layers"])
def test_what_lies_below_roots_is_laid_out_as_it_is_read(model, divided, monkeypatch):
    """Edges that are laid out ahead are not laid out again in the pass, nor any others."""
    rows, laid_out = RelationFirst.rows, list[int]()

    def lay_out(
        self: RelationFirst, roots: Mapping[str, Roots], hops: list[TypedBlocks], *arguments: Any
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        self.lay_out(hops)
        before = [set(hop.prepared) for hop in hops]
        found = rows(self, roots, hops, *arguments)
        assert [set(hop.prepared) for hop in hops] == before
        laid_out.extend(len(keys) for keys in before)
        return found

    case = case_of("types", "raf", ALONE, 0, model)
    _, network, inference = infer(case, divided(case), 2048)
    # Nothing is dropped at evaluation, so no keys are made.
    network.dropout = 0.0
    _, expected = inference.rows(network, inference.split("val"))
    monkeypatch.setattr(RelationFirst, "rows", lay_out)
    _, found = inference.rows(network, inference.split("val"))
    assert torch.equal(found, expected)
    assert min(laid_out) > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_stored_forms_have_the_scores_of_the_same_numbers(dtype, graph_of, tmp_path):
    graph, case = graph_of("items"), case_of("node", "model_centric", ALONE, 1)
    small = partition_graph(graph, tmp_path / "small", 1, "random", feature_dtypes=[dtype])
    plain = partition_graph(graph, tmp_path / "plain", 1, "random")
    rows = PartitionedRows(small, 0, None).stored("item", np.arange(300)).to(torch.float32)
    (tmp_path / "plain/server-0/features/item.npy").unlink()
    np.save(tmp_path / "plain/server-0/features/item.npy", rows.to_tensor().numpy())
    scores = []
    for parts in (small, plain):
        _, network, inference = infer(case, parts, 2048)
        scores.append(inference.rows(network, inference.split("val"))[1])
    assert torch.equal(*scores)


class Interrupted(Exception):
    """Stands in for a signal."""


@pytest.mark.parametrize("output", ["logits", "embeddings"])
@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_rows_in_files_equal_those_in_memory_after_interruptions(name, output, divided, tmp_path):
    """After each interruption no piece is made again, and the bits are the same."""
    case = case_of("types", "model_centric", ALONE, 0, name)
    _, model, inference = infer(case, divided(case), 2048)
    wanted = Wanted("all", np.arange(120), output)
    ids, expected = inference.rows(model, wanted)
    assert expected.shape == (120, 4 if output == "logits" else 8)
    pieces_made: list[tuple[str, int]] = []

    def interrupt(table: str, done: int, pieces: int) -> None:
        pieces_made.append((table, done))
        raise Interrupted

    for _ in range(500):
        space = RowSpace(tmp_path / "rows", on_piece=interrupt)
        try:
            ids_in_files, rows_in_files = inference.rows(model, wanted, space)
        except Interrupted:
            continue
        break
    else:
        pytest.fail("it never came to an end")
    assert len(pieces_made) == len(set(pieces_made)) > 10
    np.testing.assert_array_equal(ids, ids_in_files)
    assert torch.equal(rows_in_files, expected)
    # Rows that were stored in other pieces are made again.
    for pieces in ([slice(0, 2), slice(2, 4)], [slice(0, 4)]):
        made = torch.full((4, 1), float(len(pieces)))
        stored = RowSpace(tmp_path / "rows").fill("table", pieces, lambda of, rows=made: rows[of])
        assert torch.equal(stored, made)


def test_rows_that_do_not_fit_memory_are_in_files_that_go_with_them(divided, monkeypatch):
    case = case_of("types", "model_centric", ALONE, 0, "rgcn")
    parts = divided(case)
    _, model, inference = infer(case, parts, 2048)
    wanted = Wanted("all", np.arange(120))
    _, expected = inference.rows(model, wanted)
    monkeypatch.setattr("hopper.inference.layer_wise.exceed_memory", lambda nbytes: nbytes > 0)
    _, rows = inference.rows(model, wanted)
    assert torch.equal(rows, expected)
    maps = Path("/proc/self/maps").read_text()
    assert f"{parts.path}/run/rows-{os.getpid()}-layer-" in maps
    assert not list(parts.path.glob("run/*"))


def test_a_model_without_layers_scores_by_whole_neighbourhoods(divided, monkeypatch):
    case = case_of("node", "model_centric", ALONE, 0, "gcn")
    _, model, inference = infer(case, divided(case))
    ids, by_layers = inference.rows(model, inference.split("val"))
    # Passes that would read more rows are halved.
    monkeypatch.setattr("hopper.inference.whole_neighbourhoods._ROWS_PER_PASS", 40)
    ids_again, by_forward = inference.rows(NoLayers(model), inference.split("val"))
    np.testing.assert_array_equal(ids, ids_again)
    assert torch.allclose(by_layers, by_forward, rtol=0, atol=1e-12)


class NoLayers(torch.nn.Module):
    """A model of which nothing is known but its ``forward()``."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(blocks, x)
        return logits
