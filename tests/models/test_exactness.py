"""Modules that would break "one gradient" are refused by path."""

from __future__ import annotations

import pytest
from torch import nn

from hopper.errors import ExactnessError
from hopper.models import build_model, check_exactness


class Nested(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(2, 2), inner)


@pytest.mark.parametrize(
    "inner",
    [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.SyncBatchNorm(2), nn.LazyBatchNorm1d()],
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


@pytest.mark.parametrize("inner", [nn.Dropout(0.0), nn.LayerNorm(2), nn.InstanceNorm1d(2)])
def test_harmless_modules_pass(inner):
    check_exactness(Nested(inner))


@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_our_models_pass(name):
    check_exactness(build_model(name, in_dim=2, out_dim=2, layers=2, hidden=2, dropout=0.5))
