"""Tests read headings, links and snippets of the documentation's pages."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "examples/wordnet/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read_snippets(page: Path) -> Iterator[Snippet]:
    """Yield the fenced blocks of a page, without their indentation."""
    begun: tuple[int, str, str] | None = None
    block: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"(\s*)```(.*)", line)
        if begun is None and fence:
            begun, block = (number, fence[1], fence[2].strip()), []
        elif begun is not None and fence and not fence[2]:
            indent = len(begun[1])
            yield Snippet(
                page, begun[0], begun[2], "\n".join(code_line[indent:] for code_line in block)
            )
            begun = None
        elif begun is not None:
            block.append(line)
    assert begun is None, f"{page}: the block at line {begun} has no end"


def read_code(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language."""
    return [snippet.text for snippet in read_snippets(page) if snippet.language == language]


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub and the site give to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    anchors: set[str] = set()
    for title in re.findall(r"^#{1,4} (.*)$", text, re.M):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 1
        while anchor in anchors and f"{anchor}-{number}" in anchors:
            number += 1
        anchors.add(f"{anchor}-{number}" if anchor in anchors else anchor)
    return frozenset(anchors)
