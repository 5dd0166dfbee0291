"""Draws in time: nothing later than the root is drawn, and no draw depends on other roots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.micrograph.subgraph import Subgraph
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.partition import PartitionedGraph, partition_graph

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

EDGE = Relation("node", "edge", "node")
SENT, MET = Relation("user", "sent", "post"), Relation("user", "met", "user")
WROTE = Relation("post", "of", "user")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Users and posts. Posts and what users sent have times, acquaintances have none."""
    generator = np.random.default_rng(7)

    def ends(sources: int, destinations: int, edges: int) -> np.ndarray:
        return np.stack(
            [generator.integers(0, sources, edges), generator.integers(0, destinations, edges)]
        )

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
    if not parts.exists():
        partition_graph(directory, parts, servers, "random")
    partitioned = PartitionedGraph.open(parts)
    sampler = TemporalSampler(
        {relation: partitioned.topology(relation) for relation in partitioned.relations},
        {
            node_type: partitioned.original_ids(node_type)
            for node_type in partitioned.schema.node_types
        },
        "post",
        fanouts,
        3,
        **options,
    )
    sampler.set_times({"post": partitioned.times("post")})
    return sampler, partitioned


def edges_of(subgraph: Subgraph, partitioned: PartitionedGraph) -> list[dict[Relation, np.ndarray]]:
    """Return [edges, 5] for each hop and relation.

    Columns are the original ids of source and destination, the times of the roots that the
    destination and the source belong to, and the edge's id.
    """
    edges_by_hop = []
    for number, hop in enumerate(subgraph.hops):
        edges_by_hop.append({})
        for relation, edges in hop.items():
            count = subgraph.sizes[number][relation.dst]
            rows = np.repeat(np.arange(count), np.diff(edges.indptr))
            dst = subgraph.nodes[relation.dst][rows]
            topology = partitioned.topology(relation)
            ids = topology.edge_ids[topology.indptr[dst] + edges.positions]
            src = subgraph.nodes[relation.src][edges.indices]
            edges_by_hop[-1][relation] = np.stack(
                [
                    partitioned.original_ids(relation.src)[src],
                    partitioned.original_ids(relation.dst)[dst],
                    subgraph.times[relation.dst][rows],
                    subgraph.times[relation.src][edges.indices],
                    ids,
                ],
                1,
            )
    return edges_by_hop


@pytest.mark.parametrize("pick", ["uniform", "recent"])
@pytest.mark.parametrize("fanout", [1, 3, -1])
def test_nothing_later_is_drawn(
    pick: str, fanout: int, graph: GraphDirectory, tmp_path: Path
) -> None:
    """No edge and no source is later than the root, and a node draws as many as it can."""
    sampler, partitioned = make_sampler(graph, tmp_path / "parts", 2, [fanout] * 3, pick=pick)
    edge_times, post_times = graph.times(SENT), graph.times("post")
    topologies = {relation: graph.topology(relation) for relation in graph.schema.relations}
    drawn_edges = 0
    for iteration in range(3):
        subgraph = sampler.sample(np.arange(0, 60, 7), 0, iteration)
        roots = partitioned.original_ids("post")[subgraph.roots]
        assert np.array_equal(subgraph.times["post"][: roots.size], post_times[roots])
        for hop, relation_edges in enumerate(edges_of(subgraph, partitioned)):
            for relation, table in relation_edges.items():
                src, _, until, source_until, ids = table.T
                # A source is there for the same root.
                assert np.array_equal(until, source_until)
                if relation == SENT:
                    assert (edge_times[ids] <= until).all()
                if relation.src == "post":
                    assert (post_times[src] <= until).all()
                drawn_edges += ids.size
                # Every destination has all that there is, or as many as wanted.
                degrees = np.diff(subgraph.hops[hop][relation].indptr)
                block = subgraph.typed_blocks()[-1 - hop].blocks[relation]
                there = block.in_degree().numpy()
                assert np.array_equal(degrees, there if fanout < 0 else np.minimum(there, fanout))
                nodes = subgraph.nodes[relation.dst][: min(3, degrees.size)]
                for row, at in enumerate(partitioned.original_ids(relation.dst)[nodes]):
                    csc, time = topologies[relation], subgraph.times[relation.dst][row]
                    in_edges = slice(csc.indptr[at], csc.indptr[at + 1])
                    is_there = np.ones(csc.indices[in_edges].size, np.bool_)
                    if relation == SENT:
                        is_there &= edge_times[csc.edge_ids[in_edges]] <= time
                    if relation.src == "post":
                        is_there &= post_times[csc.indices[in_edges]] <= time
                    assert is_there.sum() == there[row]
    assert drawn_edges > 100


def test_draws_depend_on_no_other_root(graph: GraphDirectory, tmp_path: Path) -> None:
    """A batch's subgraph is the union of its micrographs, on any number of servers."""
    sets = []
    for servers in (1, 3):
        sampler, partitioned = make_sampler(graph, tmp_path / f"parts-{servers}", servers, [3, 2])
        roots = partitioned.global_ids("post")[np.arange(0, 60, 5)]
        batch_edges = edges_of(sampler.sample(roots, 1, 2), partitioned)
        root_edges = [
            edges_of(sampler.sample(roots[i : i + 1], 1, 2), partitioned) for i in range(len(roots))
        ]
        for hop, batch_relations in enumerate(batch_edges):
            for relation, table in batch_relations.items():
                from_roots = np.concatenate([edges[hop][relation] for edges in root_edges])
                assert set(map(tuple, from_roots)) == set(map(tuple, table))
        sets.append([{r: set(map(tuple, t)) for r, t in hop.items()} for hop in batch_edges])
    assert sets[0] == sets[1]
    assert any(len(edges) > 20 for edges in sets[0][1].values())
