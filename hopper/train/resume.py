"""Deciding ``train.resume = "auto"``: whether a run continues from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hopper.cluster import Cluster
from hopper.config import Config, change_config
from hopper.train.checkpoint_files import CheckpointFiles, warn


def will_resume(config: Config, say: Callable[[str], None] = warn) -> bool:
    """Return whether a run continues from a checkpoint.

    With "auto" it does if the run's folder has a checkpoint that passes its checksum.

    Parameters
    ----------
    say: prints a line if there are checkpoints but none passes.
    """
    train = config.train
    if train.resume == "auto":
        return bool(train.run_dir) and CheckpointFiles(train.run_dir).have_whole_model(say)
    return train.resume


def settle_resume(config: Config, cluster: Cluster) -> Config:
    """Replace "auto" by true or false; every rank must call it.

    Rank 0 decides for all ranks, because it writes the checkpoints.
    """
    if config.train.resume != "auto":
        return config
    mine = torch.tensor([int(will_resume(config, warn if cluster.rank == 0 else lambda _: None))])
    by_rank = cluster.all_gather(mine, "control", "agreeing on where to go on")
    return change_config(config, train={"resume": bool(by_rank[0])})
