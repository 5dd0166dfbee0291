"""Layers over sampled neighbours that were not equally likely: weights, placement, expectations."""

import pytest
import torch
from torch import Tensor

from hopper.graph.block import Block
from hopper.models import build_model
from hopper.models.gat import GATLayer
from hopper.models.gcn import GCNLayer
from hopper.models.sage import SAGELayer

from .conftest import attentive, check_sum_over_roots, make_rows

NAMES = ["gcn", "sage", "gat"]


def inverse_probabilities(graph, block: Block) -> Tensor:
    """[edges]: an inverse probability for each edge by its source, from 1 to 5."""
    return 1.0 + (block.src.original[block.indices] * 7 % 40).double() / 10


def make_unequal_block(graph, roots, sampled_neighbors=None, key=11) -> Block:
    block = graph.block(roots, sampled_neighbors, key=key)
    block.drawn_inverse, block.equally_likely = inverse_probabilities(graph, block), False
    return block


@pytest.fixture
def hub(graph) -> int:
    return graph.hub


def test_gcn_weights_each_edge_by_its_own_probability(graph, hub):
    block = make_unequal_block(graph, [hub, 39], sampled_neighbors={hub: graph.neighbors[hub][:3]})
    plain = graph.block([hub, 39])
    sources = plain.src.original[plain.indices].tolist()
    weight_by_source = dict(
        zip(sources, GCNLayer(1, 1).edge_weights(plain, torch.float64), strict=True)
    )
    expected = torch.stack([weight_by_source[int(u)] for u in block.src.original[block.indices]])
    expected *= block.drawn_inverse
    torch.testing.assert_close(GCNLayer(1, 1).edge_weights(block, torch.float64), expected)


def test_sage_takes_the_mean_weighted_by_inverse_probabilities(graph, hub):
    block = make_unequal_block(graph, [hub, 39])
    h = make_rows(graph)
    inverse = inverse_probabilities(graph, block)
    layer = SAGELayer(6, 6, project_first=False).double()
    rows = layer.aggregate(block, h[block.src.original], h[block.dst.original])
    expected = (inverse / inverse.sum()) @ h[graph.neighbors[hub]]
    torch.testing.assert_close(rows[0], expected)
    assert (rows[1] == 0).all(), "the mean of no neighbours"


def test_gat_weighs_exponentials_by_inverse_probability_over_their_mean(graph, hub):
    block = make_unequal_block(graph, [hub, 39])
    h = make_rows(graph)
    layer = attentive(GATLayer(6, 4, 2, concat=True))
    z, z_v = layer.project(h[graph.neighbors[hub]]), layer.project(h[[hub]])
    z_all = torch.cat([z, z_v])
    logits = (z_all * layer.attention_src).sum(-1) + (z_v * layer.attention_dst).sum(-1)
    inverse = inverse_probabilities(graph, block)
    weights = torch.cat([inverse / inverse.mean(), torch.ones(1).double()])
    unnormalised = torch.nn.functional.leaky_relu(logits, 0.2).exp() * weights.unsqueeze(1)
    alpha = unnormalised / unnormalised.sum(0)
    expected = (alpha.unsqueeze(-1) * z_all).sum(0).flatten()
    out = layer(block, h[block.src.original], h[block.dst.original])
    torch.testing.assert_close(out[0], expected)
    isolated_row = layer(graph.block([39]), h[[39]], h[[39]])
    torch.testing.assert_close(out[1], isolated_row[0])


@pytest.mark.parametrize("name", NAMES)
def test_equal_weights_change_nothing(graph, hub, name):
    """Weighted or not, probabilities that are those of node-wise draws give the same rows."""
    model = build_model(
        name, in_dim=6, out_dim=3, layers=1, hidden=4, heads=2, dropout=0.0, dtype=torch.float64
    )
    sampled_neighbors = {hub: graph.neighbors[hub][1:4]}
    plain, weighted = (graph.block([hub, 4, 39], sampled_neighbors) for _ in range(2))
    weighted.drawn_inverse = plain.inverse_probability(torch.float64)
    weighted.equally_likely = False
    x = make_rows(graph)[plain.src.original]
    torch.testing.assert_close(model([weighted], x), model([plain], x), atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_a_batch_is_the_sum_over_its_roots(graph, name):
    """Two layers, dropout on: probabilities belong to edges, not to who shares the pass."""
    model = build_model(
        name, in_dim=6, out_dim=3, layers=2, hidden=4, heads=2, dropout=0.4, dtype=torch.float64
    )

    def make_blocks(roots):
        last = make_unequal_block(graph, roots)
        return [make_unequal_block(graph, last.src.original.tolist()), last]

    check_sum_over_roots(model, make_rows(graph), make_blocks)


def test_gcn_over_every_sample_averages_to_the_whole_sum(graph, hub):
    """Poisson sampling of three neighbours: the expectation over all eight samples is exact."""
    graph.neighbors[hub] = graph.neighbors[hub][:3]
    layer = GCNLayer(6, 4).double()
    h = make_rows(graph)
    p = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)

    def aggregate_sample(positions: list[int]) -> Tensor:
        sampled_neighbors = {hub: [graph.neighbors[hub][i] for i in positions]}
        block = graph.block([hub], sampled_neighbors)
        block.drawn_inverse, block.equally_likely = 1 / p[positions], False
        z = layer.project(h[block.src.original])
        return layer.aggregate(block, z, h[block.dst.original])

    mean = torch.zeros(1, 4, dtype=torch.float64)
    for subset in range(8):
        positions = [i for i in range(3) if subset >> i & 1]
        chance = torch.where(torch.tensor([subset >> i & 1 == 1 for i in range(3)]), p, 1 - p)
        mean += chance.prod() * aggregate_sample(positions)
    block = graph.block([hub])
    z = layer.project(h[block.src.original])
    expected = layer.aggregate(block, z, h[block.dst.original])
    torch.testing.assert_close(mean, expected)
