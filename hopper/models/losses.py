"""Losses of single roots: their sum over the global batch, divided by its size, is minimised.

A loss gives a number for every root and never adds them up itself, so it cannot be a mean of means,
and every engine may split the roots as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Final, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hopper.errors import ConfigError, HopperError
from hopper.graph.schema import TargetKind
from hopper.models.label_examples import ROOTS, make_examples

UNLABELLED: Final = -1
Weights = tuple[Annotated[float, Field(ge=0.0, allow_inf_nan=False)], ...]


class Loss(Protocol):
    """The loss of each root. Its class is called with the keyword ``classes``, the width of logits,
    and the options of the configuration."""

    label_kinds: ClassVar[tuple[TargetKind, ...]]
    """what kinds of labels it is for: "class", "multi_hot", "float"; or "link" """

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[n] of the logits' dtype, differentiable: the loss of each root.

        That of a root depends on its own logits and labels alone. n may be 0.

        Parameters
        ----------
        logits: [n, classes], float32 or float64; of links [n, 1 + k], the scores of each and of
            what it is compared with.
        labels: [n] int64 for kind "class", else as wide as logits and of their dtype; of links as
            :class:`hopper.micrograph.pairs.Pairs` has them.
        """
        ...


class CrossEntropy:
    """``-log softmax(logits)[label]``, times the weight of the label; 0 for an unlabelled root
    (class -1).

    Parameters
    ----------
    class_weights: one for each class; none = all are 1. The sum over roots is divided by their
        number all the same, not by the sum of their weights.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class",)

    def __init__(self, *, classes: int, class_weights: Weights = ()) -> None:
        self._weights = _as_weights("class_weights", class_weights, classes)

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Loss`."""
        return functional.cross_entropy(
            logits,
            labels,
            weight=_like(self._weights, logits),
            ignore_index=UNLABELLED,
            reduction="none",
        )


class BinaryCrossEntropy:
    """Binary cross-entropy, summed over classes.

    Parameters
    ----------
    positive_weights: one for each class, times the loss where the root has it; none = all are 1.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("multi_hot",)

    def __init__(self, *, classes: int, positive_weights: Weights = ()) -> None:
        self._weights = _as_weights("positive_weights", positive_weights, classes)

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Loss`."""
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


class SquaredError:
    """The squared error, summed over outputs."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("float",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Loss`."""
        return functional.mse_loss(logits, labels, reduction="none").sum(1)


LOSSES: Final[Mapping[str, Callable[..., Loss]]] = {
    "cross_entropy": CrossEntropy,
    "binary_cross_entropy": BinaryCrossEntropy,
    "squared_error": SquaredError,
}
DEFAULT_LOSSES: Final[Mapping[TargetKind, str]] = {
    "class": "cross_entropy",
    "multi_hot": "binary_cross_entropy",
    "float": "squared_error",
    "link": "cross_entropy",
}


def check_loss(key: str, name: str, loss: Loss, kind: TargetKind, classes: int) -> None:
    """Try a loss on a few made-up roots, before a run depends on it.

    Parameters
    ----------
    key, name: of the configuration, for errors.

    Raises
    ------
    ConfigError: it raises an error, has another shape than [n], gives logits no gradient, or what
        it gives a root depends on other roots.
    """
    told = f"{key}: {name}"
    logits, labels = make_examples(kind, classes)
    logits.requires_grad_()
    half = ROOTS // 2
    try:
        with torch.enable_grad():
            whole = loss.root_losses(logits, labels)
            parts = [
                loss.root_losses(logits[part], labels[part])
                for part in (slice(half), slice(half, None), slice(0))
            ]
            shapes = [tuple(each.shape) for each in (whole, *parts)]
            if shapes != [(ROOTS,), (half,), (ROOTS - half,), (0,)]:
                raise ConfigError(
                    f"{told}: expected one loss per root, of shapes [{ROOTS}], [{half}], "
                    f"[{ROOTS - half}] and [0]; got {shapes}"
                )
            whole.sum().backward()
    except HopperError:
        raise
    # Whatever somebody else's loss raises, the key to look at is this one.
    except Exception as error:
        raise ConfigError(f"{told} cannot be computed ({type(error).__name__}: {error})") from error
    if logits.grad is None:
        raise ConfigError(f"{told}: expected a gradient of the logits; it has none")
    if not torch.allclose(whole, torch.cat(parts), rtol=1e-5, atol=1e-7, equal_nan=True):
        raise ConfigError(
            f"{told}: expected the loss of each root by itself; that of a root depends on the "
            "others (a mean over roots, or statistics of the batch?)"
        )
