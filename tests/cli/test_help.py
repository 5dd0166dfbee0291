"""``hopper --help`` and ``--version`` import little, so that they are quick."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

import hopper
from hopper.cli import dataset, main
from hopper.cli.commands import COMMANDS, build_parser
from hopper.graph.importers import KINDS
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
    line = (
        rf"hopper {re.escape(hopper.__version__)}, Python {python}, torch {torch}, numpy {numpy}\n"
    )
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
