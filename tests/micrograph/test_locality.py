"""R_micro and R_sub against their definition, and draws that ignore the partition."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hopper.errors import ConfigError, RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.micrograph.locality import measure_locality
from hopper.micrograph.route import permute
from hopper.partition import PartitionedGraph, partition_graph

CITES = Relation("paper", "links", "paper")
WRITES = Relation("author", "links", "paper")
WRITTEN = Relation("paper", "links", "author")


def _divide_library(
    folder: Path, servers: int, train: Sequence[int] = (), target: str | Relation = "paper"
) -> PartitionedGraph:
    """Two node types, three relations of one name."""
    generator = np.random.default_rng(11)
    counts = {"author": 20, "paper": 50}
    edges = {
        relation: [
            generator.integers(0, counts[end], count) for end in (relation.src, relation.dst)
        ]
        for relation, count in ((WRITES, 70), (WRITTEN, 70), (CITES, 120))
    }
    splits = {"train": np.array(train)} if train else {}
    library = GraphDirectory.from_arrays(
        folder / "library", edges, splits=splits, counts=counts, target=target
    )
    return partition_graph(library, folder / "parts", servers, "random")


def _neighbourhood(
    graph: PartitionedGraph, roots: Sequence[int], hops: int
) -> set[tuple[str, int]]:
    """Return all (type, global id) within some hops against the edges, without sampling."""
    reached = {("paper", int(root)) for root in roots}
    for _ in range(hops):
        sources = set()
        for relation in graph.schema.relations:
            edges = graph.topology(relation)
            for node_type, node in reached:
                if node_type == relation.dst:
                    row = edges.indices[edges.indptr[node] : edges.indptr[node + 1]]
                    sources |= {(relation.src, int(source)) for source in row}
        reached |= sources
    return reached


def _share(graph: PartitionedGraph, nodes: set[tuple[str, int]], roots: set[int], of: int) -> float:
    home = graph.book.home("paper", np.array([of]))[0]
    at_home = [
        (t, n)
        for t, n in nodes
        if not (t == "paper" and n in roots) and graph.book.home(t, np.array([n]))[0] == home
    ]
    return len(at_home) / len(nodes)


@pytest.mark.parametrize("hops", [1, 2])
def test_both_measures_follow_their_definition(tmp_path, hops):
    train = list(range(0, 50, 2))
    graph = _divide_library(tmp_path, 3, train)
    measured = measure_locality(graph, [-1] * hops, roots=9, batch_size=4, seed=6)
    roots = graph.global_ids("paper")[np.array(train)[permute(6, 0, 25, np.arange(9))]].tolist()
    micro = [_share(graph, _neighbourhood(graph, [r], hops), {r}, r) for r in roots]
    sub = [
        _share(graph, _neighbourhood(graph, batch, hops), set(batch), root)
        for batch in (roots[:4], roots[4:8], roots[8:])
        for root in batch
    ]
    assert measured.micrograph == pytest.approx(np.mean(micro))
    assert measured.subgraph == pytest.approx(np.mean(sub))
    assert measured.as_json() == {
        "fanouts": [-1] * hops,
        "roots": 9,
        "batch_size": 4,
        "seed": 6,
        "micrograph": round(measured.micrograph, 6),
        "subgraph": round(measured.subgraph, 6),
    }


def test_an_edge_target_takes_destinations_as_roots(tmp_path):
    graph = _divide_library(tmp_path, 2, [3, 4, 5], CITES)
    edges = graph.topology(CITES)
    target_edges = np.flatnonzero(np.isin(edges.edge_ids, [3, 4, 5]))
    roots = np.unique(np.searchsorted(edges.indptr, target_edges, side="right") - 1)
    measured = measure_locality(graph, [-1], roots=100)
    assert measured.roots == roots.size
    micro = [_share(graph, _neighbourhood(graph, [r], 1), {r}, r) for r in roots]
    assert measured.micrograph == pytest.approx(np.mean(micro))


def test_any_node_is_a_root_without_a_split_and_unusable_requests_are_refused(tmp_path):
    graph = _divide_library(tmp_path, 2)
    assert measure_locality(graph, [2], roots=1000).roots == 50
    with pytest.raises(RequestError, match="at least 1 root and a batch of at least 1, given 0"):
        measure_locality(graph, [2], roots=0)
    with pytest.raises(ConfigError, match="fanouts"):
        measure_locality(graph, [0])
