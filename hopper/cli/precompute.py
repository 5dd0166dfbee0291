"""``hopper precompute metapaths | subsets``: average neighbours once, before training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper.cli.metapaths import add_metapath_option, split_metapaths
from hopper.cli.numbers import seed, whole

if TYPE_CHECKING:
    from hopper.hetero.precompute.tables import Recipe


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser(
        "precompute",
        help=text,
        description="Average the neighbours of a typed graph's target once. Write the rows as a "
        "graph directory, on which models sehgnn and nars are trained.",
    )
    kinds = parser.add_subparsers(dest="precompute_command", required=True, metavar="COMMAND")
    metapaths = kinds.add_parser("metapaths", help="average along metapaths, for model sehgnn")
    _add_common(metapaths, "graph directory, or a graph divided by relation")
    add_metapath_option(metapaths)
    metapaths.set_defaults(run=_run_metapaths)
    subsets = kinds.add_parser("subsets", help="average over subsets of relations, for model nars")
    _add_common(subsets, "graph directory")
    subsets.add_argument(
        "--subsets", type=whole, default=8, metavar="N", help="subsets to draw (default 8)"
    )
    subsets.add_argument(
        "--dim",
        type=whole,
        default=0,
        metavar="D",
        help="width to which random matrices bring the rows of all types (default: none; all types "
        "must have the same width)",
    )
    subsets.set_defaults(run=_run_subsets)


def _add_common(parser: argparse.ArgumentParser, source: str) -> None:
    parser.add_argument("graph", type=Path, metavar="DIR", help=source)
    parser.add_argument("--layers", type=whole, default=2, metavar="K", help="hops (default 2)")
    parser.add_argument(
        "--random-dim",
        type=whole,
        default=0,
        metavar="D",
        help="width of random rows for types without features (default: such types are refused)",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="K", help="seed (default 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")


def _run_metapaths(options: argparse.Namespace) -> int:
    from hopper.hetero.precompute import MetapathTables

    return _run(options, MetapathTables(options.layers, split_metapaths(options.metapath)))


def _run_subsets(options: argparse.Namespace) -> int:
    from hopper.hetero.precompute import SubsetTables

    return _run(options, SubsetTables(options.layers, options.subsets, options.dim, options.seed))


def _run(options: argparse.Namespace, recipe: Recipe) -> int:
    from rich.console import Console
    from rich.table import Table

    from hopper.cli.phases import show_progress
    from hopper.display.console_tables import print_table
    from hopper.hetero.precompute import precompute

    _, progress = show_progress()
    schema = precompute(
        options.graph,
        options.out,
        recipe,
        random_dim=options.random_dim,
        seed=options.seed,
        progress=progress,
    )
    target = schema.target_type()
    table = Table("rows", "width", title=f"{schema.name}: rows of {target}: {options.out}")
    for name, kind in schema.node_types.items():
        table.add_row(f"{name} (its own)" if name == target else name, str(kind.feature_dim))
    print_table(Console(highlight=False, soft_wrap=True), table)
    return 0
