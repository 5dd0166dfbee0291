"""Made-up logits and labels, on which losses and metrics are tried before a run."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hopper.graph.schema import LabelKind

ROOTS: Final = 7


def make_examples(kind: LabelKind, classes: int) -> tuple[Tensor, Tensor]:
    """[7, classes] float64 logits, and labels as losses and metrics are given them: [7] int64
    classes, or [7, classes] float64."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROOTS, classes, dtype=torch.float64, generator=generator)
    if kind == "class":
        return logits, torch.randint(0, classes, (ROOTS,), generator=generator)
    values = torch.randn(ROOTS, classes, dtype=torch.float64, generator=generator)
    return logits, (values > 0).double() if kind == "multi_hot" else values
