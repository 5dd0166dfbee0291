"""All relations of a layer at once against relation by relation: the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hopper.graph import build_topology
from hopper.graph.block import TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.models import build_typed_model
from hopper.models.merged import MergedRelations, merge_relations
from hopper.models.relational import HGNN

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
RELATIONS = tuple(sorted(EDGES))
MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rgcn", {}),
    ("rgcn", {"bases": 3}),
    ("rgcn", {"root_weight": False, "head": True}),
    ("rgat", {}),
    ("rgat", {"heads": 2}),
    ("hgt", {}),
    ("hgt", {"heads": 4}),
)


def sample(
    fanout: int, kind: type[NeighborSampler] = NeighborSampler, layers: int = 2
) -> list[TypedBlocks]:
    generator = np.random.default_rng(4)
    sampler = kind(
        {
            each: build_topology(
                generator.integers(0, max(1, COUNTS[each.src]), count),
                generator.integers(0, max(1, COUNTS[each.dst]), count),
                COUNTS[each.src],
                COUNTS[each.dst],
            )
            for each, count in EDGES.items()
        },
        {name: np.arange(count) for name, count in COUNTS.items()},
        "paper",
        [fanout] * layers,
        seed=1,
    )
    return sampler.sample(np.arange(0, 60, 4), 0, 0).typed_blocks()


def make(name: str, *, merge: bool, out_dim: int = 3, **more: Any) -> HGNN:
    types = tuple(sorted(COUNTS))
    reads = [(RELATIONS, types), (tuple(r for r in RELATIONS if r.dst == "paper"), ("paper",))]
    return build_typed_model(
        name,
        target="paper",
        inputs=INPUTS,
        reads=reads,
        out_dim=out_dim,
        hidden=8,
        dtype=torch.float64,
        merge=merge,
        **more,
    )


def outcome(model: HGNN, blocks: list[TypedBlocks]) -> tuple[Tensor, dict[str, Tensor], int]:
    """Logits, gradients of all parameters, and how many hops were merged."""
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
    return logits.detach(), gradients, sum(bool(each.prepared) for each in blocks)


@pytest.mark.parametrize("order", ["cheaper", "project first", "aggregate first"])
@pytest.mark.parametrize(("name", "more"), MODELS)
def test_same_numbers(
    name: str, more: dict[str, Any], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits and the gradients of all parameters and input rows, whichever comes first."""
    if order != "cheaper":
        first = order == "project first"
        monkeypatch.setattr(MergedRelations, "project_first", lambda *_: first)
    expected, gradients, merged = outcome(make(name, merge=False, **more), sample(3))
    assert merged == 0
    found, own, merged = outcome(make(name, merge=True, **more), sample(3))
    assert merged == 2
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # A parameter that nothing reads may have no gradient, or one of zeros.
    for each in gradients.keys() | own.keys():
        a, b = gradients.get(each), own.get(each)
        b = torch.zeros_like(a) if b is None and a is not None else b
        a = torch.zeros_like(b) if a is None and b is not None else a
        assert a is not None
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_edges_of_different_probability(name: str) -> None:
    """LABOR draws sources that fewer destinations share with other probabilities."""
    expected, gradients, _ = outcome(make(name, merge=False), sample(3, LaborSampler))
    found, own, merged = outcome(make(name, merge=True), sample(3, LaborSampler))
    assert merged == 2
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for each, gradient in gradients.items():
        if each in own:
            torch.testing.assert_close(own[each], gradient, rtol=1e-10, atol=1e-12)


def test_blocks_on_the_diagonal_stay_apart() -> None:
    model = make("rgcn", merge=True, diagonal_blocks=4, head=True)
    assert outcome(model, sample(3))[2] == 0


def test_layout() -> None:
    """Segments are the pairs of relation and destination that have edges, in order."""
    hop = sample(2)[0]
    types = tuple(sorted(COUNTS))
    merged = merge_relations(hop, RELATIONS, types)
    assert merge_relations(hop, RELATIONS, types) is merged
    starts = dict(zip(types, np.cumsum([0, *(hop.destinations[t] for t in types)]), strict=False))
    rows = dict(
        zip(merged.readers, np.cumsum([0, *(hop.sources[t] for t in merged.readers)]), strict=False)
    )
    expected = []
    for place, relation in enumerate(RELATIONS, 1):
        block = hop.blocks[relation]
        for destination in range(block.num_dst):
            first, stop = block.indptr[destination : destination + 2].tolist()
            if stop > first:
                sources = (block.indices[first:stop] + rows[relation.src]).tolist()
                expected.append((int(starts[relation.dst]) + destination, sources))
        assert merged.bounds[place] == len(expected)
    edges = merged.segments(projected=False)
    found = [
        (int(own), edges.indices[first:stop].tolist())
        for own, first, stop in zip(
            merged.segment_places, edges.indptr[:-1], edges.indptr[1:], strict=True
        )
    ]
    assert found == expected
    assert edges.num_src == sum(hop.sources[each] for each in merged.readers)
    assert merged.destinations.num_dst == sum(hop.destinations.values())
    for destination in range(merged.destinations.num_dst):
        first, stop = merged.destinations.indptr[destination : destination + 2].tolist()
        own = merged.destinations.indices[first:stop]
        assert own.tolist() == [i for i, (d, _) in enumerate(expected) if d == destination]


def test_the_layout_is_the_same_wherever_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one kernel of edges in host memory, by tensor operations of those on a device."""
    types = tuple(sorted(COUNTS))
    for hop, again in zip(sample(2), sample(2), strict=True):
        on_host = merge_relations(hop, RELATIONS, types)
        with monkeypatch.context() as patched:
            patched.setattr("hopper.models.merged._merge_on_host", lambda *_: None)
            on_device = merge_relations(again, RELATIONS, types)
        assert on_host.bounds == on_device.bounds
        assert on_host.places == on_device.places
        for name in ("indices", "projected", "segment_starts", "segment_places"):
            one, other = getattr(on_host, name), getattr(on_device, name)
            assert one.dtype == other.dtype == torch.int64
            assert torch.equal(one, other), name
        for name in ("indptr", "indices"):
            one, other = (getattr(each.destinations, name) for each in (on_host, on_device))
            assert torch.equal(one, other), name


def test_the_cheaper_order() -> None:
    """Few sources of many segments are projected first; narrow results of many edges too."""
    hop = sample(3)[0]
    relations = (Relation("field", "of", "paper"),)
    merged = merge_relations(hop, relations, ("paper",))
    assert merged.bounds[-1] > hop.sources["field"]
    assert merged.project_first(8, 8)
    merged = merge_relations(hop, (Relation("paper", "in", "field"),), ("field",))
    assert merged.bounds[-1] < hop.sources["paper"]
    assert not merged.project_first(8, 8)
