"""``hopper doctor``: what it prints, and what it says to scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hopper.cli import main


def test_it_is_read_at_80_columns_and_in_pipes(config: Path, addresses: list[str]) -> None:
    servers = json.dumps([addresses[0], "127.0.0.1:1"])
    done = subprocess.run(
        [sys.executable, "-m", "hopper.cli", "doctor", str(config), "--cluster.servers", servers],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Connection refused" in done.stdout
    assert "to do: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 wrong, ")


def test_findings_for_machines(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "findings.json"
    assert main(["doctor", str(config), "--json", str(out)]) == 0
    told = json.loads(out.read_text())
    assert told["state"] in ("fine", "warning")
    for each in told["findings"]:
        assert set(each) == {"subject", "state", "found", "advice"}
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed.endswith(f"{sum(e['state'] == 'fine' for e in told['findings'])} fine")
    assert main(["doctor", str(config), "--json", str(out), "--train.epochs", "0"]) == 1
    told = json.loads(out.read_text())
    assert told["state"] == "wrong"
    assert [e["subject"] for e in told["findings"] if e["state"] == "wrong"] == ["configuration"]


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_limits_that_cannot_be_meant(
    config: Path, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    assert main(["doctor", str(config), f"--limit={limit}"]) == 1
    assert capsys.readouterr().err.startswith("error: --limit: expected seconds above 0")
