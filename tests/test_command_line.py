"""Absurd numbers and output paths that cannot be written are reported in one line."""

import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph

HUGE = "99999999999999999999999"
MAKE = ["dataset", "make", "arxiv-like", "--scale", "0.005"]


@pytest.fixture
def graph(community_graph) -> Path:
    """A graph directory of a few hundred nodes."""
    return Path(community_graph.path)


@pytest.fixture
def refusal(capsys) -> Callable[[list[str]], str]:
    """A function that returns the last line with which a command is refused."""

    def run(words: list[str]) -> str:
        code: int | str | None
        try:
            code = main(words)
        except SystemExit as exit_error:
            code = exit_error.code
        assert code in (1, 2)
        return capsys.readouterr().err.splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*MAKE, "--seed=-1"], "--seed"),
        ([*MAKE, "--seed", HUGE], "--seed"),
        ([*MAKE, "--seed", "9" * 5000], "--seed"),
        ([*MAKE, "--scale", "nan"], "scale"),
        ([*MAKE, "--scale", "1e308"], "scale"),
        ([*MAKE, "--feature-dim", HUGE], "--feature-dim"),
        ([*MAKE, "--feature-dim", "2147483647"], "too little disk space"),
        (["partition", "GRAPH", "--servers", HUGE], "--servers"),
        (["partition", "GRAPH", "--servers", "100000"], "too few for 100000 servers"),
        (["partition", "GRAPH", "--servers", "2", "--seed", HUGE], "--seed"),
        (["partition", "GRAPH", "--servers", "2", "--locality-roots", HUGE], "--locality-roots"),
        (["partition", "GRAPH", "--servers=2", "--locality-fanouts", HUGE], "--locality-fanouts"),
        (["partition", "GRAPH", "--servers=2", "--memory-limit", "1e400G"], "--memory-limit"),
        (["inspect", "metatree", "GRAPH", "--layers", "2147483647"], "layers"),
        (["inspect", "metatree", "GRAPH", "--servers", "2147483647"], "servers"),
        (["inspect", "cache", "--size", "9", "--rank", HUGE, "none.toml"], "--rank"),
    ],
)
def test_absurd_numbers_are_refused(graph, tmp_path, refusal, arguments, text):
    words = [str(graph) if word == "GRAPH" else word for word in arguments]
    out = [] if arguments[0] == "inspect" else ["--out", str(tmp_path / "out")]
    last = refusal([*words, *out])
    assert re.search(r"\berror: ", last)
    assert text in last
    assert len(last) < 300
    assert not list(tmp_path.iterdir())


def commands(graph: Path, out: Path) -> dict[str, list[str]]:
    """Commands that write a directory of a few hundred kilobytes."""
    tables = out.parent / "tables"
    tables.mkdir(exist_ok=True)
    (tables / "nodes.csv").write_text("id,x\n" + "".join(f"{i},{i}\n" for i in range(20_000)))
    (tables / "edges.csv").write_text("src,dst\n" + "".join(f"{i},0\n" for i in range(20_000)))
    return {
        "make": ["dataset", "make", "arxiv-like", "--scale", "0.005", "--out", str(out)],
        "import": ["dataset", "import", "csv", str(tables), "--out", str(out)],
        "partition": [
            "partition",
            str(graph),
            "--servers",
            "2",
            "--method",
            "random",
            "--locality-roots",
            "0",
            "--out",
            str(out),
        ],
        "meta": [
            "partition",
            str(graph),
            "--servers",
            "2",
            "--method",
            "meta",
            "--layers",
            "1",
            "--out",
            str(out),
        ],
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("make", "a file"),
        ("make", "in no folder"),
        ("import", "in a file"),
        ("partition", "too long"),
        ("meta", "a file"),
    ],
)
def test_output_paths_that_cannot_be_written_are_refused(graph, tmp_path, capsys, name, kind):
    (tmp_path / "file").write_text("mine")
    out = {
        "a file": tmp_path / "file",
        "in a file": tmp_path / "file" / "out",
        "in no folder": Path("/proc/none/out"),
        "too long": tmp_path / ("x" * 300),
    }[kind]
    words = commands(graph, tmp_path / "out")[name]
    assert main([*words[:-1], str(out)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith("error: ")
    assert not any("Traceback" in line for line in errors)
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "tables"}


@pytest.mark.parametrize(
    "words",
    [
        "dataset make arxiv-like --scale 0.005 --out URL",
        "dataset import csv URL --out out",
        "dataset import csv . --out URL",
        "inspect graph URL",
        "partition GRAPH --servers 2 --out URL",
        "partition URL --servers 2 --out out",
        "dataset precompute metapaths GRAPH --out URL",
        "dataset fetch parts --out URL",
        "train URL",
        "train c.toml --data.partitioned URL",
        "train c.toml --data.partitioned parts --train.run_dir URL",
        "train c.toml --data.partitioned parts --train.init_from URL",
        "inspect cache c.toml --size 1M --data.partitioned URL",
        "report URL",
        "bench c.toml --engines hop --out URL",
    ],
)
def test_an_address_is_no_path_on_this_machine(graph, tmp_path, refusal, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("")
    last = refusal(words.replace("URL", "s3://bucket/x").replace("GRAPH", str(graph)).split())
    assert "expected a path on this machine, not an address" in last
    assert "s3:" in last
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_python_refuses_addresses_too(graph):
    for out in ("s3://bucket/x", "file:///tmp/x", "gs://bucket"):
        with pytest.raises(RequestError, match="expected a path on this machine, not an address"):
            partition_graph(GraphDirectory.open(graph), out, 2, "random")


@pytest.fixture
def short_files() -> Iterator[None]:
    """Writing more than 1 KiB to a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["make", "import", "partition", "meta"])
def test_interrupted_writing_leaves_no_files(graph, tmp_path, capsys, request, name):
    words = commands(graph, tmp_path / "out")[name]
    request.getfixturevalue("short_files")
    assert main(words) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "File too large" in last
    assert {path.name for path in tmp_path.iterdir()} == {"tables"}


@pytest.mark.parametrize("name", ["make", "partition"])
def test_too_small_a_disk_is_refused_before_writing(graph, small_disk, tmp_path, capsys, name):
    (small_disk / "ballast").write_bytes(bytes(480 << 10))
    words = commands(graph, tmp_path / "out")[name]
    assert main([*words[:-1], str(small_disk / "out")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"error: .*/disk\S*: (too little disk space|No space left).*", error)
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]
