"""Modules that would break "one gradient" are refused by path."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from hopper.errors import ExactnessError
from hopper.models import build_model, check_exactness


class Nested(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(2, 2), inner)


@pytest.mark.parametrize(
    "inner",
    [
        nn.BatchNorm1d(2),
        nn.BatchNorm1d(2, track_running_stats=False),
        nn.BatchNorm2d(2),
        nn.SyncBatchNorm(2),
        nn.LazyBatchNorm1d(),
    ],
)
def test_batch_norm_is_refused(inner):
    with pytest.raises(ExactnessError, match=r"model: stack\.1 .*BatchNorm.*LayerNorm"):
        check_exactness(Nested(inner))


@pytest.mark.parametrize(
    "inner",
    [
        nn.Dropout(0.5),
        nn.Dropout1d(0.5),
        nn.AlphaDropout(0.5),
        nn.FeatureAlphaDropout(0.5),
        nn.MultiheadAttention(2, 1, dropout=0.5),
        nn.GRU(2, 2, num_layers=2, dropout=0.5),
    ],
)
def test_dropout_from_a_stream_is_refused(inner):
    with pytest.raises(ExactnessError, match=r"model: stack\.1 .*p = 0\.5.*RowDropout"):
        check_exactness(Nested(inner))


def test_the_module_itself_is_named():
    with pytest.raises(ExactnessError, match=r"model: the module itself \(Dropout\)"):
        check_exactness(nn.Dropout(0.1))


class GraphNorm(nn.Module):
    """Stands for a graph library's norm over the nodes of a pass."""


class PairNorm(GraphNorm):
    pass


class RowNorm(nn.Module):
    """Stands for a user's own batch norm: it keeps a running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(2))


class LayerNorm(nn.Module):
    """Stands for PyTorch Geometric's."""

    def __init__(self, mode):
        super().__init__()
        self.mode = mode


@pytest.mark.parametrize(
    "inner",
    [
        GraphNorm(),
        PairNorm(),
        RowNorm(),
        LayerNorm("graph"),
        nn.InstanceNorm1d(2, track_running_stats=True),
    ],
)
def test_other_norms_over_rows_are_refused(inner):
    with pytest.raises(ExactnessError, match=r"model: stack\.1 .*share a pass.*nn\.LayerNorm"):
        check_exactness(Nested(inner))


def test_modules_that_change_with_every_pass_are_refused():
    for inner in (parametrizations.spectral_norm(nn.Linear(2, 2)), old_spectral_norm()):
        with pytest.raises(ExactnessError, match=r"model: stack\.1.*every pass.*weight_norm"):
            check_exactness(Nested(inner))


def old_spectral_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.spectral_norm(nn.Linear(2, 2))


def test_random_slopes_are_refused():
    with pytest.raises(ExactnessError, match=r"model: stack\.1 \(RReLU\).*LeakyReLU"):
        check_exactness(Nested(nn.RReLU()))


@pytest.mark.parametrize(
    "inner",
    [
        nn.Dropout(0.0),
        nn.LayerNorm(2),
        nn.RMSNorm(2),
        nn.GroupNorm(1, 2),
        nn.InstanceNorm1d(2),
        LayerNorm("node"),
        nn.RReLU(0.2, 0.2),
        parametrizations.weight_norm(nn.Linear(2, 2)),
    ],
)
def test_harmless_modules_pass(inner):
    check_exactness(Nested(inner))


@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "deepgcn", "film"])
def test_built_in_models_pass(name):
    check_exactness(build_model(name, in_dim=2, out_dim=2, layers=2, hidden=2, dropout=0.5))
