"""Placement-invariant sampling: against the reference sampler, over partitions, groups and threads.

Graphs have several node types, one name for all relations, parallel edges, self-loops, isolated
nodes and sometimes a type without nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from cache_server.draw import DROPOUT, key_of
from hopper.errors import ConfigError, RequestError
from hopper.graph import build_topology
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.micrograph.array_sampler import ArraySampler
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph

EDGE = Relation("node", "edge", "node")
RELATIONS = [
    Relation(src, "links", dst)
    for src, dst in (
        ("author", "paper"),
        ("paper", "author"),
        ("paper", "paper"),
        ("venue", "paper"),
        ("paper", "venue"),
    )
]
SAMPLERS = {
    "node": NeighborSampler,
    "node, in arrays": ArraySampler,
    "layer": LayerSampler,
    "labor": LaborSampler,
}
every_kind = pytest.mark.parametrize("kind", SAMPLERS)
without_deadline = settings(deadline=None, max_examples=25)


@dataclass
class Graph:
    """Edges of each relation in original ids, in order of edge id."""

    counts: dict[str, int]
    edges: dict[Relation, list[tuple[int, int]]]

    def neighbours(self, relation: Relation) -> dict[int, list[int]]:
        """The sources of each destination, in ascending order."""
        sources_by_destination: dict[int, list[int]] = {}
        for u, v in sorted(self.edges[relation]):
            sources_by_destination.setdefault(v, []).append(u)
        return sources_by_destination


@dataclass
class PlacedGraph:
    """The same graph in the global ids of one partition."""

    topologies: dict[Relation, Topology]
    original_ids: dict[str, NDArray[np.int64]]
    global_ids: dict[str, NDArray[np.int64]]

    def sample(
        self,
        roots: Sequence[int],
        fanouts: Sequence[int],
        moment: tuple[int, int, int],
        kind: str = "node",
    ) -> Subgraph:
        seed, epoch, iteration = moment
        sampler = SAMPLERS[kind](self.topologies, self.original_ids, "paper", fanouts, seed)
        return sampler.sample(self.global_ids["paper"][list(roots)], epoch, iteration)


def place_graph(graph: Graph, servers: int, seed: int) -> PlacedGraph:
    """Give nodes random homes, and a random order within each server."""
    generator = np.random.default_rng(seed)
    original_ids, global_ids = {}, {}
    for name, count in graph.counts.items():
        homes = generator.integers(0, servers, count)
        original_ids[name] = np.lexsort((generator.random(count), homes)).astype(np.int64)
        global_ids[name] = np.argsort(original_ids[name]).astype(np.int64)
    topologies = {}
    for relation, edges in graph.edges.items():
        indptr, indices, edge_ids = [0], [], []
        for node in original_ids[relation.dst]:
            in_edges = sorted((u, i) for i, (u, v) in enumerate(edges) if v == node)
            indices += [global_ids[relation.src][u] for u, _ in in_edges]
            edge_ids += [i for _, i in in_edges]
            indptr.append(len(indices))
        indices = np.array(indices, np.int64)
        topologies[relation] = Topology(
            np.array(indptr),
            indices,
            np.array(edge_ids, np.int64),
            np.diff(indptr),
            np.bincount(indices, minlength=graph.counts[relation.src]),
        )
    return PlacedGraph(topologies, original_ids, global_ids)


@st.composite
def graphs(draw: Any) -> Graph:
    counts = {
        "author": draw(st.integers(0, 6)),
        "paper": draw(st.integers(1, 12)),
        "venue": draw(st.sampled_from([0, 0, 1, 3])),
    }
    edges = {}
    for relation in RELATIONS:
        sources, destinations = counts[relation.src], counts[relation.dst]
        ends = st.tuples(
            st.integers(0, max(0, sources - 1)), st.integers(0, max(0, destinations - 1))
        )
        most = 40 if sources and destinations else 0
        edges[relation] = draw(st.lists(ends, max_size=most))
    return Graph(counts, edges)


@st.composite
def cases(draw: Any) -> tuple[Graph, list[int], list[int], tuple[int, int, int]]:
    """A graph, distinct roots, fanouts and (seed, epoch, iteration)."""
    graph = draw(graphs())
    roots = draw(
        st.lists(st.integers(0, graph.counts["paper"] - 1), unique=True, min_size=0, max_size=6)
    )
    fanouts = draw(st.lists(st.sampled_from([-1, 1, 2, 3, 5]), min_size=1, max_size=3))
    moment = draw(st.tuples(st.integers(0, 1 << 62), st.integers(0, 99), st.integers(0, 9999)))
    return graph, roots, fanouts, moment


def original_nodes(subgraph: Subgraph) -> dict[str, list[int]]:
    """Return the original ids of each type, in order of discovery."""
    return {t: subgraph.original_ids[t][ids].tolist() for t, ids in subgraph.nodes.items()}


def original_edges(subgraph: Subgraph) -> list[dict[Relation, list[tuple[int, int, int]]]]:
    """For each hop and relation, (destination, position, source) in order."""
    nodes = original_nodes(subgraph)
    edges_by_hop = []
    for hop in subgraph.hops:
        edges_by_hop.append({})
        for relation, (indptr, rows, positions) in hop.items():
            heads = np.repeat(np.arange(indptr.size - 1), np.diff(indptr)).tolist()
            edges_by_hop[-1][relation] = [
                (nodes[relation.dst][head], position, nodes[relation.src][row])
                for head, position, row in zip(
                    heads, positions.tolist(), rows.tolist(), strict=True
                )
            ]
    return edges_by_hop


def edge_set(subgraph: Subgraph) -> set[tuple[Any, ...]]:
    return {
        (hop, relation, *edge)
        for hop, relations in enumerate(original_edges(subgraph))
        for relation, edges in relations.items()
        for edge in edges
    }


def node_set(subgraph: Subgraph) -> set[tuple[int, str, int]]:
    """Return (hop, type, original id) for the frontiers before each hop and after the last."""
    nodes = original_nodes(subgraph)
    return {
        (hop, node_type, node)
        for hop, sizes in enumerate(subgraph.sizes)
        for node_type, size in sizes.items()
        for node in nodes[node_type][:size]
    }


def are_identical(subgraph: Subgraph, other: Subgraph) -> bool:
    """Compare two subgraphs bit for bit, in global ids."""
    return (
        all(np.array_equal(subgraph.nodes[t], other.nodes[t]) for t in subgraph.nodes)
        and subgraph.sizes == other.sizes
        and all(
            np.array_equal(x, y)
            for one_hop, other_hop in zip(subgraph.hops, other.hops, strict=True)
            for relation in one_hop
            for x, y in zip(one_hop[relation], other_hop[relation], strict=True)
        )
    )


@every_kind
@settings(deadline=None, max_examples=60)
@given(case=cases(), servers=st.integers(1, 4), placement=st.integers(0, 1 << 30))
def test_agrees_with_the_reference_on_any_partition(
    reference: Any, kind: str, case: Any, servers: int, placement: int
) -> None:
    """Catches every dependence on global ids: nodes, rows, sizes, edges and their order."""
    graph, roots, fanouts, moment = case
    expected = reference.sample(
        graph.edges, list(graph.counts), "paper", roots, fanouts, moment, kind.partition(",")[0]
    )
    subgraph = place_graph(graph, servers, placement).sample(roots, fanouts, moment, kind)
    assert original_nodes(subgraph) == expected.nodes
    assert subgraph.sizes == expected.sizes
    assert original_edges(subgraph) == expected.edges
    assert subgraph.num_roots == len(roots)
    assert subgraph.num_edges == sum(len(e) for hop in expected.edges for e in hop.values())
    assert subgraph.iteration_key == key_of(DROPOUT, *moment)


@every_kind
@without_deadline
@given(case=cases(), data=st.data())
def test_a_subgraph_is_the_union_of_its_micrographs(kind: str, case: Any, data: Any) -> None:
    """One server samples all roots, another partition each root alone or random groups of them."""
    graph, roots, fanouts, moment = case
    subgraph = place_graph(graph, 1, 0).sample(roots, fanouts, moment, kind)
    placed = place_graph(graph, 3, data.draw(st.integers(0, 99)))
    labels = [data.draw(st.integers(0, 2)) for _ in roots]
    groups = [[r for r, label in zip(roots, labels, strict=True) if label == g] for g in range(3)]
    for root_groups in ([[root] for root in roots], groups):
        subgraphs = [
            placed.sample(roots_of_group, fanouts, moment, kind) for roots_of_group in root_groups
        ]
        assert set().union(*map(edge_set, subgraphs)) == edge_set(subgraph)
        assert set().union(*map(node_set, subgraphs)) == node_set(subgraph)


@without_deadline
@given(cases())
def test_counts_and_replacement(case: Any) -> None:
    graph, roots, fanouts, moment = case
    subgraph = place_graph(graph, 2, 1).sample(roots, fanouts, moment)
    nodes = original_nodes(subgraph)
    for fanout, sizes, hop in zip(
        fanouts, subgraph.sizes[:-1], original_edges(subgraph), strict=True
    ):
        for relation, edges in hop.items():
            assert len(set(edges)) == len(edges), "an edge was drawn twice"
            neighbours = graph.neighbours(relation)
            drawn_counts = Counter(v for v, _, _ in edges)
            for destination in nodes[relation.dst][: sizes[relation.dst]]:
                degree = len(neighbours.get(destination, []))
                assert drawn_counts[destination] == (
                    degree if fanout == -1 else min(degree, fanout)
                )
            for destination, position, source in edges:
                assert neighbours[destination][position] == source


@every_kind
@without_deadline
@given(case=cases())
def test_blocks(kind: str, case: Any) -> None:
    graph, roots, fanouts, moment = case
    subgraph = place_graph(graph, 3, 2).sample(roots, fanouts, moment, kind)
    typed = subgraph.typed_blocks()
    assert len(typed) == len(fanouts)
    for hop_blocks in typed:
        for name, nodes in hop_blocks.nodes.items():
            assert nodes.count == hop_blocks.sources[name] >= hop_blocks.destinations[name]
            assert nodes.original.shape == (nodes.count,)
            assert nodes.degree is None
            assert nodes.iteration_key == subgraph.iteration_key
    blocks = [hop_blocks.blocks for hop_blocks in typed]
    for hop, relations in enumerate(reversed(blocks)):
        assert list(relations) == sorted(RELATIONS)
        for relation, block in relations.items():
            assert block.relation == relation
            assert block.num_dst == subgraph.sizes[hop][relation.dst]
            assert block.num_src == subgraph.sizes[hop + 1][relation.src]
            assert block.indptr.shape == (block.num_dst + 1,)
            assert block.indptr[0] == 0
            assert block.indptr[-1] == block.num_edges == len(block.positions)
            assert (block.sampled_degree() >= 0).all()
            assert ((block.indices >= 0) & (block.indices < block.num_src)).all()
            for tensor in (block.indptr, block.indices, block.positions):
                assert tensor.dtype is torch.int64
            if relation.src == relation.dst:
                assert torch.equal(block.src.original[: block.num_dst], block.dst.original)
            for nodes in (block.src, block.dst):
                assert nodes.iteration_key == subgraph.iteration_key
            src, dst = (
                zip(*graph.edges[relation], strict=True) if graph.edges[relation] else ((),) * 2
            )
            assert block.out_degree().tolist() == [src.count(u) for u in block.src.original]
            assert block.in_degree().tolist() == [dst.count(v) for v in block.dst.original]
            assert (block.sampled_degree() <= block.in_degree()).all()
    assert all(
        block.num_dst == (len(roots) if r.dst == "paper" else 0) for r, block in blocks[-1].items()
    )


@every_kind
@without_deadline
@given(case=cases())
def test_frontiers_are_cumulative(kind: str, case: Any) -> None:
    graph, roots, fanouts, moment = case
    subgraph = place_graph(graph, 2, 3).sample(roots, fanouts, moment, kind)
    assert original_nodes(subgraph)["paper"][: len(roots)] == roots
    for node_type, nodes in original_nodes(subgraph).items():
        assert len(set(nodes)) == len(nodes)
        sizes = [frontier[node_type] for frontier in subgraph.sizes]
        assert sizes == sorted(sizes)
        assert sizes[-1] == len(nodes)


def test_blocks_of_a_graph_with_one_relation() -> None:
    subgraph = random_sampler(50, 300, [2, 3]).sample(np.array([4, 1]), 0, 0)
    deep, shallow = subgraph.blocks()
    assert (shallow.num_dst, deep.num_dst) == (2, shallow.num_src)
    assert torch.equal(deep.dst.original, shallow.src.original)
    graph = Graph({"author": 1, "paper": 1, "venue": 0}, {r: [] for r in RELATIONS})
    with pytest.raises(ValueError, match="one relation expected, the graph has 5"):
        place_graph(graph, 1, 0).sample([0], [1], (0, 0, 0)).blocks()


def random_sampler(
    nodes: int, edges: int, fanouts: Sequence[int], seed: int = 0, kind: str = "node"
) -> NeighborSampler:
    """A sampler over a random homogeneous graph, its nodes relabelled at random."""
    generator = np.random.default_rng(17)
    src, dst = generator.integers(0, nodes, (2, edges))
    topology = build_topology(src, dst, nodes, nodes)
    return SAMPLERS[kind]({EDGE: topology}, {"node": np.arange(nodes)}, "node", fanouts, seed)


@every_kind
def test_no_roots(kind: str) -> None:
    subgraph = random_sampler(20, 50, [3, -1], kind=kind).sample(np.empty(0, np.int64), 0, 0)
    assert subgraph.num_roots == 0
    assert subgraph.num_edges == 0
    for block in subgraph.blocks():
        assert (block.num_src, block.num_dst, block.indptr.tolist()) == (0, 0, [0])


def test_a_root_given_twice_is_refused_and_leaves_no_trace() -> None:
    sampler = random_sampler(30, 200, [3, 3])
    expected = sampler.sample(np.array([3, 7, 9]), 0, 0)
    with pytest.raises(ValueError, match="a root occurs twice"):
        sampler.sample(np.array([7, 9, 7]), 0, 0)
    assert are_identical(sampler.sample(np.array([3, 7, 9]), 0, 0), expected)


@every_kind
@pytest.mark.parametrize("fanouts", [[], [0], [5, -2], [3, 0, 3]])
def test_fanouts_out_of_range(kind: str, fanouts: list[int]) -> None:
    key = "layer_sizes" if kind == "layer" else "fanouts"
    with pytest.raises(ConfigError, match=rf"sampler\.{key}: expected .* got \["):
        random_sampler(3, 3, fanouts, kind=kind)


def test_more_nodes_than_rows_can_name() -> None:
    ids = np.broadcast_to(np.int64(0), 1 << 31)
    with pytest.raises(RequestError, match="'node' has 2147483648 nodes; at most 2147483647"):
        NeighborSampler({}, {"node": ids}, "node", [1], 0)


def test_original_ids_beyond_32_bits(reference: Any) -> None:
    base, nodes = 1 << 40, 25
    src, dst = np.random.default_rng(3).integers(0, nodes, (2, 150))
    sampler = NeighborSampler(
        {EDGE: build_topology(src, dst, nodes, nodes)},
        {"node": base + np.arange(nodes)},
        "node",
        [3, 4],
        8,
    )
    subgraph = sampler.sample(np.array([5, 2]), 1, 2)
    edges = list(zip((base + src).tolist(), (base + dst).tolist(), strict=True))
    expected = reference.sample(
        {EDGE: edges}, ["node"], "node", [base + 5, base + 2], [3, 4], (8, 1, 2)
    )
    assert original_nodes(subgraph) == expected.nodes
    assert original_edges(subgraph) == expected.edges


def test_another_relation_changes_no_draw_of_the_others() -> None:
    generator = np.random.default_rng(4)
    links = {r: generator.integers(0, 9, (80, 2)).tolist() for r in RELATIONS}
    counts = dict.fromkeys(("author", "paper", "venue"), 9)
    full_graph = Graph(counts, {r: [tuple(e) for e in edges] for r, edges in links.items()})
    smaller_graph = Graph(counts, {r: full_graph.edges[r] for r in RELATIONS[1:3]})
    subgraph, smaller_subgraph = (
        place_graph(g, 2, 5).sample([1, 4, 6], [3], (1, 2, 3)) for g in (full_graph, smaller_graph)
    )
    for relation in smaller_graph.edges:
        assert (
            original_edges(subgraph)[0][relation] == original_edges(smaller_subgraph)[0][relation]
        )


@every_kind
@pytest.mark.parametrize("moment", [(0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0)])
def test_seed_epoch_iteration_and_hop_all_matter(
    kind: str, moment: tuple[int, int, int, int]
) -> None:
    """Isolated nodes aside, two moments draw differently for most of 200 nodes."""
    seed, epoch, iteration, hop = moment
    roots, fanouts = np.arange(200), [40, 40] if kind == "layer" else [2, 2]

    def drawn_neighbours(seed: int, epoch: int, iteration: int, hop: int) -> list[set[int]]:
        sampler = random_sampler(200, 4000, fanouts, seed, kind)
        subgraph = sampler.sample(roots, epoch, iteration)
        indptr, rows, _ = subgraph.hops[hop][EDGE]
        return [set(rows[indptr[v] : indptr[v + 1]].tolist()) for v in range(200)]

    base, other = drawn_neighbours(0, 0, 0, 0), drawn_neighbours(seed, epoch, iteration, hop)
    assert sum(x != y for x, y in zip(base, other, strict=True)) > 150


@pytest.mark.parametrize("fanout", [2, 5])
def test_neighbours_are_drawn_uniformly(fanout: int) -> None:
    """One destination of in-degree 11 over 1500 iterations, fixed seed."""
    topology = build_topology(np.arange(11), np.zeros(11, np.int64), 11, 11)
    sampler = NeighborSampler({EDGE: topology}, {"node": np.arange(11)}, "node", [fanout], 2)
    counts = np.zeros(11)
    for iteration in range(1500):
        counts[sampler.sample(np.array([0]), 0, iteration).hops[0][EDGE].positions] += 1
    expected = 1500 * fanout / 11
    # Draws without replacement vary less than independent ones, so the bound is a safe one.
    assert ((counts - expected) ** 2).sum() / expected < chi2.ppf(0.999, 10)
