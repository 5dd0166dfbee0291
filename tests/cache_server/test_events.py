"""Servers and clients log events, as lines of JSON and as lines for people."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from cache_server.client import FeatureClient
from cache_server.errors import ServerFault, ServerUnavailable
from cache_server.events import Events, events
from cache_server.security import Security
from cache_server.wire import FETCH_ROWS
from tests.cache_server.conftest import Serve
from tests.cache_server.test_security import OTHER, TOKEN


def read_entries(text: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in text.splitlines()]
    assert all({"unix", "level", "event", "text"} <= entry.keys() for entry in entries)
    return entries


def test_lines_for_people_are_warnings_alone(capfd: pytest.CaptureFixture[str]) -> None:
    log = Events()
    log.warn("open secret", "it is open", address="x")
    log.note("retry", "once more")
    log.fail("error", "error: it ends")
    warning, error = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  warning: it is open", warning)
    assert error == "error: it ends"


def test_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Python does not buffer: processes share the file or the terminal."""
    written: list[str] = []

    class Unbuffered:
        write = staticmethod(written.append)
        flush = staticmethod(lambda: None)

    monkeypatch.setattr(sys, "stderr", Unbuffered())
    log = Events()
    log.warn("certificates", "they stay")
    log.set_format("json")
    log.note("retry", "once more")
    log.fail("error", "it ends")
    assert len(written) == 3
    assert all(text.count("\n") == 1 and text.endswith("\n") for text in written)


def test_repeated_events_are_counted(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("cache_server.events.time.monotonic", lambda: now)
    log = Events()
    log.set_format("json", process="rank", rank=3)
    for _ in range(5):
        log.note("retry", "once\nmore", server=1)
    now += 2
    log.note("retry", "at last", server=1)
    first, last = read_entries(capfd.readouterr().err)
    assert (first["level"], first["text"], first["rank"]) == ("info", "once\nmore", 3)
    assert (first["times"], last["times"]) == (1, 5)


@pytest.fixture
def in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_format", "json")
    monkeypatch.setattr(events, "_last_written", {})


def test_a_server_tells_of_refusals_and_of_no_token(
    serve: Serve, tmp_path: Path, in_json: None, capfd: pytest.CaptureFixture[str]
) -> None:
    secured = []
    for token in (TOKEN, OTHER):
        (tmp_path / token).write_text(token)
        (tmp_path / token).chmod(0o600)
        secured.append(Security(token_file=str(tmp_path / token)))
    server = serve(security=secured[0])
    with (
        FeatureClient([server.address], security=secured[1]) as client,
        pytest.raises(ServerFault, match="UNAUTHENTICATED"),
    ):
        client.describe(0)
    header = (("authorization", f"Bearer {TOKEN}"),)
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
        list(channel.unary_stream(FETCH_ROWS)(b"\x0a\x7f", metadata=header, timeout=20))
    text = capfd.readouterr().err
    assert TOKEN not in text
    assert OTHER not in text
    entries = {entry["event"]: entry for entry in read_entries(text)}
    assert entries.keys() == {"refused token", "refused"}
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in entries.values())
    assert entries["refused"]["method"] == "FetchRows"


@pytest.mark.parametrize(
    ("addresses", "event"), [("127.0.0.1:1", "retry"), ("127.0.0.1:1,127.0.0.1:2", "failover")]
)
def test_a_client_tells_of_retries_and_failovers(
    addresses: str, event: str, in_json: None, capfd: pytest.CaptureFixture[str]
) -> None:
    out = np.zeros((1, 1), np.float32)
    with FeatureClient([addresses], deadline=0.3) as client, pytest.raises(ServerUnavailable):
        client.fetch_rows("features", "a", {0: np.array([0])}, out, {0: slice(None)})
    [first, *_] = read_entries(capfd.readouterr().err)
    assert (first["event"], first["server"], first["address"]) == (event, 0, addresses)
    assert "UNAVAILABLE" in first["text"]
