"""Whether a run goes on from a checkpoint, where ``train.resume`` leaves that to what is there."""

from __future__ import annotations

from pathlib import Path

import torch

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.train.checkpoint import CHECKPOINT_FILE


def will_resume(config: Config) -> bool:
    """Whether a run of this configuration goes on from a checkpoint: as ``train.resume`` says, or
    with "auto" if the run's folder has one."""
    train = config.train
    if train.resume == "auto":
        return bool(train.run_dir) and (Path(train.run_dir) / CHECKPOINT_FILE).is_file()
    return train.resume


def settle_resume(config: Config, cluster: Cluster) -> Config:
    """The configuration with yes or no instead of "auto"; every rank calls it.

    What rank 0 finds decides for all ranks: checkpoints are written by it.
    """
    if config.train.resume != "auto":
        return config
    own = torch.tensor([int(will_resume(config))])
    everyone = cluster.all_gather(own, "control", "agreeing on where to go on")
    values = config.model_dump()
    values["train"]["resume"] = bool(everyone[0])
    return Config.model_validate(values)
