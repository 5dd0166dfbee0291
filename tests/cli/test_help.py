"""Help imports little, so that it is quick; former names of commands answer with the present ones;
options, overrides and positional arguments may stand in any order."""

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import hopper
from hopper.cli import dataset, main
from hopper.cli.commands import COMMANDS, FORMER_NAMES, build_parser
from hopper.cli.options import seed, whole
from hopper.graph.importers import KINDS
from hopper.train import rank_process
from tests.server_processes import run_python

LOADED = """
import contextlib, io, sys
from hopper.cli import main

heavy = sys.argv.pop(1).split(",")
for words in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main(words.split())
    assert shown.getvalue(), words
    print(words, *(name for name in heavy if name in sys.modules), sep=":")
"""


def find_imports(heavy: str, *commands: str) -> list[str]:
    """Return a line for each command: the command, and those of the heavy modules that a fresh
    process has imported after it."""
    done = run_python("-c", LOADED, heavy, *commands)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_help_and_version_import_next_to_nothing():
    words = ["--help", "--version"]
    assert find_imports("torch,numba,numpy,pydantic,rich,grpc", *words) == words


def test_help_of_commands_imports_neither_torch_nor_numba():
    commands = [f"{name} --help" for name in COMMANDS]
    commands += ["dataset import --help", "inspect cache --help", "config init --help"]
    assert find_imports("torch,numba", *commands) == commands


def test_versions_are_one_line(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    python = ".".join(map(str, sys.version_info[:3]))
    torch, numpy = (re.escape(metadata.version(package)) for package in ("torch", "numpy"))
    hopper_version = re.escape(hopper.__version__)
    line = rf"hopper {hopper_version}, Python {python}, torch {torch}, numpy {numpy}\n"
    assert re.fullmatch(line, capsys.readouterr().out)


def test_all_commands_are_listed_whichever_is_asked_for(capsys):
    full_help = build_parser().format_help()
    assert full_help.startswith("usage: hopper [-h] [--version] COMMAND ...\n")
    assert main([]) == 2
    assert capsys.readouterr().out == full_help
    assert build_parser([]).format_help() == full_help
    assert build_parser(["plan", "--help"]).format_help() == full_help
    for name, text in COMMANDS.items():
        assert name in full_help
        assert " ".join(text.split()) in " ".join(full_help.split())


def test_every_module_with_a_command_is_listed():
    folder = Path(dataset.__file__).parent
    modules = {
        file.stem if file.stem != "__init__" else file.parent.name
        for pattern in ("*.py", "*/__init__.py")
        for file in folder.glob(pattern)
        if "\ndef add_options(parser: CommandParser)" in file.read_text()
    }
    assert modules == set(COMMANDS)


def test_a_parser_of_one_command_has_the_same_options():
    words = ["inspect", "schedule", "c.toml", "--dissolve", "1"]
    assert build_parser(words).parse_args(words) == build_parser().parse_args(words)


def test_the_command_knows_every_kind_of_import():
    assert (*KINDS, "database", "graphstorm") == dataset.KINDS


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_a_former_name_is_misuse_and_names_the_present_one(former, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*former.split(), "c.toml", "--train.seed=3"])
    printed = capsys.readouterr().err
    assert f"error: `hopper {former}` is now `{FORMER_NAMES[former]}`" in printed
    is_of_a_checkout = FORMER_NAMES[former].startswith("python -m benchmarks.")
    assert ("in a checkout of Hopper's repository" in printed) == is_of_a_checkout


def test_present_names_are_no_former_ones(capsys):
    for now in FORMER_NAMES.values():
        if now.startswith("hopper "):
            words = [word for word in now.split()[1:] if word.islower()][:2]
            with pytest.raises(SystemExit, match="0"):
                build_parser().parse_args([*words[: 2 - words[-1].startswith("--")], "--help"])


# Options, overrides and positional arguments may stand in any order

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
