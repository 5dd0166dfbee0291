"""Options, overrides and positional arguments may stand in any order."""

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hopper.cli.commands import build_parser
from hopper.cli.options import seed, whole
from hopper.train import rank_process

SAMPLES: dict[Any, str] = {whole: "1", seed: "1", float: "1.5", Path: "x", None: "x"}
OVERRIDES = (["--train.epochs", "3"], ["--train.epochs=3"])


def iterate_leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the parser of each command that has no commands below it."""
    subcommands = [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    if not subcommands:
        yield name, parser
    for action in subcommands:
        for word, subparser in action.choices.items():
            yield from iterate_leaves(subparser, f"{name} {word}".strip())


LEAVES = dict(iterate_leaves(build_parser()))
WITH_CONFIGURATION = {
    name: parser
    for name, parser in LEAVES.items()
    if any(action.metavar == "CONFIG.toml" for action in parser._actions)
}


def value_for(action: argparse.Action) -> list[str]:
    if action.nargs == 0:
        return []
    if action.choices is not None:
        return [next(iter(action.choices))]
    if action.dest in ("features", "features_options"):
        return [f"x={'{}' if action.dest == 'features_options' else 'a:B'}"]
    return [SAMPLES.get(action.type, "1")]


def split_words(parser: Any) -> tuple[list[str], list[str], list[list[str]]]:
    """Return words for the positions, for required options, and for each of the other options."""
    places, required, optional = [], [], []
    for action in parser._actions:
        if not action.option_strings:
            places += value_for(action)
        elif action.dest != "help":
            words = [action.option_strings[-1], *value_for(action)]
            if action.required:
                required += words
            else:
                optional.append(words)
    return places, required, optional


def parse(name: str, words: list[str]) -> argparse.Namespace:
    arguments = [*name.split(), *words]
    return build_parser(arguments).parse_args(arguments)


@pytest.mark.parametrize("name", LEAVES)
def test_options_stand_before_or_after(name):
    places, required, optional = split_words(LEAVES[name])
    for option in (*optional, list(chain(*optional))):
        behind = parse(name, [*places, *required, *option])
        assert parse(name, [*option, *required, *places]) == behind
        assert parse(name, [*option, *places, *required]) == behind


@pytest.mark.parametrize("name", WITH_CONFIGURATION)
def test_overrides_stand_before_or_after(name):
    places, required, optional = split_words(WITH_CONFIGURATION[name])
    options = [*required, *chain(*optional)]
    for override in OVERRIDES:
        behind = parse(name, [*places, *options, *override])
        assert behind.overrides == override
        assert behind.config == places[0]
        assert parse(name, [*override, *places, *options]) == behind
        assert parse(name, [*options, *override, *places]) == behind


def test_commands_that_take_a_configuration_are_all_here():
    assert {"train", "doctor", "plan", "sweep", "bench"} <= set(WITH_CONFIGURATION)
    assert {"inspect cache", "inspect schedule"} <= set(WITH_CONFIGURATION)


@pytest.mark.parametrize("override", OVERRIDES)
def test_a_rank_takes_configuration_and_overrides_in_any_order(tmp_path, override):
    config = tmp_path / "c.toml"
    config.write_text('[data]\npartitioned = "parts"\n')
    epochs: list[int] = []
    for words in ([str(config), *override], [*override, str(config)]):
        assert rank_process.main(words, lambda loaded: epochs.append(loaded.train.epochs)) == 0
    assert epochs == [3, 3]
