"""Models by name: seeded initialisation, classes and layers of one's own, defaults, refusals."""

import pytest
import torch
from torch import Tensor, nn

from hopper.config import make_config
from hopper.errors import ConfigError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models import Layer, build_model, build_typed_model
from hopper.models.film import FiLM
from hopper.models.gat import GAT
from hopper.models.gcn import GCN
from hopper.models.layer import SumLayer
from hopper.models.residual import DeepGCN
from hopper.models.sage import GraphSAGE

OPTIONS = {"in_dim": 5, "out_dim": 3, "layers": 2, "hidden": 4, "heads": 2, "dropout": 0.1}


def have_same_parameters(model, twin):
    pairs = zip(model.state_dict().items(), twin.state_dict().items(), strict=True)
    return all(a == b and torch.equal(p, q) for (a, p), (b, q) in pairs)


KINDS = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT, "deepgcn": DeepGCN, "film": FiLM}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_initialisation_depends_on_the_seed_only(name, kind):
    torch.manual_seed(1)
    state_before = torch.get_rng_state()
    model = build_model(name, **OPTIONS, seed=7)
    assert torch.equal(torch.get_rng_state(), state_before), "the global state is left alone"
    torch.manual_seed(2)
    torch.set_default_dtype(torch.float64)
    try:
        twin = build_model(name, **OPTIONS, seed=7)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert type(model) is kind
    assert have_same_parameters(model, twin)
    assert not have_same_parameters(model, build_model(name, **OPTIONS, seed=8))


@pytest.mark.parametrize("name", KINDS)
def test_dtype(name):
    single = build_model(name, **OPTIONS, seed=7)
    double = build_model(name, **OPTIONS, seed=7, dtype=torch.float64)
    assert {p.dtype for p in single.parameters()} == {torch.float32}
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    assert have_same_parameters(single, double.float())


class Own(nn.Module):
    def __init__(self, *, in_dim, out_dim, layers, hidden, heads, dropout):
        super().__init__()
        self.options = (in_dim, out_dim, layers, hidden, heads, dropout)
        self.linear = nn.Linear(in_dim, out_dim)


class Narrow(nn.Module):
    def __init__(self, width):
        super().__init__()


def function(**options):
    return None


