"""The site builds without a warning, and every link in it and to its pages leads somewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.markdown_pages import PAGES, ROOT, anchors_of

MENTION = re.compile(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?")
BUILD = """
import gc, sys
from sphinx.cmd.build import main
# Nearly all that a build makes lives until its end.
gc.disable()
sys.exit(main(sys.argv[1:]))
"""
FOLDERS = ("hopper", "cache_server", "scripts", "examples", "benchmarks", "tests")
SUFFIXES = {".py", ".sh", ".sbatch", ".yaml", ".proto"}


@dataclass
class Page(HTMLParser):
    """The anchors and links of a page of HTML."""

    anchors: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.links.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the built site."""
    if importlib.util.find_spec("furo") is None:
        pytest.skip("the site is built with the extra docs, which is not installed")
    folder = tmp_path_factory.mktemp("site")
    script = folder / "build.py"
    script.write_text(BUILD)
    command = [sys.executable, str(script), "-q", "-W", "--keep-going"]
    done = subprocess.run(
        [*command, "-d", str(folder / "trees"), str(ROOT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_link_and_anchor_resolves(site):
    pages = {}
    for file in site.rglob("*.html"):
        pages[file] = page = Page()
        page.feed(file.read_text(encoding="utf-8"))
    assert len(pages) > 60
    wrong = []
    for file, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:|//", link):
                continue
            place, _, anchor = link.partition("#")
            goal = (file.parent / unquote(place.partition("?")[0])).resolve() if place else file
            if not goal.is_file() or (
                anchor and goal in pages and unquote(anchor) not in pages[goal].anchors
            ):
                wrong.append(f"{file.relative_to(site)}: {link}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_somewhere_on_github(page):
    """GitHub shows the Markdown files themselves, so their links have to lead to files."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for place, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if "://" in place:
            continue
        goal = (page.parent / place).resolve() if place else page
        assert goal.exists(), place
        if anchor and goal.suffix == ".md":
            assert anchor in anchors_of(goal), f"{place}#{anchor}"


def test_pages_that_the_code_names_exist():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*")]
    named = 0
    # Other systems' environments may lie below benchmarks.
    files = [file for file in files if "environments" not in file.parts]
    for file in (file for file in files if file.suffix in SUFFIXES and file.is_file()):
        for name, anchor in MENTION.findall(file.read_text(encoding="utf-8")):
            page = ROOT / "docs" / name
            assert page.is_file(), f"{file.relative_to(ROOT)}: docs/{name}"
            assert not anchor or anchor[1:] in anchors_of(page), f"{file}: docs/{name}{anchor}"
            named += 1
    assert named > 50


def test_every_engine_has_a_picture():
    from hopper.config import ENGINES

    page = (ROOT / "docs" / "inside" / "engines.md").read_text(encoding="utf-8")
    for name in ENGINES:
        assert f"../pictures/{name}.svg" in page
        assert (ROOT / "docs" / "pictures" / f"{name}.svg").is_file()
