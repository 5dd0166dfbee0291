"""What every layer and stack promises: parts compose, placement does not matter."""

from __future__ import annotations

import math

import pytest
import torch

from hopper.errors import ConfigError, RequestError
from hopper.graph.schema import Relation
from hopper.models import GNN, Layer, build_model
from hopper.models.dropout import EdgeDropout, RowDropout, SelfDropout
from hopper.models.film import FiLMLayer
from hopper.models.gat import GATLayer
from hopper.models.gcn import GCNLayer
from hopper.models.sage import LSTMLayer, PoolLayer, SAGELayer
from hopper.ops import message_passing

NAMES = ["gcn", "sage", "gat", "deepgcn", "film"]


def model_of(name, **changes):
    options = {"in_dim": 6, "out_dim": 3, "layers": 3, "hidden": 4, "heads": 2, "dropout": 0.0}
    return build_model(name, **options | changes, dtype=torch.float64)


def layers_of(in_dim, out_dim):
    film = FiLMLayer(in_dim, out_dim).double()
    torch.nn.init.normal_(film.modulation.weight)
    return [
        GCNLayer(in_dim, out_dim, activation=torch.relu).double(),
        SAGELayer(in_dim, out_dim, activation=torch.relu).double(),
        GATLayer(in_dim, out_dim, 2, concat=True, dropout=0.3).double(),
        film,
        PoolLayer(in_dim, out_dim, activation=torch.relu).double(),
        LSTMLayer(in_dim, out_dim, activation=torch.relu).double(),
    ]


def rows_for(graph, width=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_nodes, width, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 4), (4, 6)])
def test_forward_is_the_composition_of_the_parts(graph, in_dim, out_dim):
    block = graph.block([3, 1, 39, 7])
    h_src = rows_for(graph, in_dim)[block.src.original]
    h_dst = rows_for(graph, in_dim, seed=2)[block.dst.original]
    for layer in layers_of(in_dim, out_dim):
        combined = layer.aggregate(block, layer.project(h_src), h_dst)
        assert torch.equal(layer(block, h_src, h_dst), layer.update(h_dst, combined))


@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 4), (4, 6)])
def test_destinations_are_read_from_h_dst_only(graph, in_dim, out_dim):
    """Reordering the sources changes nothing, though destinations then lie anywhere."""
    block = graph.block([3, 1, 39, 7])
    h = rows_for(graph, in_dim)
    order = torch.randperm(block.num_src, generator=torch.Generator().manual_seed(3))
    moved = graph.block([3, 1, 39, 7])
    moved.indices = torch.argsort(order)[block.indices]
    moved.src.original, moved.src.degree = block.src.original[order], block.out_degree()[order]
    for layer in layers_of(in_dim, out_dim):
        expected = layer(block, h[block.src.original], h[block.dst.original])
        out = layer(moved, h[moved.src.original], h[block.dst.original])
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)


def test_declarations_hold(graph):
    block = graph.block([3, 1, 7])
    for layer in layers_of(6, 4):
        z_src = layer.project(rows_for(graph)[block.src.original])
        one, other = (rows_for(graph, seed=s)[block.dst.original] for s in (2, 3))
        same = torch.equal(layer.aggregate(block, z_src, one), layer.aggregate(block, z_src, other))
        assert same is not layer.reads_destination
    declared = ["sum", "mean", "softmax", "mean", "other", "other"]
    assert [layer.algebra for layer in layers_of(2, 2)] == declared


def test_a_maximum_of_parts_is_that_of_all(graph):
    v = max(range(graph.num_nodes), key=lambda n: len(graph.neighbors[n]))
    layer, h = PoolLayer(6, 4).double(), rows_for(graph)
    chosen = graph.neighbors[v]

    def part(kept):
        block = graph.block([v, 39], kept={v: kept, 39: []})
        z = layer.project(h[block.src.original])
        return layer.part(block, z, h[block.dst.original])

    whole = part(chosen)
    assert whole[1].count_nonzero() == 0
    joined = layer.join([part(chosen[:2]), part(chosen[2:]), part([])])
    assert torch.equal(joined, whole)
    assert PoolLayer.has_parts()
    assert not LSTMLayer.has_parts()


@pytest.mark.parametrize("layer_class", [GCNLayer, SAGELayer])
@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 4), (4, 6)])
def test_both_orders_agree_and_the_cheaper_is_chosen(graph, layer_class, in_dim, out_dim):
    torch.manual_seed(0)
    first = layer_class(in_dim, out_dim, project_first=True).double()
    last = layer_class(in_dim, out_dim, project_first=False).double()
    last.load_state_dict(first.state_dict())
    block = graph.block([3, 1, 39, 7], kept={3: graph.neighbors[3][:2]})
    h = rows_for(graph, in_dim)
    results = []
    for layer in (first, last):
        h_src = h[block.src.original].requires_grad_()
        out = layer(block, h_src, h_src[: block.num_dst])
        grads = torch.autograd.grad(out.square().sum(), [h_src, *layer.parameters()])
        results.append([out, *grads])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)
    assert layer_class(in_dim, out_dim).project_first is (in_dim > out_dim)


