"""Metrics from sums that are added up over batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Protocol

import torch
from torch import Tensor

from hopper.errors import ConfigError, HopperError
from hopper.graph.schema import LabelKind
from hopper.models.label_examples import ROOTS, make_examples


class Metric(Protocol):
    """What a model is scored by. Its class is called with the keyword ``classes``, the width of
    logits, and the options of the configuration.

    It is computed from sums over roots, since no rank sees all of them.
    """

    name: ClassVar[str]
    """as shown, such as "accuracy" """
    label_kinds: ClassVar[tuple[LabelKind, ...]]
    """what kinds of labels it is for: "class", "multi_hot", "float" """
    higher_is_better: ClassVar[bool]

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[k] float64: sums over some roots; k is always the same, and n may be 0.

        Parameters
        ----------
        logits: [n, classes], on the CPU.
        labels: [n] int64 for kind "class", all labelled, else [n, classes] of the logits' dtype.
        """
        ...

    def value(self, sums: Tensor) -> float:
        """The metric, from [k] sums over all roots; NaN where there are none."""
        ...


class Accuracy:
    """The share of roots whose largest logit is that of their class."""

    name: ClassVar[str] = "accuracy"
    label_kinds: ClassVar[tuple[LabelKind, ...]] = ("class",)
    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        pass

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Metric`: correct ones, all."""
        return _sums((logits.argmax(-1) == labels).sum(), labels.numel())

    def value(self, sums: Tensor) -> float:
        """See :class:`Metric`."""
        correct, count = sums.tolist()
        return correct / count if count else math.nan


class MicroF1:
    """F1 of all decisions of all classes together; a class is claimed where its logit is positive.

    It is 1 where nothing was positive and nothing was claimed.
    """

    name: ClassVar[str] = "micro_f1"
    label_kinds: ClassVar[tuple[LabelKind, ...]] = ("multi_hot",)
    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        pass

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Metric`: true positives, false positives, false negatives, roots."""
        actual, claimed = labels != 0, logits > 0
        hits, wrong, missed = actual & claimed, claimed & ~actual, actual & ~claimed
        return _sums(hits.sum(), wrong.sum(), missed.sum(), logits.shape[0])

    def value(self, sums: Tensor) -> float:
        """See :class:`Metric`."""
        hits, wrong, missed, count = sums.tolist()
        if not count:
            return math.nan
        claims = 2 * hits + wrong + missed
        return 2 * hits / claims if claims else 1.0


class Rmse:
    """The root of the mean squared error over all values."""

    name: ClassVar[str] = "rmse"
    label_kinds: ClassVar[tuple[LabelKind, ...]] = ("float",)
    higher_is_better: ClassVar[bool] = False

    def __init__(self, *, classes: int) -> None:
        pass

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Metric`: squared error, values."""
        return _sums((logits.double() - labels.double()).square().sum(), logits.numel())

    def value(self, sums: Tensor) -> float:
        """See :class:`Metric`."""
        error, count = sums.tolist()
        return math.sqrt(error / count) if count else math.nan


METRICS: Final[Mapping[str, Callable[..., Metric]]] = {
    "accuracy": Accuracy,
    "micro_f1": MicroF1,
    "rmse": Rmse,
}
DEFAULT_METRICS: Final[Mapping[LabelKind, str]] = {
    "class": "accuracy",
    "multi_hot": "micro_f1",
    "float": "rmse",
}


def check_metric(key: str, name: str, metric: Metric, kind: LabelKind, classes: int) -> None:
    """Try a metric on a few made-up roots, before a run depends on it.

    Parameters
    ----------
    key, name: of the configuration, for errors.

    Raises
    ------
    ConfigError: it raises an error, its sums are not [k] float64, do not add up, or give no number.
    """
    told = f"{key}: {name}"
    logits, labels = make_examples(kind, classes)
    half = ROOTS // 2
    try:
        whole, none, *parts = [
            metric.sums(logits[part], labels[part])
            for part in (slice(None), slice(0), slice(half), slice(half, None))
        ]
        _check_sums(told, [whole, none, *parts])
        values = [metric.value(whole), metric.value(none)]
    except HopperError:
        raise
    # Whatever somebody else's metric raises, the key to look at is this one.
    except Exception as error:
        raise ConfigError(f"{told} cannot be computed ({type(error).__name__}: {error})") from error
    if not torch.allclose(whole, parts[0] + parts[1], rtol=1e-9, equal_nan=True):
        raise ConfigError(
            f"{told}: expected sums that can be added over ranks; those of {ROOTS} roots are "
            f"{whole.tolist()}, those of {half} and {ROOTS - half} add up to "
            f"{(parts[0] + parts[1]).tolist()}"
        )
    if not all(isinstance(each, float) for each in values):
        raise ConfigError(f"{told}: expected value() to return a float; got {values}")


def _check_sums(told: str, found: list[Tensor]) -> None:
    for each in found:
        if not isinstance(each, Tensor) or each.dtype != torch.float64 or each.dim() != 1:
            what = (each.dtype, list(each.shape)) if isinstance(each, Tensor) else type(each)
            raise ConfigError(f"{told}: expected [k] float64 of sums(); got {what}")
    sizes = {each.numel() for each in found}
    if len(sizes) > 1:
        raise ConfigError(f"{told}: expected as many sums of any roots; got {sorted(sizes)}")


def _sums(*values: Tensor | int) -> Tensor:
    return torch.stack([torch.as_tensor(value, dtype=torch.float64).cpu() for value in values])
