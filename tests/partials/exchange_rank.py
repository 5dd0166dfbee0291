"""One rank of three that exchange rows and get their gradients back; not a test by itself.

usage: exchange_rank.py OUT.json, with torchrun's environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hopper.cluster import Cluster
from hopper.partials import RowExchange
from hopper.run_log import RunLog

# Rows of every rank, and lengths[sender][receiver]; rank 2 owns none and gets none.
OWN = (3, 2, 0)
LENGTHS = ((0, 4, 0), (1, 0, 0), (0, 0, 0))


def main(out: Path) -> None:
    cluster = Cluster.join(1, torch.device("cpu"), timeout=20, start_timeout=120)
    rank = cluster.rank
    cluster.traffic.take()
    own = (100.0 * rank + torch.arange(OWN[rank] * 2.0)).reshape(-1, 2).requires_grad_()
    lengths = LENGTHS[rank]
    # Rows go out in turn, so the first of rank 0 goes out twice.
    picked = torch.arange(sum(lengths)) % max(1, OWN[rank])
    counts = [LENGTHS[sender][rank] for sender in range(3)]
    log = RunLog(None)
    exchange = RowExchange(
        cluster, log, own.index_select(0, picked), lengths, counts, "exchanging rows"
    )
    received = exchange.finish()
    # The gradient of a received row is ten times the receiver plus one.
    (received * (10 * rank + 1)).sum().backward()
    found = {
        "received": received.tolist(),
        "gradient": [] if own.grad is None else own.grad.tolist(),
        "bytes": cluster.traffic.take()["partial"],
        "sync": log.take_stage_seconds()["sync"],
    }
    constant = RowExchange(
        cluster, log, own.detach().index_select(0, picked), lengths, counts, "constants"
    ).finish()
    found["constant"] = bool(constant.requires_grad)
    found["constant bytes"] = cluster.traffic.take()["partial"]
    cluster.leave()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
