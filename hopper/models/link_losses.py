"""Losses of single links, from their own scores and those of their negatives."""

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
    """``-log softmax(scores)`` of the link among itself and its negatives."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each link, [n]."""
        counted = logits.masked_fill(labels < 0, -torch.inf)
        return -torch.log_softmax(counted, 1)[:, 0]


class LinkBinaryCrossEntropy:
    """Binary cross-entropy of the link, plus the mean over its negatives."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross-entropy of each link and its negatives, [n]."""
        return functional.softplus(-logits[:, 0]) + _mean_of_others(
            functional.softplus(logits), labels
        )


class Margin:
    """The mean amount by which negatives score less than ``margin`` below the link.

    Parameters
    ----------
    margin: the difference that scores should have at least.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int, margin: Annotated[float, Field(gt=0.0)] = 1.0) -> None:
        self._margin = margin

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean violation of the margin of each link, [n]."""
        return _mean_of_others(torch.relu(self._margin + logits - logits[:, :1]), labels)


class BayesianPersonalizedRanking:
    """The mean, over negatives, of ``-log sigmoid(score - negative's score)``.

    Rendle et al., UAI 2009.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over each link's negatives, [n]."""
        return _mean_of_others(functional.softplus(logits - logits[:, :1]), labels)


def _mean_of_others(values: Tensor, labels: Tensor) -> Tensor:
    """Average values [n, 1 + k] over the negatives that count; 0 for links without any."""
    counts = labels == 0
    return (values * counts).sum(1) / counts.sum(1).clamp(min=1)


LINK_LOSSES: Final[Mapping[str, Callable[..., Loss]]] = {
    "cross_entropy": LinkCrossEntropy,
    "binary_cross_entropy": LinkBinaryCrossEntropy,
    "margin": Margin,
    "bpr": BayesianPersonalizedRanking,
}
