"""Run one rank of four on two servers, which calls every collective once; a test starts it.

usage: collectives_rank.py OUT.json, with torchrun's environment.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.errors import DeadlineExceeded

AWAIT_SECONDS = 60


def main(out: Path) -> None:
    cluster = Cluster.join(2, torch.device("cpu"), timeout=2, start_timeout=120)
    rank, results = cluster.rank, call_collectives(cluster)

    # Rank 3 does not come before the others have named it.
    if rank == 3:
        await_ranks(out, range(3))
    else:
        try:
            cluster.arrive("meeting late")
        except DeadlineExceeded as error:
            results["late"] = str(error)
        except Exception as error:
            results["late"] = f"{type(error).__name__}: {error}"
    out.write_text(json.dumps(results))
    # Without torchrun's agent rank 0 holds the store, which the others ask who is missing.
    if rank == 0:
        await_ranks(out, (1, 2))


def call_collectives(cluster: Cluster) -> dict[str, Any]:
    """Call every collective once, as one rank of four; returns what came and what was counted."""
    rank, results = cluster.rank, dict[str, Any]()
    results["server"] = cluster.server
    cluster.traffic.take()

    total = torch.full((1000,), float(rank))
    cluster.all_reduce(total, "gradient", "adding")
    results["sum"] = total.unique().tolist()
    total = torch.full((1000,), float(rank))
    cluster.all_reduce(total, "gradient", "adding", apart=400)
    results["apart"] = [part.unique().tolist() for part in (total[:600], total[600:])]

    results["gathered"] = cluster.all_gather(
        torch.tensor([rank * 10]), "control", "telling"
    ).tolist()

    # Rank r sends r rows to every rank but r + 1, to which it sends none.
    parts = [
        torch.full((0 if to == (rank + 1) % 4 else rank, 2), 10 * rank + to, dtype=torch.int64)
        for to in range(4)
    ]
    counts = [0 if rank == (source + 1) % 4 else source for source in range(4)]
    received = cluster.exchange(parts, counts, "partial", "exchanging")
    results["received"] = [part[:, 0].tolist() for part in received]
    results["bytes"] = cluster.traffic.take()

    # Arrays of sizes that only the sender knows: rank r sends rank t r + t numbers in one group,
    # and t in another.
    groups = [
        [np.full(size, 10 * rank + to, np.int32) for to, size in enumerate(sizes)]
        for sizes in (range(rank, rank + 4), range(4))
    ]
    arrived = exchange_arrays(cluster, groups, "topology", "telling")
    results["arrays"] = [[part.tolist() for part in group] for group in arrived]
    results["array type"] = arrived[0][0].dtype.name
    results["array bytes"] = cluster.traffic.take()
    assert exchange_arrays(cluster, [], "topology", "telling nothing") == []
    results["bytes of nothing"] = cluster.traffic.take()
    return results


def await_ranks(out: Path, ranks: Iterable[int]) -> None:
    """Return once these ranks have written their results beside ``out``, or have had the time."""
    files = [out.with_name(f"rank-{rank}.json") for rank in ranks]
    deadline = time.monotonic() + AWAIT_SECONDS
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # A broken group cannot be left in good order.
    os._exit(0)
