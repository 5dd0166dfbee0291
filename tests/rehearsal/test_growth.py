"""Estimates for other numbers of servers than those that were rehearsed."""

from __future__ import annotations

import pytest

from hopper.rehearsal.estimate import Estimate
from hopper.rehearsal.growth import grow
from hopper.rehearsal.link import Link, MessageCost
from hopper.traffic import CAUSES, Cause

ROOTS, BATCH = 1 << 20, 64
FREE = MessageCost(0.0, 0.0)
LINK = Link(8 * 10**9, 0.0, 2, FREE, FREE)
PARAMETERS, STEP, ROOT = 4000, 1e-3, 2e-5


def make_estimate(servers: int) -> Estimate:
    """An estimate of an engine whose models visit all ranks. A root reads 500 bytes of rows, which
    may lie on any server."""
    ranks = 2 * servers
    iterations = ROOTS // (BATCH * ranks)
    sent_bytes: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
    sent_bytes["feature"] = round(500 * BATCH * ranks * (1 - 1 / servers))
    sent_bytes["gradient"] = 2 * (servers - 1) * PARAMETERS
    sent_bytes["model"] = ranks * servers * PARAMETERS
    seconds = ROOT * BATCH + STEP * ranks + sum(sent_bytes.values()) / servers / 10**9
    return Estimate(
        *("around", True),
        iterations=iterations,
        iteration_seconds=seconds,
        epoch_seconds=seconds * iterations,
        iteration_bytes=sent_bytes,
        bytes={cause: nbytes * iterations for cause, nbytes in sent_bytes.items()},
    )


def test_two_rehearsed_numbers_of_servers_give_bytes_and_seconds_of_others() -> None:
    growth = grow({servers: make_estimate(servers) for servers in (2, 4)}, ROOTS, BATCH, LINK)
    assert [point.servers for point in growth.points if point.rehearsed] == [2, 4]
    for point in growth.points:
        expected = make_estimate(point.servers)
        assert point.bytes == pytest.approx(expected.total_bytes, rel=1e-3)
        assert point.epoch_seconds == pytest.approx(expected.epoch_seconds, rel=1e-3)


def test_one_rehearsed_number_gives_bytes_but_not_steps() -> None:
    growth = grow({4: make_estimate(4)}, ROOTS, BATCH, LINK)
    by_servers = {point.servers: point for point in growth.points}
    assert by_servers[64].bytes == pytest.approx(make_estimate(64).total_bytes, rel=1e-3)
    assert by_servers[64].epoch_seconds < make_estimate(64).epoch_seconds
