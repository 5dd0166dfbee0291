"""Layers against dgl.nn's with the same weights, on full neighbourhoods, in float64."""

import os

import pytest
import torch
from torch.nn import functional

from hopper.models import build_model
from hopper.models.gat import GATLayer
from hopper.models.gcn import GCNLayer
from hopper.models.sage import LSTMLayer, PoolLayer, SAGELayer
from hopper.ops import selection

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
WIDTHS = [(7, 5), (5, 7)]
# By default the cheaper order is taken: what is wide is projected first.
ORDERS = [(7, 5, None), (5, 7, None), (7, 5, False), (5, 7, True)]


@pytest.fixture(autouse=True, params=["torch", "numba"])
def kernels(request):
    with selection.use_backend(request.param):
        yield


@pytest.fixture
def dgl():
    os.environ.setdefault("DGLBACKEND", "pytorch")
    module = pytest.importorskip("dgl", reason="DGL is not installed")
    import dgl.nn

    assert dgl.nn
    return module


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def compare(dgl, graph):
    """Return a function that compares outputs and gradients of a layer with those of DGL's."""

    def compare_layers(layer, dgl_layer, parameters, in_dim=6, *, self_loops=False, join=None):
        """``parameters`` pairs each parameter of the layer with a function that returns DGL's
        gradient for it. ``join`` makes of DGL's output what the layer returns."""
        g = dgl.graph(graph.edges(self_loops), num_nodes=graph.num_nodes)
        x, block = torch.randn(graph.num_nodes, in_dim), graph.block()
        layer_x, dgl_x = x.clone().requires_grad_(), x.clone().requires_grad_()
        out, expected = layer(block, layer_x, layer_x), dgl_layer(g, dgl_x)
        expected = join(expected) if join else expected
        torch.testing.assert_close(out, expected, **TOLERANCE)
        upstream = torch.randn(out.shape)
        (out * upstream).sum().backward()
        (expected * upstream).sum().backward()
        torch.testing.assert_close(layer_x.grad, dgl_x.grad, **TOLERANCE)
        assert len(parameters) == len(list(layer.parameters()))
        for parameter, dgl_gradient in parameters:
            torch.testing.assert_close(parameter.grad, dgl_gradient(), **TOLERANCE)

    return compare_layers


@pytest.mark.parametrize(("in_dim", "out_dim", "project_first"), ORDERS)
def test_gcn(dgl, compare, in_dim, out_dim, project_first):
    torch.manual_seed(0)
    dgl_layer = dgl.nn.GraphConv(in_dim, out_dim, norm="both", activation=torch.relu)
    layer = GCNLayer(in_dim, out_dim, activation=torch.relu, project_first=project_first)
    torch.nn.init.normal_(dgl_layer.bias)
    layer.weight.data.copy_(dgl_layer.weight)
    layer.bias.data.copy_(dgl_layer.bias)
    pairs = [
        (layer.weight, lambda: dgl_layer.weight.grad),
        (layer.bias, lambda: dgl_layer.bias.grad),
    ]
    compare(layer, dgl_layer, pairs, in_dim, self_loops=True)


@pytest.mark.parametrize(("in_dim", "out_dim", "project_first"), ORDERS)
def test_sage(dgl, compare, in_dim, out_dim, project_first):
    torch.manual_seed(0)
    dgl_layer = dgl.nn.SAGEConv(in_dim, out_dim, "mean", activation=torch.relu)
    layer = SAGELayer(in_dim, out_dim, activation=torch.relu, project_first=project_first)
    compare(layer, dgl_layer, load_self_and_neighbor(layer, dgl_layer), in_dim)


def load_self_and_neighbor(layer, dgl_layer):
    layer.self_linear.load_state_dict(dgl_layer.fc_self.state_dict())
    layer.neighbor_linear.load_state_dict(dgl_layer.fc_neigh.state_dict())
    return [
        (layer.self_linear.weight, lambda: dgl_layer.fc_self.weight.grad),
        (layer.self_linear.bias, lambda: dgl_layer.fc_self.bias.grad),
        (layer.neighbor_linear.weight, lambda: dgl_layer.fc_neigh.weight.grad),
    ]


