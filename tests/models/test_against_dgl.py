"""Layers against dgl.nn's with the same weights, on full neighbourhoods, in float64."""

from __future__ import annotations

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


def compare(ours, theirs, parameters, x, block):
    """Outputs and gradients, of parameters (pairs of tensors or of functions) and of x."""
    upstream = torch.randn(block.num_dst, *theirs(x).shape[1:])
    own_x, dgl_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    own = ours(block, own_x, own_x[: block.num_dst])
    expected = theirs(dgl_x)
    torch.testing.assert_close(own, expected, **TOLERANCE)
    (own * upstream).sum().backward()
    (expected * upstream).sum().backward()
    torch.testing.assert_close(own_x.grad, dgl_x.grad, **TOLERANCE)
    assert len(parameters) == len(list(ours.parameters()))
    for mine, other in parameters:
        torch.testing.assert_close(mine.grad, other(), **TOLERANCE)


@pytest.mark.parametrize("project_first", [True, False, None])
@pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
def test_gcn(dgl, graph, in_dim, out_dim, project_first):
    torch.manual_seed(0)
    theirs = dgl.nn.GraphConv(in_dim, out_dim, norm="both", activation=torch.relu)
    ours = GCNLayer(in_dim, out_dim, activation=torch.relu, project_first=project_first)
    torch.nn.init.normal_(theirs.bias)
    ours.weight.data.copy_(theirs.weight)
    ours.bias.data.copy_(theirs.bias)
    g = dgl.graph(graph.edges(self_loops=True), num_nodes=graph.num_nodes)
    pairs = [(ours.weight, lambda: theirs.weight.grad), (ours.bias, lambda: theirs.bias.grad)]
    x = torch.randn(graph.num_nodes, in_dim)
    compare(ours, lambda x: theirs(g, x), pairs, x, graph.block())


@pytest.mark.parametrize("project_first", [True, False, None])
@pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
def test_sage(dgl, graph, in_dim, out_dim, project_first):
    torch.manual_seed(0)
    theirs = dgl.nn.SAGEConv(in_dim, out_dim, "mean", activation=torch.relu)
    ours = SAGELayer(in_dim, out_dim, activation=torch.relu, project_first=project_first)
    ours.self_linear.load_state_dict(theirs.fc_self.state_dict())
    ours.neighbor_linear.load_state_dict(theirs.fc_neigh.state_dict())
    g = dgl.graph(graph.edges(self_loops=False), num_nodes=graph.num_nodes)
    pairs = [
        (ours.self_linear.weight, lambda: theirs.fc_self.weight.grad),
        (ours.self_linear.bias, lambda: theirs.fc_self.bias.grad),
        (ours.neighbor_linear.weight, lambda: theirs.fc_neigh.weight.grad),
    ]
    x = torch.randn(graph.num_nodes, in_dim)
    compare(ours, lambda x: theirs(g, x), pairs, x, graph.block())


def load_own_and_neighbor(ours, theirs):
    ours.self_linear.load_state_dict(theirs.fc_self.state_dict())
    ours.neighbor_linear.load_state_dict(theirs.fc_neigh.state_dict())
    return [
        (ours.self_linear.weight, lambda: theirs.fc_self.weight.grad),
        (ours.self_linear.bias, lambda: theirs.fc_self.bias.grad),
        (ours.neighbor_linear.weight, lambda: theirs.fc_neigh.weight.grad),
    ]


def test_sage_pool(dgl, graph):
    """DGL's rows in between are as wide as the input, ours as the output."""
    torch.manual_seed(0)
    theirs = dgl.nn.SAGEConv(6, 6, "pool", activation=torch.relu)
    ours = PoolLayer(6, 6, activation=torch.relu)
    pairs = load_own_and_neighbor(ours, theirs)
    ours.source_linear.load_state_dict(theirs.fc_pool.state_dict())
    pairs += [
        (ours.source_linear.weight, lambda: theirs.fc_pool.weight.grad),
        (ours.source_linear.bias, lambda: theirs.fc_pool.bias.grad),
    ]
    g = dgl.graph(graph.edges(self_loops=False), num_nodes=graph.num_nodes)
    x = torch.randn(graph.num_nodes, 6)
    compare(ours, lambda x: theirs(g, x), pairs, x, graph.block())