def test_gcn_weights_use_full_graph_degrees_and_the_sampled_count(graph):
    v = max(range(graph.num_nodes), key=lambda n: len(graph.neighbors[n]))
    chosen = graph.neighbors[v][1:4]
    block = graph.block([v], kept={v: chosen})
    degree = [len(row) for row in graph.neighbors]
    expected = [degree[v] / 3 / math.sqrt((degree[u] + 1) * (degree[v] + 1)) for u in chosen]
    weights = GCNLayer(1, 1).edge_weights(block, torch.float64)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


def test_gat_softmax_is_over_the_sampled_edges_and_self(graph):
    """Sampling is the same as deleting the edges that were not drawn: nothing is rescaled."""
    v = max(range(graph.num_nodes), key=lambda n: len(graph.neighbors[n]))
    chosen = graph.neighbors[v][::2]
    layer = GATLayer(6, 4, 2, concat=True).double()
    h = rows_for(graph)
    block = graph.block([v], kept={v: chosen})
    z, z_v = layer.project(h[chosen]), layer.project(h[[v]])
    z_all = torch.cat([z, z_v])
    logits = (z_all * layer.attention_src).sum(-1) + (z_v * layer.attention_dst).sum(-1)
    alpha = torch.nn.functional.leaky_relu(logits, 0.2).softmax(0)
    expected = (alpha.unsqueeze(-1) * z_all).sum(0).flatten()
    out = layer(block, h[block.src.original], h[[v]])
    torch.testing.assert_close(out[0], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_widths_and_number_of_layers(graph, name, layers):
    model = model_of(name, layers=layers)
    blocks = graph.blocks([4, 39, 8], layers)
    out = model(blocks, rows_for(graph)[blocks[0].src.original])
    assert out.shape == (3, 3)
    assert out.dtype == torch.float64
    assert (out < 0).any(), "the last layer has no activation"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("train", [True, False])
def test_gradient_of_a_batch_is_the_sum_over_its_roots(graph, name, train):
    """Dropout on: masks do not depend on which roots share a pass, nor on row order."""
    model = model_of(name, dropout=0.4).train(train)
    h = rows_for(graph)
    roots = [4, 17, 39, 8, 21]

    def run(some):
        blocks = graph.blocks(some, 3)
        out = model(blocks, h[blocks[0].src.original])
        loss = out.sin().sum()
        return out, torch.autograd.grad(loss, list(model.parameters()))

    together, gradient = run(roots)
    parts = [run(some) for some in ([8, 39], [21], [17, 4], [])]
    rows = torch.cat([out for out, _ in parts])
    torch.testing.assert_close(rows, together[[3, 2, 4, 1, 0]], atol=1e-12, rtol=1e-10)
    for index, whole in enumerate(gradient):
        summed = sum(grads[index] for _, grads in parts)
        torch.testing.assert_close(summed, whole, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_in_training_only_and_by_iteration(graph, name):
    model = model_of(name, dropout=0.5)
    h = rows_for(graph)

    def run(key):
        blocks = graph.blocks([4, 17, 8], 3, key=key)
        return model(blocks, h[blocks[0].src.original])

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    model.eval()
    assert torch.equal(run(1), run(2))
    without = model_of(name)
    without.load_state_dict(model.state_dict())
    assert torch.equal(run(1), without(graph.blocks([4, 17, 8], 3), h[first_rows(graph)]))


def first_rows(graph):
    return graph.blocks([4, 17, 8], 3)[0].src.original


def test_every_layer_drops_its_own_input_rows(graph):
    model = model_of("gat", layers=3, dropout=0.3)
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
    model = model_of(name, layers=1, in_dim=2, out_dim=5)
    blocks = graph.blocks([4, 17], 1)
    x = rows_for(graph, 2)[blocks[0].src.original]
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
    model = model_of(name, layers=1)
    blocks = graph.blocks([4], 1)
    x = rows_for(graph)[blocks[0].src.original].half()
    torch.testing.assert_close(model(blocks, x), model(blocks, x.double()))


def test_what_does_not_fit_is_named(graph):
    model = model_of("sage", layers=2)
    blocks = graph.blocks([4], 2)
    x = rows_for(graph)[blocks[0].src.original]
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
    x = rows_for(graph)[block.src.original].float()
    expected = torch.stack([rows_for(graph)[graph.neighbors[v]].sum(0) for v in (3, 1)]).float()
    torch.testing.assert_close(GNN([Total()])([block], x), expected)
    with pytest.raises(NotImplementedError, match=r"Layer defines no aggregate\(\)"):
        Layer()(block, x, x[:2])


@pytest.mark.parametrize("kind", [GCNLayer, SAGELayer, PoolLayer, LSTMLayer])
def test_an_activation_may_be_a_module(graph, kind):
    """Whose parameters are the layer's, and which is not passed over for a default."""
    block = graph.block([3, 1, 39, 7])
    h_src = rows_for(graph)[block.src.original]
    h_dst = rows_for(graph, seed=2)[block.dst.original]
    torch.manual_seed(0)
    layer = kind(6, 4, activation=torch.nn.PReLU()).double()
    torch.manual_seed(0)
    plain = kind(6, 4).double()
    expected = torch.nn.functional.prelu(plain(block, h_src, h_dst), layer.activation.weight)
    assert torch.equal(layer(block, h_src, h_dst), expected)
