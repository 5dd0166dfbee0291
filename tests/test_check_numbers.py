"""Numbers of README and docs are those of the results that they link to; wrong ones are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.check_numbers import ROOT, check_pages, holds, numbers_of, read_passages

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGE = """# fig1

| cell | hop over model-centric | features, MB |
|---|---:|---:|
| uk-like-gcn-16 | 1.56 (1.40 to 1.71) | 2,470 |
| in-like-gcn-16 | 2.34 (2.11 to 2.59) | 31.7 |
"""
RESULT = {"commit": "c0ffee", "cells": [{"ratio": 1.5649, "accuracy": 0.8174, "bytes": 12_345_678}]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one result, and folders for pages that link to it."""
    folder = tmp_path / "benchmarks" / "results" / "day" / "fig1"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(PAGE)
    (folder / "result.json").write_text(json.dumps(RESULT))
    (tmp_path / "docs").mkdir()
    return tmp_path


def find_missing(root: Path, text: str) -> list[str]:
    """The numbers of a page of docs that its sources do not hold."""
    page = root / "docs" / "page.md"
    links = {"PAGE": "README.md", "JSON": "result.json"}
    for word, file in links.items():
        text = text.replace(word, f"../benchmarks/results/day/fig1/{file}")
    page.write_text(text)
    return [
        line.split(": ")[1].split(" is not in")[0] for line in check_pages(root, [page]).missing
    ]


def test_numbers_of_readme_and_docs_are_in_their_sources() -> None:
    report = check_pages(ROOT, PAGES)
    assert report.missing == []
    # The check still reads the pages.
    assert report.numbers > 1000
    assert report.passages > 100


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Hop is 1.56 times as fast ([page](PAGE)).", []),
        ("Hop is 1.57 times as fast ([page](PAGE)).", ["1.57"]),
        ("Hop is 1.6 times as fast ([page](PAGE)).", []),
        ("Hop is 1.5 times as fast ([page](PAGE)).", ["1.5"]),
        # Numbers agree at the precision that is written. A page's numbers have no further digits.
        ("A ratio of 1.565 ([result](JSON)).", []),
        ("A ratio of 1.565 ([page](PAGE)).", ["1.565"]),
        ("Accuracy 81.7 % ([result](JSON)).", []),
        ("Accuracy 81.8 % ([result](JSON)).", ["81.8"]),
        # No unit, so it is no share.
        ("Accuracy 81.7 ([result](JSON)).", ["81.7"]),
        ("It sends 12.3 MB ([result](JSON)).", []),
        ("It sends 13 MB, of 2,470 MB ([a](JSON), [b](PAGE)).", ["13"]),
        # Other sentences, other paragraphs, code and numbers of the paper are not checked.
        ("See [page](PAGE). It was 9.99 before.\n\nAnd 8.88.", []),
        ("1.56 ([page](PAGE); `--rate 7.77`; the paper: 6.66) of Figure 3.2 at 10 Gbit/s", []),
        ("Over\ntwo lines 5.55\n([page](PAGE)).", ["5.55"]),
        ("- an item 4.44 ([page](PAGE))\n- another 3.33", ["4.44"]),
        ("```\n9.99 [page](PAGE)\n```", []),
    ],
)
def test_a_sentence_is_checked(root: Path, text: str, missing: list[str]) -> None:
    assert find_missing(root, text) == missing


@pytest.mark.parametrize(
    ("head", "row", "missing"),
    [
        ("| graph | hop |", "| [`uk-like`](PAGE) | 1.56 (1.40 to 1.71) |", []),
        # Of the other graph, and of none.
        ("| graph | hop |", "| [`uk-like`](PAGE) | 2.34 |", ["2.34"]),
        ("| graph | hop |", "| [`it-like`](PAGE) | 2.34 |", []),
        ("| graph | hop |", "| all of [fig1](PAGE), scale 0.77 | 1.56, 1.41 |", ["1.41"]),
        # Whole numbers where a cell has nothing else.
        ("| graph | rows |", "| [a](PAGE) | 2,470, 55 |", ["55"]),
        ("| graph | rows |", "| [a](PAGE) | 4 hosts |", []),
        ("| graph | the paper reports | hop |", "| [a](PAGE) | 7.77 | 1.56 |", []),
        ("| graph | accuracy, per cent |", "| [a](JSON) | 81.7 |", []),
    ],
)
def test_a_row_is_checked(root: Path, head: str, row: str, missing: list[str]) -> None:
    assert find_missing(root, f"{head}\n|---|---|---|\n{row}\n") == missing


def test_rows_without_links_have_the_links_of_the_paragraph_above(root: Path) -> None:
    table = "| graph | hop |\n|---|---|\n| `uk-like` | 1.56 |\n| `in-like` | 2.43 |\n"
    assert find_missing(root, f"Measured ([page](PAGE)):\n\n{table}") == ["2.43"]
    assert find_missing(root, f"Measured ([page](PAGE)).\n\n## Else\n\nNot.\n\n{table}") == []


def test_the_readme_may_quote_a_page_of_the_docs(root: Path) -> None:
    (root / "docs" / "page.md").write_text("Hop is 1.56 times as fast.\n")
    readme = root / "README.md"
    readme.write_text("| what | result |\n|---|---|\n| a | 1.56, 1.65: [how](docs/page.md#how) |\n")
    (line,) = check_pages(root, [readme]).missing
    assert line == "README.md:3: 1.65 is not in docs/page.md"


def test_most_wrong_numbers_of_three_digits_are_found() -> None:
    """The files are large, so a wrong number may be in them by chance. This must be rare."""
    page = ROOT / "docs" / "results" / "engines-compared.md"
    refused = 0
    rows = [passage for passage in read_passages(page) if "README.md" in passage.cells[0]]
    numbers = [(row, text) for row in rows for text, _ in numbers_of(row) if len(text) == 4]
    for row, text in numbers:
        link = row.cells[0].split("(")[1].strip(")")
        name = row.cells[0].split("`")[1]
        refused += not holds(
            (page.parent / link).resolve(), f"{1.07 * float(text):.2f}", (), {name}
        )
    assert len(numbers) > 100
    assert refused > 0.6 * len(numbers)
