"""The choice of the device that a rank computes on."""

from __future__ import annotations

import os

import torch

from hopper.errors import ConfigError


def choose_device(
    name: str, local_ranks: int | None = None, *, share_gpus: bool = False
) -> torch.device:
    """Choose this rank's device. Each rank of a machine gets a GPU of its own unless they share.

    Parameters
    ----------
    name: "auto", "cpu" or "cuda"; auto is cuda if there is a GPU for every rank.
    local_ranks: number of ranks on this machine; None = the value in torchrun's environment.
    share_gpus: whether several ranks may use one GPU.

    Raises
    ------
    ConfigError: "cuda" was asked for and there are too few GPUs.
    """
    if local_ranks is None:
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    gpus = torch.cuda.device_count()
    is_enough = gpus >= (1 if share_gpus else local_ranks)
    if name == "cuda" and not is_enough:
        requirement = "a GPU" if share_gpus else f"a GPU for each of the {local_ranks} ranks"
        hint = "; with cluster.share_gpus = true ranks share them" if gpus else ""
        raise ConfigError(
            f"train.device: cuda needs {requirement} on this machine, found {gpus}{hint}"
        )
    if name == "cpu" or not is_enough:
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", 0)) % gpus
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
