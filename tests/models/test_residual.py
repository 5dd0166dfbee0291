"""DeepGCN and FiLM against slow references, node by node, written from their equations."""

import pytest
import torch
from torch.nn import functional

from hopper.models import build_model
from hopper.models.film import FiLMLayer
from hopper.models.gcn import GCNLayer
from hopper.ops import drop_rows, selection
from hopper.ops.counter_mask import Site, drop, drop_threshold, row_keys, site_key
from hopper.ops.dropout import node_type_key

from .conftest import make_rows

NAMES = ["deepgcn", "film"]
TOLERANCE = {"atol": 1e-11, "rtol": 1e-10}


def make_model(name, **changes):
    options = {"in_dim": 6, "out_dim": 3, "layers": 4, "hidden": 5, "heads": 1, "dropout": 0.0}
    return perturb(build_model(name, **options | changes, dtype=torch.float64))


def perturb(module):
    """Change parameters as training would.

    Where norms and modulations start, much of a model has no effect.
    """
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return module


def gcn_row(layer, graph, h, v, sampled_neighbors):
    """Equation 2 of GCN for one node, degrees of the whole graph, sampled sums rescaled."""
    degree = [len(row) for row in graph.neighbors]
    total = h[v] / (degree[v] + 1)
    for u in sampled_neighbors:
        share = degree[v] / len(sampled_neighbors)
        total = total + share * h[u] / ((degree[u] + 1) * (degree[v] + 1)) ** 0.5
    return total @ layer.weight + layer.bias


def film_row(layer, graph, h, v, sampled_neighbors):
    """The mean of modulated, activated messages, and the node's own."""
    gamma, beta = layer.modulation(h[v]).chunk(2)
    total = torch.zeros_like(gamma)
    for u in sampled_neighbors:
        total = total + torch.relu(gamma * layer.linear(h[u]) + beta) / len(sampled_neighbors)
    gamma, beta = layer.self_modulation(h[v]).chunk(2)
    return layer.out_linear(total + torch.relu(gamma * layer.self_linear(h[v]) + beta))


def reference(model, graph, x, sampled_neighbors, key):
    """[num nodes, out_dim]: the model on every node of the graph at once."""
    compute_row = {GCNLayer: gcn_row, FiLMLayer: film_row}[type(model.layers[0])]
    threshold = drop_threshold(model.dropout) if model.training else 0

    def drop_inputs(h, index):
        site = site_key(key, index, Site.ROWS, node_type_key("paper"))
        return drop(h, row_keys(site, torch.arange(graph.num_nodes)), threshold)

    h = x
    for index, layer in enumerate(model.layers):
        inputs = h if index == 0 else functional.relu(model.norms[index - 1](h))
        inputs = drop_inputs(inputs, index)
        out = torch.stack(
            [compute_row(layer, graph, inputs, v, sampled_neighbors[v]) for v in range(len(x))]
        )
        h = out if index == 0 else h + out
    return model.classifier(drop_inputs(functional.relu(model.norms[-1](h)), len(model.layers)))


@pytest.mark.parametrize(
    ("name", "dropout", "layers", "backend"),
    # Every two values meet.
    [
        ("deepgcn", 0.0, 1, "torch"),
        ("deepgcn", 0.4, 2, "numba"),
        ("deepgcn", 0.0, 4, "numba"),
        ("film", 0.0, 2, "torch"),
        ("film", 0.4, 1, "numba"),
        ("film", 0.4, 4, "torch"),
    ],
)
def test_equals_the_reference(graph, name, dropout, layers, backend):
    """Values and gradients, with sampled neighbourhoods, an isolated node, dropout on and off."""
    model = make_model(name, dropout=dropout, layers=layers)
    sampled_neighbors = [row[: 1 + v % 3] for v, row in enumerate(graph.neighbors)]
    assert sampled_neighbors[39] == []
    roots, x = [4, 39, 17], make_rows(graph)
    blocks = graph.blocks(roots, layers, dict(enumerate(sampled_neighbors)), key=21)
    with selection.use_backend(backend):
        out = model(blocks, x[blocks[0].src.original])
        expected = reference(model, graph, x, sampled_neighbors, 21)[roots]
        torch.testing.assert_close(out, expected, **TOLERANCE)
        parameters = list(model.parameters())
        grads = torch.autograd.grad(out.sin().sum(), parameters, materialize_grads=True)
    expected_grads = torch.autograd.grad(expected.sin().sum(), parameters, materialize_grads=True)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, **TOLERANCE)
    assert all(grad.abs().sum() > 0 for grad in expected_grads), (
        "the reference uses every parameter"
    )


