"""Whether the ranks of a script of one's own train the gradient that one process would."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hopper.errors import ExactnessError
from hopper.pipeline.loader import Loader
from hopper.pipeline.pipeline import Moment

T = TypeVar("T")


def check_gradients(
    loader: Loader[T],
    model: nn.Module,
    loss: Callable[[nn.Module, T], Tensor],
    *,
    batches: int = 2,
    tolerance: float = 1e-3,
) -> float:
    """Compare the gradients that DistributedDataParallel would average with those of one process.

    The first global batches of an epoch are computed twice, by all ranks as the script does it, and
    by every rank as if it were alone. Models with dropout must be in evaluation mode. Gradients and
    the loader's position are left as they are. All ranks must call it.

    Parameters
    ----------
    model: the module itself, not its DistributedDataParallel.
    loss: returns what the script calls ``backward()`` on, of a batch.
    batches: how many are compared.
    tolerance: largest difference, relative to the largest element of all gradients.

    Returns
    -------
    The largest relative difference that was found.

    Raises
    ------
    ExactnessError: names the parameter whose gradient differs most. The usual reason is a mean of
        each rank's losses, where ranks have different numbers of roots.
    """
    names, parameters = zip(*model.named_parameters(), strict=True)
    world = dist.get_world_size() if dist.is_initialized() else 1
    worst, where = 0.0, ""

    def gradients(batch: T) -> list[Tensor]:
        found = torch.autograd.grad(loss(model, batch), parameters, allow_unused=True)
        return [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(parameters, found, strict=True)
        ]

    for iteration in range(min(batches, len(loader))):
        moment = Moment(0, iteration)
        expected = gradients(loader.make(moment, alone=True))
        averaged = gradients(loader.make(moment))
        largest = max(float(gradient.abs().max()) for gradient in expected)
        for name, alone, own in zip(names, expected, averaged, strict=True):
            if world > 1:
                dist.all_reduce(own)
            difference = float((own / world - alone).abs().max()) / (largest or 1.0)
            # A mean over no roots is not a number.
            if not difference <= worst:
                worst, where = math.inf if math.isnan(difference) else difference, name
    if worst > tolerance:
        raise ExactnessError(
            f"gradients: those of {world} ranks differ from those of one process by {worst:.2g} of "
            f"the largest, in {where}; expected a loss that is summed over the batch's roots and "
            "multiplied by batch.loss_scale, and no layer that looks at other roots"
        )
    return worst
