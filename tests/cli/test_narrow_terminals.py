"""What is printed on 80 columns has all words that are printed on a wide terminal."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from hopper.cli import main
from hopper.cli.doctor import _table as findings_table
from hopper.cli.inspect.cache import _describe, _profile_table
from hopper.cli.sweep import ranking_table
from hopper.display.console_tables import fit_columns, print_table
from hopper.doctor import Finding
from hopper.features.cache_plan import TypeProfile
from hopper.graph import GraphDirectory
from hopper.hetero.cache_profile import CacheProfile
from hopper.partition import partition_graph

BOX = re.compile("[\u2500-\u257f]")
TYPES = ["paper", "author", "institution", "field_of_study", "conference", "publisher", "reviewer"]


def words(text: str) -> list[str]:
    """Return the words of what was printed, without the lines of tables."""
    return BOX.sub(" ", text).split()


def print_to_text(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_table(console, table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def wide_table() -> Table:
    table = Table("relation", "title of it", title="what is measured")
    for heading in ("nodes", "largest\nover mean", "bytes", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number in range(3):
        table.add_row(
            f"author/writes_{number}/paper",
            f"a few words that may stand on several lines, {number}",
            *(f"{10**9 + number + 10 * column:,}" for column in range(4)),
        )
    return table


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_nothing_is_cut_off_and_no_word_is_broken(width):
    text = print_to_text(wide_table(), width)
    wide_text = print_to_text(wide_table(), 1000)
    if width == 20:
        # Narrower than the longest word, which is broken.
        assert {*BOX.sub("", text)} == {*BOX.sub("", wide_text)}
    else:
        assert set(words(text)) == set(words(wide_text))
        assert max(map(len, text.splitlines())) <= width


def test_a_table_wraps_before_it_is_turned_to_rows():
    console = Console(width=110)
    widths = fit_columns(console, wide_table())
    assert widths is not None
    # Numbers keep their width, and words share what is left.
    assert widths[2:] == [13] * 4
    assert fit_columns(Console(width=80), wide_table()) is None
    assert print_to_text(wide_table(), 80).count("author/writes_1/paper") == 1


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> Path:
    """A graph with more node types than fit beside each other."""
    folder, generator = tmp_path_factory.mktemp("typed"), np.random.default_rng(3)
    edges = {
        (left, f"belongs_to_the_{right}", right): generator.integers(0, 1000, (2, 40))
        for left in TYPES
        for right in TYPES[:3]
        if left != right
    }
    counts = {name: 1000 + 7 * i for i, name in enumerate(TYPES)}
    options: Any = {"splits": {"train": np.arange(900)}, "counts": counts, "name": "library"}
    GraphDirectory.from_arrays(folder / "graph", edges, target="paper", **options)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "inspect graph graph",
        "inspect metatree graph --servers 3",
        "partition graph --servers 3 --method random --locality-roots 0 --out OUT",
        "partition graph --servers 3 --method meta --out OUT",
    ],
)
def test_commands_on_typed_graphs_print_every_word_on_80_columns(
    typed, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph").symlink_to(typed / "graph")
    outputs = []
    for columns in ("80", "1000"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(command.replace("OUT", f"out{columns}").split()) == 0
        outputs.append(capsys.readouterr().out.replace(f"out{columns}", "out"))
    assert "…" not in outputs[0]
    assert set(words(outputs[1])) <= set(words(outputs[0]))


@pytest.mark.parametrize(
    "command",
    [
        "inspect schedule CONFIG",
        "plan CONFIG --engines hop,zero_hop,cooperative --iterations 1 --latency 100",
    ],
)
def test_commands_on_a_configuration_print_every_word_on_80_columns(
    community_graph, tmp_path, monkeypatch, capsys, command
):
    servers = 12 if command.startswith("inspect") else 2
    partition_graph(community_graph, tmp_path / "parts", servers, "random")
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('[data]\npartitioned = "parts"\n[train]\nbatch_size = 6\n')
    outputs = []
    for columns in ("80", "1000"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(command.replace("CONFIG", "c.toml").split()) == 0
        outputs.append(capsys.readouterr().out)
    assert "…" not in outputs[0]
    if command.startswith("inspect"):
        assert set(words(outputs[1])) <= set(words(outputs[0]))
    else:
        # Seconds are measured, so figures differ; headings and stages do not.
        assert {word for word in words(outputs[1]) if word.isalpha()} <= set(words(outputs[0]))


def test_tables_of_profiles_sweeps_and_findings_fit_80_columns():
    ids = np.arange(123_456)
    profile = TypeProfile(4096, 9_876_543_210, ids, np.full(ids.size, 7), 1.25e-7)
    names = {f"{name}_with_a_long_name_of_its_own": profile for name in TYPES}
    keys = [f"train.a_key_with_a_long_name_{number}" for number in range(6)]
    trial = {
        "trial": 10, "overrides": dict.fromkeys(keys, 0.000123456), "parameters": 123_456_789,
        "scores": {"val": {"mrr": 0.98765}, "test": {"mrr": 0.87654}}, "best_epoch": 1234,
    }  # fmt: skip
    summary = {"trials": [trial], "ranking": [0], "metric": "balanced_accuracy"}
    finding = Finding(
        "a subject", "wrong", f"{'/folder' * 30}/end: is not there", "make the folder"
    )
    for make in (
        lambda: _profile_table({"rank": 0, **_describe(CacheProfile({}, 3, names), "")}),
        lambda: ranking_table(summary),
    ):
        assert set(words(print_to_text(make(), 1000))) <= set(words(print_to_text(make(), 80)))
    console = Console(file=io.StringIO(), width=80)
    console.print(findings_table([finding]))
    assert isinstance(console.file, io.StringIO)
    text = "".join(words(console.file.getvalue()))
    assert text.count("/folder") == 30