def test_sage_pool(dgl, compare):
    """DGL pools rows as wide as the input, Hopper rows as wide as the output: here both are 6."""
    torch.manual_seed(0)
    dgl_layer = dgl.nn.SAGEConv(6, 6, "pool", activation=torch.relu)
    layer = PoolLayer(6, 6, activation=torch.relu)
    pairs = load_self_and_neighbor(layer, dgl_layer)
    layer.source_linear.load_state_dict(dgl_layer.fc_pool.state_dict())
    pairs += [
        (layer.source_linear.weight, lambda: dgl_layer.fc_pool.weight.grad),
        (layer.source_linear.bias, lambda: dgl_layer.fc_pool.bias.grad),
    ]
    compare(layer, dgl_layer, pairs)


def test_sage_lstm(dgl, compare):
    torch.manual_seed(0)
    dgl_layer = dgl.nn.SAGEConv(6, 6, "lstm", activation=torch.relu)
    layer = LSTMLayer(6, 6, activation=torch.relu)
    pairs = load_self_and_neighbor(layer, dgl_layer)

    def gates(tensor):
        """Reorder torch's gates to the order of LSTMLayer."""
        enter, forget, cell, leave = tensor.chunk(4)
        return torch.cat((enter, forget, leave, cell))

    lstm = dgl_layer.lstm
    layer.source_linear.weight.data.copy_(gates(lstm.weight_ih_l0))
    layer.source_linear.bias.data.copy_(gates(lstm.bias_ih_l0 + lstm.bias_hh_l0))
    layer.state_linear.weight.data.copy_(gates(lstm.weight_hh_l0))
    pairs += [
        (layer.source_linear.weight, lambda: gates(lstm.weight_ih_l0.grad)),
        (layer.source_linear.bias, lambda: gates(lstm.bias_ih_l0.grad)),
        (layer.state_linear.weight, lambda: gates(lstm.weight_hh_l0.grad)),
    ]
    compare(layer, dgl_layer, pairs)


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize(("in_dim", "width"), WIDTHS)
def test_gat(dgl, compare, in_dim, width, concat):
    torch.manual_seed(0)
    heads = 3
    dgl_layer = dgl.nn.GATConv(in_dim, width, heads).double()
    layer = GATLayer(in_dim, width, heads, concat=concat, activation=functional.elu)
    layer.linear.load_state_dict(dgl_layer.fc.state_dict())
    layer.attention_src.data.copy_(dgl_layer.attn_l[0])
    layer.attention_dst.data.copy_(dgl_layer.attn_r[0])
    bias = torch.randn(heads, width) if concat else torch.randn(1, width).expand(heads, width)
    dgl_layer.bias.data.copy_(bias.reshape(-1))
    layer.bias.data.copy_(bias.reshape(-1) if concat else bias[0])

    def bias_grad():
        grad = dgl_layer.bias.grad.view(heads, width)
        return grad.reshape(-1) if concat else grad.sum(0)

    def join(out):
        return functional.elu(out.flatten(1) if concat else out.mean(1))

    pairs = [
        (layer.linear.weight, lambda: dgl_layer.fc.weight.grad),
        (layer.attention_src, lambda: dgl_layer.attn_l.grad[0]),
        (layer.attention_dst, lambda: dgl_layer.attn_r.grad[0]),
        (layer.bias, bias_grad),
    ]
    compare(layer, dgl_layer, pairs, in_dim, self_loops=True, join=join)


def test_deepgcn(dgl, graph):
    """The whole stack, rebuilt from dgl.nn.GraphConv and torch's layer norm."""
    model = build_model(
        "deepgcn", in_dim=7, out_dim=3, layers=4, hidden=5, dtype=torch.float64, seed=1
    )
    for norm in model.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    convolutions = []
    for layer in model.layers:
        torch.nn.init.normal_(layer.bias)
        convolution = dgl.nn.GraphConv(*layer.weight.shape, norm="both")
        convolution.weight.data.copy_(layer.weight)
        convolution.bias.data.copy_(layer.bias)
        convolutions.append(convolution)
    g = dgl.graph(graph.edges(self_loops=True), num_nodes=graph.num_nodes)
    x = torch.randn(graph.num_nodes, 7, generator=torch.Generator().manual_seed(0))
    h = convolutions[0](g, x)
    for norm, convolution in zip(model.norms[:-1], convolutions[1:], strict=True):
        h = h + convolution(g, norm(h).relu())
    expected = model.classifier(model.norms[-1](h).relu())
    out = model([graph.block()] * 4, x)
    torch.testing.assert_close(out, expected, **TOLERANCE)
    out.sin().sum().backward()
    gradients = [layer.weight.grad for layer in model.layers]
    expected.sin().sum().backward()
    for gradient, convolution in zip(gradients, convolutions, strict=True):
        torch.testing.assert_close(gradient, convolution.weight.grad, **TOLERANCE)
