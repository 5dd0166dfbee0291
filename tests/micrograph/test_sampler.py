"""Placement-invariant sampling: against the reference sampler, over partitions, groups and threads.

Graphs have several node types, one name for all relations, parallel edges, self-loops, isolated
nodes and sometimes a type without nodes.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cache_server.draws.counter import DROPOUT, key_of
from hopper.config.sampler import Sampler
from hopper.errors import ConfigError, RequestError
from hopper.graph import Relation, Topology, build_topology
from hopper.micrograph.array_sampler import ArraySampler
from hopper.micrograph.frontiers import HashTable, RowTable
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from tests.conftest import numba_threads
from tests.micrograph import reference

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
OPTIONS = {"once": {"draws_once": True}, "dependent": {"dependence": 3}}


class HashedSampler(NeighborSampler):
    """Has the tables of a sampler for large types beside divided topology."""

    def row_table(self, node_type: str) -> RowTable:
        return HashTable()


SAMPLERS = {
    "node": NeighborSampler,
    "node, hashed": HashedSampler,
    "node, once": NeighborSampler,
    "node, dependent": NeighborSampler,
    "node, in arrays": ArraySampler,
    "node, in arrays, dependent": ArraySampler,
    "layer": LayerSampler,
    "labor": LaborSampler,
    "labor, dependent": LaborSampler,
}


def options_of(kind: str) -> dict[str, Any]:
    """Return the settings that a kind's name says."""
    return OPTIONS.get(kind.rpartition(", ")[2], {})


every_kind = pytest.mark.parametrize("kind", SAMPLERS)
without_deadline = settings(deadline=None, max_examples=8)


