"""Loss and metric of a run, as sums that ranks can add.

The loss of an iteration is the sum of root losses over the global batch divided by its size, so
nothing here is ever a mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopper.errors import GraphError, RequestError
from hopper.graph.schema import LabelKind
from hopper.models.losses import DEFAULT_LOSSES, LOSSES, UNLABELLED, Loss
from hopper.models.metrics import DEFAULT_METRICS, METRICS, Metric
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
    ====================  =====================================  ===========================

    Parameters
    ----------
    loss, metric: others than the defaults, which do not depend on the number of classes.
    """

    def __init__(
        self, kind: LabelKind, loss: Loss | None = None, metric: Metric | None = None
    ) -> None:
        self.kind = kind
        self._loss = LOSSES[DEFAULT_LOSSES[kind]](classes=0) if loss is None else loss
        self._metric = METRICS[DEFAULT_METRICS[kind]](classes=0) if metric is None else metric

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self._metric.name

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger metric is a better one."""
        return self._metric.higher_is_better

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
        """[k] float64: sums to add over batches and ranks, then :meth:`metric_from_sums`.

        Unlabelled roots count nowhere. Parameters and errors as :meth:`loss_sum`.
        """
        labels = self._as_given(logits, labels)
        if self.kind == "class":
            labelled = labels != UNLABELLED
            logits, labels = logits[labelled], labels[labelled]
        return self._metric.sums(logits, labels)

    def metric_from_sums(self, sums: Tensor) -> float:
        """The metric from added sums; NaN where nothing was labelled."""
        return self._metric.value(sums)

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
