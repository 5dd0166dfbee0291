"""A rank that writes embeddings: embedding_rank.py OUT.json PARTS FOLDER BREAKS_AT [ADDRESS ...]"""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.nn import SAGEConv

import hopper
from hopper.pyg import write_embeddings


class Broken(Exception):
    """The call is broken off."""


def make_layers() -> list[SAGEConv]:
    torch.manual_seed(7)
    return [SAGEConv(10, 8), SAGEConv(8, 6)]


def main(out: Path, parts: str, folder: str, breaks_at: int, servers: list[str]) -> None:
    dist.init_process_group("gloo")
    first, second = make_layers()
    calls = 0

    def layer_of(conv: SAGEConv) -> Any:
        def layer(batch: Any, _: str) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == breaks_at:
                raise Broken
            return conv(batch.x, batch.edge_index).relu()[: batch.batch_size]

        return layer

    with hopper.connect(parts, servers) as graph, suppress(Broken):
        write_embeddings(graph, [layer_of(first), layer_of(second)], folder, batch_size=4)
    dist.destroy_process_group()
    out.write_text(json.dumps(calls))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