def test_sage_lstm(dgl, graph):
    torch.manual_seed(0)
    theirs = dgl.nn.SAGEConv(6, 6, "lstm", activation=torch.relu)
    ours = LSTMLayer(6, 6, activation=torch.relu)
    pairs = load_own_and_neighbor(ours, theirs)

    def gates(tensor):
        """torch's gates are in another order."""
        enter, forget, new, leave = tensor.chunk(4)
        return torch.cat((enter, forget, leave, new))

    lstm = theirs.lstm
    ours.source_linear.weight.data.copy_(gates(lstm.weight_ih_l0))
    ours.source_linear.bias.data.copy_(gates(lstm.bias_ih_l0 + lstm.bias_hh_l0))
    ours.state_linear.weight.data.copy_(gates(lstm.weight_hh_l0))
    pairs += [
        (ours.source_linear.weight, lambda: gates(lstm.weight_ih_l0.grad)),
        (ours.source_linear.bias, lambda: gates(lstm.bias_ih_l0.grad)),
        (ours.state_linear.weight, lambda: gates(lstm.weight_hh_l0.grad)),
    ]
    g = dgl.graph(graph.edges(self_loops=False), num_nodes=graph.num_nodes)
    x = torch.randn(graph.num_nodes, 6)
    compare(ours, lambda x: theirs(g, x), pairs, x, graph.block())


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize(("in_dim", "width"), WIDTHS)
def test_gat(dgl, graph, in_dim, width, concat):
    torch.manual_seed(0)
    heads = 3
    theirs = dgl.nn.GATConv(in_dim, width, heads).double()
    ours = GATLayer(in_dim, width, heads, concat=concat, activation=functional.elu)
    ours.linear.load_state_dict(theirs.fc.state_dict())
    ours.attention_src.data.copy_(theirs.attn_l[0])
    ours.attention_dst.data.copy_(theirs.attn_r[0])
    bias = torch.randn(heads, width) if concat else torch.randn(1, width).expand(heads, width)
    theirs.bias.data.copy_(bias.reshape(-1))
    ours.bias.data.copy_(bias.reshape(-1) if concat else bias[0])

    def bias_grad():
        grad = theirs.bias.grad.view(heads, width)
        return grad.reshape(-1) if concat else grad.sum(0)

    def join(out):
        return functional.elu(out.flatten(1) if concat else out.mean(1))

    g = dgl.graph(graph.edges(self_loops=True), num_nodes=graph.num_nodes)
    pairs = [
        (ours.linear.weight, lambda: theirs.fc.weight.grad),
        (ours.attention_src, lambda: theirs.attn_l.grad[0]),
        (ours.attention_dst, lambda: theirs.attn_r.grad[0]),
        (ours.bias, bias_grad),
    ]
    x = torch.randn(graph.num_nodes, in_dim)
    compare(ours, lambda x: join(theirs(g, x)), pairs, x, graph.block())


def test_deepgcn(dgl, graph):
    """The whole stack, rebuilt from dgl.nn.GraphConv and torch's layer norm."""
    ours = build_model(
        "deepgcn", in_dim=7, out_dim=3, layers=4, hidden=5, dtype=torch.float64, seed=1
    )
    for norm in ours.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    convolutions = []
    for layer in ours.layers:
        torch.nn.init.normal_(layer.bias)
        theirs = dgl.nn.GraphConv(*layer.weight.shape, norm="both")
        theirs.weight.data.copy_(layer.weight)
        theirs.bias.data.copy_(layer.bias)
        convolutions.append(theirs)
    g = dgl.graph(graph.edges(self_loops=True), num_nodes=graph.num_nodes)
    x = torch.randn(graph.num_nodes, 7, generator=torch.Generator().manual_seed(0))
    h = convolutions[0](g, x)
    for norm, convolution in zip(ours.norms[:-1], convolutions[1:], strict=True):
        h = h + convolution(g, norm(h).relu())
    expected = ours.classifier(ours.norms[-1](h).relu())
    out = ours([graph.block()] * 4, x)
    torch.testing.assert_close(out, expected, **TOLERANCE)
    out.sin().sum().backward()
    mine = [layer.weight.grad for layer in ours.layers]
    expected.sin().sum().backward()
    for layer, theirs in zip(mine, convolutions, strict=True):
        torch.testing.assert_close(layer, theirs.weight.grad, **TOLERANCE)
