#!/usr/bin/env python
"""Check that the numbers of the README and the documentation stand in the results they link to.

usage: python scripts/check_numbers.py

Which numbers. A *passage* is a row of a table, or a sentence of a paragraph or list item. It has
*sources*: the files below ``benchmarks/results`` that it links to; where a row links to none, those
of the paragraph that ends just above its table. Pages of ``docs`` that are linked to beside them
are sources too, and in the README they are sources by themselves: its numbers may be those of a
page, whose own numbers are checked.
Of a passage with sources these numbers are checked:

- every number with a decimal point, and every whole one with a unit behind it (``%``, ``per cent``,
  ``points``, ``kB``, ``MB``, ``GB``, ``MiB``, ``GiB``, ``ms``, ``s``, ``times``);
- in a cell of a table that holds numbers alone (brackets, commas, slashes, ``±``, ``%`` and "to"
  aside), every number.

Left out, since they are not what was measured: code; a table's first column, which says what a row
is of; what a bracket, or a column or row so labelled, says of a paper or of what was published (it
has one of the words "paper", "published", "reports"); the places and versions that words such as
"Figure 22", "section 3.1", "Python 3.11" name; link rates ("1 Gbit/s") and the 95 % of intervals.

When a number stands in a source. Its text has some number of decimals, and the source holds a
number that rounds to it at that precision, halves either way; signs are not compared.

- A page is searched in its text without code. Where a row's first column has names in backticks,
  and the page of a result has rows whose first column has all of them, or else one, in these alone.
- JSON is searched in its values. They may be shares where the passage says "%", "per cent" or
  "points", bytes where it says "kB", "MB", "GB", "MiB" or "GiB", and seconds where it says "ms";
  headings and the paragraph above a table count as said in every row.

What it does not see: whether the number stands in the right column. Of today's numbers, each made 7
% larger, it misses three in five of those with two digits and one in four of those with three.

Prints how many numbers of how many files were checked, and each that was not found with its page
and line; exits with 1 if there is one.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks", "results")

_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_NUMBER = re.compile(
    r"(?<![\w.,/:-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?(?![\w]|[.,:]\d)"
)
_SHOWN = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?")
_UNIT = re.compile(r"\s?(?:%|per cent\b|points\b|[kMG]B\b|[MG]iB\b|ms\b|s\b|times\b)")
_RATE = re.compile(r"[\d.]+ [GM]bit/s")
_PLACE = re.compile(
    r"\b(?:[Ff]igures?|[Ss]ections?|[Tt]ables?|Python|DGL|DistDGL|version)\s\d[\d.]*(?:\(\w\))?"
)
_INTERVAL = re.compile(r"\b95 %(?=:| interval)")
_OTHERS = re.compile(r"paper|published|reports")
_BRACKET = re.compile(r"\([^()]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\d`\[*])")
_NUMBERS_ALONE = re.compile(r"(?:[\d.,/()±+−%x\s-]|to|e-\d+)+")
_FACTORS = {
    r"%|per cent|points": 1e2,
    r"\bkB\b": 1e-3,
    r"\bMB\b": 1e-6,
    r"\bGB\b": 1e-9,
    r"\bMiB\b": 2.0**-20,
    r"\bGiB\b": 2.0**-30,
    r"\bms\b": 1e3,
}


@dataclass(frozen=True)
class Passage:
    """A row or a sentence, where it stands, and the headings of a row's columns."""

    page: Path
    line: int
    cells: tuple[str, ...]
    headings: tuple[str, ...] = ()
    above: str = ""
    """the paragraph above the table"""


@dataclass
class Report:
    """What was checked, and what was not found."""

    numbers: int = 0
    passages: int = 0
    sources: set[Path] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)


def check_pages(root: Path, pages: Iterable[Path]) -> Report:
    """Check all passages of some pages.

    Parameters
    ----------
    root: of the checkout; ``pages`` are below it.
    """
    report = Report()
    for page in pages:
        for passage in read_passages(page):
            _check(root, passage, report)
    return report


def read_passages(page: Path) -> Iterator[Passage]:
    """The rows and sentences of a page, code blocks aside."""
    block: list[tuple[int, str]] = []
    above = ""
    fenced = False
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        starts = line.startswith(("|", "#")) or re.match(r"\s*(?:[-*]|\d+\.)\s", line)
        if block and (not line.strip() or fenced or starts) and not _continues(block, line):
            yield from _passages_of(page, block, above)
            is_table = block[0][1].startswith("|")
            above = "" if is_table else " ".join(text for _, text in block)
            block = []
        if line.strip() and not fenced and not line.lstrip().startswith("```"):
            block.append((number, line))


def _continues(block: list[tuple[int, str]], line: str) -> bool:
    return block[0][1].startswith("|") and line.startswith("|")


def _passages_of(page: Path, block: list[tuple[int, str]], above: str) -> Iterator[Passage]:
    if not block[0][1].startswith("|"):
        text = "\n".join(line for _, line in block)
        begin = 0
        for end in [*(found.end() for found in _SENTENCE_END.finditer(text)), len(text)]:
            yield Passage(page, block[0][0] + text[:begin].count("\n"), (text[begin:end],))
            begin = end
        return
    rows = [(number, _split_row(line)) for number, line in block]
    headings = rows[0][1]
    for number, cells in rows[2:]:
        yield Passage(page, number, cells, headings, above)