def test_a_class_of_one_s_own():
    torch.manual_seed(1)
    model = build_model(f"{__name__}:Own", **OPTIONS, seed=7)
    torch.manual_seed(2)
    assert have_same_parameters(model, build_model(f"{__name__}:Own", **OPTIONS, seed=7))
    assert model.options == (5, 3, 2, 4, 2, 0.1)
    assert isinstance(model, nn.Module)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:Missing", "has no 'Missing'"),
        (f"{__name__}:function", r"expected a subclass of torch\.nn\.Module"),
        (f"{__name__}:Narrow", "cannot be called with the keywords in_dim, out_dim"),
        ("nowhere_at_all:Own", "module 'nowhere_at_all' cannot be imported .ModuleNotFoundError"),
        ("broken_models_for_test:Own", "cannot be imported .OSError: no such library"),
        (":Own", "module '' cannot be imported"),
        (
            "gin",
            r"expected gcn, sage, gat, deepgcn, film, rgcn, rgat, hgt, hgnn, sehgnn, nars or "
            r"package\.module:Class; given 'gin'",
        ),
        ("rgcn", "rgcn reads typed graphs; see build_typed_model"),
    ],
)
def test_refused_names(name, message, tmp_path, monkeypatch):
    (tmp_path / "broken_models_for_test.py").write_text("raise OSError('no such library')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"^model.name: .*{message}"):
        build_model(name, **OPTIONS)


@pytest.mark.parametrize("key", ["in_dim", "out_dim", "layers", "hidden", "heads", "dropout"])
def test_options_out_of_range_are_refused(key):
    value, text = (1.5, r"dropout: .*given 1\.5") if key == "dropout" else (0, "")
    with pytest.raises(ConfigError, match=text or rf"model\.{key}: expected at least 1; given 0"):
        build_model("gcn", **OPTIONS | {key: value})


RELATION = Relation("author", "writes", "paper")


class NoLayer(nn.Linear):
    pass


class WithUpdate(Layer):
    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        return combined


class OwnTerm(SumLayer):
    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()

    def own_term(self, block: Block, h_dst: Tensor) -> Tensor | None:
        return h_dst


class OfThree(Layer):
    def __init__(self, in_dim: int, out_dim: int, heads: int) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("aggregate", "combine", "message"),
    [
        ("NoLayer", "sum", "aggregate: expected a subclass of hopper.models.Layer"),
        ("WithUpdate", "sum", "aggregate: .*WithUpdate.* has an update.. of its own"),
        ("OwnTerm", "sum", "aggregate: .*OwnTerm.* has an own_term..; expected reads_destination"),
        ("OfThree", "sum", "aggregate: .* cannot be made from the widths of input and output"),
        ("Missing", "sum", "model.aggregate: .*Missing: module .* has no 'Missing'"),
        (
            "gated_aggregation:GatedAggregation",
            "torch.nn:Bilinear",
            "combine: .* the width of rows",
        ),
        ("gated_aggregation:GatedAggregation", "torch.nn:Identity", "subclass of .*Combination"),
    ],
)
def test_a_mistake_is_named(aggregate, combine, message):
    name = aggregate if ":" in aggregate else f"{__name__}:{aggregate}"
    with pytest.raises(ConfigError, match=message):
        build_typed_model(
            "hgnn",
            target="paper",
            inputs={"paper": 4, "author": 3},
            reads=[((RELATION,), ("paper",))],
            out_dim=2,
            hidden=8,
            dtype=torch.float64,
            aggregate=name,
            combine=combine,
            root_weight=True,
        )


# Layers and fanouts that a configuration does not give follow from the model

DATA = {"data": {"partitioned": "parts"}}


@pytest.mark.parametrize(
    ("model", "layers", "fanouts"),
    [
        ({}, 3, [10] * 3),
        ({"name": "gat"}, 3, [10] * 3),
        ({"name": "own:Model", "layers": 2}, 2, [10] * 2),
        ({"name": "deepgcn"}, 7, [2] * 7),
        ({"name": "film"}, 10, [2] * 10),
        ({"name": "film", "layers": 3, "hidden": 8}, 3, [2] * 3),
    ],
)
def test_missing_layers_and_fanouts_follow_from_the_model(model, layers, fanouts):
    config = make_config({**DATA, "model": model})
    assert (config.model.layers, config.sampler.fanouts) == (layers, fanouts)
    assert make_config({**DATA, "model": model, "sampler": {"kind": "auto"}}) == config
    assert make_config(config.model_dump()) == config, "what was resolved is kept when read back"


def test_overrides_choose_the_model_first():
    config = make_config(DATA, ["--model.name", "deepgcn"])
    assert (config.model.layers, config.sampler.fanouts) == (7, [2] * 7)
    config = make_config(DATA, ["--model.name", "film", "--sampler.fanouts", "[3, -1]", *LAYERS])
    assert (config.model.layers, config.sampler.fanouts) == (2, [3, -1])


LAYERS = ["--model.layers", "2"]


@pytest.mark.parametrize(
    ("model", "sampler", "text"),
    [
        ({"name": "deepgcn"}, {"fanouts": [5, 5]}, r"sampler\.fanouts: expected one .*layer \(7\)"),
        ({"name": "film", "layers": 0}, {}, r"model\.layers: "),
        ({"name": ["film"]}, {}, r"model\.name: "),
        ({"name": "film"}, 3, r"sampler: "),
    ],
)
def test_bad_values_are_named(model, sampler, text):
    with pytest.raises(ConfigError, match=text):
        make_config({**DATA, "model": model, "sampler": sampler})
