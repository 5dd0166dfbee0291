"""Example logits and labels, on which losses and metrics are tried before a run."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hopper.graph.schema import TargetKind

ROOTS: Final = 7
_PAIRS: Final = 4
"""The number of pairs of a link, itself included."""


def make_examples(kind: TargetKind, classes: int) -> tuple[Tensor, Tensor]:
    """Make logits [7, classes], float64, and labels as losses and metrics take them.

    Labels are [7] int64 for classes, otherwise [7, classes] float64. For links, logits and labels
    are [7, 4], as in :class:`hopper.micrograph.subgraph.Pairs`.
    """
    generator = torch.Generator().manual_seed(0)
    if kind == "link":
        labels = torch.zeros(ROOTS, _PAIRS, dtype=torch.float64)
        labels[:, 0], labels[0, 1] = 1.0, -1.0
        return torch.randn(ROOTS, _PAIRS, dtype=torch.float64, generator=generator), labels
    logits = torch.randn(ROOTS, classes, dtype=torch.float64, generator=generator)
    if kind == "class":
        return logits, torch.randint(0, classes, (ROOTS,), generator=generator)
    values = torch.randn(ROOTS, classes, dtype=torch.float64, generator=generator)
    return logits, (values > 0).double() if kind == "multi_hot" else values
