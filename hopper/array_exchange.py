"""Arrays whose sizes only the sender knows, from every rank to every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster import Cluster
from hopper.traffic import Cause


def exchange_arrays(
    cluster: Cluster, groups: Sequence[Sequence[NDArray[Any]]], cause: Cause, operation: str
) -> list[list[NDArray[Any]]]:
    """Tell all ranks the sizes of what comes, then send it; every rank has to call it.

    There are two messages, however many groups there are. Without a group there is none.

    Parameters
    ----------
    groups: equally many on every rank. Each has, by receiving rank, an array [n] of the one dtype
        that all arrays have on all ranks, with n below 2^31. Arrays may be empty.
    cause: what the arrays are counted under. Their sizes are counted under "control".
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
    told = cluster.exchange(sizes.split(1), [1] * cluster.world, "control", operation)
    arriving = torch.cat(told)
    received = cluster.start_exchange(
        torch.from_numpy(np.concatenate(arrays)),
        sizes.sum(1).tolist(),
        arriving.sum(1).tolist(),
        cause,
        operation,
    ).finish()
    parts = received.split(arriving.flatten().tolist())
    return [[part.numpy() for part in parts[group :: len(groups)]] for group in range(len(groups))]
