"""``hopper dataset make | import | fetch | precompute``: graphs, from wherever they are."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Final

from hopper.cli.options import CommandParser, seed, whole

KINDS: Final = (
    "npy",
    "ogb",
    "dgl",
    "pyg",
    "csv",
    "parquet",
    "sql",
    "graphml",
    "graphbolt",
    "distdgl",
    "database",
    "graphstorm",
)
"""The kinds of hopper.graph.importers, which takes long to import. A test compares both."""


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = "Make, import and precompute graph directories; fetch partitioned ones."
    kinds = parser.add_subparsers(dest="dataset_command", required=True, metavar="COMMAND")
    make = kinds.add_parser("make", help="make a synthetic graph from a preset")
    make.option("preset PRESET", "such as arxiv-like or products-like")
    make.option("--out DIR", "where to write", type=Path, required=True)
    make.option("--scale F", "share of the full size (default 1)", type=float, default=1.0)
    make.option("--seed K", "default 0", type=seed, default=0)
    make.option("--feature-dim D", "width of the features (default: the preset's)", type=whole)
    make.set_defaults(run=_run_make)
    _add_import(kinds.add_parser("import", help="import a graph from another format"))
    fetch = kinds.add_parser(
        "fetch", help="fetch a partitioned directory from an address, and check it"
    )
    fetch.option("address ADDRESS", "such as s3://bucket/parts")
    fetch.option("--out DIR", "where to write", type=Path, required=True)
    fetch.option(
        "--server I", "only what this server needs; may be repeated", type=whole, several=True
    )
    fetch.set_defaults(run=_run_fetch)
    precompute = kinds.add_parser(
        "precompute",
        help="average the neighbours of a typed graph once, for models sehgnn and nars",
        description="Average the neighbours of a typed graph's target once. Write the rows as a "
        "graph directory, on which models sehgnn and nars are trained.",
    )
    _add_precompute(precompute)


def _add_precompute(parser: CommandParser) -> None:
    kinds = parser.add_subparsers(dest="precompute_command", required=True, metavar="COMMAND")
    metapaths = kinds.add_parser("metapaths", help="average along metapaths, for model sehgnn")
    subsets = kinds.add_parser("subsets", help="average over subsets of relations, for model nars")
    for kind in (metapaths, subsets):
        kind.option("graph DIR", "graph directory", type=Path)
        kind.option("--layers K", "hops (default 2)", type=whole, default=2)
        kind.option(
            "--random-dim D",
            "width of random rows for types without features (default: such types are refused)",
            type=whole,
            default=0,
        )
        kind.option("--seed K", "seed (default 0)", type=seed, default=0)
        kind.option("--out DIR", "where to write", type=Path, required=True)
        kind.set_defaults(run=_run_precompute)
    metapaths.metapath_option()
    subsets.option("--subsets N", "subsets to draw (default 8)", type=whole, default=8)
    subsets.option(
        "--dim D",
        "width to which random matrices bring the rows of all types (default: none; all types "
        "must have the same width)",
        type=whole,
        default=0,
    )


def _add_import(parser: CommandParser) -> None:
    parser.option("kind KIND", f"one of {', '.join(KINDS)}", choices=KINDS)
    parser.option(
        "source SOURCE",
        "a folder (npy, csv, parquet, graphbolt), a file (sql: of queries; dgl: by "
        "dgl.save_graphs; pyg: by torch.save; graphml; "
        "distdgl: the JSON file of partition_graph or of chunks), a dataset's name (ogb), or an "
        "address or a folder of RelBench (database), or the JSON file of GraphStorm's construction "
        "(graphstorm); these two write a file of queries for import sql",
    )
    parser.option("--out DIR", "where to write", type=Path, required=True)
    parser.option("--name NAME", "name of the graph")
    _add_changes(parser)
    parser.option("--root DIR", "folder for ogb downloads", type=Path, default=Path("dataset"))
    parser.option(
        "--memory-limit SIZE",
        "csv, parquet and sql: memory for the import, such as 2G (default: half of what is free)",
    )
    parser.set_defaults(run=_run_import)


def _add_changes(parser: CommandParser) -> None:
    parser.option(
        "--symmetrize", "add the reverse of each edge within one node type that has no counterpart"
    )
    parser.option(
        "--add-reverse",
        "add a relation rev_<rel> for each relation (all), or for those between two types only, "
        "and symmetrize the others (cross-type)",
        choices=("all", "cross-type"),
        default="",
    )
    parser.option(
        "--target RELATION",
        "predict edges of this relation (src/rel/dst or its name); may be repeated; all = every "
        "relation of the source",
        several=True,
    )
    parser.option(
        "--split random:TRAIN:VAL|time:TRAIN:VAL",
        "draw splits by nodes per class (random:20:30), by fractions (random:0.6:0.2), or by "
        "fractions in order of time, earliest first (time:0.6:0.2); all other labelled nodes or "
        "edges are for testing",
    )
    parser.option(
        "--missing",
        "fill missing features with 0 or the mean of their column (default: refuse them)",
        choices=("zero", "mean"),
        default="",
    )
    parser.option(
        "--unlabelled-as-missing",
        "leave nodes or edges without a label out of the split train (default: refuse them)",
    )
    parser.option(
        "--scale",
        "scale numbers, not categories, to mean 0 and deviation 1 (standard), to 0 to 1 (minmax), "
        "both fitted on training nodes only, or by sign(x) log(1 + |x|)",
        choices=("standard", "minmax", "log"),
        default="",
    )
    parser.option(
        "--encode-like GRAPH",
        "encode categories, scales and classes as this graph directory or partitioned directory "
        "has them, for a model that was trained on it",
        default="",
    )
    parser.option(
        "--unknown-category",
        "with --encode-like: refuse categories and classes that GRAPH does not have (default), or "
        "take them as none and count them",
        choices=("refuse", "zeros"),
        default="refuse",
    )
    parser.option("--row-normalize", "divide rows of node features by their sum")
    parser.option("--seed K", "seed of --split (default 0)", type=seed, default=0)


def _run_make(arguments: argparse.Namespace) -> int:
    from hopper.graph.synthesise import make

    make(
        arguments.preset,
        arguments.out,
        scale=arguments.scale,
        seed=arguments.seed,
        feature_dim=arguments.feature_dim,
        progress=sys.stderr.isatty(),
    )
    _print_written(arguments.out)
    return 0


def _run_import(arguments: argparse.Namespace) -> int:
    from hopper.cli.phases import show_progress
    from hopper.config.bounds import parse_size
    from hopper.graph.importers import ImportOptions, RandomSplit, import_graph

    if arguments.kind in ("database", "graphstorm"):
        from hopper.graph.importers.graphstorm import propose_graphstorm
        from hopper.graph.importers.propose import propose_queries

        if arguments.kind == "database":
            propose_queries(arguments.source, arguments.out)
        else:
            propose_graphstorm(Path(arguments.source), arguments.out)
        print(
            f"{arguments.out}: edit it, then: hopper dataset import sql {arguments.out} --out DIR"
        )
        return 0
    size = arguments.memory_limit
    # Most options of the command have the names of the fields that they fill.
    words = vars(arguments)
    fields = {f.name: words[f.name] for f in dataclasses.fields(ImportOptions) if f.name in words}
    fields["targets"] = tuple(arguments.target)
    fields["split"] = RandomSplit.parse(arguments.split) if arguments.split else None
    fields["memory_limit"] = parse_size(size, "--memory-limit") if size else None
    console, progress = show_progress()
    notes = import_graph(
        arguments.kind,
        arguments.source,
        arguments.out,
        ImportOptions(**fields),
        name=arguments.name,
        root=arguments.root,
        progress=progress,
        tell=console.print,
    )
    for note in notes:
        print(note)
    _print_written(arguments.out)
    return 0


def _run_fetch(arguments: argparse.Namespace) -> int:
    from hopper.cli.phases import show_progress
    from hopper.partition.fetch import fetch_partitioned

    progress = show_progress()[1]
    nbytes = fetch_partitioned(arguments.address, arguments.out, arguments.server, progress)
    print(f"{arguments.out}: {nbytes:,} bytes")
    return 0


def _run_precompute(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from hopper.cli.phases import show_progress
    from hopper.display.console_tables import make_table, print_table
    from hopper.hetero.precompute import MetapathTables, SubsetTables, precompute

    recipe: MetapathTables | SubsetTables
    if arguments.precompute_command == "metapaths":
        recipe = MetapathTables(arguments.layers, arguments.metapath)
    else:
        recipe = SubsetTables(arguments.layers, arguments.subsets, arguments.dim, arguments.seed)
    schema = precompute(
        arguments.graph,
        arguments.out,
        recipe,
        random_dim=arguments.random_dim,
        seed=arguments.seed,
        progress=show_progress()[1],
    )
    target = schema.target_type()
    rows = [
        (f"{name} (its own)" if name == target else name, str(kind.feature_dim))
        for name, kind in schema.node_types.items()
    ]
    title = f"{schema.name}: rows of {target}: {arguments.out}"
    table = make_table(("rows", "width"), rows, title, texts=2)
    print_table(Console(highlight=False, soft_wrap=True), table)
    return 0


def _print_written(out: Path) -> None:
    from hopper.graph import GraphDirectory

    schema = GraphDirectory.open(out, check="shapes").schema
    for relation, kind in schema.relations.items():
        if kind.feature_dim is not None:
            print(f"edge features of {relation}: read with model.edge_features = true")
        if kind.weighted:
            print(f'weights of {relation}: draws follow them with sampler.kind = "weighted"')
    for owner in schema.timed:
        print(f'times of {owner}: sampler.kind = "temporal" draws what is there at a root\'s time')
    nodes = sum(kind.count for kind in schema.node_types.values())
    edges = sum(kind.count for kind in schema.relations.values())
    print(f"{out}: {schema.name}: {nodes} nodes, {edges} edges")
