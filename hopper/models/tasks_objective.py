"""The objective of several tasks: a weighted sum of their losses, and the metrics of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hopper.models.objective import Objective
from hopper.ops import in_full


@dataclass(frozen=True)
class TaskPart:
    """One of several tasks."""

    name: str
    """the name of the task"""
    objective: Objective
    """the loss and the metrics of the task alone"""
    logits: slice
    columns: slice
    """the task's range among all logits, and among the columns of labels"""
    weight: float
    """the factor of its loss"""


class TasksObjective(Objective):
    """The loss and the metrics where each root has labels of several tasks, which are the parts.

    The loss of a root is the weighted sum of its tasks' losses. A task without a label for the root
    adds nothing. Names of metrics begin with the task's name, such as "topic.accuracy". The first
    metric of the first task selects the best model.
    """

    def __init__(self, parts: Sequence[TaskPart]) -> None:
        self.kind = "tasks"
        self._parts = parts
        self._lengths: list[int] = []
        """the number of sums of each task"""

    @property
    def metric(self) -> str:
        """The name of the metric that selects the best model, with its task's name."""
        return f"{self._parts[0].name}.{self._parts[0].objective.metric}"

    @property
    def higher_is_better(self) -> bool:
        """Return whether larger values of :attr:`metric` are better."""
        return self._parts[0].objective.higher_is_better

    @property
    def needs_all_roots(self) -> bool:
        """Return whether any task has a metric that is computed from all roots at once."""
        return any(part.objective.needs_all_roots for part in self._parts)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted sum of all tasks' losses over the roots, from logits [n, classes] of
        all tasks and labels [n, columns] float32."""
        logits = in_full(logits)
        losses = [
            part.objective.loss_sum(*_select_labels(part, logits, labels)) * part.weight
            for part in self._parts
        ]
        return sum(losses[1:], losses[0])

    @torch.no_grad()
    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Concatenate the sums of all tasks' metrics."""
        sums = [
            part.objective.metric_sums(*_select_labels(part, logits, labels))
            for part in self._parts
        ]
        self._lengths = [task_sums.numel() for task_sums in sums]
        return torch.cat(sums)

    @torch.no_grad()
    def scores(
        self, sums: Tensor, all_roots: tuple[Tensor, Tensor] | None = None
    ) -> dict[str, float]:
        """Return every task's metrics by name, those of the first task first."""
        scores = {}
        for part, task_sums in zip(self._parts, sums.split(self._lengths), strict=True):
            roots = None
            if all_roots is not None and part.objective.needs_all_roots:
                roots = _select_labels(part, *all_roots)
            for name, value in part.objective.scores(task_sums, roots).items():
                scores[f"{part.name}.{name}"] = value
        return scores

    def label_sums(self, labels: Tensor, classes: int) -> Tensor:
        """Concatenate the sums of all tasks' labels."""
        sums = []
        for part in self._parts:
            width = part.logits.stop - part.logits.start
            _, task_labels = _select_labels(part, labels.new_zeros(len(labels), classes), labels)
            sums.append(part.objective.label_sums(task_labels, width))
        return torch.cat(sums)

    def one_answer(self, sums: Tensor, classes: int) -> Tensor:
        """Concatenate the best constant predictions of all tasks."""
        widths = [part.logits.stop - part.logits.start for part in self._parts]
        by_task = sums.split([width + 1 for width in widths])
        parts = zip(self._parts, by_task, widths, strict=True)
        return torch.cat(
            [part.objective.one_answer(task_sums, width) for part, task_sums, width in parts]
        )


def _select_labels(part: TaskPart, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return a task's logits and labels, for the roots that have a label of it."""
    logits, labels = logits[:, part.logits], labels[:, part.columns]
    if part.objective.kind == "float":
        has_label = labels.isfinite().all(1)
        return logits[has_label], labels[has_label]
    labels = labels.long()
    return logits, labels[:, 0] if part.objective.kind == "class" else labels
