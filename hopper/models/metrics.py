"""Metrics from sums that are added up over batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from hopper.errors import ConfigError, HopperError
from hopper.graph.schema import TargetKind
from hopper.models.label_examples import ROOTS, make_examples, make_rank_examples


class Metric(Protocol):
    """What a model is scored by. Its class is called with the keyword ``classes``, the width of
    logits, and the options of the configuration.

    It is computed from sums over roots, since no rank sees all of them.
    """

    name: ClassVar[str]
    """as shown, such as "accuracy" """
    label_kinds: ClassVar[tuple[TargetKind, ...]]
    """what kinds of labels it is for: "class", "multi_hot", "float"; or "link" """
    higher_is_better: ClassVar[bool]

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[k] float64: sums over some roots; k is always the same, and n may be 0.

        Parameters
        ----------
        logits: [n, classes], on the CPU; of links [n, 1], their ranks, 1 being the best.
        labels: [n] int64 for kind "class", all labelled, else as wide as logits and of their dtype.
        """
        ...

    def value(self, sums: Tensor) -> float:
        """The metric, from [k] sums over all roots; NaN where there are none."""
        ...


class Accuracy:
    """The share of roots whose largest logit is that of their class."""

    name: ClassVar[str] = "accuracy"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class",)
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


@runtime_checkable
class WholeMetric(Protocol):
    """A metric that no sums over roots make up, such as the area under a curve: every rank is given
    all roots of a split. Otherwise as :class:`Metric`."""

    name: ClassVar[str]
    label_kinds: ClassVar[tuple[TargetKind, ...]]
    higher_is_better: ClassVar[bool]

    def score_all(self, logits: Tensor, labels: Tensor) -> float:
        """The metric of [n, classes] logits and their labels, as of :meth:`Metric.sums`; n is at
        least 1."""
        ...


AnyMetric = Metric | WholeMetric


class RocAuc:
    """The mean over classes of the area under the receiver operating characteristic (torchmetrics);
    of two classes, that of the second."""

    name: ClassVar[str] = "roc_auc"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class", "multi_hot")
    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        self._classes = classes

    def score_all(self, logits: Tensor, labels: Tensor) -> float:
        """See :class:`WholeMetric`."""
        return _curve_score("auroc", self._classes, logits, labels)


class AveragePrecision(RocAuc):
    """The same of the average precision."""

    name: ClassVar[str] = "average_precision"

    def score_all(self, logits: Tensor, labels: Tensor) -> float:
        """See :class:`WholeMetric`."""
        return _curve_score("average_precision", self._classes, logits, labels)


def _curve_score(what: str, classes: int, logits: Tensor, labels: Tensor) -> float:
    """A function of torchmetrics, of probabilities in float64.

    Raises
    ------
    ConfigError: torchmetrics is not there; says what to install.
    """
    try:
        from torchmetrics.functional import classification
    except ImportError as error:
        raise ConfigError(
            f"train.metric: areas under curves are computed by torchmetrics ({error}); install it "
            "with: pip install 'hopper-gnn[metrics]'"
        ) from error
    logits = logits.double()
    if labels.dim() == 2:
        compute = getattr(classification, f"multilabel_{what}")
        found = compute(torch.sigmoid(logits), labels.long(), num_labels=classes)
    elif classes == 2:
        found = getattr(classification, f"binary_{what}")(torch.softmax(logits, 1)[:, 1], labels)
    else:
        compute = getattr(classification, f"multiclass_{what}")
        found = compute(torch.softmax(logits, 1), labels, num_classes=classes)
    return float(found)


