"""A user-defined loss: `train.loss = "focal_loss:FocalLoss"`. See docs/howto/plug-ins.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn import functional


class FocalLoss:
    """Cross-entropy with less weight on roots of an already likely class (Lin et al., ICCV 2017).

    Parameters
    ----------
    classes: width of the logits.
    gamma: how much the weight falls; 0 is cross-entropy.
    """

    label_kinds = ("class",)

    def __init__(self, *, classes: int, gamma: Annotated[float, Field(ge=0.0)] = 2.0) -> None:
        self._gamma = gamma

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[n]: ``-(1 - p) ** gamma * log p`` of each root's class."""
        log_p = -functional.cross_entropy(logits, labels, reduction="none")
        return -((1 - log_p.exp()) ** self._gamma) * log_p
