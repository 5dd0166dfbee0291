"""Exchange between all ranks of arrays whose sizes only the sender knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Cause


def exchange_arrays(
    cluster: Cluster, groups: Sequence[Sequence[NDArray[Any]]], cause: Cause, operation: str
) -> list[list[NDArray[Any]]]:
    """Send arrays from every rank to every other; every rank must call it.

    One message carries the sizes of all arrays and a second one their content, for any number of
    groups. Without groups there is no message.

    Parameters
    ----------
    groups: an equal number on every rank. Each group has one array, [n], for every receiving rank.
        All arrays of all ranks have the same dtype. They may be empty; n is below 2^31.
    cause: the cause under which the arrays are counted. Their sizes count as "control".
    operation: names the exchange in errors.

    Returns
    -------
    For each group, by sending rank, the array that came from it.

    Raises
    ------
    DeadlineExceeded, RankLost: names this rank, the operation and the limit.
    """
    if not groups:
        return []
    arrays = [group[rank] for rank in range(cluster.world) for group in groups]
    counts = torch.tensor([array.size for array in arrays], dtype=torch.int32)
    sizes = counts.view(cluster.world, len(groups))
    arriving = torch.cat(
        cluster.exchange(sizes.split(1), [1] * cluster.world, "control", operation)
    )
    received = cluster.start_exchange(
        torch.from_numpy(np.concatenate(arrays)),
        sizes.sum(1).tolist(),
        arriving.sum(1).tolist(),
        cause,
        operation,
    ).finish()
    parts = received.split(arriving.flatten().tolist())
    return [[part.numpy() for part in parts[group :: len(groups)]] for group in range(len(groups))]
