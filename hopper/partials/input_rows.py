"""Input rows that ranks hand each other as they are: nothing that is trained decides them, so they
travel ahead of their iteration."""

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
    """By type whose input rows travel for the first layer, [n, width]: those that come, of rank 0
    first. Every rank has to call it, in the order of the plans.

    Parameters
    ----------
    channel: what plans are made over.
    plan: in host memory.
    read: from the name of a type and [n] int64 global ids of this rank's nodes to their input rows.
    travels_as: dtype of rows on their way.
    where: names the moment in errors.

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
