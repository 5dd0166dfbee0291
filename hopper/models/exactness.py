"""Refuse models whose gradient would depend on which roots share a batch or a rank."""

from __future__ import annotations

from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrizations import _SpectralNorm

from hopper.errors import ExactnessError

# Norms of graph libraries (PyTorch Geometric's and DGL's names), known by name so that neither
# library has to be there: all take statistics over the nodes that share a pass.
_NORMS_OVER_NODES: Final = frozenset(
    {"DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "MeanSubtractionNorm", "PairNorm"}
)
_RUNNING_STATISTICS: Final = frozenset({"running_mean", "running_var", "num_batches_tracked"})


def check_exactness(model: nn.Module) -> None:
    """Look for modules that break "one gradient".

    Only modules can be seen: a ``torch.nn.functional.dropout`` in a ``forward`` cannot.

    Raises
    ------
    ExactnessError
        The model holds a norm over rows (batch norm and its kin: statistics over whatever rows
        share a pass), something that changes with every pass, or something drawn from a random
        stream; names the module's path and what to use instead.
    """
    for path, module in model.named_modules():
        where = f"model: {path or 'the module itself'} ({type(module).__name__})"
        if _reads_other_rows(module):
            raise ExactnessError(
                f"{where} takes its statistics over the rows that happen to share a pass, so "
                "engines would compute different gradients; use torch.nn.LayerNorm"
            )
        if _counts_passes(module):
            raise ExactnessError(
                f"{where} changes what it computes with every pass in training, and engines make "
                "different numbers of passes; use torch.nn.utils.parametrizations.weight_norm"
            )
        if isinstance(module, nn.RReLU) and module.lower != module.upper:
            raise ExactnessError(
                f"{where} draws its slopes from a random stream, so they would differ between "
                "engines; use torch.nn.LeakyReLU"
            )
        p = _stream_dropout(module)
        if p > 0:
            raise ExactnessError(
                f"{where} draws its mask from a random stream (p = {p:g}), so it would differ "
                "between engines; use hopper.models.dropout.RowDropout or EdgeDropout, whose "
                "masks are counter-based"
            )


def _reads_other_rows(module: nn.Module) -> bool:
    """Whether rows of one pass meet in the module, in training or by running statistics.

    Group norm, layer norm and instance norm without running statistics stay within a row.
    """
    if isinstance(module, _BatchNorm):
        return True
    names = {kind.__name__ for kind in type(module).__mro__}
    if names & _NORMS_OVER_NODES:
        return True
    # PyTorch Geometric's layer norm is over all nodes unless its mode is "node".
    if "LayerNorm" in names and getattr(module, "mode", "node") != "node":
        return True
    return any(name in _RUNNING_STATISTICS for name, _ in module.named_buffers(recurse=False))


def _counts_passes(module: nn.Module) -> bool:
    """Spectral norm, in both of torch's forms: each pass is one more power iteration."""
    # The older form is a hook, whose class is hidden behind a function of its module's name.
    hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
    return isinstance(module, _SpectralNorm) or "SpectralNorm" in hooks


def _stream_dropout(module: nn.Module) -> float:
    """The probability with which a module of torch drops from a random stream; else 0."""
    if isinstance(module, _DropoutNd):
        return float(module.p)
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout)
    return 0.0
