"""All relations of a layer at once against relation by relation: the same numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.baselines.by_relation import split_relations
from hopper.graph import Relation, build_topology
from hopper.graph.block import TypedBlocks
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.models import build_typed_model
from hopper.models.merged import MergedRelations, merge_relations
from hopper.models.relational import HGNN
from tests.models.conftest import attentive

COUNTS = {"author": 30, "field": 4, "ghost": 0, "paper": 60, "venue": 5}
INPUTS = {"author": 3, "field": 2, "ghost": 2, "paper": 5, "venue": 4}
# Relation names repeat; one relation has no edge, one type no node, and no relation ends in venue.
EDGES = {
    Relation("author", "of", "paper"): 150,
    Relation("paper", "of", "author"): 80,
    Relation("paper", "cites", "paper"): 200,
    Relation("field", "of", "paper"): 90,
    Relation("venue", "of", "paper"): 40,
    Relation("venue", "none", "author"): 0,
    Relation("ghost", "of", "paper"): 0,
    Relation("paper", "in", "field"): 50,
}
TYPES, RELATIONS = tuple(sorted(COUNTS)), tuple(sorted(EDGES))
WIDTHS = {relation: 2 for relation in EDGES if relation.src != "field"}
MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rgcn", {}),
    ("rgcn", {"bases": 3}),
    ("rgcn", {"root_weight": False, "head": True}),
    ("rgcn", {"diagonal_blocks": 4, "head": True, "edges": WIDTHS}),
    ("rgat", {}),
    ("rgat", {"heads": 2, "edges": WIDTHS}),
    ("hgt", {}),
    ("hgt", {"heads": 4, "edges": WIDTHS}),
)


def sample(
    fanout: int, sampler_class: type[NeighborSampler] = NeighborSampler, layers: int = 2
) -> list[TypedBlocks]:
    generator = np.random.default_rng(4)
    sampler = sampler_class(
        {
            relation: build_topology(
                generator.integers(0, max(1, COUNTS[relation.src]), count),
                generator.integers(0, max(1, COUNTS[relation.dst]), count),
                COUNTS[relation.src],
                COUNTS[relation.dst],
            )
            for relation, count in EDGES.items()
        },
        {name: np.arange(count) for name, count in COUNTS.items()},
        "paper",
        [fanout] * layers,
        seed=1,
    )
    hops = sampler.sample(np.arange(0, 60, 4), 0, 0).typed_blocks()
    for block in (block for hop in hops for block in hop.blocks.values()):
        block.edge_features = torch.from_numpy(generator.random((block.num_edges, 2)))
    return hops


def build(name: str, *, merge: bool = True, out_dim: int = 3, **options: Any) -> HGNN:
    reads = [(RELATIONS, TYPES), (tuple(r for r in RELATIONS if r.dst == "paper"), ("paper",))]
    options |= {"out_dim": out_dim, "hidden": 8, "dtype": torch.float64}
    model = build_typed_model(name, target="paper", inputs=INPUTS, reads=reads, **options)
    torch.manual_seed(5)
    model = attentive(model)
    return model if merge else split_relations(model)


def run_model(model: HGNN, blocks: list[TypedBlocks]) -> tuple[Tensor, dict[str, Tensor], int]:
    """Return logits, gradients of all parameters, and how many hops were merged."""
    generator = torch.Generator().manual_seed(2)
    x = {
        name: torch.randn(
            blocks[0].sources[name], width, generator=generator, dtype=torch.float64
        ).requires_grad_()
        for name, width in INPUTS.items()
    }
    logits = model(blocks, x)
    (logits * torch.randn(logits.shape, generator=generator, dtype=torch.float64)).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    gradients |= {f"x.{name}": rows.grad for name, rows in x.items() if rows.grad is not None}
    return logits.detach(), gradients, sum(bool(hop.prepared) for hop in blocks)


def check_merged(name: str, options: dict[str, Any], *sampled: Any) -> None:
    """Check that logits and gradients over a sample are those of relations one by one."""
    single = build(name, merge=False, **options)
    expected, gradients, merged_hops = run_model(single, sample(*sampled))
    assert merged_hops == 0
    logits, merged_gradients, merged_hops = run_model(build(name, **options), sample(*sampled))
    assert merged_hops == 2
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    # A parameter that nothing reads may have no gradient, or one of zeros.
    for parameter in gradients.keys() | merged_gradients.keys():
        a, b = gradients.get(parameter), merged_gradients.get(parameter)
        b = torch.zeros_like(a) if b is None and a is not None else b
        a = torch.zeros_like(b) if a is None and b is not None else a
        assert a is not None
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", ["cheaper", "project first", "aggregate first"])
@pytest.mark.parametrize(("name", "options"), MODELS)
def test_merged_and_single_relations_give_the_same_numbers(name, options, order, monkeypatch):
    """Logits and gradients agree, whether rows are projected or aggregated first."""
    if order != "cheaper":
        first = order == "project first"
        monkeypatch.setattr(MergedRelations, "project_first", lambda *_: first)
    check_merged(name, options, 3)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_edges_of_different_probability(name):
    """Sources of a layer's sample have different probabilities."""
    blocks = sample(20, LayerSampler)[0].blocks.values()
    assert any(not block.equally_likely for block in blocks)
    check_merged(name, {}, 20, LayerSampler)


