"""Scores class by class, from counts that ranks add up.

Each root has one label here. Precision, recall and F1 are those of scikit-learn's
``precision_recall_fscore_support``; where it divides by 0, there is no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

MOST_CLASSES: Final = 1000
"""with more classes nothing is told class by class"""


def count_claims(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Count hits, false claims and misses of each class; the largest logit claims a class.

    Logits are [n, classes], labels [n] int64, all in [0, classes). The result is [3, classes]
    int64: roots of a class that were claimed to be of it, roots that were wrongly claimed to be of
    it, and roots of it that were claimed to be of another.
    """
    claims = logits.argmax(-1)
    right = claims == labels
    counts = [
        torch.bincount(members, minlength=classes)
        for members in (labels[right], claims[~right], labels[~right])
    ]
    return torch.stack(counts)


def class_scores(counts: Tensor, names: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Return the scores of every class, as columns, from [3, classes] of :func:`count_claims`,
    added up over all roots.

    The columns are "class", by name or else by number, "precision", "recall", "f1" and "support",
    the number of the class's roots. A score is None where nothing tells it: the precision of a
    class that was never claimed, the recall of one that no root has.
    """
    hits, wrong, missed = ([int(count) for count in row] for row in counts.tolist())
    rows = list(zip(hits, wrong, missed, strict=True))
    return {
        "class": list(names) or [str(number) for number in range(len(hits))],
        "precision": [_share(hit, hit + false) for hit, false, _ in rows],
        "recall": [_share(hit, hit + miss) for hit, _, miss in rows],
        "f1": [_share(2 * hit, 2 * hit + false + miss) for hit, false, miss in rows],
        "support": [hit + miss for hit, _, miss in rows],
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
