"""A metric of one's own: `train.metric = "macro_f1:MacroF1"`. See docs/plug-ins.md."""

from __future__ import annotations

import torch
from torch import Tensor


class MacroF1:
    """The mean of every class's F1; rare classes count as much as common ones.

    Parameters
    ----------
    classes: number of classes. Those that neither occur nor are predicted are left out.
    """

    name = "macro_f1"
    label_kinds = ("class",)
    higher_is_better = True

    def __init__(self, *, classes: int) -> None:
        self._classes = classes

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[3 * classes] float64: by class, roots that are hit, that have it, that are given it."""
        given = logits.argmax(-1)
        counted = (given[given == labels], labels, given)
        return torch.cat(
            [torch.bincount(each, minlength=self._classes) for each in counted]
        ).double()

    def value(self, sums: Tensor) -> float:
        """The mean of ``2 hit / (have + given)``; NaN without roots."""
        hit, have, given = sums.view(3, -1)
        met = have + given > 0
        return float((2 * hit[met] / (have + given)[met]).mean())
