"""``hopper inspect graph DIR``: check and describe a graph directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hopper.cli.options import print_json
from hopper.display.console_tables import make_table, print_table


def add_parser(kinds: Any) -> None:
    """Add the subcommand."""
    parser = kinds.add_parser("graph", help="check and describe a graph directory")
    parser.option("graph DIR", "graph directory", type=Path)
    parser.option("--json", "print JSON instead of tables")
    parser.option(
        "--check",
        "scan all values except features (full, the default), or only headers (shapes)",
        choices=("full", "shapes"),
        default="full",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.graph import GraphDirectory
    from hopper.graph.describe import describe

    description = describe(GraphDirectory.open(options.graph, check=options.check))
    if options.json:
        print_json(description)
    else:
        print_description(description, Console())
    return 0


def print_description(description: dict[str, Any], console: Console) -> None:
    """Print a description that :func:`hopper.graph.describe.describe` returned."""
    target = description["target"]
    title = f"{description['name']} ({format_bytes(description['bytes'])})"
    console.print(title, style="bold", markup=False)
    if description["source"]:
        console.print(f"source: {description['source']}", markup=False)
    console.print(f"target: {target if isinstance(target, str) else '/'.join(target)}")
    print_table(console, _node_types(description))
    print_table(console, _relations(description))
    print_table(console, _degrees(description))
    if description["labels"]:
        print_table(console, _labels(description))
    if description["splits"]:
        print_table(console, _splits(description))


def _node_types(description: dict[str, Any]) -> Table:
    rows = [
        (
            name,
            f"{kind['count']:,}",
            _width(kind),
            format_bytes(kind["feature_bytes"]),
            _percent(kind["without_edges"]),
        )
        for name, kind in description["node_types"].items()
    ]
    return _table("node types", ("type", "nodes", "features", "bytes", "without edges"), rows)


def _relations(description: dict[str, Any]) -> Table:
    rows = [
        (
            _name(relation),
            f"{relation['count']:,}",
            _width(relation),
            format_bytes(relation["topology_bytes"] + relation["feature_bytes"]),
        )
        for relation in description["relations"]
    ]
    return _table("relations", ("relation", "edges", "features", "bytes"), rows)


def _degrees(description: dict[str, Any]) -> Table:
    columns, rows = ("min", "median", "mean", "p99", "max"), []
    for relation in description["relations"]:
        for side in ("in", "out"):
            degrees = relation[f"{side}_degree"]
            numbers = (_number(degrees[column]) for column in columns)
            name = _name(relation) if side == "in" else ""
            rows.append((name, side, *numbers, _percent(degrees["zero"])))
    return _table("degrees", ("relation", "of", *columns, "zero"), rows)


def _labels(description: dict[str, Any]) -> Table:
    kinds: dict[str, Any] = {}
    for name, labels in description["labels"].items():
        kinds[name] = labels
        kinds |= {f"{name}: {task}": of_task for task, of_task in labels.get("tasks", {}).items()}
    columns, rows = ("min", "median", "max"), []
    for name, labels in kinds.items():
        share = labels["labelled"] / labels["nodes"] if labels["nodes"] else None
        # Float labels have statistics of their values, other labels of the nodes per class.
        spread = labels.get("per_class") or labels
        labelled = f"{labels['labelled']:,} ({_percent(share)})"
        numbers = (_number(spread.get(column)) for column in columns)
        counts = (labels["kind"], f"{labels['classes']:,}", labelled)
        rows.append((name, *counts, *numbers, _number(labels.get("empty_classes"))))
    return _table("labels", ("type", "kind", "classes", "labelled", *columns, "empty"), rows)


def _splits(description: dict[str, Any]) -> Table:
    rows = [
        (name, f"{of['count']:,}", _percent(of["share"]), _number(of.get("unlabelled")))
        for name, of in description["splits"].items()
    ]
    return _table("splits", ("split", "ids", "share", "unlabelled"), rows)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    style: dict[str, Any] = {"title_justify": "left", "box": box.SIMPLE_HEAD, "padding": (0, 1)}
    return make_table(headings, rows, title, **style)


def _name(relation: dict[str, Any]) -> str:
    return "/".join(relation[key] for key in ("src", "rel", "dst"))


def _width(kind: dict[str, Any]) -> str:
    return f"{kind['feature_dim']} {kind['feature_dtype']}" if kind["feature_dim"] else "-"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def format_bytes(count: int) -> str:
    """Write bytes in the largest binary unit that gives at least 1 (``1.5 MiB``)."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