@pytest.mark.parametrize(("name", "options"), [MODELS[1], MODELS[3], MODELS[5]])
def test_rows_that_are_projected_already(name, options):
    """Engines may project rows elsewhere. Each relation then has sources of its own."""
    layer, hop = build(name, **options).relation_layer(0), sample(3)[0]
    h = {n: torch.randn(count, 8, dtype=torch.float64) for n, count in hop.sources.items()}
    projected = {r: layer.aggregation(r).project(h[r.src]) for r in RELATIONS}
    h_dst = {n: h[n][: hop.destinations[n]] for n in layer.types}
    names = {r: r for r in layer.relations_into(layer.types, hop)}
    partials = layer.partials(hop, names, h, h_dst, projected=projected)
    rows, expected = layer.new_rows(h_dst, partials), layer(hop, h)
    assert rows.keys() == expected.keys()
    for node_type in rows:
        torch.testing.assert_close(rows[node_type], expected[node_type], rtol=1e-12, atol=1e-12)


def test_layout():
    """Segments are the pairs of relation and destination that have edges, in order."""
    hop = sample(2)[0]
    merged = merge_relations(hop, RELATIONS, TYPES)
    assert merge_relations(hop, RELATIONS, TYPES) is merged
    starts = dict(zip(TYPES, np.cumsum([0, *(hop.destinations[t] for t in TYPES)]), strict=False))
    rows = dict(
        zip(merged.readers, np.cumsum([0, *(hop.sources[t] for t in merged.readers)]), strict=False)
    )
    expected = []
    for number, relation in enumerate(RELATIONS, 1):
        block = hop.blocks[relation]
        for destination in range(block.num_dst):
            first, stop = block.indptr[destination : destination + 2].tolist()
            if stop > first:
                sources = (block.indices[first:stop] + rows[relation.src]).tolist()
                expected.append((int(starts[relation.dst]) + destination, sources))
        assert merged.groups.bounds[number] == len(expected)
    edges = merged.segments(projected=False)
    segments = [
        (int(destination), edges.indices[first:stop].tolist())
        for destination, first, stop in zip(
            merged.segment_places, edges.indptr[:-1], edges.indptr[1:], strict=True
        )
    ]
    assert segments == expected
    assert edges.num_src == sum(hop.sources[name] for name in merged.readers)
    assert merged.destinations.num_dst == sum(hop.destinations.values())
    for destination in range(merged.destinations.num_dst):
        first, stop = merged.destinations.indptr[destination : destination + 2].tolist()
        segments_of_destination = merged.destinations.indices[first:stop]
        segments = [i for i, (d, _) in enumerate(expected) if d == destination]
        assert segments_of_destination.tolist() == segments


def test_the_layout_is_the_same_on_host_and_device(monkeypatch):
    """A kernel makes the layout of edges in host memory, tensor operations that on a device."""
    for hop, same_hop in zip(sample(2), sample(2), strict=True):
        on_host = merge_relations(hop, RELATIONS, TYPES)
        with monkeypatch.context() as patched:
            patched.setattr("hopper.models.merged._merge_on_host", lambda *_: None)
            on_device = merge_relations(same_hop, RELATIONS, TYPES)
        assert on_host.groups.bounds == on_device.groups.bounds
        assert on_host.places == on_device.places
        with monkeypatch.context() as patched:
            arrays = [on_host.segments(projected=p).indices for p in (False, True)]
            patched.setattr("hopper.models.merged._on_host", lambda *_: None)
            device_arrays = [on_device.segments(projected=p).indices for p in (False, True)]
        for layout, of_layout in ((on_host, arrays), (on_device, device_arrays)):
            of_layout += [layout.segment_starts, layout.segment_places]
        for host_array, device_array in zip(arrays, device_arrays, strict=True):
            assert host_array.dtype == device_array.dtype == torch.int64
            assert torch.equal(host_array, device_array)
        for name in ("indptr", "indices"):
            of_both = [getattr(layout.destinations, name) for layout in (on_host, on_device)]
            assert torch.equal(*of_both), name


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_a_layout_made_ahead_is_all_that_a_pass_prepares(name, options, monkeypatch):
    """It has the same numbers, to the last bit, and neither edges nor their order are made anew."""
    model = build(name, **options)
    expected, gradients, _ = run_model(model, sample(3))
    blocks = sample(3)
    model.lay_out(blocks)
    for made in (
        "models.merged._merge_sources",
        "models.merged._merge",
        "ops.csr._counting_sort",
    ):
        monkeypatch.setattr(f"hopper.{made}", lambda *_, made=made, **__: pytest.fail(made))
    model.zero_grad()
    logits, same_gradients, _ = run_model(model, blocks)
    assert torch.equal(logits, expected)
    assert all(torch.equal(same_gradients[key], value) for key, value in gradients.items())


def test_the_cheaper_order():
    """Few sources of many segments are projected first; narrow results of many edges too."""
    hop = sample(3)[0]
    relations = (Relation("field", "of", "paper"),)
    merged = merge_relations(hop, relations, ("paper",))
    assert merged.groups.products > hop.sources["field"]
    assert merged.project_first(8, 8)
    merged = merge_relations(hop, (Relation("paper", "in", "field"),), ("field",))
    assert merged.groups.products < hop.sources["paper"]
    assert not merged.project_first(8, 8)
