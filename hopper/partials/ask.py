"""Asking the owners of rows for them: several arrays for every rank, in one message each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster import Cluster

Words = NDArray[np.int32]


def ask_owners(
    cluster: Cluster, wanted: Sequence[Sequence[Words]], where: str
) -> list[list[Words]]:
    """Tell every rank some arrays, their lengths first; every rank has to call it.

    Parameters
    ----------
    wanted: by rank, as many arrays for each, [n] int32, on every rank.
    where: names the moment in errors.

    Returns
    -------
    By rank, the arrays that it told this one.

    Raises
    ------
    DeadlineExceeded, RankLost: names this rank, the operation and the limit.
    """
    sizes = [np.array([each.size for each in arrays], np.int32) for arrays in wanted]
    headers = cluster.exchange(
        [torch.from_numpy(each[None]) for each in sizes],
        [1] * cluster.world,
        "control",
        f"planning, {where}",
    )
    lengths = [header[0].tolist() for header in headers]
    arrived = cluster.exchange(
        [torch.from_numpy(np.concatenate(arrays)) for arrays in wanted],
        [sum(each) for each in lengths],
        "topology",
        f"telling which rows are needed, {where}",
    )
    return [
        np.split(words.numpy(), np.cumsum(each)[:-1])
        for words, each in zip(arrived, lengths, strict=True)
    ]
