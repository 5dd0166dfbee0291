"""``hopper dataset precompute metapaths | subsets``: average neighbours once, before training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper.cli.options import CommandParser, seed, whole

if TYPE_CHECKING:
    from hopper.hetero.precompute.write_tables import Recipe


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "precompute",
        help="average the neighbours of a typed graph once, for models sehgnn and nars",
        description="Average the neighbours of a typed graph's target once. Write the rows as a "
        "graph directory, on which models sehgnn and nars are trained.",
    )
    kinds = parser.add_subparsers(dest="precompute_command", required=True, metavar="COMMAND")
    metapaths = kinds.add_parser("metapaths", help="average along metapaths, for model sehgnn")
    _add_common(metapaths)
    metapaths.metapath_option()
    metapaths.set_defaults(run=_run_metapaths)
    subsets = kinds.add_parser("subsets", help="average over subsets of relations, for model nars")
    _add_common(subsets)
    subsets.option("--subsets N", "subsets to draw (default 8)", type=whole, default=8)
    subsets.option(
        "--dim D",
        "width to which random matrices bring the rows of all types (default: none; all types "
        "must have the same width)",
        type=whole,
        default=0,
    )
    subsets.set_defaults(run=_run_subsets)


def _add_common(parser: CommandParser) -> None:
    parser.option("graph DIR", "graph directory", type=Path)
    parser.option("--layers K", "hops (default 2)", type=whole, default=2)
    parser.option(
        "--random-dim D",
        "width of random rows for types without features (default: such types are refused)",
        type=whole,
        default=0,
    )
    parser.option("--seed K", "seed (default 0)", type=seed, default=0)
    parser.option("--out DIR", "where to write", type=Path, required=True)


def _run_metapaths(options: argparse.Namespace) -> int:
    from hopper.hetero.precompute import MetapathTables

    return _run(options, MetapathTables(options.layers, options.metapath))


def _run_subsets(options: argparse.Namespace) -> int:
    from hopper.hetero.precompute import SubsetTables

    return _run(options, SubsetTables(options.layers, options.subsets, options.dim, options.seed))


def _run(options: argparse.Namespace, recipe: Recipe) -> int:
    from rich.console import Console

    from hopper.cli.phases import show_progress
    from hopper.display.console_tables import make_table, print_table
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
    rows = [
        (f"{name} (its own)" if name == target else name, str(kind.feature_dim))
        for name, kind in schema.node_types.items()
    ]
    title = f"{schema.name}: rows of {target}: {options.out}"
    table = make_table(("rows", "width"), rows, title, texts=2)
    print_table(Console(highlight=False, soft_wrap=True), table)
    return 0
