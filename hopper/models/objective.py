"""Loss and metric of a run, as sums that ranks can add.

The loss of an iteration is the sum of root losses over the global batch divided by its size, so
nothing here is ever a mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hopper.errors import GraphError, RequestError
from hopper.graph.schema import LabelKind, TargetKind
from hopper.models.losses import DEFAULT_LOSSES, LOSSES, UNLABELLED, Loss
from hopper.models.metrics import DEFAULT_METRICS, METRICS, AnyMetric, WholeMetric
from hopper.ops import in_full


class Objective:
    """What is minimised and what is reported for one kind of label.

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
    loss: another than the default, which does not depend on the number of classes.
    metrics: others than the default; the first selects the best model.
    classes: the width of logits, for the default metric.
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
        """of the sums of each metric that has some"""
        self._metrics = metrics or [METRICS[DEFAULT_METRICS[kind]](classes=classes)]

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model."""
        return self._metrics[0].name

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger one is a better one."""
        return self._metrics[0].higher_is_better

    @property
    def needs_all_roots(self) -> bool:
        """Whether a metric is computed of all roots at once."""
        return any(isinstance(each, WholeMetric) for each in self._metrics)

    def shaped(self, rows: Tensor) -> Tensor:
        """Labels as the methods below take them, from rows [n, dim] as they are stored."""
        return rows[:, 0] if self.kind == "class" else rows

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[] of the logits' dtype: the sum of the roots' losses.

        That no *training* root is unlabelled (class -1) is checked once, by
        :func:`check_training_labels`.

        Parameters
        ----------
        logits: [n, classes].
        labels: [n] or [n, classes], as stored.

        Raises
        ------
        RequestError
            The shapes do not fit each other, or the loss is not one number a root.
        """
        # Before labels are made like them.
        logits = in_full(logits)
        losses = self._loss.root_losses(logits, self._as_given(logits, labels))
        if losses.shape != logits.shape[:1]:
            raise RequestError(
                f"train.loss: {type(self._loss).__name__}: expected [{logits.shape[0]}] losses, "
                f"one a root; got {list(losses.shape)}"
            )
        return losses.sum()

    @torch.no_grad()
    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[k] float64: sums of all metrics that have some, to add over batches and ranks, then
        :meth:`scores`.

        Unlabelled roots count nowhere. Parameters and errors as :meth:`loss_sum`.
        """
        logits, labels = self._labelled(logits, labels)
        found = [
            each.sums(logits, labels) for each in self._metrics if not isinstance(each, WholeMetric)
        ]
        self._sizes = [each.numel() for each in found]
        return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)

    @torch.no_grad()
    def scores(
        self, sums: Tensor, all_roots: tuple[Tensor, Tensor] | None = None
    ) -> dict[str, float]:
        """Every metric by its name, the one that selects first; NaN where nothing was labelled.

        Parameters
        ----------
        sums: of :meth:`metric_sums`, added up.
        all_roots: logits and labels of all roots, where :attr:`needs_all_roots`.
        """
        found, of_each = {}, iter(sums.split(self._sizes))
        for each in self._metrics:
            if isinstance(each, WholeMetric):
                assert all_roots is not None
                logits, labels = self._labelled(*all_roots)
                found[each.name] = each.score_all(logits, labels) if len(logits) else math.nan
            else:
                found[each.name] = each.value(next(of_each))
        return found

    def label_sums(self, labels: Tensor, classes: int) -> Tensor:
        """[classes + 1] float64, to add over ranks: how many roots have each class or label, or the
        sums of their values; and how many there are.

        Parameters
        ----------
        labels: [n] or [n, classes], as stored.
        """
        if self.kind == "class":
            labels = labels[labels != UNLABELLED]
            found = torch.bincount(labels, minlength=classes)
        else:
            found = labels.double().view(len(labels), classes).sum(0)
        return torch.cat([found.double(), torch.tensor([float(len(labels))]).double()])

    def one_answer(self, sums: Tensor, classes: int) -> Tensor:
        """[classes] float64: the logits of one answer for all roots: the largest class, for each of
        several labels what most roots have, or the mean.

        Parameters
        ----------
        sums: of :meth:`label_sums`, added up.
        """
        found, count = sums[:-1], sums[-1].clamp(min=1)
        if self.kind == "class":
            return torch.nn.functional.one_hot(found.argmax(), classes).double()
        return found / count - (0.5 if self.kind == "multi_hot" else 0.0)

    def _labelled(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The roots that have labels, as metrics take them."""
        labels = self._as_given(logits, labels)
        if self.kind == "class":
            has_label = labels != UNLABELLED
            logits, labels = logits[has_label], labels[has_label]
        return logits, labels

    def _as_given(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Labels as losses and metrics take them: [n] int64, or [n, classes] of the logits' dtype,
        checked to fit the logits."""
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
    """Check once, before training, that every training root can be trained on.

    Parameters
    ----------
    labels: [n] or [n, classes], of the training roots.
    original_ids: [n] int64, to name those that cannot.

    Raises
    ------
    GraphError
        A root is unlabelled (-1), its class is out of range, or its label is not finite.
    """
    if kind == "class":
        bad = (labels < 0) | (labels >= classes)
        expected = f"a class in [0, {classes}) for every training root (-1 is unlabelled)"
    elif kind == "multi_hot":
        bad = (labels > 1).any(1)
        expected = "0 or 1 for every class of every training root"
    else:
        finite = labels.isfinite()
        bad = ~(finite if labels.dim() == 1 else finite.all(1))
        expected = "a finite value for every training root"
    if bool(bad.any()):
        some = original_ids[bad][:5].tolist()
        raise GraphError(
            f"labels: expected {expected}; given {labels[bad][:5].tolist()} at original ids {some}"
            f" ({int(bad.sum())} in all)"
        )
