"""A user-defined metric: `train.metric = "macro_f1:MacroF1"`. See docs/howto/plug-ins.md."""

from __future__ import annotations

import torch
from torch import Tensor


class MacroF1:
    """The mean of the F1 scores of all classes. Rare classes count as much as common ones.

    Parameters
    ----------
    classes: number of classes. Classes that neither occur nor are predicted are left out.
    """

    name = "macro_f1"
    label_kinds = ("class",)
    higher_is_better = True

    def __init__(self, *, classes: int) -> None:
        self._classes = classes

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[3 * classes] float64: by class, numbers of correct, labelled and predicted roots."""
        predicted = logits.argmax(-1)
        groups = (predicted[predicted == labels], labels, predicted)
        counts = [torch.bincount(group, minlength=self._classes) for group in groups]
        return torch.cat(counts).double()

    def value(self, sums: Tensor) -> float:
        """The mean of ``2 correct / (labelled + predicted)``; NaN without roots."""
        correct, labelled, predicted = sums.view(3, -1)
        occurs = labelled + predicted > 0
        return float((2 * correct[occurs] / (labelled + predicted)[occurs]).mean())
