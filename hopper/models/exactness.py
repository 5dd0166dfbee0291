"""Refuses models whose gradient would depend on which roots share a batch or a rank."""

from __future__ import annotations

from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrizations import _SpectralNorm

from hopper.errors import ExactnessError

# These norms of PyTorch Geometric and DGL take statistics over the nodes of a pass. They are
# recognised by name, so that neither library needs to be installed.
_NORMS_OVER_NODES: Final = frozenset(
    {"DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "MeanSubtractionNorm", "PairNorm"}
)
_RUNNING_STATISTICS: Final = frozenset({"running_mean", "running_var", "num_batches_tracked"})


def check_exactness(model: nn.Module) -> None:
    """Refuse modules whose gradient depends on how roots are grouped.

    Only modules can be checked. A ``torch.nn.functional.dropout`` in a ``forward`` is not found.

    Raises
    ------
    ExactnessError: the model has a norm over rows (such as batch norm, whose statistics are over
        the rows of a pass), a module that changes with every pass, or one that draws from a random
        stream. The message names the module's path and an alternative.
    """
    for path, module in model.named_modules():
        where = f"model: {path or 'the module itself'} ({type(module).__name__})"
        if _reads_other_rows(module):
            raise ExactnessError(
                f"{where} takes its statistics over the rows that happen to share a pass, so "
                "engines would compute different gradients; use torch.nn.LayerNorm"
            )
        # The older of torch's two forms is a hook, whose class has no public name.
        hooks = {type(hook).__name__ for hook in module._forward_pre_hooks.values()}
        if isinstance(module, _SpectralNorm) or "SpectralNorm" in hooks:
            raise ExactnessError(
                f"{where} changes what it computes with every pass in training, and engines make "
                "different numbers of passes; use torch.nn.utils.parametrizations.weight_norm"
            )
        if isinstance(module, nn.RReLU) and module.lower != module.upper:
            raise ExactnessError(
                f"{where} draws its slopes from a random stream, so they would differ between "
                "engines; use torch.nn.LeakyReLU"
            )
        p = module.p if isinstance(module, _DropoutNd) else 0.0
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            p = module.dropout
        if p > 0:
            raise ExactnessError(
                f"{where} draws its mask from a random stream (p = {p:g}), so it would differ "
                "between engines; use hopper.models.dropout.RowDropout or EdgeDropout, whose "
                "masks are counter-based"
            )


def _reads_other_rows(module: nn.Module) -> bool:
    """Return whether a result depends on other rows of a pass, or of earlier passes; group norm,
    layer norm and instance norm without running statistics stay within a row."""
    if isinstance(module, _BatchNorm):
        return True
    names = {base.__name__ for base in type(module).__mro__}
    if names & _NORMS_OVER_NODES:
        return True
    # PyTorch Geometric's layer norm covers all nodes unless its mode is "node".
    if "LayerNorm" in names and getattr(module, "mode", "node") != "node":
        return True
    return any(name in _RUNNING_STATISTICS for name, _ in module.named_buffers(recurse=False))
