"""Epochs with other numbers of servers: what was rehearsed stands, the rest follows from it."""

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


def made(servers: int) -> Estimate:
    """Of an engine whose models go around all ranks: 500 bytes a root, all rows anywhere."""
    ranks = 2 * servers
    iterations = ROOTS // (BATCH * ranks)
    sent: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
    sent["feature"] = round(500 * BATCH * ranks * (1 - 1 / servers))
    sent["gradient"] = 2 * (servers - 1) * PARAMETERS
    sent["model"] = ranks * servers * PARAMETERS
    seconds = ROOT * BATCH + STEP * ranks + sum(sent.values()) / servers / 10**9
    return Estimate(
        *("around", True),
        iterations=iterations,
        iteration_seconds=seconds,
        epoch_seconds=seconds * iterations,
        iteration_bytes=sent,
        bytes={cause: each * iterations for cause, each in sent.items()},
    )


def test_what_was_rehearsed_at_a_few_numbers_is_found_at_others() -> None:
    growth = grow({each: made(each) for each in (2, 4)}, ROOTS, BATCH, LINK)
    assert [each.servers for each in growth.points if each.rehearsed] == [2, 4]
    for point in growth.points:
        true = made(point.servers)
        assert point.bytes == pytest.approx(true.total_bytes, rel=1e-3)
        assert point.epoch_seconds == pytest.approx(true.epoch_seconds, rel=1e-3)


def test_one_number_tells_bytes_and_not_steps() -> None:
    growth = grow({4: made(4)}, ROOTS, BATCH, LINK)
    by_servers = {each.servers: each for each in growth.points}
    assert by_servers[64].bytes == pytest.approx(made(64).total_bytes, rel=1e-3)
    assert by_servers[64].epoch_seconds < made(64).epoch_seconds
