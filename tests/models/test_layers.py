"""What every layer and stack promises: parts compose, placement does not matter, and sampled
neighbours count by their probability."""

import math

import pytest
import torch
from torch import Tensor

from hopper.errors import ConfigError, RequestError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models import GNN, Layer, build_model
from hopper.models.dropout import EdgeDropout, RowDropout, SelfDropout
from hopper.models.film import FiLMLayer
from hopper.models.gat import GATLayer
from hopper.models.gcn import GCNLayer
from hopper.models.sage import LSTMLayer, PoolLayer, SAGELayer
from hopper.ops import message_passing

from .conftest import attentive, check_sum_over_roots, make_rows

NAMES = ["gcn", "sage", "gat", "deepgcn", "film"]


def make_model(name, **changes):
    options = {"in_dim": 6, "out_dim": 3, "layers": 3, "hidden": 4, "heads": 2, "dropout": 0.0}
    return build_model(name, **options | changes, dtype=torch.float64)


def make_layers(in_dim, out_dim):
    film = FiLMLayer(in_dim, out_dim).double()
    torch.nn.init.normal_(film.modulation.weight)
    return [
        GCNLayer(in_dim, out_dim, activation=torch.relu).double(),
        SAGELayer(in_dim, out_dim, activation=torch.relu).double(),
        attentive(GATLayer(in_dim, out_dim, 2, concat=True, dropout=0.3)),
        film,
        PoolLayer(in_dim, out_dim, activation=torch.relu).double(),
        LSTMLayer(in_dim, out_dim, activation=torch.relu).double(),
    ]


@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 4), (4, 6)])
def test_forward_is_the_composition_of_the_parts(graph, in_dim, out_dim):
    block = graph.block([3, 1, 39, 7])
    h_src = make_rows(graph, in_dim)[block.src.original]
    h_dst = make_rows(graph, in_dim, seed=2)[block.dst.original]
    for layer in make_layers(in_dim, out_dim):
        combined = layer.aggregate(block, layer.project(h_src), h_dst)
        assert torch.equal(layer(block, h_src, h_dst), layer.update(h_dst, combined))


@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 4), (4, 6)])
def test_destinations_are_read_from_h_dst_only(graph, in_dim, out_dim):
    """Reordering the sources changes nothing, though destinations then lie anywhere."""
    block = graph.block([3, 1, 39, 7])
    h = make_rows(graph, in_dim)
    order = torch.randperm(block.num_src, generator=torch.Generator().manual_seed(3))
    reordered = graph.block([3, 1, 39, 7])
    reordered.indices = torch.argsort(order)[block.indices]
    reordered.src.original = block.src.original[order]
    reordered.src.degree = block.out_degree()[order]
    for layer in make_layers(in_dim, out_dim):
        expected = layer(block, h[block.src.original], h[block.dst.original])
        out = layer(reordered, h[reordered.src.original], h[block.dst.original])
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)


def test_layers_do_what_they_declare(graph):
    block = graph.block([3, 1, 7])
    for layer in make_layers(6, 4):
        z_src = layer.project(make_rows(graph)[block.src.original])
        first, second = (make_rows(graph, seed=s)[block.dst.original] for s in (2, 3))
        rows = (layer.aggregate(block, z_src, destinations) for destinations in (first, second))
        ignores_destination = torch.equal(*rows)
        assert ignores_destination is not layer.reads_destination
    algebras = ["sum", "mean", "softmax", "mean", "other", "other"]
    assert [layer.algebra for layer in make_layers(2, 2)] == algebras


def test_the_maximum_of_parts_is_the_maximum_of_all(graph):
    v = graph.hub
    layer, h = PoolLayer(6, 4).double(), make_rows(graph)
    neighbors = graph.neighbors[v]

    def aggregate_part(sampled):
        block = graph.block([v, 39], sampled_neighbors={v: sampled, 39: []})
        z = layer.project(h[block.src.original])
        return layer.part(block, z, h[block.dst.original])

    all_parts = aggregate_part(neighbors)
    assert all_parts[1].count_nonzero() == 0
    joined = layer.join([aggregate_part(part) for part in (neighbors[:2], neighbors[2:], [])])
    assert torch.equal(joined, all_parts)
    assert PoolLayer.has_parts()
    assert not LSTMLayer.has_parts()


