"""``hopper plan``: what it prints, and what it refuses before any work."""

import json
from pathlib import Path
from typing import Any

import pytest

from hopper.cli import main


@pytest.fixture(scope="module")
def config(parts, tmp_path_factory) -> Path:
    values: dict[str, Any] = {
        "data": {"partitioned": str(parts)},
        "model": {"layers": 2, "hidden": 8},
        "sampler": {"fanouts": [4, 3]},
        "train": {"batch_size": 8},
    }
    path = tmp_path_factory.mktemp("plan") / "config.json"
    path.write_text(json.dumps(values))
    return path


def run_plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_engines_are_printed_fastest_first_and_refusals_last(config, capsys):
    words = ["--link-rate", "1gbit", "--cores", "0.5", "--engines", "locality,raf"]
    assert main(["plan", str(config), *words]) == 0
    text = capsys.readouterr().out
    assert "raf: train.engine: raf aggregates by relation" in text
    assert "locality *" in text
    assert "over its 0.5 cores" in " ".join(text.split())


def test_a_slower_link_and_fewer_cores_take_longer(config, capsys):
    words = (str(config), "--engines", "model_centric", "--iterations", "1")
    [slow] = run_plan(capsys, *words, "--link-rate", "1mbit")["engines"]
    [fast] = run_plan(capsys, *words, "--link-rate", "none")["engines"]
    [few] = run_plan(capsys, *words, "--link-rate", "none", "--cores", "0.05")["engines"]
    assert slow["bytes"] == fast["bytes"]
    # Half of what is sent crosses each of the two links.
    per_link = sum(slow["iteration_bytes"].values()) / 2
    assert slow["iteration_seconds"] > 0.8 * per_link * 8 / 10**6
    assert few["iteration_seconds"] > 4 * fast["iteration_seconds"]


def test_a_graph_is_divided_for_other_numbers_of_servers(config, community_graph, capsys):
    plan = run_plan(
        capsys,
        str(config),
        "--graph",
        str(community_graph.path),
        "--servers",
        "3",
        "--method",
        "random",
        "--engines",
        "zero_hop,hop",
        "--iterations",
        "1",
    )
    assert plan["cluster"]["servers"] == 3
    assert plan["partition"]["edge_cut"] > 0
    assert {engine["engine"] for engine in plan["engines"]} == {"zero_hop", "hop"}
    assert all(engine["bytes"]["feature"] > 0 for engine in plan["engines"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--servers", "4"], "--servers: "),
        (["--ranks-per-server", "0"], "--ranks-per-server: expected at least 1, given 0"),
        (["--ranks-per-server", "2147483647"], "--ranks-per-server: expected at most"),
        (["--cores", "0"], "--cores: expected more than 0, given 0"),
        (["--latency", "-1"], "--latency: "),
        (["--engines", "hops"], "--engines: expected some of cooperative"),
        (["--iterations", "0"], "--iterations: expected at least 1, given 0"),
        (["--link-rate", "fast"], "--link-rate: "),
        (["--graph", "nowhere"], "--graph: expected --servers"),
    ],
)
def test_refusals_name_the_option(config, capsys, words, text):
    assert main(["plan", str(config), *words]) == 1
    assert f"error: {text}" in " ".join(capsys.readouterr().err.split())


def test_memory_includes_the_model_and_what_backward_needs(config, capsys):
    words = (str(config), "--engines", "zero_hop", "--iterations", "1")
    [narrow] = run_plan(capsys, *words)["engines"]
    [wide] = run_plan(capsys, *words, "--model.hidden", "256")["engines"]
    # Two layers of GraphSAGE: 10 and 256 numbers wide, both ends; Adam's moments and the gradient.
    least = 4 * 4 * (2 * 10 * 256 + 2 * 256 * 6)
    assert least < wide["memory"]["model"] < 1.1 * least
    assert wide["memory"]["training"] > 4 * narrow["memory"]["training"] > 0
    assert wide["processor_seconds"] > 0
