"""Draws in time: nothing later than the root is ever drawn, and what is drawn depends on nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

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


def sampler_of(
    directory: GraphDirectory, parts: Path, servers: int, fanouts: list[int], **options: Any
) -> tuple[TemporalSampler, PartitionedGraph]:
    if not parts.exists():
        partition_graph(directory, parts, servers, "random")
    opened = PartitionedGraph.open(parts)
    made = TemporalSampler(
        {each: opened.topology(each) for each in opened.relations},
        {each: opened.original_ids(each) for each in opened.schema.node_types},
        "post",
        fanouts,
        3,
        **options,
    )
    made.set_times({"post": opened.times("post")})
    return made, opened


def edges_of(subgraph: Subgraph, opened: PartitionedGraph) -> list[dict[Relation, np.ndarray]]:
    """By hop and relation, [edges, 5]: original ids of both ends, the destination's and the
    source's root's time, and the edge's id."""
    found = []
    for number, hop in enumerate(subgraph.hops):
        found.append({})
        for relation, edges in hop.items():
            count = subgraph.sizes[number][relation.dst]
            rows = np.repeat(np.arange(count), np.diff(edges.indptr))
            dst = subgraph.nodes[relation.dst][rows]
            topology = opened.topology(relation)
            ids = topology.edge_ids[topology.indptr[dst] + edges.positions]
            src = subgraph.nodes[relation.src][edges.indices]
            found[-1][relation] = np.stack(
                [
                    opened.original_ids(relation.src)[src],
                    opened.original_ids(relation.dst)[dst],
                    subgraph.times[relation.dst][rows],
                    subgraph.times[relation.src][edges.indices],
                    ids,
                ],
                1,
            )
    return found


@pytest.mark.parametrize("pick", ["uniform", "recent"])
@pytest.mark.parametrize("fanout", [1, 3, -1])
def test_nothing_later_is_drawn(
    pick: str, fanout: int, graph: GraphDirectory, tmp_path: Path
) -> None:
    """Neither edges nor sources, at any hop; of all that is there, as many as wanted."""
    sampler, opened = sampler_of(graph, tmp_path / "parts", 2, [fanout] * 3, pick=pick)
    of_edges, of_posts = graph.times(SENT), graph.times("post")
    ends = {each: graph.topology(each) for each in graph.schema.relations}
    seen = 0
    for iteration in range(3):
        subgraph = sampler.sample(np.arange(0, 60, 7), 0, iteration)
        roots = opened.original_ids("post")[subgraph.roots]
        assert np.array_equal(subgraph.times["post"][: roots.size], of_posts[roots])
        for hop, found in enumerate(edges_of(subgraph, opened)):
            for relation, table in found.items():
                src, _, until, behind, ids = table.T
                # A source is there for the same root.
                assert np.array_equal(until, behind)
                if relation == SENT:
                    assert (of_edges[ids] <= until).all()
                if relation.src == "post":
                    assert (of_posts[src] <= until).all()
                seen += ids.size
                # Every destination has all that there is, or as many as wanted.
                count = subgraph.sizes[hop][relation.dst]
                degrees = np.diff(subgraph.hops[hop][relation].indptr)
                known = subgraph.typed_blocks()[-1 - hop].blocks[relation].in_degree().numpy()
                wanted = known if fanout == -1 else np.minimum(known, fanout)
                assert np.array_equal(degrees, wanted)
                originals = opened.original_ids(relation.dst)[subgraph.nodes[relation.dst][:count]]
                times = subgraph.times[relation.dst][:count]
                for node, time, degree in list(zip(originals, times, known, strict=True))[:40]:
                    csc = ends[relation]
                    part = slice(csc.indptr[node], csc.indptr[node + 1])
                    there = np.ones(csc.indices[part].size, np.bool_)
                    if relation == SENT:
                        there &= of_edges[csc.edge_ids[part]] <= time
                    if relation.src == "post":
                        there &= of_posts[csc.indices[part]] <= time
                    assert there.sum() == degree
    assert seen > 100


def test_the_latest_are_the_latest(graph: GraphDirectory, tmp_path: Path) -> None:
    sampler, opened = sampler_of(graph, tmp_path / "parts", 1, [4], pick="recent")
    subgraph = sampler.sample(np.arange(60), 0, 0)
    (found,) = edges_of(subgraph, opened)
    of_edges, csc = graph.times(SENT), graph.topology(SENT)
    for node in range(60):
        own = found[SENT][found[SENT][:, 1] == opened.original_ids("post")[node]]
        original, ids = opened.original_ids("post")[node], own[:, 4]
        mine = csc.edge_ids[csc.indptr[original] : csc.indptr[original + 1]]
        until = graph.times("post")[original]
        expected = np.sort(of_edges[mine][of_edges[mine] <= until])[::-1][:4]
        assert np.array_equal(of_edges[ids], expected)


def test_draws_depend_on_nobody(graph: GraphDirectory, tmp_path: Path) -> None:
    """A batch's subgraph is the union of its micrographs, on any number of servers."""
    sets = []
    for servers in (1, 3):
        sampler, opened = sampler_of(graph, tmp_path / f"parts-{servers}", servers, [3, 2])
        roots = opened.global_ids("post")[np.arange(0, 60, 5)]
        together = edges_of(sampler.sample(roots, 1, 2), opened)
        alone = [
            edges_of(sampler.sample(roots[i : i + 1], 1, 2), opened) for i in range(len(roots))
        ]
        for hop, found in enumerate(together):
            for relation, table in found.items():
                parts = np.concatenate([each[hop][relation] for each in alone])
                assert set(map(tuple, parts)) == set(map(tuple, table))
        sets.append([{r: set(map(tuple, t)) for r, t in hop.items()} for hop in together])
    assert sets[0] == sets[1]
    assert any(len(each) > 20 for each in sets[0][1].values())


def test_uniform_draws_are_uniform(tmp_path: Path) -> None:
    """One destination with nine neighbours, of which six are there: chi-square."""
    times = np.array([50, 1, 2, 60, 3, 4, 5, 70, 6, 10])
    edges = np.stack([np.arange(9), np.full(9, 9)])
    directory = GraphDirectory.from_arrays(
        tmp_path / "graph",
        edges,
        features=np.ones((10, 1)),
        labels=np.array([0, 1] * 5),
        times=times,
        options=ImportOptions(split=RandomSplit(0.5, 0.0)),
    )
    partition_graph(directory, tmp_path / "parts", 1)
    opened = PartitionedGraph.open(tmp_path / "parts")
    ids = {"node": opened.original_ids("node")}
    sampler = TemporalSampler({EDGE: opened.topology(EDGE)}, ids, "node", [2], 5)
    sampler.set_times({"node": opened.times("node")})
    root, counts = opened.global_ids("node")[[9]], np.zeros(10)
    rounds = 3000
    for iteration in range(rounds):
        subgraph = sampler.sample(root, 0, iteration)
        (block,) = subgraph.blocks()
        np.add.at(counts, block.src.original[block.indices].numpy(), 1)
        assert block.in_degree().tolist() == [6]
    assert counts[[0, 3, 7]].sum() == 0
    there = counts[[1, 2, 4, 5, 6, 8]]
    assert there.sum() == 2 * rounds
    assert stats.chisquare(there).pvalue > 1e-3
