"""docs/inside/draws.md: its vectors, for the code and an independent implementation; statistics."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cache_server.draws import counter as draw
from cache_server.draws.kernels import draw_by_weight
from hopper.graph import Relation, Topology, build_topology
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler, column_weights, make_thresholds
from hopper.micrograph.route import permute
from hopper.micrograph.sample import NeighborSampler
from tests.docs.markdown_pages import read_code
from tests.micrograph import reference

DOCUMENT = Path(__file__).parents[2] / "docs" / "inside" / "draws.md"
WORDS = 1 << 64
WORD = st.integers(0, WORDS - 1)
# The first call compiles.
without_deadline = settings(deadline=None, max_examples=30)


[TEXT] = read_code(DOCUMENT, "json")
VECTORS: dict[str, Any] = json.loads(TEXT)


def parse_word(text: str) -> int:
    return int(text, 16)


def draw_positions(key: int, population: int, count: int) -> list[int]:
    """Draw positions by the code under test."""
    out = np.full(count, -1, np.int64)
    draw.draw_positions(np.uint64(key), population, count, out)
    return out.tolist()


@pytest.mark.parametrize("name", ["mix", "absorb", "variate", "below"])
def test_vectors_of_the_primitives(name):
    rows = VECTORS[name]
    assert len(rows) >= 4
    for row in rows:
        *values, result = (parse_word(of) if isinstance(of, str) else of for of in row)
        assert getattr(reference, name)(*values) == result
        assert int(getattr(draw, name)(*(np.uint64(argument) for argument in values))) == result


def test_vectors_of_keys():
    for words, expected in VECTORS["key"]:
        assert draw.key_of(*words) == reference.key(*words) == parse_word(expected)
    for relation, expected in VECTORS["relation_key"]:
        key = parse_word(expected)
        assert Relation(*relation).draw_key() == reference.relation_key(relation) == key
    for row in VECTORS["neighbors"] + VECTORS["source_variates"] + VECTORS["node_keys"]:
        use, node, k = row.get("word", draw.NEIGHBORS), row["node"], row.get("dependence", 1)
        once, relation_key = row.get("once", False), reference.relation_key(row["relation"])
        moment = row["seed"], row["epoch"], row["iteration"]
        words = (*moment, row["hop"], relation_key)
        key = reference.node_key(use, words, node, draws_once=once, dependence=k)
        made = draw.draw_key(use, *moment, 0 if once else row["hop"], relation_key, k)
        assert key == parse_word(row["key"]) == draw.node_keys(made, np.array([node]))[0]
        if "phase" in row:
            assert reference.below(reference.key(draw.PHASES, node), k) == row["phase"]


def test_vectors_of_positions():
    for row in VECTORS["positions"] + VECTORS["neighbors"]:
        population = row["population"] if "population" in row else row["degree"]
        count = row["count"] if "count" in row else row["fanout"]
        count = population if count == -1 else min(count, population)
        arguments = parse_word(row["key"]), population, count
        assert draw_positions(*arguments) == reference.positions(*arguments) == row["positions"]
    for row in VECTORS["source_variates"]:
        variate = int(draw.variate(np.uint64(parse_word(row["key"])), np.uint64(0)))
        assert variate == reference.variate(parse_word(row["key"]), 0) == parse_word(row["variate"])
        if "degree" in row:
            below = int(draw.below(np.uint64(variate), np.uint64(row["degree"])))
            assert (below, below < row["fanout"]) == (row["below"], row["drawn"])


def test_vectors_of_draws_by_weight():
    for row in VECTORS["by_weight"]:
        key, sums = parse_word(row["key"]), np.cumsum(row["units"]).astype(np.int32)
        for replace, name in enumerate(("without_replacement", "with_replacement")):
            expected = row[name]
            drawn = reference.by_weight(key, row["units"], row["fanout"], bool(replace))
            assert drawn == expected
            out = np.full(len(expected), -1)
            nothing, scratch = np.empty(0, np.int64), np.empty(128, np.int32)
            bounds = 0, sums.size, nothing, 0, 0, bool(replace), scratch, out, 0, out.size
            draw_by_weight(np.uint64(key), sums, *bounds)
            assert out.tolist() == expected


def test_vectors_of_the_order_of_roots():
    for row in VECTORS["order"]:
        moment, places = (row["seed"], row["epoch"], row["count"]), np.array(row["places"])
        assert permute(*moment, places).tolist() == row["roots"]
        if row["count"] < 10_000:
            order = reference.order(*moment)
            assert [order[place] for place in places] == row["roots"]


@pytest.mark.parametrize(
    ("name", "kind", "sampler_class"),
    [
        ("subgraph", "node", NeighborSampler),
        ("layer_subgraph", "layer", LayerSampler),
        ("labor_subgraph", "labor", LaborSampler),
    ],
)
def test_vectors_of_subgraphs(name, kind, sampler_class):
    row, relation, topology = VECTORS[name], *make_documented_graph()
    edges = VECTORS["subgraph"]["edges"]
    sizes, frontiers = (
        (row["fanouts"], row["sizes"]) if kind == "node" else (row["sizes"], row["frontiers"])
    )
    moment = row["seed"], row["epoch"], row["iteration"]
    graph = {relation: edges}, ["node"], "node"
    expected_subgraph = reference.sample(*graph, row["roots"], sizes, moment, kind)
    assert expected_subgraph.nodes["node"] == row["nodes"]
    assert [size["node"] for size in expected_subgraph.sizes] == frontiers
    drawn = [[list(edge) for edge in hop[relation]] for hop in expected_subgraph.edges]
    assert drawn == row["drawn"]

    graph = {relation: topology}, {"node": np.arange(5)}, "node"
    sampler = sampler_class(*graph, sizes, row["seed"])
    subgraph = sampler.sample(np.array(row["roots"]), row["epoch"], row["iteration"])
    assert subgraph.nodes["node"].tolist() == row["nodes"]
    assert [size["node"] for size in subgraph.sizes] == frontiers
    for hop, expected in zip(subgraph.hops, row["drawn"], strict=True):
        indptr, rows, places = hop[relation]
        heads = np.repeat(subgraph.nodes["node"][: indptr.size - 1], np.diff(indptr))
        drawn = np.stack([heads, places, subgraph.nodes["node"][rows]], axis=1)
        assert drawn.tolist() == expected


def make_documented_graph() -> tuple[Relation, Topology]:
    row = VECTORS["subgraph"]
    src, dst = np.array(row["edges"]).T.copy()
    return Relation(*row["relation"]), build_topology(src, dst, 5, 5)


def test_vectors_of_layer_weights():
    row, (_, topology) = VECTORS["layer_weights"], make_documented_graph()
    weights = column_weights(topology.indptr, topology.indices, topology.out_degrees)
    expected = reference.weights(VECTORS["subgraph"]["edges"])
    assert weights.tolist() == row["weights"] == [expected[u] for u in range(5)]
    assert sum(row["weights"]) == row["total"]
    for case in row["thresholds"]:
        thresholds = make_thresholds(case["size"], weights)
        assert int(thresholds.certain) == case["certain"]
        assert int(thresholds.factor) == parse_word(case["factor"])
        limits = reference.thresholds(expected, case["size"])
        for weight, limit in zip(row["weights"], map(limits.get, range(5)), strict=True):
            certain = weight >= case["certain"]
            assert limit == (WORDS if certain else weight * parse_word(case["factor"]))


def test_the_documented_first_words_are_used():
    # A new use needs a new word, and a line in the page's table.
    uses = [draw.NEIGHBORS, draw.ROOTS, draw.DROPOUT, draw.SYNTHESIS, draw.LAYERS, draw.LABOR]
    uses += [draw.MERGING, draw.LEARNABLE, draw.NEGATIVES, draw.PHASES]
    assert uses == [1, 2, 3, 4, 5, 6, 8, 9, 10, 12]
    table = re.findall(r"^\| (\d+) \| ([\w ]+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in table] == uses


@without_deadline
@given(st.lists(WORD, max_size=6), WORD)
def test_keys_of_any_words(words, counter):
    key = draw.key_of(*words)
    assert key == reference.key(*words)
    absorbed = np.uint64(0)
    for word in words:
        absorbed = np.uint64(draw.absorb(absorbed, np.uint64(word)))
    assert int(absorbed) == key
    variate = int(draw.variate(np.uint64(key), np.uint64(counter)))
    assert variate == reference.variate(key, counter)
    assert int(draw.below(np.uint64(variate), np.uint64(counter))) == variate * counter >> 64


def test_negative_words_wrap():
    assert draw.key_of(-1) == draw.key_of((1 << 64) - 1)
    keys = draw.absorb_each(np.uint64(5), np.array([-1, 0, 1 << 62]))
    assert int(keys[0]) == int(draw.absorb(np.uint64(5), np.uint64((1 << 64) - 1)))


@settings(deadline=None, max_examples=100)
@given(WORD, st.integers(0, 400), st.data())
# Where the scan ends and the hash set begins, and where 64 residues no longer name a position.
@example(3, 48, None)
@example(4, 49, None)
@example(5, 64, None)
@example(6, 65, None)
@example(7, 300, None)
def test_positions_of_any_population(key, population, data):
    counts = (
        [data.draw(st.integers(0, population))]
        if data is not None
        else [0, 1, 47, 48, 49, 63, 64, 65, population - 1, population]
    )
    for count in (count for count in counts if count <= population):
        drawn = draw_positions(key, population, count)
        assert drawn == reference.positions(key, population, count)
        assert len(set(drawn)) == count
        assert all(0 <= position < population for position in drawn)


@without_deadline
@given(st.integers(0, 1 << 63), st.integers(0, 1 << 40), st.integers(1, 600), st.data())
def test_an_order_has_every_root_once(seed, epoch, count, data):
    """An order is a permutation, whichever of its places are asked for."""
    order = permute(seed, epoch, count, np.arange(count))
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == reference.order(seed, epoch, count)
    places = data.draw(st.lists(st.integers(0, count - 1), max_size=9))
    some_places = np.array(places, np.int64)
    assert permute(seed, epoch, count, some_places).tolist() == order[some_places].tolist()


def test_an_order_of_more_roots_than_fit_in_memory():
    """Distant places of 2^40 + 5 have distinct roots over the whole range."""
    count = (1 << 40) + 5
    places = np.concatenate([np.arange(1000), count - 1 - np.arange(1000)])
    roots = permute(1, 0, count, places)
    assert np.unique(roots).size == 2000
    assert roots.min() >= 0
    assert roots.max() < count
    assert np.unique(roots >> 32).size > 200
