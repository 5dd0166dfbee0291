"""Refuse models whose gradient would depend on which roots share a batch or a rank."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hopper.errors import ExactnessError


def check_exactness(model: nn.Module) -> None:
    """Look for modules that break "one gradient".

    Only modules can be seen: a ``torch.nn.functional.dropout`` in a ``forward`` cannot.

    Raises
    ------
    ExactnessError
        The model holds batch norm (statistics over whatever rows share a pass) or dropout drawn
        from a random stream; names the module's path and what to use instead.
    """
    for path, module in model.named_modules():
        where = f"model: {path or 'the module itself'} ({type(module).__name__})"
        if isinstance(module, _BatchNorm):
            raise ExactnessError(
                f"{where} takes its statistics over the rows that happen to share a pass, so "
                "engines would compute different gradients; use torch.nn.LayerNorm"
            )
        p = _stream_dropout(module)
        if p > 0:
            raise ExactnessError(
                f"{where} draws its mask from a random stream (p = {p:g}), so it would differ "
                "between engines; use hopper.models.dropout.RowDropout or EdgeDropout, whose "
                "masks are counter-based"
            )


def _stream_dropout(module: nn.Module) -> float:
    """The probability with which a module of torch drops from a random stream; else 0."""
    if isinstance(module, _DropoutNd):
        return float(module.p)
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout)
    return 0.0
