"""Pages of the site for files of the repository that the documentation links to.

Pages link to results, examples and sources beside ``docs``. On the site such a link leads to a copy
of the file below ``repository/``: Markdown and source text as a plain page, everything else as it
is. So a built site is complete, wherever it is put.
"""

from __future__ import annotations

import html
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin
from myst_parser.mdit_to_docutils.base import default_slugify

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
FOLDER: Final = "repository"
"""of the site, where copies of the repository's files are"""
_LINK = re.compile(r"(?<!!)(\[[^\]]*\])\(([^)\s#]+)(#[\w.-]+)?\)")
_AS_IT_IS: Final = {".json", ".jsonl", ".png", ".webp", ".svg", ".csv", ".html"}
_TEMPLATE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem
}} table {{ border-collapse: collapse; display: block; overflow-x: auto }}
td, th {{ border: 1px solid #8886; padding: .25rem .5rem; vertical-align: top }}
pre {{ overflow-x: auto; background: #8882; padding: 1rem }}
img {{ max-width: 100%; background: white }}
</style>
<p><a href="{index}">Hopper</a> / {title}</p>
{body}
</html>
"""


class RepositoryFiles:
    """Finds links out of ``docs``, leads them to copies, and writes these."""

    def __init__(self, app: Any) -> None:
        self._wanted: list[Path] = []
        self._written: set[Path] = set()

    def mark_links(self, app: Any, page: str, source: list[str]) -> None:
        """Give links out of ``docs`` a scheme of their own, so that Sphinx leaves them alone."""
        folder = (DOCS / page).parent

        def mark(link: re.Match[str]) -> str:
            path = (folder / link[2]).resolve()
            if "://" in link[2] or path.is_relative_to(DOCS) or not path.exists():
                return link[0]
            return f"{link[1]}(repository:{path.relative_to(ROOT)}{link[3] or ''})"

        source[0] = _LINK.sub(mark, source[0])

    def resolve_links(self, app: Any, tree: Any, page: str) -> None:
        """Lead marked links to copies."""
        for node in tree.findall(nodes.reference):
            if node.get("refuri", "").startswith("repository:"):
                path, hash_, anchor = node["refuri"].removeprefix("repository:").partition("#")
                self._wanted.append(ROOT / path)
                folder = Path(app.builder.get_target_uri(page)).parent
                place = os.path.relpath(copy_of(ROOT / path), folder)
                node["refuri"] = f"{place}{hash_}{anchor}"

    def write_all(self, app: Any, error: Exception | None) -> None:
        """Write a copy of every file that is linked to, and of those that these link to."""
        if error is not None or app.builder.format != "html":
            return
        while self._wanted:
            path = self._wanted.pop()
            if path not in self._written:
                self._written.add(path)
                self._write(path, Path(app.outdir))

    def _write(self, path: Path, site: Path) -> None:
        out = site / copy_of(path)
        out.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.suffix in _AS_IT_IS:
            shutil.copyfile(path, out)
            return
        if path.is_dir():
            body = _listing(path)
        elif path.suffix == ".md":
            body = self._render(path)
        else:
            body = f"<pre>{html.escape(path.read_text(encoding='utf-8'))}</pre>"
        index = os.path.relpath(site / "index.html", out.parent)
        title = html.escape(str(path.relative_to(ROOT)))
        out.write_text(_TEMPLATE.format(title=title, index=index, body=body), encoding="utf-8")

    def _render(self, path: Path) -> str:
        """A page of Markdown, whose links lead to copies and to pages of the site."""
        parser = MarkdownIt("commonmark").enable("table")
        parser.use(anchors_plugin, max_level=4, slug_func=default_slugify)
        tokens = parser.parse(path.read_text(encoding="utf-8"))
        for token in (child for each in tokens for child in each.children or ()):
            for key in {"href", "src"} & set(token.attrs):
                token.attrs[key] = self._follow(path, str(token.attrs[key]))
        return str(parser.renderer.render(tokens, parser.options, {}))

    def _follow(self, page: Path, target: str) -> str:
        place, hash_, anchor = target.partition("#")
        path = (page.parent / place).resolve()
        if "://" in target or not place or not path.exists() or not path.is_relative_to(ROOT):
            return target
        if path.is_relative_to(DOCS) and path.suffix == ".md":
            goal = str(path.relative_to(DOCS).with_suffix(".html"))
        else:
            self._wanted.append(path)
            goal = copy_of(path)
        return os.path.relpath(goal, Path(copy_of(page)).parent) + hash_ + anchor


def copy_of(path: Path) -> str:
    """Where a file's copy is, relative to the site."""
    name = f"{FOLDER}/{path.relative_to(ROOT)}"
    if path.is_dir():
        return f"{name}/index.html"
    return name if path.suffix in _AS_IT_IS else f"{name}.html"


def _listing(folder: Path) -> str:
    names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in folder.iterdir())
    shown = [name for name in names if not name.startswith((".", "__pycache__"))]
    return "<ul>" + "".join(f"<li>{html.escape(name)}" for name in shown) + "</ul>"
