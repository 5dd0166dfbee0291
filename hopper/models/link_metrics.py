"""Metrics of links, from the rank of each among the nodes that could stand in its end's place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import torch
from torch import Tensor

from hopper.graph.schema import TargetKind
from hopper.models.metrics import AnyMetric


class _OfRanks:
    """The mean of a function of ranks [n, 1], 1 being the best; among equal scores a link has the
    mean of their ranks."""

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)
    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        pass

    def of_ranks(self, ranks: Tensor) -> Tensor:
        """[n] float64: what is averaged, of ranks [n]."""
        raise NotImplementedError(f"{type(self).__name__} defines no of_ranks()")

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :class:`hopper.models.metrics.Metric`; ``logits`` are ranks."""
        found = self.of_ranks(logits[:, 0].double())
        return torch.stack([found.sum(), torch.tensor(float(len(found)), dtype=torch.float64)])

    def value(self, sums: Tensor) -> float:
        """See :class:`hopper.models.metrics.Metric`."""
        total, count = sums.tolist()
        return total / count if count else math.nan


class MeanReciprocalRank(_OfRanks):
    """The mean of one over the rank."""

    name: ClassVar[str] = "mrr"

    def of_ranks(self, ranks: Tensor) -> Tensor:
        """See :class:`_OfRanks`."""
        return 1.0 / ranks


class HitsAt1(_OfRanks):
    """The share of links that no node would rank before."""

    name: ClassVar[str] = "hits@1"
    most: ClassVar[int] = 1

    def of_ranks(self, ranks: Tensor) -> Tensor:
        """See :class:`_OfRanks`."""
        return (ranks <= self.most).double()


class HitsAt3(HitsAt1):
    """The share of links among the first three."""

    name: ClassVar[str] = "hits@3"
    most: ClassVar[int] = 3


class HitsAt10(HitsAt1):
    """The share of links among the first ten."""

    name: ClassVar[str] = "hits@10"
    most: ClassVar[int] = 10


LINK_METRICS: Final[Mapping[str, Callable[..., AnyMetric]]] = {
    each.name: each for each in (MeanReciprocalRank, HitsAt1, HitsAt3, HitsAt10)
}
