"""Metrics, most of which are computed from sums over batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from hopper.config.plug_ins import explain_errors
from hopper.errors import ConfigError, cannot_import
from hopper.graph.schema import TargetKind
from hopper.models.class_scores import count_claims
from hopper.models.label_examples import ROOTS, make_examples


class Metric(Protocol):
    """Scores a model from sums over roots, since no rank sees all roots.

    Its class is called with the keyword ``classes``, the width of logits, and with the options of
    the configuration.
    """

    name: ClassVar[str]
    """the displayed name, such as "accuracy" """
    label_kinds: ClassVar[tuple[TargetKind, ...]]
    """the kinds of labels that it takes: "class", "multi_hot", "float" or "link" """
    higher_is_better: ClassVar[bool]

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return sums [k], float64, over some roots. k is always the same, and n may be 0.

        Parameters
        ----------
        logits: [n, classes], on the CPU. For links [n, 1], their ranks, of which 1 is the best.
        labels: [n] int64 for kind "class", without unlabelled roots. Otherwise they have the shape
            and dtype of logits.
        """

    def value(self, sums: Tensor) -> float:
        """Return the metric from sums [k] over all roots; NaN if there are no roots."""


class _Mean:
    """A mean of numbers, which batches and ranks add up."""

    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        pass

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the numbers to average, of any shape; logits and labels as for a metric."""
        raise NotImplementedError(f"{type(self).__name__} defines no values()")

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        values = self.values(logits, labels).double()
        return torch.stack([values.sum(), values.new_tensor(values.numel())]).cpu()

    def value(self, sums: Tensor) -> float:
        total, count = sums.tolist()
        return total / count if count else math.nan


class Accuracy(_Mean):
    """The share of roots whose largest logit is that of their class."""

    name: ClassVar[str] = "accuracy"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class",)

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return whether each root is correct, [n]."""
        return logits.argmax(-1) == labels


@runtime_checkable
class WholeMetric(Protocol):
    """Scores a model from all roots of a split at once, such as by the area under a curve.

    Every rank receives all roots. Its class is called as that of :class:`Metric`.
    """

    name: ClassVar[str]
    label_kinds: ClassVar[tuple[TargetKind, ...]]
    higher_is_better: ClassVar[bool]

    def score_all(self, logits: Tensor, labels: Tensor) -> float:
        """Return the metric of logits [n, classes] and labels, as in :meth:`Metric.sums`; n is at
        least 1."""


AnyMetric = Metric | WholeMetric


class RocAuc:
    """The mean over classes of the area under the receiver operating characteristic (torchmetrics).

    For two classes it is that of the second class.
    """

    name: ClassVar[str] = "roc_auc"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class", "multi_hot")
    higher_is_better: ClassVar[bool] = True
    _curve: ClassVar[str] = "auroc"

    def __init__(self, *, classes: int) -> None:
        self._classes = classes

    def score_all(self, logits: Tensor, labels: Tensor) -> float:
        """Return the score, from probabilities in float64; a ConfigError says what to install if
        torchmetrics is missing."""
        try:
            from torchmetrics.functional import classification
        except ImportError as error:
            text = cannot_import("train.metric: an area under a curve", "torchmetrics", error)
            raise ConfigError(text) from error
        logits = logits.double()
        if labels.dim() == 2:
            compute = getattr(classification, f"multilabel_{self._curve}")
            return float(compute(torch.sigmoid(logits), labels.long(), num_labels=self._classes))
        probabilities = torch.softmax(logits, 1)
        if self._classes == 2:
            compute = getattr(classification, f"binary_{self._curve}")
            return float(compute(probabilities[:, 1], labels))
        compute = getattr(classification, f"multiclass_{self._curve}")
        return float(compute(probabilities, labels, num_classes=self._classes))


class AveragePrecision(RocAuc):
    """The mean over classes of the average precision (torchmetrics)."""

    name: ClassVar[str] = "average_precision"
    _curve: ClassVar[str] = "average_precision"


class _ByClass:
    """A metric from the true positives, false positives and false negatives of each class.

    The largest logit predicts a class. If roots may have several labels, each positive logit does.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class", "multi_hot")
    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        self._classes = classes

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the true positives, false positives and false negatives of each class.

        The number of roots follows, and the number of those that may have several labels.
        """
        if labels.dim() == 1:
            several = 0
            counts = list(count_claims(logits, labels, self._classes))
        else:
            actual, predicted = labels != 0, logits > 0
            several = len(logits)
            counts = [
                mask.sum(0)
                for mask in (actual & predicted, predicted & ~actual, actual & ~predicted)
            ]
        totals = torch.tensor([len(logits), several])
        return torch.cat([*counts, totals]).to(torch.float64).cpu()

    def _mean(self, scores: Tensor, sums: Tensor) -> float:
        """Average scores over classes.

        If roots have one label, only classes count that any root has or is predicted to have.
        """
        if not sums[-2]:
            return math.nan
        counts = sums[:-2].view(3, -1).sum(0) > 0 if not sums[-1] else torch.ones(len(scores)) > 0
        return float(scores[counts].mean())


class MicroF1(_ByClass):
    """F1 over the predictions of all classes together.

    With one label per root it is the accuracy. It is 1 if nothing is positive and nothing is
    predicted.
    """

    name: ClassVar[str] = "micro_f1"

    def value(self, sums: Tensor) -> float:
        """Return F1; NaN if there are no roots."""
        hits, wrong, missed = (float(counts.sum()) for counts in sums[:-2].view(3, -1))
        if not sums[-2]:
            return math.nan
        total = 2 * hits + wrong + missed
        return 2 * hits / total if total else 1.0