@pytest.mark.parametrize("layer_class", [GCNLayer, SAGELayer])
@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 4), (4, 6)])
def test_both_orders_agree_and_the_cheaper_is_chosen(graph, layer_class, in_dim, out_dim):
    torch.manual_seed(0)
    projects_first = layer_class(in_dim, out_dim, project_first=True).double()
    projects_last = layer_class(in_dim, out_dim, project_first=False).double()
    projects_last.load_state_dict(projects_first.state_dict())
    block = graph.block([3, 1, 39, 7], sampled_neighbors={3: graph.neighbors[3][:2]})
    h = make_rows(graph, in_dim)
    results = []
    for layer in (projects_first, projects_last):
        h_src = h[block.src.original].requires_grad_()
        out = layer(block, h_src, h_src[: block.num_dst])
        grads = torch.autograd.grad(out.square().sum(), [h_src, *layer.parameters()])
        results.append([out, *grads])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, atol=1e-12, rtol=1e-12)
    assert layer_class(in_dim, out_dim).project_first is (in_dim > out_dim)


def test_gcn_weights_use_full_graph_degrees_and_the_sampled_count(graph):
    v = graph.hub
    neighbors = graph.neighbors[v][1:4]
    block = graph.block([v], sampled_neighbors={v: neighbors})
    degree = [len(row) for row in graph.neighbors]
    expected = [degree[v] / 3 / math.sqrt((degree[u] + 1) * (degree[v] + 1)) for u in neighbors]
    weights = GCNLayer(1, 1).edge_weights(block, torch.float64)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


def test_gat_softmax_is_over_the_sampled_edges_and_self(graph):
    """Sampling is the same as deleting the edges that were not drawn: nothing is rescaled."""
    v = graph.hub
    neighbors = graph.neighbors[v][::2]
    layer = attentive(GATLayer(6, 4, 2, concat=True))
    h = make_rows(graph)
    block = graph.block([v], sampled_neighbors={v: neighbors})
    z, z_v = layer.project(h[neighbors]), layer.project(h[[v]])
    z_all = torch.cat([z, z_v])
    logits = (z_all * layer.attention_src).sum(-1) + (z_v * layer.attention_dst).sum(-1)
    alpha = torch.nn.functional.leaky_relu(logits, 0.2).softmax(0)
    expected = (alpha.unsqueeze(-1) * z_all).sum(0).flatten()
    out = layer(block, h[block.src.original], h[[v]])
    torch.testing.assert_close(out[0], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 3])
def test_widths_and_number_of_layers(graph, name, layers):
    model = make_model(name, layers=layers)
    blocks = graph.blocks([4, 39, 8], layers)
    out = model(blocks, make_rows(graph)[blocks[0].src.original])
    assert out.shape == (3, 3)
    assert out.dtype == torch.float64
    assert (out < 0).any(), "the last layer has no activation"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("train", [True, False])
def test_gradient_of_a_batch_is_the_sum_over_its_roots(graph, name, train):
    """Dropout on: masks do not depend on which roots share a pass, nor on row order."""
    model = make_model(name, dropout=0.4).train(train)
    check_sum_over_roots(model, make_rows(graph), lambda roots: graph.blocks(roots, 3))


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_in_training_only_and_by_iteration(graph, name):
    model, without, h = make_model(name, dropout=0.5), make_model(name), make_rows(graph)
    without.load_state_dict(model.state_dict())

    def run(model, key):
        blocks = graph.blocks([4, 17, 8], 3, key=key)
        return model(blocks, h[blocks[0].src.original])

    assert torch.equal(run(model, 1), run(model, 1))
    assert not torch.equal(run(model, 1), run(model, 2))
    model.eval()
    assert torch.equal(run(model, 1), run(model, 2))
    assert torch.equal(run(model, 1), run(without, 11))


def test_every_layer_drops_its_own_input_rows(graph):
    model = make_model("gat", layers=3, dropout=0.3)
    assert [drop.layer for drop in model.dropouts] == [0, 1, 2]
    assert all(isinstance(drop, RowDropout) and drop.p == 0.3 for drop in model.dropouts)
    for index, layer in enumerate(model.layers):
        assert (layer.edge_dropout.layer, layer.edge_dropout.p) == (index, 0.3)
        assert (layer.self_dropout.layer, layer.self_dropout.p) == (index, 0.3)
    first_input = torch.ones(graph.num_nodes, 6, dtype=torch.float64)
    dropped = model.dropouts[0](graph.block().src, first_input)
    assert (dropped == 0).any()


