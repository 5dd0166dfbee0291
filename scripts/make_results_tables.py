#!/usr/bin/env python
"""Fill the tables of README and docs from the results, and check the numbers of their prose.

usage: python scripts/make_results_tables.py [--check]

A table stands between `<!-- table KEY=VALUE ... -->` and `<!-- /table -->`:

    machine               whose summary.csv
    experiment, cell, side, measure, baseline
                          which of its lines: names, which may have a `*`, with a `|` between them.
                          A name may be followed by `=` and what the table calls it. `-` is empty
    rows, columns         one of these columns, or `show`
    show                  what is shown of a line: median, ratio (with its interval), MB (an epoch,
                          of all ranks), percent (of the median); with `|` and `=` too
    head                  what the first column is

A paragraph, list item or table by hand that links to `summary.csv#EXPERIMENT`, or to
`#EXPERIMENT/CELL`, has only numbers of it, rounded as they are written: of those with a decimal
point or a unit.
Sentences and brackets about a paper, places in it, rates of links and code are left out.

With ``--check`` nothing is written. Exits with 1 where a table is not up to date or a number is not
in the results.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.summary import Row, read  # noqa: E402

RESULTS = Path("benchmarks", "results")
TABLE = re.compile(r"(<!-- table (.*?)-->\n)(.*?)(<!-- /table -->)", re.S)
_FIELDS = ("experiment", "cell", "side", "measure", "baseline")
_KEYS = {*_FIELDS, "machine", "rows", "columns", "show", "head"}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_LEFT_OUT = re.compile(
    r"`[^`]*`|\([^()]*\b(?:paper|published|reports?)\b[^()]*\)|[\d.]+ [GM]bit/s|95 %(?= interval)"
    r"|\b(?:[Ff]igures?|[Ss]ections?|[Tt]ables?|Python|DGL|DistDGL|PyG|version)\s\d[\d.]*(?:\(\w\))?"
)
_NUMBER = re.compile(
    r"(?<![\w.,/:-])(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(\s?(?:%|[kMG]i?B\b|ms\b|s\b|x\b))?"
)
_FACTORS = {"%": 1e2, "ms": 1e3, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "MiB": 2.0**-20}


def fill(root: Path, text: str) -> str:
    """A page's text with its tables made anew."""
    return TABLE.sub(lambda found: found[1] + make_table(root, found[2]) + found[4], text)


def make_table(root: Path, directive: str) -> str:
    """The table that a marker asks for; raises ValueError where it can make none."""
    asked = dict(part.partition("=")[::2] for part in shlex.split(directive))
    if unknown := asked.keys() - _KEYS:
        raise ValueError(f"table {directive.strip()}: no such keys: {', '.join(sorted(unknown))}")
    names = {key: _read_names(asked[key]) for key in (*_FIELDS, "show") if key in asked}
    lines = [row for row in read_summary(root, asked["machine"]) if _is_asked(row, names)]
    across, down = asked["columns"], asked["rows"]
    headings = _labels(across, names, lines)
    table = [
        [asked.get("head", ""), *headings.values()],
        ["---", *("---:" for _ in headings)],
    ]
    for name, label in _labels(down, names, lines).items():
        cells = [_cell(lines, {down: name, across: heading}, names) for heading in headings]
        if any(cells):
            table.append([label, *cells])
    if len(table) == 2:
        raise ValueError(f"table {directive.strip()}: no such results")
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def _read_names(text: str) -> dict[str, str]:
    """What is asked for, and what it is called: "a=b|c" is {"a": "b", "c": "c"}."""
    pairs = (part.strip().partition("=") for part in text.split("|"))
    return {"" if name == "-" else name: label or _as_code(name) for name, _, label in pairs}


def _as_code(name: str) -> str:
    return f"`{name}`" if re.search("[-_]", name) and " " not in name else name


def _is_asked(row: Row, names: dict[str, dict[str, str]]) -> bool:
    return all(
        any(fnmatchcase(getattr(row, key), name) for name in names[key])
        for key in _FIELDS
        if key in names
    )


def _labels(key: str, names: dict[str, dict[str, str]], lines: list[Row]) -> dict[str, str]:
    """The rows or columns in order: as they are asked for, each pattern's as the file has them."""
    if key == "show":
        return names["show"]
    found = dict.fromkeys(getattr(row, key) for row in lines)
    return {
        value: _as_code(value) if "*" in name else label
        for name, label in names.get(key, {"*": ""}).items()
        for value in found
        if fnmatchcase(value, name)
    }


