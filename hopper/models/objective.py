"""The loss and metrics of a run, as sums that ranks can add.

The loss of an iteration is the sum of root losses over the global batch, divided by its size.
Therefore nothing in this module is a mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hopper.errors import GraphError, RequestError
from hopper.graph.schema import LabelKind, TargetKind
from hopper.models.class_scores import MOST_CLASSES, count_claims
from hopper.models.losses import DEFAULT_LOSSES, LOSSES, UNLABELLED, Loss
from hopper.models.metrics import DEFAULT_METRICS, METRICS, AnyMetric, WholeMetric
from hopper.ops import in_full


class Objective:
    """The loss and the metrics for one kind of label.

    ====================  =====================================  ===========================
    kind                  loss of a root, by default             metric, by default
    ====================  =====================================  ===========================
    class, int64 [n]      cross-entropy                          accuracy
    multi_hot, uint8      binary cross-entropy, summed over      micro-F1
    [n, c]                classes
    float, float32 [n]    squared error, summed over outputs     RMSE
    or [n, c]
    link, float32         cross-entropy of the link among what   MRR
    [n, 1 + k]            it is compared with
    ====================  =====================================  ===========================

    Parameters
    ----------
    loss: the loss; None = the default.
    metrics: the metrics, of which the first selects the best model; none = the default.
    classes: the width of logits, for the default loss and metric.
    """

    def __init__(
        self,
        kind: TargetKind,
        loss: Loss | None = None,
        metrics: Sequence[AnyMetric] = (),
        classes: int = 1,
    ) -> None:
        self.kind = kind
        self._loss = LOSSES[DEFAULT_LOSSES[kind]](classes=classes) if loss is None else loss
        self._sizes: list[int] = []
        """the number of sums of each metric that is computed from sums"""
        self._metrics = metrics or [METRICS[DEFAULT_METRICS[kind]](classes=classes)]

    @property
    def metric(self) -> str:
        """The name of the metric that selects the best model."""
        return self._metrics[0].name

    @property
    def higher_is_better(self) -> bool:
        """Return whether larger values of :attr:`metric` are better."""
        return self._metrics[0].higher_is_better

    @property
    def needs_all_roots(self) -> bool:
        """Return whether a metric is computed from all roots at once."""
        return any(isinstance(metric, WholeMetric) for metric in self._metrics)

    def shape_labels(self, rows: Tensor) -> Tensor:
        """Return stored labels [n, dim] in the shape that the methods below take."""
        return rows[:, 0] if self.kind == "class" else rows

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the roots' losses, a scalar of the logits' dtype.

        :func:`check_training_labels` checks once that no *training* root is unlabelled (class -1).

        Parameters
        ----------
        logits: [n, classes].
        labels: [n] or [n, classes], as stored.

        Raises
        ------
        RequestError
            The shapes do not fit each other, or the loss does not return one number per root.
        """
        # Labels take the dtype of logits, so logits are converted first.
        logits = in_full(logits)
        losses = self._loss.root_losses(logits, self._convert_labels(logits, labels))
        if losses.shape != logits.shape[:1]:
            raise RequestError(
                f"train.loss: {type(self._loss).__name__}: expected [{logits.shape[0]}] losses, "
                f"one per root; got {list(losses.shape)}"
            )
        return losses.sum()

    @torch.no_grad()
    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sums [k], float64, of all metrics that are computed from sums.

        Sums are added over batches and ranks, and then given to :meth:`scores`. Unlabelled roots
        are left out. If a logit is NaN, all sums are. Parameters and errors are those of
        :meth:`loss_sum`.
        """
        logits, labels = self._drop_unlabelled(logits, labels)
        sums = [m.sums(logits, labels) for m in self._metrics if not isinstance(m, WholeMetric)]
        self._sizes = [metric_sums.numel() for metric_sums in sums]
        joined = torch.cat(sums) if sums else torch.empty(0, dtype=torch.float64)
        return joined.fill_(math.nan) if logits.isnan().any() else joined

    @torch.no_grad()
    def scores(
        self, sums: Tensor, all_roots: tuple[Tensor, Tensor] | None = None
    ) -> dict[str, float]:
        """Return every metric by name, in order; NaN if no root is labelled, or a logit is NaN.

        Parameters
        ----------
        sums: the results of :meth:`metric_sums`, added over batches and ranks.
        all_roots: logits and labels of all roots, if :attr:`needs_all_roots`.
        """
        scores, sums_by_metric = {}, iter(sums.split(self._sizes))
        for metric in self._metrics:
            if isinstance(metric, WholeMetric):
                assert all_roots is not None
                logits, labels = self._drop_unlabelled(*all_roots)
                has_score = len(logits) > 0 and not logits.isnan().any()
                scores[metric.name] = metric.score_all(logits, labels) if has_score else math.nan
            else:
                own_sums = next(sums_by_metric)
                is_nan = bool(own_sums.isnan().any())
                scores[metric.name] = math.nan if is_nan else metric.value(own_sums)
        return scores

    @torch.no_grad()
    def class_counts(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Return [3, classes] int64 of :func:`count_claims`, which can be added over ranks.

        It is None where a root may have several labels or values, and above 1,000 classes.

        Parameters and errors as :meth:`loss_sum`.
        """
        if self.kind != "class" or logits.shape[1] > MOST_CLASSES:
            return None
        classes = logits.shape[1]
        return count_claims(*self._drop_unlabelled(logits, labels), classes)

    def label_sums(self, labels: Tensor, classes: int) -> Tensor:
        """Return sums of labels [classes + 1], float64, which can be added over ranks.

        They are the number of roots with each class or label, or the sums of values. The last
        number is the number of labelled roots.

        Parameters
        ----------
        labels: [n] or [n, classes], as stored.
        """
        if self.kind == "class":
            labels = labels[labels != UNLABELLED]
            sums = torch.bincount(labels, minlength=classes)
        else:
            sums = labels.double().view(len(labels), classes).sum(0)
        return torch.cat([sums.double(), torch.tensor([float(len(labels))]).double()])

    def one_answer(self, sums: Tensor, classes: int) -> Tensor:
        """Return the logits [classes], float64, of the best constant prediction.

        It predicts the largest class, the labels that most roots have, or the mean of values.

        Parameters
        ----------
        sums: the results of :meth:`label_sums`, added over ranks.
        """
        totals, count = sums[:-1], sums[-1].clamp(min=1)
        if self.kind == "class":
            return torch.nn.functional.one_hot(totals.argmax(), classes).double()
        return totals / count - (0.5 if self.kind == "multi_hot" else 0.0)

    def _drop_unlabelled(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Drop unlabelled roots, and convert labels for metrics."""
        labels = self._convert_labels(logits, labels)
        if self.kind == "class":
            has_label = labels != UNLABELLED
            logits, labels = logits[has_label], labels[has_label]
        return logits, labels

    def _convert_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Convert labels to [n] int64 for classes, otherwise [n, classes] of the logits' dtype."""
        if self.kind == "class":
            self._check_shape(logits, labels, (logits.shape[0],))
            return labels.long()
        shaped = labels.unsqueeze(-1) if labels.dim() == 1 else labels
        self._check_shape(logits, shaped, tuple(logits.shape))
        return shaped.to(logits.dtype)

    def _check_shape(self, logits: Tensor, labels: Tensor, expected: tuple[int, ...]) -> None:
        if logits.dim() != 2 or tuple(labels.shape) != expected:
            raise RequestError(
                f"{self.kind} labels: expected shape {list(expected)} for logits [n, classes]; "
                f"given labels {list(labels.shape)}, logits {list(logits.shape)}"
            )


def check_training_labels(
    kind: LabelKind, labels: Tensor, original_ids: Tensor, classes: int
) -> None:
    """Check once, before training, that the label of every training root is usable.

    Parameters
    ----------
    labels: [n] or [n, classes], the labels of the training roots.
    original_ids: [n] int64, the roots' ids, for errors.

    Raises
    ------
    GraphError: a root is unlabelled (-1), its class is out of range, or its label is not finite.
    """
    if kind == "class":
        is_bad = (labels < 0) | (labels >= classes)
        expected = f"a class in [0, {classes}) for every training root (-1 is unlabelled)"
    elif kind == "multi_hot":
        is_bad = (labels > 1).any(1)
        expected = "0 or 1 for every class of every training root"
    else:
        is_finite = labels.isfinite()
        is_bad = ~(is_finite if labels.dim() == 1 else is_finite.all(1))
        expected = "a finite value for every training root"
    if bool(is_bad.any()):
        examples = original_ids[is_bad][:5].tolist()
        raise GraphError(
            f"labels: expected {expected}; given {labels[is_bad][:5].tolist()} at original ids "
            f"{examples} ({int(is_bad.sum())} in all)"
        )
