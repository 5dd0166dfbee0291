"""Models by name: seeded initialisation, own classes, refusals."""

import pytest
import torch
from torch import nn

from hopper.errors import ConfigError
from hopper.models import build_model
from hopper.models.film import FiLM
from hopper.models.gat import GAT
from hopper.models.gcn import GCN
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
