"""Exchange of input rows between ranks.

No parameter changes these rows, so they can travel ahead of their iteration.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hopper.cluster import Cluster
from hopper.partials.exchange import KindsExchange
from hopper.partials.frontiers import Ids
from hopper.partials.plan import IterationPlan
from hopper.run_log import RunLog


@torch.no_grad()
def exchange_input_rows(
    channel: Cluster,
    plan: IterationPlan,
    read: Callable[[str, Ids], Tensor],
    travels_as: torch.dtype,
    where: str,
) -> dict[str, Tensor]:
    """Exchange the input rows that the first layer reads of other ranks.

    Every rank must call it, in the order of the plans.

    Parameters
    ----------
    channel: the cluster over which plans are made.
    plan: a plan in host memory.
    read: maps the name of a type and [n] int64 global ids of this rank's nodes to input rows.
    travels_as: dtype of rows on the network.
    where: names the epoch and iteration in errors.

    Returns
    -------
    By type whose input rows travel, [n, width]: the received rows, those of rank 0 first.

    Raises
    ------
    DeadlineExceeded, RankLost: names this rank, the operation and the limit.
    """
    first = plan.layers[0]
    if channel.world == 1 or not first.raw:
        return {}
    names = sorted(first.raw)
    exchange = KindsExchange(
        *(channel, RunLog(None)),
        {name: read(name, plan.nodes[name][first.outgoing[name].rows.numpy()]) for name in names},
        [first.outgoing[name].lengths for name in names],
        [first.counts[name] for name in names],
        travels_as,
        f"exchanging input rows, {where}",
    )
    return {name: torch.cat(parts) for name, parts in exchange.finish().items()}
