"""The tables of ``hopper dataset info``."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hopper.display.console_tables import print_table


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
    table = _table("node types", "type", "nodes", "features", "bytes", "without edges")
    for name, kind in description["node_types"].items():
        _add(
            table,
            name,
            f"{kind['count']:,}",
            _width(kind),
            format_bytes(kind["feature_bytes"]),
            _percent(kind["without_edges"]),
        )
    return table


def _relations(description: dict[str, Any]) -> Table:
    table = _table("relations", "relation", "edges", "features", "bytes")
    for relation in description["relations"]:
        size = format_bytes(relation["topology_bytes"] + relation["feature_bytes"])
        _add(table, _name(relation), f"{relation['count']:,}", _width(relation), size)
    return table


def _degrees(description: dict[str, Any]) -> Table:
    columns = ("min", "median", "mean", "p99", "max")
    table = _table("degrees", "relation", "of", *columns, "zero")
    for relation in description["relations"]:
        for side in ("in", "out"):
            degrees = relation[f"{side}_degree"]
            _add(
                table,
                _name(relation) if side == "in" else "",
                side,
                *(_number(degrees[column]) for column in columns),
                _percent(degrees["zero"]),
            )
    return table


def _labels(description: dict[str, Any]) -> Table:
    table = _table("labels", "type", "kind", "classes", "labelled", "min", "median", "max", "empty")
    rows: dict[str, Any] = {}
    for name, labels in description["labels"].items():
        rows[name] = labels
        rows |= {f"{name}: {task}": of_task for task, of_task in labels.get("tasks", {}).items()}
    for name, labels in rows.items():
        share = labels["labelled"] / labels["nodes"] if labels["nodes"] else None
        # Float labels have statistics of their values, other labels of the nodes per class.
        spread = labels.get("per_class") or labels
        _add(
            table,
            name,
            labels["kind"],
            f"{labels['classes']:,}",
            f"{labels['labelled']:,} ({_percent(share)})",
            *(_number(spread.get(column)) for column in ("min", "median", "max")),
            _number(labels.get("empty_classes")),
        )
    return table


def _splits(description: dict[str, Any]) -> Table:
    table = _table("splits", "split", "ids", "share", "unlabelled")
    for name, split in description["splits"].items():
        _add(
            table,
            name,
            f"{split['count']:,}",
            _percent(split["share"]),
            _number(split.get("unlabelled")),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, column in enumerate(columns):
        # Names may fold on a narrow terminal. Numbers may not.
        first = index == 0
        table.add_column(
            column, justify="left" if first else "right", overflow="fold", no_wrap=not first
        )
    return table


def _name(relation: dict[str, Any]) -> str:
    return "/".join(relation[key] for key in ("src", "rel", "dst"))


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(escape(cell) for cell in cells))


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
