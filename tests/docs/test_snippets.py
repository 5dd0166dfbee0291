"""What the pages tell readers to type can be typed.

Commands of ``hopper`` go through its real argument parser and overrides through the configuration,
TOML is loaded, and Python is compiled. Other tests run some snippets.
"""

import argparse
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from hopper.cli.commands import build_parser
from hopper.config import Config, make_config
from hopper.graph.importers.sql import GraphQueries
from hopper.train.sweep import make_sweep
from tests.docs.markdown_pages import PAGES, ROOT, Snippet, read_snippets

SNIPPETS = [snippet for page in PAGES for snippet in read_snippets(page)]
# Where one block is an excerpt: what it does not say.
COMPLETION: dict[str, Any] = {"data": {"partitioned": "parts"}}


def of_language(*languages: str) -> list[Any]:
    """Return the snippets in one of some languages, as named parameters."""
    return [
        pytest.param(snippet, id=str(snippet))
        for snippet in SNIPPETS
        if snippet.language in languages
    ]


def commands_of(snippet: Snippet) -> Iterator[list[str]]:
    """Yield the words of each command of ``hopper`` in a snippet."""
    text = re.sub(r"\\\n\s*", " ", snippet.text)
    for line in text.splitlines():
        for command in re.split(r"&&|\|\|?|;", line):
            # Where a page explains a command beside it, spaces stand between the two.
            shown = re.split(r"\s{3,}(?!-)| #|>", command.strip())[0]
            match = re.match(r"(?:\$ )?(?:\w+=\S+ )*(?:sudo )?hopper (.*)", shown)
            if match and "..." not in shown and "[" not in shown.replace("'[", ""):
                yield shlex.split(match[1])


def with_commands() -> list[Any]:
    """Return each command of each block that a shell would read, as named parameters."""
    return [
        pytest.param(words, id=f"{snippet}-{place}")
        for snippet in SNIPPETS
        if snippet.language in ("", "bash", "sh")
        for place, words in enumerate(commands_of(snippet))
    ]


@pytest.mark.parametrize("words", with_commands())
def test_commands_are_understood(words, capsys):
    try:
        options = build_parser().parse_args(words)
    except SystemExit:
        pytest.fail(f"hopper {shlex.join(words)}: {capsys.readouterr().err}")
    assert isinstance(options, argparse.Namespace)
    for word in options.overrides:
        if match := re.match(r"--(\w+)\.(\w+)", word):
            section = Config.model_fields[match[1]].annotation
            assert match[2] in section.model_fields, word  # type: ignore[union-attr]


def test_commands_are_found():
    """The pages have many commands. If none were found, their tests would check nothing."""
    assert len(with_commands()) > 60


@pytest.mark.parametrize("snippet", of_language("toml"))
def test_configurations_are_accepted(snippet):
    values = tomllib.loads(snippet.text)
    if snippet.page.name == "import-sql.md" or "nodes" in values:
        GraphQueries.make({"nodes": {}} | values, str(snippet))
        return
    if not set(values) <= set(Config.model_fields):
        pytest.fail(
            f"sections of no configuration: {sorted(set(values) - set(Config.model_fields))}"
        )
    # Lists of values make trials there.
    load = make_sweep if snippet.page.name == "sweeps.md" else make_config
    load(COMPLETION | values)


@pytest.mark.parametrize("snippet", of_language("python"))
def test_python_compiles(snippet):
    compile(snippet.text, str(snippet), "exec")


@pytest.mark.parametrize("snippet", of_language("json"))
def test_json_is_valid(snippet):
    if "..." not in snippet.text:
        json.loads(snippet.text)


def test_scripts_that_pages_name_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"(?:\./|python )((?:scripts|benchmarks)/[\w/]+\.\w+)", text):
            assert (ROOT / name).is_file(), f"{page}: {name}"


def test_languages_are_known():
    """A misspelt language would keep a snippet from being read."""
    known = {"", "bash", "sh", "python", "sql", "toml", "json", "text", "yaml", "csv", "diff"}
    directives = {"{toctree}"}
    assert {snippet.language for snippet in SNIPPETS} <= known | directives
