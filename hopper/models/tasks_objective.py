"""Several tasks of one model: a weighted sum of their losses, and the metrics of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hopper.models.objective import Objective
from hopper.ops import in_full


@dataclass(frozen=True)
class TaskPart:
    """One of several tasks.

    Attributes
    ----------
    objective: what it is trained on and scored by alone.
    logits, columns: which of all logits, and of the columns of labels, are its own.
    weight: times its loss.
    """

    name: str
    objective: Objective
    logits: slice
    columns: slice
    weight: float


class TasksObjective(Objective):
    """What is minimised and what is reported where each root has labels of several tasks.

    The loss of a root is the sum of those of its tasks, each times the task's weight; a task that a
    root has no label of adds nothing. So it is a sum over roots, as any loss is. Metrics are called
    by task: "topic.accuracy".

    Parameters
    ----------
    parts: one for each task; the first one's first metric selects the best model.
    """

    def __init__(self, parts: Sequence[TaskPart]) -> None:
        self.kind = "tasks"
        self._parts = parts
        self._lengths: list[int] = []
        """of the sums of each task"""

    @property
    def metric(self) -> str:
        """See :class:`Objective`."""
        return f"{self._parts[0].name}.{self._parts[0].objective.metric}"

    @property
    def higher_is_better(self) -> bool:
        """See :class:`Objective`."""
        return self._parts[0].objective.higher_is_better

    @property
    def needs_all_roots(self) -> bool:
        """See :class:`Objective`."""
        return any(each.objective.needs_all_roots for each in self._parts)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Objective`.

        Parameters
        ----------
        labels: [n, columns] float32.
        """
        logits = in_full(logits)
        found = [
            each.objective.loss_sum(*_own(each, logits, labels)) * each.weight
            for each in self._parts
        ]
        return sum(found[1:], found[0])

    @torch.no_grad()
    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Objective`."""
        found = [each.objective.metric_sums(*_own(each, logits, labels)) for each in self._parts]
        self._lengths = [each.numel() for each in found]
        return torch.cat(found)

    @torch.no_grad()
    def scores(
        self, sums: Tensor, all_roots: tuple[Tensor, Tensor] | None = None
    ) -> dict[str, float]:
        """See :class:`Objective`."""
        found = {}
        for each, own in zip(self._parts, sums.split(self._lengths), strict=True):
            roots = None
            if all_roots is not None and each.objective.needs_all_roots:
                roots = _own(each, *all_roots)
            for name, value in each.objective.scores(own, roots).items():
                found[f"{each.name}.{name}"] = value
        return found

    def label_sums(self, labels: Tensor, classes: int) -> Tensor:
        """See :class:`Objective`: those of the tasks, one behind the other."""
        found = []
        for each in self._parts:
            width = each.logits.stop - each.logits.start
            _, own = _own(each, labels.new_zeros(len(labels), classes), labels)
            found.append(each.objective.label_sums(own, width))
        return torch.cat(found)

    def one_answer(self, sums: Tensor, classes: int) -> Tensor:
        """See :class:`Objective`."""
        widths = [each.logits.stop - each.logits.start for each in self._parts]
        parts = zip(self._parts, sums.split([width + 1 for width in widths]), widths, strict=True)
        return torch.cat([each.objective.one_answer(own, width) for each, own, width in parts])


def _own(part: TaskPart, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A task's logits and labels, of the roots that have a label of it."""
    logits, labels = logits[:, part.logits], labels[:, part.columns]
    if part.objective.kind == "float":
        has_label = labels.isfinite().all(1)
        return logits[has_label], labels[has_label]
    labels = labels.long()
    return logits, labels[:, 0] if part.objective.kind == "class" else labels
