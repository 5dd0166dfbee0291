"""Results are lines that can be trusted, and what README and docs show is made from them."""

import re
from datetime import date
from pathlib import Path

import pytest

from benchmarks.summary import Row, read, write
from scripts.make_results_tables import ROOT, fill, find_wrong_numbers, make_table

FILES = sorted((ROOT / "benchmarks" / "results").glob("*/summary.csv"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMED = re.compile(r"\bseconds\b|a second\b|over computing|memory rate")
STAMP = {"date": "2026-11-24", "commit": "749aa73ff6d6"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_lines_are_of_clean_commits_and_enough_rounds(file):
    rows = read(file)
    assert rows
    keys = [(row.experiment, row.cell, row.side, row.measure, row.baseline) for row in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        assert re.fullmatch("[0-9a-f]{12}", row.commit), row
        assert date.fromisoformat(row.date), row
        assert row.median is not None, row
        needed = 5 if TIMED.search(row.measure) else 3 if "accuracy" in row.measure else 0
        assert (row.rounds or 0) >= needed or row.measure.startswith("largest"), row
        if row.low is not None:
            assert row.rounds, row
            assert 0 < row.low <= (row.ratio or 0) <= (row.high or 0) <= 3 * row.low, row


def test_results_have_few_pages():
    folder = ROOT / "benchmarks" / "results"
    assert len(list(folder.rglob("*.md"))) <= 20
    assert {file.name for file in folder.rglob("*") if file.is_file()} == {
        "README.md",
        "summary.csv",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_and_numbers_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert fill(ROOT, text) == text, "run python scripts/make_results_tables.py"
    assert list(find_wrong_numbers(ROOT, page)) == []


@pytest.fixture
def root(tmp_path) -> Path:
    """A checkout with results of one machine."""
    rows = [
        Row("fig1", "uk-16", "base", "epoch seconds", 3.0, rounds=5, bytes=2_470_000, **STAMP),
        Row("fig1", "uk-16", "hop", "epoch seconds", 2.0, "base", 1.564, 1.4, 1.71, 5, **STAMP),
        Row("fig1", "uk-16", "hop", "test accuracy", 0.8174, rounds=5, **STAMP),
        Row("fig2", "uk-16", "hop", "epoch seconds", 9.5, rounds=5, **STAMP),
    ]
    write(tmp_path / "benchmarks" / "results" / "box" / "summary.csv", rows)
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_a_table_has_what_its_marker_asks_for(root):
    asked = 'machine=box experiment=fig1 measure="epoch*" rows=side columns=show head=engine'
    assert make_table(root, f'{asked} side="hop=`hop`|base" show="ratio=faster|MB"') == (
        "| engine | faster | MB |\n"
        "| --- | ---: | ---: |\n"
        "| `hop` | 1.56 (1.40 to 1.71) |  |\n"
        "| base |  | 2.47 |\n"
    )
    with pytest.raises(ValueError, match="no such results"):
        make_table(root, f"{asked} side=nobody show=MB")
    with pytest.raises(ValueError, match="no such keys: colums"):
        make_table(root, "machine=box colums=side")
    with pytest.raises(ValueError, match="2 results for one cell"):
        make_table(root, "machine=box side=hop measure=epoch* rows=side columns=cell show=median")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Hop is 1.56x faster ([lines](CSV#fig1)).", []),
        ("Hop is 1.6x faster\n([lines](CSV#fig1)).", []),
        ("Hop is 1.57x faster ([lines](CSV#fig1)).", ["1.57"]),
        ("Hop is 1.56x faster ([lines](CSV#fig2)).", ["1.56"]),
        ("Hop is 1.56x faster ([lines](CSV#fig1/uk-16)).", []),
        ("Hop is 1.56x faster ([lines](CSV#fig1/in-16)).", ["1.56"]),
        ("Hop is 156.4x faster ([lines](CSV#fig1)).", ["156.4"]),
        ("It sends 2.47 MB at 10 Gbit/s ([lines](CSV#fig1)), 2.48 MB at most.", ["2.48"]),
        ("It reaches 81.7 % ([lines](CSV#fig1)). The paper reports 82.9 %.", []),
        ("It reaches 82 % (published: 83.3 %) with `x=0.5` ([lines](CSV#fig1)).", []),
        ("- one of 1.56x ([lines](CSV#fig1))\n- another of 7.5x", []),
        ("Without a link 7.5x.", []),
    ],
)
def test_a_number_that_is_not_in_the_results_is_found(root, text, wrong):
    page = root / "docs" / "page.md"
    page.write_text(text.replace("CSV", "../benchmarks/results/box/summary.csv"))
    found = [line.split(": ")[1].split(" is not in")[0] for line in find_wrong_numbers(root, page)]
    assert found == wrong
