"""Losses of single roots, or of links, from their own scores and those of their negatives.

Training minimises their sum over the global batch, over its size.

A loss returns a number for every root and never sums them, so it cannot become a mean of means, and
engines may split the roots in any way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Final, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hopper.config.plug_ins import explain_errors
from hopper.errors import ConfigError
from hopper.graph.schema import TargetKind
from hopper.models.label_examples import ROOTS, make_examples

UNLABELLED: Final = -1
Weights = tuple[Annotated[float, Field(ge=0.0, allow_inf_nan=False)], ...]


class Loss(Protocol):
    """Computes the loss of each root.

    Its class is called with the keyword ``classes``, the width of logits, and with the options of
    the configuration.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]]
    """the kinds of labels that it takes: "class", "multi_hot", "float" or "link" """

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each root, [n] of the logits' dtype, differentiable.

        A root's loss depends only on its own logits and labels. n may be 0.

        Parameters
        ----------
        logits: [n, classes], float32 or float64. For links [n, 1 + k], the scores of each link and
            of its negatives.
        labels: [n] int64 for kind "class". Otherwise they have the shape and dtype of logits. For
            links they are as in :class:`hopper.micrograph.subgraph.Pairs`.
        """


class CrossEntropy:
    """``-log softmax(logits)[label]`` times the weight of the label.

    The loss of an unlabelled root (class -1) is 0.

    Parameters
    ----------
    class_weights: a weight for each class; none = all are 1. The sum over roots is divided by their
        number, not by the sum of their weights.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class",)

    def __init__(self, *, classes: int, class_weights: Weights = ()) -> None:
        self._weights = _as_weights("class_weights", class_weights, classes)

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted cross-entropy of each root, [n]."""
        weight = _like(self._weights, logits)
        return functional.cross_entropy(
            logits, labels, weight, ignore_index=UNLABELLED, reduction="none"
        )


class BinaryCrossEntropy:
    """Binary cross-entropy, summed over classes.

    Parameters
    ----------
    positive_weights: for each class, the factor of the loss of roots that have it; none = all are
        1.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("multi_hot",)

    def __init__(self, *, classes: int, positive_weights: Weights = ()) -> None:
        self._weights = _as_weights("positive_weights", positive_weights, classes)

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross-entropy of each root, summed over classes, [n]."""
        return functional.binary_cross_entropy_with_logits(
            logits, labels, pos_weight=_like(self._weights, logits), reduction="none"
        ).sum(1)


def _as_weights(option: str, weights: Weights, classes: int) -> Tensor | None:
    if weights and len(weights) != classes:
        raise ConfigError(
            f"train.loss_options.{option}: expected {classes} numbers, one for each class; got "
            f"{len(weights)}"
        )
    return torch.tensor(weights, dtype=torch.float64) if weights else None


def _like(weights: Tensor | None, logits: Tensor) -> Tensor | None:
    return None if weights is None else weights.to(logits)


class _WithoutOptions:
    def __init__(self, *, classes: int) -> None:
        pass


class SquaredError(_WithoutOptions):
    """The squared error, summed over outputs."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("float",)

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the squared error of each root, summed over outputs, [n]."""
        return functional.mse_loss(logits, labels, reduction="none").sum(1)


class LinkCrossEntropy(_WithoutOptions):
    """``-log softmax(scores)`` of the link among itself and its negatives."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each link, [n]."""
        counted = logits.masked_fill(labels < 0, -torch.inf)
        return -torch.log_softmax(counted, 1)[:, 0]


class LinkBinaryCrossEntropy(_WithoutOptions):
    """Binary cross-entropy of the link, plus the mean over its negatives."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

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


class BayesianPersonalizedRanking(_WithoutOptions):
    """The mean, over negatives, of ``-log sigmoid(score - negative's score)``.

    Rendle et al., UAI 2009.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over each link's negatives, [n]."""
        return _mean_of_others(functional.softplus(logits - logits[:, :1]), labels)


def _mean_of_others(values: Tensor, labels: Tensor) -> Tensor:
    """Average values [n, 1 + k] over the negatives that count; 0 for links without any."""
    counts = labels == 0
    return (values * counts).sum(1) / counts.sum(1).clamp(min=1)


LOSSES: Final[Mapping[str, Callable[..., Loss]]] = {
    "cross_entropy": CrossEntropy,
    "binary_cross_entropy": BinaryCrossEntropy,
    "squared_error": SquaredError,
}
LINK_LOSSES: Final[Mapping[str, Callable[..., Loss]]] = {
    "cross_entropy": LinkCrossEntropy,
    "binary_cross_entropy": LinkBinaryCrossEntropy,
    "margin": Margin,
    "bpr": BayesianPersonalizedRanking,
}
DEFAULT_LOSSES: Final[Mapping[TargetKind, str]] = {
    "class": "cross_entropy",
    "multi_hot": "binary_cross_entropy",
    "float": "squared_error",
    "link": "cross_entropy",
}


def check_loss(key: str, name: str, loss: Loss, kind: TargetKind, classes: int) -> None:
    """Try a loss on a few example roots before a run depends on it.

    A ConfigError, which begins with the configuration's key and the loss's name, tells that the
    loss raises an error, has another shape than [n], gives logits no gradient, or makes a root's
    loss depend on other roots.
    """
    where = f"{key}: {name}"
    logits, labels = make_examples(kind, classes)
    logits.requires_grad_()
    half = ROOTS // 2
    with explain_errors(f"{where} cannot be computed"), torch.enable_grad():
        whole = loss.root_losses(logits, labels)
        parts = [
            loss.root_losses(logits[part], labels[part])
            for part in (slice(half), slice(half, None), slice(0))
        ]
        shapes = [tuple(losses.shape) for losses in (whole, *parts)]
        if shapes != [(ROOTS,), (half,), (ROOTS - half,), (0,)]:
            raise ConfigError(
                f"{where}: expected one loss per root, of shapes [{ROOTS}], [{half}], "
                f"[{ROOTS - half}] and [0]; got {shapes}"
            )
        whole.sum().backward()
    if logits.grad is None:
        raise ConfigError(f"{where}: expected a gradient of the logits; it has none")
    if not torch.allclose(whole, torch.cat(parts), rtol=1e-5, atol=1e-7, equal_nan=True):
        raise ConfigError(
            f"{where}: expected the loss of each root by itself; that of a root depends on the "
            "others (a mean over roots, or statistics of the batch?)"
        )
