"""``hopper doctor`` prints findings for people, and writes them for scripts."""

import json

import pytest

from hopper.cli import main
from tests.server_processes import run_python


def test_findings_fit_80_columns_and_have_no_colours_in_pipes(config, addresses):
    servers = json.dumps([addresses[0], "127.0.0.1:1"])
    done = run_python("-m", "hopper.cli", "doctor", str(config), "--cluster.servers", servers)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Connection refused" in done.stdout
    assert "to do: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 wrong, ")


def test_findings_are_printed_as_json(config, capsys):
    assert main(["doctor", str(config), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["state"] in ("fine", "warning")
    for finding in report["findings"]:
        assert set(finding) == {"subject", "state", "found", "advice"}
    assert main(["doctor", str(config), "--json", "--train.epochs", "0"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["state"] == "wrong"
    assert [
        finding["subject"] for finding in report["findings"] if finding["state"] == "wrong"
    ] == ["configuration"]


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_impossible_limits_are_refused(config, capsys, limit):
    assert main(["doctor", str(config), f"--limit={limit}"]) == 1
    assert capsys.readouterr().err.startswith("error: --limit: expected seconds above 0")
