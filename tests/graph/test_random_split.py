"""Random splits: sizes per class, reproducible, disjoint, and what cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest

from hopper.errors import RequestError
from hopper.graph import Labels
from hopper.graph.importers import RandomSplit
from hopper.graph.importers.random_split import draw_split

VALUES = np.array(([0, 1, 2, -1] * 25), np.int64)
CLASSES = Labels("class", 3)


def test_nodes_per_class() -> None:
    split = draw_split(RandomSplit.parse("random:5:8"), CLASSES, VALUES, seed=3)
    assert {name: np.bincount(VALUES[ids]).tolist() for name, ids in split.items()} == {
        "train": [5, 5, 5],
        "val": [8, 8, 8],
        "test": [12, 12, 12],
    }
    all_ids = np.concatenate(list(split.values()))
    assert sorted(all_ids) == np.flatnonzero(VALUES >= 0).tolist()
    for ids in split.values():
        assert (np.diff(ids) > 0).all()


def test_the_seed_decides() -> None:
    first, repeated, other_seed = (
        draw_split(RandomSplit(5, 8), CLASSES, VALUES, seed)["train"].tolist() for seed in (1, 1, 2)
    )
    assert first == repeated != other_seed
    # Written down once: a change of the draw would change published splits.
    assert first == [0, 1, 6, 12, 16, 22, 24, 28, 29, 45, 50, 70, 74, 85, 97]


def test_fractions_of_the_labelled_nodes() -> None:
    table = np.array([[0.5], [np.nan], [1], [2], [3]] * 4, np.float32)
    split = draw_split(RandomSplit.parse("random:0.5:0.25"), Labels("float", 1), table, 0)
    assert {name: ids.size for name, ids in split.items()} == {"train": 8, "val": 4, "test": 4}
    assert not np.isnan(table[np.concatenate(list(split.values()))]).any()


@pytest.mark.parametrize(
    "text", ["random", "random:20", "random:a:b", "random:0.9:0.2", "random:0.5:20", "x:1:2"]
)
def test_unreadable_requests(text: str) -> None:
    with pytest.raises(RequestError, match=f"--split: expected random:TRAIN:VAL, .* '{text}'"):
        RandomSplit.parse(text)


def test_classes_too_small_and_labels_of_another_kind() -> None:
    with pytest.raises(RequestError, match=r"class 0: expected at least 20 \+ 30 nodes, given 25"):
        draw_split(RandomSplit(20, 30), CLASSES, VALUES, 0)
    with pytest.raises(RequestError, match="nodes per class need class labels, given multi_hot"):
        draw_split(RandomSplit(1, 1), Labels("multi_hot", 2), np.zeros((4, 2), np.uint8), 0)
