"""Updates that are left out, as a loss or a gradient is not finite (docs/howto/divergence.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hopper.cluster import Cluster
from hopper.migrate.flat_model import FlatModel


def leave_out(
    cluster: Cluster, packed: FlatModel, loss: float, own_is_finite: bool, where: str
) -> str:
    """Find on which ranks something was not finite, and lower the loss scale.

    Every rank must call it, if the sums over ranks are not finite.

    Parameters
    ----------
    loss: the loss, summed over ranks.
    own_is_finite: whether this rank's part of all sums is finite.
    where: the moment.

    Returns
    -------
    What was not finite, where and when; "" if a lower loss scale may help. It is the same on every
    rank.
    """
    finite = torch.tensor([int(packed.own_loss.isfinite()), int(own_is_finite)])
    by_rank = cluster.all_gather(finite, "control", f"finding what is not finite, {where}")
    losses, gradients = ((by_rank[:, column] == 0).nonzero()[:, 0].tolist() for column in (0, 1))
    return explain(packed, loss, losses or gradients, where)


def explain(packed: FlatModel, loss: float, ranks: Sequence[int], where: str) -> str:
    """Lower the loss scale of a model, and return the text of :func:`leave_out`.

    Parameters
    ----------
    ranks: the ranks on which something was not finite, as far as they are known.
    """
    may_help = math.isfinite(loss) and packed.scale.factor > 1.0
    packed.scale.update(is_finite=False)
    if may_help:
        return ""
    what = f"the loss is {loss}"
    if math.isfinite(loss):
        what = f"the loss is {loss:.6g}, and its gradient is not finite"
    names = ", ".join(map(str, ranks))
    on = f" on rank{'s' if len(ranks) > 1 else ''} {names}" if ranks else ""
    return f"{what}{on} ({where})"
