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


def old_spectral_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.spectral_norm(nn.Linear(2, 2))


BATCH_NORM, DROPOUT = r" .*BatchNorm.*LayerNorm", r" .*p = 0\.5.*RowDropout"
OVER_ROWS, EVERY_PASS = r" .*share a pass.*nn\.LayerNorm", r".*every pass.*weight_norm"


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (nn.BatchNorm1d(2), BATCH_NORM),
        (nn.BatchNorm1d(2, track_running_stats=False), BATCH_NORM),
        (nn.BatchNorm2d(2), BATCH_NORM),
        (nn.SyncBatchNorm(2), BATCH_NORM),
        (nn.LazyBatchNorm1d(), BATCH_NORM),
        (nn.Dropout(0.5), DROPOUT),
        (nn.Dropout1d(0.5), DROPOUT),
        (nn.AlphaDropout(0.5), DROPOUT),
        (nn.FeatureAlphaDropout(0.5), DROPOUT),
        (nn.MultiheadAttention(2, 1, dropout=0.5), DROPOUT),
        (nn.GRU(2, 2, num_layers=2, dropout=0.5), DROPOUT),
        (GraphNorm(), OVER_ROWS),
        (PairNorm(), OVER_ROWS),
        (RowNorm(), OVER_ROWS),
        (LayerNorm("graph"), OVER_ROWS),
        (nn.InstanceNorm1d(2, track_running_stats=True), OVER_ROWS),
        (parametrizations.spectral_norm(nn.Linear(2, 2)), EVERY_PASS),
        (old_spectral_norm(), EVERY_PASS),
        (nn.RReLU(), r" \(RReLU\).*LeakyReLU"),
    ],
)
def test_modules_that_tell_roots_of_a_pass_or_passes_apart_are_refused(inner, text):
    with pytest.raises(ExactnessError, match=rf"model: stack\.1{text}"):
        check_exactness(Nested(inner))


def test_the_module_itself_is_named():
    with pytest.raises(ExactnessError, match=r"model: the module itself \(Dropout\)"):
        check_exactness(nn.Dropout(0.1))


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
