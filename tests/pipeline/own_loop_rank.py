"""A rank that runs examples/own_loop.py, and writes the gradients that its optimiser is given.

usage: own_loop_rank.py OUT.json PARTS [ADDRESS ...], with torchrun's environment. The loop breaks
down in the midst of its second epoch, and begins anew from what it has saved.
"""

import json
import sys
from pathlib import Path

import own_loop
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hopper

BREAKS_AT = 7
"""number of the iteration whose gradient the optimiser is not given at first"""


class Broken(Exception):
    """The loop has broken down."""


def main(out: Path, parts: str, servers: list[str]) -> None:
    dist.init_process_group("gloo")
    gradients: list[list[float]] = []
    breaks_at = [BREAKS_AT]

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if len(gradients) in breaks_at:
            breaks_at.clear()
            raise Broken
        parameters = optimizer.param_groups[0]["params"]
        gradients.append(torch.cat([p.grad.flatten() for p in parameters]).tolist())

    hook = register_optimizer_step_pre_hook(note)
    for _ in range(2):
        try:
            with hopper.connect(parts, servers) as graph:
                own_loop.train(graph, out.with_suffix(".pt"), dtype=torch.float64)
        except Broken:
            continue
    hook.remove()
    dist.destroy_process_group()
    out.write_text(json.dumps({"gradients": gradients, "broke": not breaks_at}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
