"""The reference of the command line, made from its parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docstrings import as_sentence, to_markdown

from hopper.cli.commands import build_parser


def command_reference() -> str:
    """Every command: how it is called, what it does, and its options."""
    return "\n".join(_describe(build_parser(), ""))


def _describe(parser: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    words = parser.prog.split()
    if len(words) > 1:
        yield from ("", f"{'#' * min(len(words), 4)} `{parser.prog}`", "")
        texts = [as_sentence(to_markdown(text)) for text in (summary, parser.description or "")]
        for text in dict.fromkeys(filter(None, texts)):
            yield from (text, "")
    commands = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not commands:
        yield from ("```text", _usage(parser), "```", "", *_arguments(parser))
    for command in commands:
        helps = {choice.dest: choice.help or "" for choice in command._choices_actions}
        for name, child in command.choices.items():
            yield from _describe(child, helps.get(name, ""))


def _usage(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
    return parser.format_usage().removeprefix("usage: ").rstrip()


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog, width=10_000)
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        if not (action.help or action.option_strings):
            continue
        told = formatter._format_action_invocation(action)
        yield from (f"`{told}`", f": {_meaning(formatter, action)}", "")


def _meaning(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    text = formatter._expand_help(action) if action.help else "required" if action.required else ""
    return as_sentence(to_markdown(text)) or "-"