def _split_row(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))


def sources_of(root: Path, page: Path, text: str) -> tuple[Path, ...]:
    """The files that a text's links stand for, if one of them is a result (or, in the README, a
    page of the documentation)."""
    results, pages = [], []
    for _, _, target in _LINK.findall(text):
        if "://" in target or target.startswith("#"):
            continue
        path = (page.parent / target.split("#")[0]).resolve()
        if path.is_relative_to(root / RESULTS) and path.is_file():
            results.append(path)
        elif path.is_relative_to(root / "docs") and path != page:
            pages.append(path)
    if not results and page != root / "README.md":
        return ()
    return tuple(dict.fromkeys([*results, *pages]))


def _check(root: Path, passage: Passage, report: Report) -> None:
    sources = sources_of(root, passage.page, " ".join(passage.cells))
    sources = sources or sources_of(root, passage.page, passage.above)
    if not sources:
        return
    wanted = list(numbers_of(passage))
    report.passages += bool(wanted)
    report.numbers += len(wanted)
    report.sources.update(sources if wanted else ())
    label = passage.cells[0] if passage.headings else ""
    names = frozenset(name.strip("`") for name in _CODE.findall(label))
    for text, factors in wanted:
        if not any(
            holds(source, text, factors, names if (root / RESULTS) in source.parents else ())
            for source in sources
        ):
            files = ", ".join(str(source.relative_to(root)) for source in sources)
            where = f"{passage.page.relative_to(root)}:{passage.line}"
            report.missing.append(f"{where}: {text} is not in {files}")


def numbers_of(passage: Passage) -> Iterator[tuple[str, list[float]]]:
    """The numbers of a passage that are to be found, each with what a source's may be times."""
    said = " ".join([*passage.cells, *passage.headings, passage.above])
    factors = [1.0, *(by for unit, by in _FACTORS.items() if re.search(unit, said))]
    is_row = bool(passage.headings)
    if is_row and _OTHERS.search(passage.cells[0]):
        return
    for column, cell in enumerate(passage.cells):
        heading = passage.headings[column] if column < len(passage.headings) else ""
        if (is_row and column == 0) or _OTHERS.search(heading):
            continue
        text = _plain(cell)
        alone = is_row and bool(_NUMBERS_ALONE.fullmatch(text))
        for found in _NUMBER.finditer(text):
            if alone or "." in found[0] or _UNIT.match(text, found.end()):
                yield found[0], factors


def _plain(text: str) -> str:
    """A text without code, link targets, and what it says of others."""
    text = _CODE.sub("`", text)
    text = _LINK.sub(lambda link: "" if link[1] else link[2], text)
    text = _BRACKET.sub(lambda found: "" if _OTHERS.search(found[0]) else found[0], text)
    return _PLACE.sub("", _INTERVAL.sub("", _RATE.sub("", text)))


def holds(
    source: Path, text: str, factors: Iterable[float] = (1.0,), names: Iterable[str] = ()
) -> bool:
    """Whether a source has a number that rounds to the one that is written.

    Parameters
    ----------
    factors: what a number of JSON may be times; a page's has the unit that it is shown in.
    names: of what the number is; they narrow down the rows of a page.
    """
    digits = text.replace(",", "")
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    half = 0.5 * 10.0**-decimals * (1 + 1e-6)
    is_page = source.suffix == ".md"
    values = _values_of_page(source, frozenset(names)) if is_page else _values_of_json(source)
    for factor in (1.0,) if is_page else factors:
        place = bisect_left(values, (float(digits) - half) / factor)
        if place < len(values) and values[place] <= (float(digits) + half) / factor:
            return True
    return False


@cache
def _values_of_page(source: Path, names: frozenset[str]) -> list[float]:
    """The numbers of a page, without signs, in order: of the rows that are of all of the names, or
    of one; of the whole page, if it has no such row."""
    lines = source.read_text().splitlines()
    for chosen in (all, any) if names else ():
        rows = [line for line in lines if chosen(name in _label(line) for name in names)]
        if rows:
            lines = rows
            break
    text = _CODE.sub("", "\n".join(lines))
    return sorted(float(each[0].replace(",", "")) for each in _SHOWN.finditer(text))


@cache
def _values_of_json(source: Path) -> list[float]:
    """All numbers of a file, without signs, in order."""
    text = source.read_text()
    lines = text.splitlines() if source.suffix == ".jsonl" else [text]
    return sorted(abs(value) for line in lines for value in _numbers_in(json.loads(line)))


def _label(line: str) -> str:
    """What a row of a table is of; "" for another line."""
    return line.split("|")[1] if line.startswith("|") else ""


def _numbers_in(value: object) -> Iterator[float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def main() -> int:
    """Check the README and all of the documentation."""
    report = check_pages(ROOT, [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
    for line in report.missing:
        print(line)
    print(
        f"{report.numbers} numbers in {report.passages} rows and sentences, against "
        f"{len(report.sources)} files: {len(report.missing)} not found"
    )
    return 1 if report.missing else 0


if __name__ == "__main__":
    sys.exit(main())
