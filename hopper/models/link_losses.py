"""Losses of single links, from their scores and those of what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hopper.graph.schema import TargetKind
from hopper.models.losses import Loss


class LinkCrossEntropy:
    """``-log softmax(scores)`` of the link among all that it is compared with."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Loss`."""
        counted = logits.masked_fill(labels < 0, -torch.inf)
        return -torch.log_softmax(counted, 1)[:, 0]


class LinkBinaryCrossEntropy:
    """Binary cross-entropy of the link, and the mean of those of what it is compared with."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Loss`."""
        return functional.softplus(-logits[:, 0]) + _mean_of_others(
            functional.softplus(logits), labels
        )


class Margin:
    """By how much what a link is compared with comes closer than ``margin``, on average.

    Parameters
    ----------
    margin: that scores should differ by.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int, margin: Annotated[float, Field(gt=0.0)] = 1.0) -> None:
        self._margin = margin

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Loss`."""
        return _mean_of_others(torch.relu(self._margin + logits - logits[:, :1]), labels)


class BayesianPersonalizedRanking:
    """``-log sigmoid`` of how much higher a link scores than what it is compared with, on average
    (Rendle et al., UAI 2009)."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Loss`."""
        return _mean_of_others(functional.softplus(logits - logits[:, :1]), labels)


def _mean_of_others(values: Tensor, labels: Tensor) -> Tensor:
    """[n]: the mean of [n, 1 + k] values over what counts but the link itself; 0 where there is
    nothing."""
    counts = labels == 0
    return (values * counts).sum(1) / counts.sum(1).clamp(min=1)


LINK_LOSSES: Final[Mapping[str, Callable[..., Loss]]] = {
    "cross_entropy": LinkCrossEntropy,
    "binary_cross_entropy": LinkBinaryCrossEntropy,
    "margin": Margin,
    "bpr": BayesianPersonalizedRanking,
}