def _cell(lines: list[Row], place: dict[str, str], names: dict[str, dict[str, str]]) -> str:
    """What a cell shows; empty where nothing was measured."""
    show = place.get("show") or next(iter(names["show"]))
    here = [
        row for row in lines if all(getattr(row, k) == v for k, v in place.items() if k != "show")
    ]
    texts = {text for row in here if (text := _show(row, show))}
    if len(texts) > 1:
        raise ValueError(f"{place}: {len(texts)} results for one cell: {', '.join(sorted(texts))}")
    return texts.pop() if texts else ""


def _show(row: Row, show: str) -> str:
    if show == "ratio" and row.low is not None:
        return f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})"
    value = {"ratio": row.ratio, "MB": row.bytes}.get(show, row.median)
    if value is None:
        return ""
    return f"{100 * value:.1f}" if show == "percent" else _digits(value, show == "MB")


def _digits(value: float, is_bytes: bool) -> str:
    """A count, a number with two decimals if it is between 1 and 100, or else three digits."""
    if is_bytes:
        value *= 1e-6
    elif float(value).is_integer():
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


@cache
def read_summary(root: Path, machine: str) -> list[Row]:
    """The lines of a machine's file."""
    return read(root / RESULTS / machine / "summary.csv")


def find_wrong_numbers(root: Path, page: Path) -> Iterator[str]:
    """The numbers of a page's prose that are not in the results that it links to."""
    for line, passage in _passages(page.read_text(encoding="utf-8")):
        targets = [target.partition("#") for _, target in _LINK.findall(passage)]
        sources = [(page.parent / file, name) for file, _, name in targets if file.endswith(".csv")]
        if not sources:
            continue
        values = [
            value for file, name in sources for value in _values(root, file.parent.name, name)
        ]
        for number, unit in _numbers(passage):
            if not _is_rounded(number, unit, values):
                yield f"{page.relative_to(root)}:{line}: {number} is not in {sources[0][0].name}"


def _passages(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and tables by hand, with their lines; no code, no made tables."""
    for left_out in (re.compile(r"^```.*?^```", re.S | re.M), TABLE):
        text = left_out.sub(lambda found: "\n" * found[0].count("\n"), text)
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*[-*] ))", text):
        yield line + len(block) - len(block.lstrip("\n")), block
        line += block.count("\n")


def _numbers(passage: str) -> Iterator[tuple[str, str]]:
    """The numbers of a passage that are to be found, with their units."""
    text = _LEFT_OUT.sub("", _LINK.sub(r"\1", passage))
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text):
        if not re.search(r"\b(?:papers?|published|reports?)\b", sentence, re.I):
            for number, unit in _NUMBER.findall(sentence):
                if unit or "." in number:
                    yield number, unit.strip()


def _values(root: Path, machine: str, fragment: str) -> list[float]:
    """All numbers of an experiment, or of a cell of it."""
    experiment, _, cell = fragment.partition("/")
    numbers = [
        (row.median, row.ratio, row.low, row.high, row.bytes)
        for row in read_summary(root, machine)
        if row.experiment == experiment and cell in ("", row.cell)
    ]
    return [abs(number) for each in numbers for number in each if number is not None]


def _is_rounded(number: str, unit: str, values: list[float]) -> bool:
    digits, _, exponent = number.replace(",", "").partition("e")
    half = 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2])) * (1 + 1e-6)
    wanted = float(number.replace(",", ""))
    factors = (1.0, _FACTORS.get(unit, 1.0))
    return any(abs(value * factor - wanted) <= half for value in values for factor in factors)


def main() -> int:
    """Fill or check all pages."""
    check = "--check" in sys.argv[1:]
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT)
        try:
            filled = fill(ROOT, text)
        except ValueError as error:
            wrong.append(f"{name}: {error}")
            continue
        if filled != text and check:
            wrong.append(f"{name}: a table is not up to date")
        elif filled != text:
            page.write_text(filled, encoding="utf-8")
        wrong += find_wrong_numbers(ROOT, page)
    print("\n".join(wrong) or "all tables and numbers are those of the results")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
