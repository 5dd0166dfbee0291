"""Whether a run goes on from a checkpoint, where ``train.resume`` leaves that to what is there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.train.checkpoint_files import CheckpointFiles, warn


def will_resume(config: Config, say: Callable[[str], None] = warn) -> bool:
    """Whether a run of this configuration goes on from a checkpoint: as ``train.resume`` says, or
    with "auto" if the run's folder has a whole one.

    Parameters
    ----------
    say: told if there are some, and none is whole.
    """
    train = config.train
    if train.resume == "auto":
        return bool(train.run_dir) and CheckpointFiles(train.run_dir).have_whole_model(say)
    return train.resume


def settle_resume(config: Config, cluster: Cluster) -> Config:
    """The configuration with yes or no instead of "auto"; every rank calls it.

    What rank 0 finds decides for all ranks: checkpoints are written by it.
    """
    if config.train.resume != "auto":
        return config
    own = torch.tensor([int(will_resume(config, warn if cluster.rank == 0 else lambda _: None))])
    everyone = cluster.all_gather(own, "control", "agreeing on where to go on")
    values = config.model_dump()
    values["train"]["resume"] = bool(everyone[0])
    return Config.model_validate(values)
