"""Servers and clients log events, as lines of JSON and as lines for people."""

from __future__ import annotations

import json
import re
import subprocess
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
from tests.cache_server.test_security import OTHER, TOKEN

REPOSITORY = Path(__file__).resolve().parents[2]


def read_entries(text: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in text.splitlines()]
    assert all({"unix", "level", "event", "text"} <= entry.keys() for entry in entries)
    return entries


def test_lines_for_people_are_warnings_alone(capfd: pytest.CaptureFixture[str]) -> None:
    log = Events()
    log.warn("certificates", "they stay", address="x")
    log.note("retry", "once more")
    log.fail("error", "error: it ends")
    warning, error = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  warning: they stay", warning)
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
    assert (first["level"], first["text"], first["rank"], first["server"]) == (
        "info", "once\nmore", 3, 1,
    )  # fmt: skip
    assert (first["times"], last["times"]) == (1, 5)


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_server_tells_of_refusals_and_of_no_token(
    partitioned: Any, tmp_path: Path, log_format: str
) -> None:
    for name, token in {"token": TOKEN, "other": OTHER}.items():
        (tmp_path / name).write_text(token)
    port_file, log_file = tmp_path / "port.json", tmp_path / "log"
    command = [sys.executable, "-m", "cache_server", str(partitioned.path), "--server", "0"]
    command += ["--listen", "127.0.0.1:0", "--port-file", str(port_file)]
    command += ["--token-file", str(tmp_path / "token"), "--log-format", log_format]
    with log_file.open("w") as stderr:
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=REPOSITORY
        )
    assert server.stdout is not None
    server.stdout.readline()
    address = json.loads(port_file.read_text())["address"]
    for name in ("other", "token"):
        security = Security(token_file=str(tmp_path / name))
        with FeatureClient([address], deadline=20, security=security) as client:
            if name == "other":
                with pytest.raises(ServerFault, match="UNAUTHENTICATED"):
                    client.describe(0)
                continue
            client.describe(0)
    header = (("authorization", f"Bearer {TOKEN}"),)
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
        list(channel.unary_stream(FETCH_ROWS)(b"\x0a\x7f", metadata=header, timeout=20))
    server.terminate()
    assert server.wait(20) == 0
    server.stdout.close()
    text = log_file.read_text()
    assert TOKEN not in text
    assert OTHER not in text
    if log_format == "text":
        # As it always was; what grpc itself tells is not of this project.
        assert "refused" not in text
        return
    entries = {entry["event"]: entry for entry in read_entries(text) if entry["level"] == "info"}
    assert entries.keys() == {"refused token", "refused"}
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in entries.values())
    assert entries["refused"]["method"] == "FetchRows"
    assert entries["refused"]["server"] == 0


def test_a_client_tells_of_retries_and_failovers(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_format", "json")
    monkeypatch.setattr(events, "_last_written", {})
    for addresses, event in (("127.0.0.1:1", "retry"), ("127.0.0.1:1,127.0.0.1:2", "failover")):
        out = np.zeros((1, 1), np.float32)
        with FeatureClient([addresses], deadline=0.3) as client, pytest.raises(ServerUnavailable):
            client.fetch_rows("features", "a", {0: np.array([0])}, out, {0: slice(None)})
        [first, *_] = read_entries(capfd.readouterr().err)
        assert (first["event"], first["server"], first["address"]) == (event, 0, addresses)
        assert "UNAVAILABLE" in first["text"]
