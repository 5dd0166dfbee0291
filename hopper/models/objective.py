"""Loss and metric of each kind of label, as sums that ranks can add.

The loss of an iteration is the sum of root losses over the global batch divided by its size, so
nothing here is ever a mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hopper.errors import GraphError, RequestError
from hopper.graph.schema import LabelKind
from hopper.ops import in_full

UNLABELLED = -1


@dataclass(frozen=True)
class Objective:
    """What is minimised and what is reported for one kind of label.

    ====================  =====================================  ===========================
    kind                  loss of a root                         metric, from these sums
    ====================  =====================================  ===========================
    class, int64 [n]      cross-entropy                          accuracy: correct, labelled
    multi_hot, uint8      binary cross-entropy, summed over      micro-F1: true positives,
    [n, c]                classes                                false positives, false
                                                                 negatives, roots
    float, float32 [n]    squared error, summed over outputs     RMSE: squared error, values
    or [n, c]
    ====================  =====================================  ===========================
    """

    kind: LabelKind

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return {"class": "accuracy", "multi_hot": "micro_f1", "float": "rmse"}[self.kind]

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger metric is a better one."""
        return self.kind != "float"

    def shaped(self, rows: Tensor) -> Tensor:
        """Labels as the methods below take them, from rows [n, dim] as they are stored."""
        return rows[:, 0] if self.kind == "class" else rows

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[] of the logits' dtype: the sum of the roots' losses.

        Unlabelled roots (class -1) contribute 0; that no *training* root is unlabelled is checked
        once, by :func:`check_training_labels`.

        Parameters
        ----------
        logits: [n, classes].
        labels: [n] or [n, classes], as stored.

        Raises
        ------
        RequestError
            The shapes do not fit each other.
        """
        # Before labels are made like them.
        logits = in_full(logits)
        if self.kind == "class":
            self._check_shape(logits, labels, (logits.shape[0],))
            return functional.cross_entropy(
                logits, labels.long(), ignore_index=UNLABELLED, reduction="sum"
            )
        target = self._like(logits, labels).to(logits.dtype)
        if self.kind == "multi_hot":
            return functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        return functional.mse_loss(logits, target, reduction="sum")

    @torch.no_grad()
    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[k] float64: sums to add over batches and ranks, then :meth:`metric_from_sums`.

        Unlabelled roots count nowhere. Parameters and errors as :meth:`loss_sum`.
        """
        if self.kind == "class":
            self._check_shape(logits, labels, (logits.shape[0],))
            labelled = labels != UNLABELLED
            correct = (logits.argmax(-1) == labels) & labelled
            return _sums(correct.sum(), labelled.sum())
        if self.kind == "multi_hot":
            actual = self._like(logits, labels) != 0
            claimed = logits > 0
            hits, wrong, missed = actual & claimed, claimed & ~actual, actual & ~claimed
            return _sums(hits.sum(), wrong.sum(), missed.sum(), logits.shape[0])
        error = logits.double() - self._like(logits, labels).double()
        return _sums(error.square().sum(), error.numel())

    def metric_from_sums(self, sums: Tensor) -> float:
        """The metric from added sums; NaN where nothing was labelled.

        Micro-F1 where nothing was positive and nothing was claimed is 1.
        """
        values = [float(value) for value in sums.tolist()]
        if values[-1] == 0:
            return math.nan
        if self.kind == "class":
            return values[0] / values[1]
        if self.kind == "multi_hot":
            hits, wrong, missed, _ = values
            claims = 2 * hits + wrong + missed
            return 2 * hits / claims if claims else 1.0
        return math.sqrt(values[0] / values[1])

    def _like(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The labels, [n] as [n, 1], checked to have the logits' shape."""
        shaped = labels.unsqueeze(-1) if labels.dim() == 1 else labels
        self._check_shape(logits, shaped, tuple(logits.shape))
        return shaped

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


def _sums(*values: Tensor | int) -> Tensor:
    return torch.stack([torch.as_tensor(value, dtype=torch.float64).cpu() for value in values])
