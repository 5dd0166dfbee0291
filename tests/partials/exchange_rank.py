"""One rank of three that exchange rows and copy a tensor to each other; not a test by itself.

usage: exchange_rank.py OUT.json, with torchrun's environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopper.cluster.cluster import Cluster, Exchange
from hopper.migrate.migration import broadcast
from hopper.partials import RowExchange
from hopper.timing.run_log import RunLog

# Rows of every rank, and lengths[sender][receiver]; rank 2 owns none and gets none.
ROW_COUNTS = (3, 2, 0)
LENGTHS = ((0, 4, 0), (1, 0, 0), (0, 0, 0))


class OwnWork(torch.autograd.Function):
    """Double rows while others travel, and record when."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, events: list[str]) -> Tensor:
        ctx.events = events
        events.append("own work")
        return rows * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.events.append("own gradient")
        return gradient * 2, None


@contextmanager
def record_exchanges(cluster: Cluster, events: list[str]) -> Iterator[None]:
    """Record when exchanges begin, and when they have been waited for."""
    start, finish = cluster.start_exchange, Exchange.finish

    def record_start(*arguments: Any) -> Exchange:
        events.append("start")
        return start(*arguments)

    def record_finish(exchange: Exchange) -> Tensor:
        rows = finish(exchange)
        events.append("finish")
        return rows

    cluster.start_exchange, Exchange.finish = record_start, record_finish  # type: ignore
    try:
        yield
    finally:
        cluster.start_exchange, Exchange.finish = start, finish  # type: ignore


def events_of_own_work(cluster: Cluster, rows: Tensor, *routes: Any) -> list[str]:
    """Return the events, in order, of a rank that has work while rows travel."""
    events: list[str] = []
    picked, lengths, counts = routes
    rows = rows.detach().requires_grad_()
    with record_exchanges(cluster, events):
        sent_rows = rows.index_select(0, picked)
        exchange = RowExchange(cluster, RunLog(None), sent_rows, lengths, counts, "exchanging rows")
        doubled = OwnWork.apply(rows, events)
        (doubled.sum() + exchange.finish().sum()).backward()
    return events


def main(out: Path) -> None:
    cluster = Cluster.join(1, torch.device("cpu"), timeout=20, start_timeout=120)
    rank = cluster.rank
    cluster.traffic.take()
    rows = (100.0 * rank + torch.arange(ROW_COUNTS[rank] * 2.0)).reshape(-1, 2).requires_grad_()
    lengths = LENGTHS[rank]
    # Rows go out in turn, so the first of rank 0 goes out twice.
    picked = torch.arange(sum(lengths)) % max(1, ROW_COUNTS[rank])
    counts = [LENGTHS[sender][rank] for sender in range(3)]
    log = RunLog(None)
    exchange = RowExchange(
        cluster, log, rows.index_select(0, picked), lengths, counts, "exchanging rows"
    )
    received = exchange.finish()
    # The gradient of a received row is ten times the receiver plus one.
    (received * (10 * rank + 1)).sum().backward()
    results = {
        "received": received.tolist(),
        "gradient": [] if rows.grad is None else rows.grad.tolist(),
        "bytes": cluster.traffic.take()["partial"],
        "sync": log.take_stage_seconds()["sync"],
    }
    constant = RowExchange(
        cluster, log, rows.detach().index_select(0, picked), lengths, counts, "constants"
    ).finish()
    results["constant"] = bool(constant.requires_grad)
    results["constant bytes"] = cluster.traffic.take()["partial"]
    results["events"] = events_of_own_work(cluster, rows, picked, lengths, counts)
    tensor = torch.tensor([-0.0, 1.5]) if rank == 1 else torch.full((2,), torch.nan)
    broadcast(cluster, tensor, 1, "copying a tensor")
    results["broadcast"] = [str(value) for value in tensor.tolist()]
    results["broadcast bytes"] = cluster.traffic.take()["model"]
    cluster.leave()
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
