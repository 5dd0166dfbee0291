"""Rows that travel, gradients that come back: three ranks, one of them without any row."""

from typing import Any

import torch
from torch import Tensor

from hopper.cluster.cluster import Cluster, Exchange
from hopper.migrate.migration import broadcast
from hopper.partials import RowExchange
from hopper.rehearsal.world import run_ranks
from hopper.timing.run_log import RunLog

# Rows of every rank, and lengths[sender][receiver]; rank 2 owns none and gets none.
ROW_COUNTS = (3, 2, 0)
LENGTHS = ((0, 4, 0), (1, 0, 0), (0, 0, 0))
ROW = 2 * 4


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


def record_exchanges(cluster: Any, events: list[str]) -> None:
    """Record when exchanges begin, and when they have been waited for."""
    start = cluster.start_exchange

    def record_start(*arguments: Any) -> Exchange:
        events.append("start")
        exchange: Any = start(*arguments)
        finish = exchange.finish

        def record_finish() -> Tensor:
            rows: Tensor = finish()
            events.append("finish")
            return rows

        exchange.finish = record_finish
        return exchange  # type: ignore[no-any-return]

    cluster.start_exchange = record_start


def exchange_rows(cluster: Cluster) -> dict[str, Any]:
    """Exchange rows and constants, and copy a tensor; return what a rank saw of it."""
    rank, log, events = cluster.rank, RunLog(None), list[str]()
    rows = (100.0 * rank + torch.arange(ROW_COUNTS[rank] * 2.0)).reshape(-1, 2).requires_grad_()
    # Rows go out in turn, so the first of rank 0 goes out twice.
    picked = torch.arange(sum(LENGTHS[rank])) % max(1, ROW_COUNTS[rank])
    routes = LENGTHS[rank], [LENGTHS[sender][rank] for sender in range(3)]
    cluster.traffic.take()
    record_exchanges(cluster, events)
    exchange = RowExchange(cluster, log, rows.index_select(0, picked), *routes, "exchanging rows")
    own = OwnWork.apply(rows.detach().requires_grad_(), events)
    received = exchange.finish()
    # The gradient of a received row is ten times the receiver plus one.
    ((received * (10 * rank + 1)).sum() + own.sum()).backward()
    seen = {
        "received": received.tolist(),
        "gradient": [] if rows.grad is None else rows.grad.tolist(),
        "bytes": cluster.traffic.take()["partial"],
        "sync": log.take_stage_seconds()["sync"],
        "events": [*events],
    }
    sent = rows.detach().index_select(0, picked)
    constant = RowExchange(cluster, log, sent, *routes, "constants").finish()
    seen["constant"] = bool(constant.requires_grad), cluster.traffic.take()["partial"]
    tensor = torch.tensor([-0.0, 1.5]) if rank == 1 else torch.full((2,), torch.nan)
    broadcast(cluster, tensor, 1, "copying a tensor")
    seen["broadcast"] = [str(value) for value in tensor.tolist()], cluster.traffic.take()["model"]
    return seen


def test_rows_travel_and_their_gradients_come_back():
    ranks = run_ranks(3, 1, exchange_rows, timeout=60)
    # In order of rank, and the gradients of all copies.
    assert ranks[0]["received"] == [[100, 101]]
    assert ranks[1]["received"] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert ranks[0]["gradient"] == [[22, 22], [11, 11], [11, 11]]
    assert ranks[1]["gradient"] == [[1, 1], [0, 0]]
    assert ranks[2]["received"] == ranks[2]["gradient"] == []
    # Both ways are counted where they are sent, and constants cross one way.
    assert [rank["bytes"] for rank in ranks] == [(4 + 1) * ROW, (1 + 4) * ROW, 0]
    assert all(rank["sync"] > 0 for rank in ranks)
    assert [rank["constant"] for rank in ranks] == [(False, 4 * ROW), (False, ROW), (False, 0)]
    # Own work is done while rows travel, and while their gradients do.
    events = ["start", "own work", "finish", "start", "own gradient", "finish"]
    assert [rank["events"] for rank in ranks] == [events] * 3
    # A tensor is copied as it is, and sent once to each other rank.
    copies, sizes = zip(*(rank["broadcast"] for rank in ranks), strict=True)
    assert copies == (["-0.0", "1.5"],) * 3
    assert sum(sizes) == 2 * ROW