@pytest.mark.parametrize("dropout", [RowDropout, EdgeDropout, SelfDropout])
def test_dropout_modules_refuse_bad_probabilities(dropout):
    with pytest.raises(ConfigError, match=r"given 1\.0"):
        dropout(1.0, 0)
    assert "p=0.25, layer=2" in repr(dropout(0.25, 2))


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_work_for_input_rows(graph, name, monkeypatch):
    """Input features are frozen: the first layer's aggregation has no backward pass to run."""
    model = make_model(name, layers=1, in_dim=2, out_dim=5)
    blocks = graph.blocks([4, 17], 1)
    x = make_rows(graph, 2)[blocks[0].src.original]
    transposed = []
    original = message_passing.destinations_to_sources
    monkeypatch.setattr(
        message_passing,
        "destinations_to_sources",
        lambda block: transposed.append(block) or original(block),
    )
    model(blocks, x).sum().backward()
    # GAT projects first, so its aggregation leads to parameters.
    assert len(transposed) == (1 if name == "gat" else 0)
    assert x.grad is None


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_features_become_the_model_s_dtype(graph, name):
    model = make_model(name, layers=1)
    blocks = graph.blocks([4], 1)
    x = make_rows(graph)[blocks[0].src.original].half()
    torch.testing.assert_close(model(blocks, x), model(blocks, x.double()))


def test_inputs_that_do_not_fit_are_named(graph):
    model = make_model("sage", layers=2)
    blocks = graph.blocks([4], 2)
    x = make_rows(graph)[blocks[0].src.original]
    with pytest.raises(RequestError, match="GraphSAGE: expected 2 blocks, one per layer; given 1"):
        model(blocks[:1], x)
    with pytest.raises(RequestError, match=f"layer 0: expected {len(x)} source rows; given 1"):
        model(blocks, x[:1])
    blocks[0].relation = Relation("author", "writes", "paper")
    with pytest.raises(RequestError, match="given relation author/writes/paper"):
        model(blocks, x)


def test_a_layer_of_one_s_own(graph):
    class Total(Layer):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def aggregate(self, block, z_src, h_dst):
            return message_passing.copy_sum(block, z_src) * self.scale

    block = graph.block([3, 1])
    x = make_rows(graph)[block.src.original].float()
    expected = torch.stack([make_rows(graph)[graph.neighbors[v]].sum(0) for v in (3, 1)]).float()
    torch.testing.assert_close(GNN([Total()])([block], x), expected)
    with pytest.raises(NotImplementedError, match=r"Layer defines no aggregate\(\)"):
        Layer()(block, x, x[:2])


@pytest.mark.parametrize("kind", [GCNLayer, SAGELayer, PoolLayer, LSTMLayer])
def test_an_activation_may_be_a_module(graph, kind):
    """The module's parameters belong to the layer, and no default replaces it."""
    block = graph.block([3, 1, 39, 7])
    h_src = make_rows(graph)[block.src.original]
    h_dst = make_rows(graph, seed=2)[block.dst.original]
    torch.manual_seed(0)
    layer = kind(6, 4, activation=torch.nn.PReLU()).double()
    torch.manual_seed(0)
    plain = kind(6, 4).double()
    expected = torch.nn.functional.prelu(plain(block, h_src, h_dst), layer.activation.weight)
    assert torch.equal(layer(block, h_src, h_dst), expected)


# Neighbours that were not equally likely: weights, placement, expectations


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
    weights = GCNLayer(1, 1).edge_weights(plain, torch.float64)
    weight_by_source = dict(zip(sources, weights, strict=True))
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


@pytest.mark.parametrize("name", NAMES[:3])
def test_equal_weights_change_nothing(graph, hub, name):
    """Weighted or not, probabilities that are those of node-wise draws give the same rows."""
    model = make_model(name, layers=1)
    sampled_neighbors = {hub: graph.neighbors[hub][1:4]}
    plain, weighted = (graph.block([hub, 4, 39], sampled_neighbors) for _ in range(2))
    weighted.drawn_inverse = plain.inverse_probability(torch.float64)
    weighted.equally_likely = False
    x = make_rows(graph)[plain.src.original]
    torch.testing.assert_close(model([weighted], x), model([plain], x), atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES[:3])
def test_gradients_over_unequal_edges_are_sums_over_roots_too(graph, name):
    """Probabilities belong to edges, not to who shares the pass."""
    model = make_model(name, layers=2, dropout=0.4)

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