class MacroF1(_ByClass):
    """The mean over classes of their F1.

    If roots may have several labels, a class that no root has or is predicted to have counts as 0.
    """

    name: ClassVar[str] = "macro_f1"

    def value(self, sums: Tensor) -> float:
        """Return the mean F1; NaN if there are no roots."""
        hits, wrong, missed = sums[:-2].view(3, -1)
        return self._mean(2 * hits / (2 * hits + wrong + missed).clamp(min=1), sums)


class BalancedAccuracy(_ByClass):
    """The mean of recall over the classes that any root has or is predicted to have.

    It is ``multiclass_accuracy`` of torchmetrics with ``average="macro"``. A class that is
    predicted but that no root has counts as 0. ``balanced_accuracy_score`` of scikit-learn leaves
    such a class out, and is then higher.
    """

    name: ClassVar[str] = "balanced_accuracy"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("class",)

    def value(self, sums: Tensor) -> float:
        """Return the mean recall; NaN if there are no roots."""
        hits, _, missed = sums[:-2].view(3, -1)
        return self._mean(hits / (hits + missed).clamp(min=1), sums)


class Mae(_Mean):
    """The mean absolute error over all values."""

    name: ClassVar[str] = "mae"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("float",)
    higher_is_better: ClassVar[bool] = False

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the absolute errors."""
        return (logits.double() - labels.double()).abs()


class Rmse(Mae):
    """The root of the mean squared error over all values."""

    name: ClassVar[str] = "rmse"

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the squared errors."""
        return super().values(logits, labels).square()

    def value(self, sums: Tensor) -> float:
        """Return the root of the mean squared error; NaN if there are no roots."""
        return math.sqrt(super().value(sums))


class MeanReciprocalRank(_Mean):
    """The mean of one over the rank of each link among all nodes that could take its end's place.

    A link whose score equals others' has the mean of their ranks.
    """

    name: ClassVar[str] = "mrr"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return one over each rank, [n]."""
        return 1.0 / logits[:, 0].double()


class HitsAt1(_Mean):
    """The share of links that rank first."""

    name: ClassVar[str] = "hits@1"
    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)
    most: ClassVar[int] = 1

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return whether each rank is at most ``most``, [n]."""
        return logits[:, 0] <= self.most


class HitsAt3(HitsAt1):
    """The share of links among the first three."""

    name: ClassVar[str] = "hits@3"
    most: ClassVar[int] = 3


class HitsAt10(HitsAt1):
    """The share of links among the first ten."""

    name: ClassVar[str] = "hits@10"
    most: ClassVar[int] = 10


_OF_CLASSES: Final = (Accuracy, BalancedAccuracy, MicroF1, MacroF1, RocAuc, AveragePrecision)
METRICS: Final[Mapping[str, Callable[..., AnyMetric]]] = {
    metric.name: metric for metric in (*_OF_CLASSES, Rmse, Mae)
}
LINK_METRICS: Final[Mapping[str, Callable[..., AnyMetric]]] = {
    metric.name: metric for metric in (MeanReciprocalRank, HitsAt1, HitsAt3, HitsAt10)
}
DEFAULT_METRICS: Final[Mapping[TargetKind, str]] = {
    "class": "accuracy",
    "multi_hot": "micro_f1",
    "float": "rmse",
    "link": "mrr",
}


def check_metric(key: str, name: str, metric: AnyMetric, kind: TargetKind, classes: int) -> None:
    """Try a metric on a few example roots before a run depends on it.

    A ConfigError, which begins with the configuration's key and the metric's name, tells that the
    metric raises an error, that its sums are not [k] float64 or cannot be added over roots, or that
    it returns no number.
    """
    where = f"{key}: {name}"
    if isinstance(metric, WholeMetric):
        with explain_errors(f"{where} cannot be computed"):
            score = metric.score_all(*make_examples(kind, classes))
        if not isinstance(score, float):
            raise ConfigError(
                f"{where}: expected score_all() to return a float; got {score!r:.200}"
            )
        return
    logits, labels = make_examples(kind, classes)
    if kind == "link":
        # Metrics take the ranks of links.
        logits = torch.arange(1.0, ROOTS + 1, dtype=torch.float64).unsqueeze(1)
        labels = torch.ones(ROOTS, 1)
    half = ROOTS // 2
    with explain_errors(f"{where} cannot be computed"):
        whole, empty, *parts = [
            metric.sums(logits[part], labels[part])
            for part in (slice(None), slice(0), slice(half), slice(half, None))
        ]
        _check_sums(where, [whole, empty, *parts])
        values = [metric.value(whole), metric.value(empty)]
    if not torch.allclose(whole, parts[0] + parts[1], rtol=1e-9, equal_nan=True):
        raise ConfigError(
            f"{where}: expected sums that can be added over ranks; those of {ROOTS} roots are "
            f"{whole.tolist()}, those of {half} and {ROOTS - half} add up to "
            f"{(parts[0] + parts[1]).tolist()}"
        )
    if not all(isinstance(value, float) for value in values):
        raise ConfigError(f"{where}: expected value() to return a float; got {values}")


def _check_sums(where: str, results: list[Tensor]) -> None:
    for sums in results:
        if not isinstance(sums, Tensor) or sums.dtype != torch.float64 or sums.dim() != 1:
            text = (sums.dtype, list(sums.shape)) if isinstance(sums, Tensor) else type(sums)
            raise ConfigError(f"{where}: expected [k] float64 of sums(); got {text}")
    sizes = {sums.numel() for sums in results}
    if len(sizes) > 1:
        raise ConfigError(f"{where}: expected as many sums of any roots; got {sorted(sizes)}")