@dataclass
class Graph:
    """Edges of each relation in original ids, in order of edge id."""

    counts: dict[str, int]
    edges: dict[Relation, list[tuple[int, int]]]


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
        graph = self.topologies, self.original_ids, "paper"
        sampler = SAMPLERS[kind](*graph, fanouts, seed, **options_of(kind))
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
        src, dst = np.array(edges, np.int64).reshape(-1, 2).T
        sources = global_ids[relation.src][src]
        order = np.lexsort((src, global_ids[relation.dst][dst]))
        in_degrees = np.bincount(dst, minlength=graph.counts[relation.dst])[
            original_ids[relation.dst]
        ]
        topologies[relation] = Topology(
            np.concatenate(([0], np.cumsum(in_degrees))),
            sources[order],
            order,
            in_degrees,
            np.bincount(sources, minlength=graph.counts[relation.src]),
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
        highest = (max(0, count - 1) for count in (sources, destinations))
        ends = st.tuples(*(st.integers(0, most) for most in highest))
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
    ids = {t: subgraph.original_ids[t][nodes] for t, nodes in subgraph.nodes.items()}
    edges_by_hop = []
    for hop in subgraph.hops:
        edges_by_hop.append({})
        for relation, (indptr, rows, positions) in hop.items():
            heads = ids[relation.dst][: indptr.size - 1].repeat(np.diff(indptr))
            edges = heads.tolist(), positions.tolist(), ids[relation.src][rows].tolist()
            edges_by_hop[-1][relation] = list(zip(*edges, strict=True))
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
    pairs = [(subgraph.nodes[t], other.nodes[t]) for t in subgraph.nodes]
    for hop, other_hop in zip(subgraph.hops, other.hops, strict=True):
        pairs += [pair for r in hop for pair in zip(hop[r], other_hop[r], strict=True)]
    return subgraph.sizes == other.sizes and all(np.array_equal(*pair) for pair in pairs)


@every_kind
@settings(deadline=None, max_examples=25)
@given(case=cases(), servers=st.integers(1, 4), placement=st.integers(0, 1 << 30))
def test_agrees_with_the_reference_on_any_partition(kind, case, servers, placement):
    """Catches every dependence on global ids: nodes, rows, sizes, edges and their order."""
    graph, roots, fanouts, moment = case
    sampled = graph.edges, list(graph.counts), "paper", roots, fanouts, moment
    expected = reference.sample(*sampled, kind.partition(",")[0], **options_of(kind))
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
def test_a_subgraph_is_the_union_of_its_micrographs(kind, case, data):
    """One server samples all roots, another partition each root alone or random groups of them."""
    graph, roots, fanouts, moment = case
    subgraph = place_graph(graph, 1, 0).sample(roots, fanouts, moment, kind)
    placed = place_graph(graph, 3, data.draw(st.integers(0, 99)))
    labels = [data.draw(st.integers(0, 2)) for _ in roots]
    groups = [[r for r, label in zip(roots, labels, strict=True) if label == g] for g in range(3)]
    for root_groups in ([[root] for root in roots], groups):
        subgraphs = [placed.sample(of_group, fanouts, moment, kind) for of_group in root_groups]
        assert set().union(*map(edge_set, subgraphs)) == edge_set(subgraph)
        assert set().union(*map(node_set, subgraphs)) == node_set(subgraph)


@every_kind
@without_deadline
@given(case=cases())
def test_blocks(kind, case):
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
            src, dst = (Counter(edge[end] for edge in graph.edges[relation]) for end in (0, 1))
            assert block.out_degree().tolist() == [src[u] for u in block.src.original.tolist()]
            assert block.in_degree().tolist() == [dst[v] for v in block.dst.original.tolist()]
            assert (block.sampled_degree() <= block.in_degree()).all()
    assert all(
        block.num_dst == (len(roots) if r.dst == "paper" else 0) for r, block in blocks[-1].items()
    )


def test_blocks_of_a_graph_with_one_relation():
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
    graph = {EDGE: topology}, {"node": np.arange(nodes)}, "node"
    return SAMPLERS[kind](*graph, fanouts, seed, **options_of(kind))


def test_a_root_given_twice_is_refused_and_leaves_no_trace():
    sampler = random_sampler(30, 200, [3, 3])
    expected = sampler.sample(np.array([3, 7, 9]), 0, 0)
    with pytest.raises(ValueError, match="a root occurs twice"):
        sampler.sample(np.array([7, 9, 7]), 0, 0)
    assert are_identical(sampler.sample(np.array([3, 7, 9]), 0, 0), expected)


@every_kind
def test_requests_out_of_range(kind):
    key = "layer_sizes" if kind == "layer" else "fanouts"
    for fanouts in ([], [0], [5, -2], [3, 0, 3]):
        with pytest.raises(ConfigError, match=rf"sampler\.{key}: expected .* got \["):
            random_sampler(3, 3, fanouts, kind=kind)
    ids = np.broadcast_to(np.int64(0), 1 << 31)
    with pytest.raises(RequestError, match="'node' has 2147483648 nodes; at most 2147483647"):
        SAMPLERS[kind]({}, {"node": ids}, "node", [1], 0)


def test_settings_of_the_key_that_do_not_fit_are_refused():
    def refuse(match: str, **sampler: Any) -> None:
        with pytest.raises(ValueError, match=match):
            Sampler(**sampler)

    refuse(r"expansion: 'once' .* equal numbers in fanouts, got \[5, 3\]",
           expansion="once", fanouts=[5, 3])  # fmt: skip
    refuse(r"equal numbers in layer_sizes, got \[50, 30\]",
           kind="layer", expansion="once", layer_sizes=[50, 30])  # fmt: skip
    refuse("dependence", dependence=0)
    refuse("dependence: kind 'full' takes all neighbors", kind="full", dependence=4)
    refuse("expansion: kind 'full' takes all", kind="full", expansion="once", fanouts=[-1, -1])
    refuse("dependence: kind 'temporal' takes the latest",
           kind="temporal", dependence=2, kind_options={"pick": "recent"})  # fmt: skip
    assert Sampler(kind="labor", expansion="once", fanouts=[5, 5], dependence=4).dependence == 4


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="numba has a single thread")
@pytest.mark.parametrize(
    ("kind", "sizes"), [("node", [5, 6]), ("layer", [9000, 4000]), ("labor", [5, 6])]
)
def test_one_thread_or_two(kind, sizes):
    roots = np.random.default_rng(0).permutation(20_000)[:5000]
    sampler = random_sampler(20_000, 200_000, sizes, kind=kind)
    subgraphs = []
    for threads in (2, 1):
        with numba_threads(threads):
            subgraphs.append(sampler.sample(roots, 0, 0))
    assert are_identical(*subgraphs)


def test_concurrent_calls():
    """Tables are shared between calls: a call must neither see nor disturb another's."""
    sampler = random_sampler(5000, 60_000, [4, 4, 3])
    generator = np.random.default_rng(1)
    batches = [generator.permutation(5000)[:200] for _ in range(24)]
    expected = [
        random_sampler(5000, 60_000, [4, 4, 3]).sample(roots, 0, i)
        for i, roots in enumerate(batches)
    ]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            subgraphs = list(pool.map(sampler.sample, batches, [0] * 24, range(24)))
            assert all(map(are_identical, subgraphs, expected))


@pytest.mark.parametrize("size", [0, 1, 50, 9000])
def test_ids_of_a_table_are_found_in_any_order(size):
    generator = np.random.default_rng(size)
    ids = generator.permutation(np.unique(generator.integers(0, 10**8, size)))
    table, places = HashTable(ids), generator.integers(0, max(1, ids.size), 2 * size)
    assert np.array_equal(table.find(ids[places]), places)
    with pytest.raises(IndexError, match=f"1 of 1 ids are not among {ids.size}"):
        table.find(np.array([-1]))