def test_unequal_probabilities_weigh_film_s_mean(graph):
    layer = perturb(FiLMLayer(6, 5).double())
    v = graph.hub
    neighbors = graph.neighbors[v][:3]
    block = graph.block([v], sampled_neighbors={v: neighbors})
    block.drawn_inverse = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    block.equally_likely = False
    h = make_rows(graph)
    gamma, beta = layer.modulation(h[[v]]).chunk(2, -1)
    messages = torch.relu(gamma * layer.linear(h[neighbors]) + beta)
    expected = (messages * torch.tensor([[1.0], [2.0], [5.0]])).sum(0) / 8
    out = layer.aggregate(block, layer.project(h[block.src.original]), h[[v]])
    torch.testing.assert_close(out[0], expected, **TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_finite_differences(graph, name):
    model = make_model(name, layers=3, in_dim=3, hidden=4, dropout=0.3)
    blocks = graph.blocks([4, 39], 3)
    x = make_rows(graph, 3)[blocks[0].src.original].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: model(blocks, x), x, fast_mode=True)
    x = x.detach()
    parameters = list(model.parameters())

    def with_parameters(*values):
        names = [key for key, _ in model.named_parameters()]
        pairs = dict(zip(names, values, strict=True))
        return torch.func.functional_call(model, pairs, (blocks, x))

    assert torch.autograd.gradcheck(with_parameters, parameters, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_residual_is_never_dropped(graph, name):
    """With layers that add nothing, every layer but the first leaves rows as they are."""
    model = make_model(name, dropout=0.5)
    assert model.training
    for layer in model.layers[1:]:
        for parameter in (layer.out_linear if name == "film" else layer).parameters():
            torch.nn.init.zeros_(parameter)
    block = graph.block([3, 1, 39])
    h = make_rows(graph, 5)[block.src.original]
    for index in (1, 2):
        assert torch.equal(model.step(index, block, h), h[:3])
    assert model.step(3, block, h).shape == (3, 3)


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_the_parts_that_an_engine_places(graph, name):
    """Sources prepared and projected in two halves, apart from the destinations."""
    model = make_model(name, dropout=0.4)
    block = graph.block([3, 1, 39, 7])
    for index, width in ((0, 6), (1, 5), (3, 5)):
        layer = model.layers[index]
        h = make_rows(graph, width)[block.src.original]
        rows = model.prepare(index, block.src, h)
        half = block.num_src // 2
        z_src = torch.cat([layer.project(rows[:half]), layer.project(rows[half:])])
        combined = layer.aggregate(block, z_src, rows[:4])
        out = model.finish(index, block.dst, h[:4], layer.update(rows[:4], combined))
        torch.testing.assert_close(out, model.step(index, block, h), **TOLERANCE)


def test_film_starts_without_modulation(graph):
    layer = FiLMLayer(6, 5).double()
    block = graph.block([3, 1, 39])
    h = make_rows(graph)
    neighbors = [graph.neighbors[v] for v in (3, 1, 39)]
    expected = [
        torch.relu(layer.linear(h[sources])).sum(0) / max(len(sources), 1) for sources in neighbors
    ]
    out = layer.aggregate(block, layer.project(h[block.src.original]), h[block.dst.original])
    torch.testing.assert_close(out, torch.stack(expected), **TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_no_roots(graph, name):
    model = make_model(name, dropout=0.4)
    out = model(graph.blocks([], 4), torch.zeros(0, 6, dtype=torch.float64))
    assert out.shape == (0, 3)
    out.sum().backward()
    assert all(parameter.grad.abs().max() == 0 for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_very_deep_stack_keeps_its_gradient(graph, name):
    """The point of residuals: the first layer's gradient neither vanishes nor explodes."""
    model = make_model(name, layers=40, hidden=8).eval()
    blocks = [graph.block()] * 40
    model(blocks, make_rows(graph)).square().mean().backward()
    gradients = ([p.grad.flatten() for p in layer.parameters()] for layer in model.layers)
    norms = [torch.cat(of_layer).norm() for of_layer in gradients]
    assert norms[0] > 0.1 * norms[-1]
    assert norms[0] < 1e4 * norms[-1]


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_algorithms_suffice(graph, name):
    model = make_model(name, dropout=0.4).float()
    blocks = graph.blocks([4, 17, 39], 4)
    x = make_rows(graph)[blocks[0].src.original].float()
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            loss = model(blocks, x).sin().sum()
            runs.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_destinations_are_dropped_as_the_next_layer_s_sources_are(graph):
    block = graph.block([3, 1, 39])
    next_block = graph.block([1], sampled_neighbors={1: []}, sources=[39, 3])
    x = torch.ones(3, 40, dtype=torch.float64)
    assert next_block.src.original.tolist() == [1, 39, 3]
    dropped = drop_rows(block.dst, x, 0.5, 2)
    assert torch.equal(dropped[[1, 2, 0]], drop_rows(next_block.src, x, 0.5, 2))
    assert not torch.equal(dropped, drop_rows(block.dst, x, 0.5, 1))
    assert drop_rows(block.dst, x, 0.0, 2) is x


@pytest.mark.parametrize(("name", "widths"), [("deepgcn", [(6, 5), (5, 5)]), ("film", [(6, 5)])])
def test_where_the_width_changes_there_is_no_residual(graph, name, widths):
    model = make_model(name, layers=2)
    block = graph.block([3, 1])
    h = make_rows(graph)[block.src.original]
    expected = model.layers[0](block, h, h[:2])
    torch.testing.assert_close(model.step(0, block, h), expected)
    if name == "deepgcn":
        assert [tuple(layer.weight.shape) for layer in model.layers] == widths
        assert [layer.project_first for layer in model.layers] == [True, False]
    assert model.classifier.weight.shape == (3, 5)
    assert len(model.norms) == 2
