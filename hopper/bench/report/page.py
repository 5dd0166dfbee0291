"""The page around the sections. It is one file and loads no other."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

from hopper.bench.report.colours import palette_style
from hopper.bench.report.findings import find
from hopper.bench.report.headline import headline, hero
from hopper.bench.report.markup import Markup, tag
from hopper.bench.report.sections import all_sections
from hopper.bench.report.source import Source

_PACKAGE: Final = "hopper.bench.report"


def page(source: Source) -> str:
    """Write the whole HTML document."""
    findings = find(source)
    sections = all_sections(source, findings)
    links = [tag("a", heading, href=f"#{name}") for name, heading, _ in sections]
    switch = tag("button", "Light / dark", type="button", id="theme", hidden=True)
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("nav", tag("div", links, class_="links"), switch, aria_label="Sections"),
        tag(
            "main",
            hero(source, findings),
            [
                tag("section", tag("h2", heading, id=f"{name}-heading"), content, id=name,
                    aria_labelledby=f"{name}-heading")
                for name, heading, content in sections
            ],
            id="content",
        ),
        tag("footer", tag("p", "Made by ", tag("code", "hopper report"), " from files alone.")),
        tag("div", id="tip", role="status", hidden=True),
        tag("script", _asset("script.js")),
    )  # fmt: skip
    document = tag("html", _head(headline(source, findings)), body, lang="en")
    # ASCII alone: the page reads the same whatever encoding a server or an editor assumes.
    text = f"<!doctype html>\n{document}\n"
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _head(title: str) -> Markup:
    script = _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only the script of this page runs and nothing is loaded, not even by markup from a file.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · Hopper"),
        tag("style", Markup(palette_style() + "\n"), _asset("style.css")),
    )


def _asset(name: str) -> Markup:
    return Markup(files(_PACKAGE).joinpath(name).read_text(encoding="utf-8"))