class _ByClass:
    """Of each class, how often it was claimed rightly, wrongly, and missed.

    The largest logit claims a class; of several labels every positive logit does.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class", "multi_hot")
    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        self._classes = classes

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Metric`: hits, false claims and misses of each class; roots; and 1 for each
        root of several labels."""
        if labels.dim() == 1:
            claims, several = logits.argmax(-1), 0
            right = claims == labels
            counts = [
                torch.bincount(each, minlength=self._classes)
                for each in (labels[right], claims[~right], labels[~right])
            ]
        else:
            actual, claimed = labels != 0, logits > 0
            several = len(logits)
            counts = [
                each.sum(0) for each in (actual & claimed, claimed & ~actual, actual & ~claimed)
            ]
        ends = torch.tensor([len(logits), several])
        return torch.cat([*counts, ends]).to(torch.float64).cpu()

    def _counts(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[classes] each: hits, false claims, misses."""
        hits, wrong, missed = sums[:-2].view(3, -1)
        return hits, wrong, missed

    def _mean(self, scores: Tensor, sums: Tensor) -> float:
        """Over classes; of roots with one label, over those that any root has or is claimed to
        have."""
        if not sums[-2]:
            return math.nan
        met = sums[:-2].view(3, -1).sum(0) > 0 if not sums[-1] else torch.ones(len(scores)) > 0
        return float(scores[met].mean())


class MicroF1(_ByClass):
    """F1 of all decisions of all classes together.

    Of one label it is the accuracy. It is 1 where nothing was positive and nothing was claimed.
    """

    name: ClassVar[str] = "micro_f1"

    def value(self, sums: Tensor) -> float:
        """See :class:`Metric`."""
        hits, wrong, missed = (float(each.sum()) for each in self._counts(sums))
        if not sums[-2]:
            return math.nan
        claims = 2 * hits + wrong + missed
        return 2 * hits / claims if claims else 1.0


class MacroF1(_ByClass):
    """The mean over classes of their F1; 0 for a class that is neither met nor claimed among
    several labels."""

    name: ClassVar[str] = "macro_f1"

    def value(self, sums: Tensor) -> float:
        """See :class:`Metric`."""
        hits, wrong, missed = self._counts(sums)
        return self._mean(2 * hits / (2 * hits + wrong + missed).clamp(min=1), sums)


class BalancedAccuracy(_ByClass):
    """The mean over classes of the share of their roots that are recognised."""

    name: ClassVar[str] = "balanced_accuracy"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class",)

    def value(self, sums: Tensor) -> float:
        """See :class:`Metric`."""
        hits, _, missed = self._counts(sums)
        return self._mean(hits / (hits + missed).clamp(min=1), sums)


class Rmse:
    """The root of the mean squared error over all values."""

    name: ClassVar[str] = "rmse"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("float",)
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


class Mae:
    """The mean absolute error over all values."""

    name: ClassVar[str] = "mae"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("float",)
    higher_is_better: ClassVar[bool] = False

    def __init__(self, *, classes: int) -> None:
        pass

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Metric`: absolute error, values."""
        return _sums((logits.double() - labels.double()).abs().sum(), logits.numel())

    def value(self, sums: Tensor) -> float:
        """See :class:`Metric`."""
        error, count = sums.tolist()
        return error / count if count else math.nan


METRICS: Final[Mapping[str, Callable[..., AnyMetric]]] = {
    "accuracy": Accuracy,
    "balanced_accuracy": BalancedAccuracy,
    "micro_f1": MicroF1,
    "macro_f1": MacroF1,
    "roc_auc": RocAuc,
    "average_precision": AveragePrecision,
    "rmse": Rmse,
    "mae": Mae,
}
DEFAULT_METRICS: Final[Mapping[TargetKind, str]] = {
    "class": "accuracy",
    "multi_hot": "micro_f1",
    "float": "rmse",
    "link": "mrr",
}


def check_metric(key: str, name: str, metric: AnyMetric, kind: TargetKind, classes: int) -> None:
    """Try a metric on a few made-up roots, before a run depends on it.

    Parameters
    ----------
    key, name: of the configuration, for errors.

    Raises
    ------
    ConfigError: it raises an error, its sums are not [k] float64, do not add up, or give no number.
    """
    told = f"{key}: {name}"
    if isinstance(metric, WholeMetric):
        _check_score(told, metric, kind, classes)
        return
    logits, labels = make_rank_examples() if kind == "link" else make_examples(kind, classes)
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


def _check_score(told: str, metric: WholeMetric, kind: TargetKind, classes: int) -> None:
    try:
        found = metric.score_all(*make_examples(kind, classes))
    except HopperError:
        raise
    except Exception as error:
        raise ConfigError(f"{told} cannot be computed ({type(error).__name__}: {error})") from error
    if not isinstance(found, float):
        raise ConfigError(f"{told}: expected score_all() to return a float; got {found!r:.200}")


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
