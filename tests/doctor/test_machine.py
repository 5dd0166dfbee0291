"""What the doctor says of a configuration, of files, and of the machine, and how it is printed."""

import json
import re
import resource
import shutil
import tomllib
from pathlib import Path

import pytest

import hopper.doctor.versions as versions
from hopper.cli import main
from hopper.doctor.versions import NEEDED, PYTHON, check_versions
from tests.doctor.conftest import find, wrongs
from tests.server_processes import run_python

ROOT = Path(__file__).parents[2]


def test_nothing_is_wrong_and_nothing_is_written(look, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    findings = look()
    assert wrongs(findings) == []
    assert find(findings, "configuration").found == "nothing that a run would be refused for"
    assert "2 ranks here" in find(findings, "memory").found
    assert "estimate" in find(findings, "memory").found
    assert "is asked" in find(findings, "cluster.servers").found
    assert "sizes" in find(findings, "files of the graph").found
    for subject in ("versions", "train.device", "threads", "open files", "/dev/shm", "disk"):
        assert find(findings, subject).found
    assert sorted(tmp_path.rglob("*")) == before


def test_needed_versions_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounded = (requirement for requirement in project["dependencies"] if ">=" in requirement)
    least = dict(requirement.split(">=") for requirement in bounded)
    assert {package: least[package] for package in NEEDED} == NEEDED
    assert project["requires-python"].split(",")[0] == f">={'.'.join(map(str, PYTHON))}"


def test_old_and_missing_packages_are_named(monkeypatch, look):
    monkeypatch.setattr(versions, "NEEDED", NEEDED | {"numpy": "99.1", "no-such-package": "1.0"})
    old, missing = check_versions()
    assert re.search(r"^numpy: \d.*; expected 99\.1 or newer$", old.found)
    assert missing.found == "no-such-package: not installed; expected 1.0 or newer"
    assert missing.advice == "pip install 'no-such-package>=1.0'"
    # What could not be imported is not looked at.
    assert [finding.subject for finding in look()] == ["versions", "versions", "all else"]


def test_every_key_at_fault_has_a_line(look):
    findings = look("--train.batch_size", "0", "--train.speed", "9", "--model.hidden", "many")
    lines = wrongs(findings)
    assert len(lines) == 3
    for key in ("train.batch_size: ", "train.speed: unknown key", "model.hidden: "):
        assert sum(key in line for line in lines) == 1
    assert find(findings, "all else").state == "warning"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (("--train.loss", "no_such_module:Loss"), "train.loss: no_such_module:Loss: module"),
        (("--train.loggers", '["no_such_module:Log"]'), "train.loggers[0]: no_such_module:Log"),
        (("--train.engine", "raf"), "train.engine: "),
        (("--train.checkpoint_copy", "no-such://place"), "train.checkpoint_copy: no-such://place"),
        (("--cluster.interface", "eth99"), "cluster.interface: this machine has no interface"),
        (("--train.replay", "/nowhere"), "train.replay: /nowhere"),
        (("--train.init_from", "/nowhere"), "train.init_from: "),
        (("--train.device", "cuda"), "train.device: cuda needs a GPU"),
        (("--data.partitioned", "/nowhere"), "/nowhere"),
        (("--train.resume", "true"), "no checkpoint to resume from"),
    ],
)
def test_what_a_run_is_refused_for_is_said_once(look, override, text):
    if override == ("--train.device", "cuda"):
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    lines = wrongs(look(*override))
    assert len(lines) == 1
    assert text in lines[0]
    assert "\n" not in lines[0]


def test_a_finished_run_is_not_trained_over(look, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert "holds a finished run" in find(look(), "train.run_dir").found


def test_altered_files_are_named(look, parts, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(parts, copy)
    override = ("--data.partitioned", str(copy))
    file = next(copy.glob("server-1/features/*.npy"))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert f"{file}: altered since it was written" in find(look(*override), "files").found
    # Of the same size: found by what is in it alone.
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert find(look(*override), "files").state == "fine"
    assert f"{file}: altered" in find(look(*override, checksums=True), "files").found
    file.write_bytes(content)
    assert "as they were written" in find(look(*override, checksums=True), "files").found
    shutil.rmtree(copy / "server-0")
    assert "no server-0" in find(look(*override), "files").found


def test_too_little_memory_threads_files_or_disk_is_told(look, monkeypatch, tmp_path):
    monkeypatch.setenv("HOPPER_MEMORY_LIMIT", "1000000")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    (tmp_path / "file").write_text("")
    run_dir = ("--train.run_dir", str(tmp_path / "file" / "run"))
    findings = look("--train.threads", "4096", *run_dir)
    assert find(findings, "memory").state == "wrong"
    assert "at least; fewer ranks" in find(findings, "memory").advice
    threads = [finding.found for finding in findings if finding.subject == "threads"]
    assert "OMP_NUM_THREADS=7" in threads[0]
    assert "× 4096 threads" in threads[1]
    assert find(findings, "open files").state == "warning"
    assert find(findings, "disk").state == "wrong"


def test_a_small_disk_is_told(look, small_disk):
    finding = find(look("--train.run_dir", str(small_disk / "run")), "disk of train.run_dir")
    assert finding.state == "warning"
    large = ("--model.hidden", "1024", "--train.checkpoint_every", "1")
    finding = find(look("--train.run_dir", f"{small_disk}/run", *large), "disk of train.run_dir")
    assert finding.state == "wrong"


def test_columns_that_hurt_training_are_named(look, parts, tmp_path):
    wide = shutil.copytree(parts, tmp_path / "wide")
    schema = json.loads((wide / "graph.json").read_text())
    (kind,) = schema["node_types"].values()
    found = {"at": 2, "min": 0.5, "max": 90000, "mean": 40000, "std": 20000}
    kind["columns"] = [{"name": "", "numbers": kind["feature_dim"], "ranges": [found]}]
    (wide / "graph.json").write_text(json.dumps(schema))
    finding = find(look(f"--data.partitioned={wide}"), "features")
    assert (finding.state, "column 2 (0.5 to 90,000)" in finding.found) == ("warning", True)
    assert "--scale standard" in finding.advice


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
    wrong = [one["subject"] for one in report["findings"] if one["state"] == "wrong"]
    assert wrong == ["configuration"]


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_impossible_limits_are_refused(config, capsys, limit):
    assert main(["doctor", str(config), f"--limit={limit}"]) == 1
    assert capsys.readouterr().err.startswith("error: --limit: expected seconds above 0")
