"""Draws in time: nothing later than the root is drawn, and no draw depends on other roots."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.micrograph.subgraph import Subgraph
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.partition import PartitionedGraph, partition_graph

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

SENT, MET = Relation("user", "sent", "post"), Relation("user", "met", "user")
WROTE = Relation("post", "of", "user")


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> GraphDirectory:
    """Users and posts. Posts and what users sent have times, acquaintances have none."""
    generator = np.random.default_rng(7)

    def ends(sources: int, destinations: int, edges: int) -> np.ndarray:
        return np.stack([generator.integers(0, n, edges) for n in (sources, destinations)])

    out = tmp_path_factory.mktemp("temporal") / "graph"
    return GraphDirectory.from_arrays(
        out,
        {SENT: ends(40, 60, 700), WROTE: ends(60, 40, 500), MET: ends(40, 40, 200)},
        features={"post": generator.random((60, 3)), "user": generator.random((40, 2))},
        labels={"post": generator.integers(0, 3, 60)},
        times={"post": generator.integers(-20, 60, 60), SENT: generator.integers(-20, 60, 700)},
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )


def make_sampler(
    directory: GraphDirectory, parts: Path, servers: int, fanouts: list[int], **options: Any
) -> tuple[TemporalSampler, PartitionedGraph]:
    partitioned = partition_graph(directory, parts, servers, "random")
    sampler = TemporalSampler(
        {relation: partitioned.topology(relation) for relation in partitioned.relations},
        {name: partitioned.original_ids(name) for name in partitioned.schema.node_types},
        "post",
        fanouts,
        3,
        **options,
    )
    sampler.set_times({"post": partitioned.times("post")})
    return sampler, partitioned


def edges_of(subgraph: Subgraph) -> list[dict[Relation, np.ndarray]]:
    """Return [5, edges] for each hop and relation: the original ids of source and destination, the
    times of the roots that the destination and the source belong to, and the edge's id."""
    edges_by_hop = []
    for hop in subgraph.hops:
        edges_by_hop.append({})
        for relation, edges in hop.items():
            rows = np.repeat(np.arange(edges.indptr.size - 1), np.diff(edges.indptr))
            dst, topology = subgraph.nodes[relation.dst], subgraph.topologies[relation]
            columns = (
                subgraph.original_ids[relation.src][subgraph.nodes[relation.src][edges.indices]],
                subgraph.original_ids[relation.dst][dst[rows]],
                subgraph.times[relation.dst][rows],
                subgraph.times[relation.src][edges.indices],
                topology.edge_ids[topology.indptr[dst[rows]] + edges.positions],
            )
            edges_by_hop[-1][relation] = np.stack(columns)
    return edges_by_hop


@pytest.mark.parametrize(("pick", "fanout"), [("uniform", 3), ("uniform", -1), ("recent", 1)])
def test_nothing_later_is_drawn(pick, fanout, graph, tmp_path):
    """No edge and no source is later than the root, and a node draws as many as it can."""
    sampler, partitioned = make_sampler(graph, tmp_path / "parts", 2, [fanout] * 3, pick=pick)
    edge_times, post_times, drawn_edges = graph.times(SENT), graph.times("post"), 0
    subgraph = sampler.sample(np.arange(0, 60, 7), 0, 1)
    roots = partitioned.original_ids("post")[subgraph.roots]
    assert np.array_equal(subgraph.times["post"][: roots.size], post_times[roots])
    blocks = subgraph.typed_blocks()[::-1]
    for hop, relation_edges in enumerate(edges_of(subgraph)):
        for relation, (src, _, until, source_until, ids) in relation_edges.items():
            csc = graph.topology(relation)

            def seen_from(edge_ids: np.ndarray, sources: np.ndarray, of: Relation) -> np.ndarray:
                seen = edge_times[edge_ids] if of == SENT else np.full(sources.size, -99)
                return np.maximum(seen, post_times[sources]) if of.src == "post" else seen

            # A source is there for the same root.
            assert np.array_equal(until, source_until)
            assert (seen_from(ids, src, relation) <= until).all()
            drawn_edges += ids.size
            # Every destination has all that there is, or as many as wanted.
            degrees = np.diff(subgraph.hops[hop][relation].indptr)
            there = blocks[hop].blocks[relation].in_degree().numpy()
            assert np.array_equal(degrees, there if fanout < 0 else np.minimum(there, fanout))
            for row in range(min(3, degrees.size)):
                at = partitioned.original_ids(relation.dst)[subgraph.nodes[relation.dst][row]]
                part = slice(csc.indptr[at], csc.indptr[at + 1])
                seen = seen_from(csc.edge_ids[part], csc.indices[part], relation)
                assert (seen <= subgraph.times[relation.dst][row]).sum() == there[row]
    assert drawn_edges > 50


def test_draws_depend_on_no_other_root(graph, tmp_path):
    """A batch's subgraph is the union of its micrographs, on any number of servers."""

    def sets_of(*subgraphs: Subgraph) -> list[dict[Relation, set[tuple[int, ...]]]]:
        hops = zip(*map(edges_of, subgraphs), strict=True)
        return [
            {
                r: {edge for part in hop for edge in zip(*part[r].tolist(), strict=True)}
                for r in hop[0]
            }
            for hop in hops
        ]

    sets = []
    for servers in (1, 3):
        sampler, partitioned = make_sampler(graph, tmp_path / f"parts-{servers}", servers, [3, 2])
        roots = partitioned.global_ids("post")[np.arange(0, 60, 5)]
        sets.append(sets_of(sampler.sample(roots, 1, 2)))
        sets.append(sets_of(*(sampler.sample(root, 1, 2) for root in roots[:, None])))
    assert all(other == sets[0] for other in sets)
    assert any(len(edges) > 20 for edges in sets[0][1].values())
