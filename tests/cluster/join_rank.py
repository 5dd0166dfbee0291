"""Join the other ranks and add up a number, or write why not; a test starts it.

usage: join_rank.py OUT START_TIMEOUT, with torchrun's environment.
"""

import os
import sys
from pathlib import Path

import torch

from hopper.cluster.cluster import Cluster
from hopper.errors import HopperError


def main(out: Path, start_timeout: float) -> None:
    try:
        cluster = Cluster.join(1, torch.device("cpu"), 60, start_timeout)
        number = torch.ones(1)
        cluster.all_reduce(number, "control", "adding")
        out.write_text(f"added up {number.item():g}")
    except HopperError as error:
        out.write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
    os._exit(0)
