"""The setting of a measurement: machine, graph, versions, configuration, and all its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hopper.bench.report.markup import Child, Markup, tag
from hopper.bench.report.source import Source
from hopper.bench.report.tables import Cell, config_text, facts, options_text, table
from hopper.run_log import STAGES
from hopper.traffic import CAUSES

_MOST_ROWS: Final = 1000


def is_number(value: Any) -> bool:
    """Return whether a value from a file is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def setting(source: Source) -> list[Child]:
    """Show machine, graph, versions, configuration, and the numbers of every round."""
    results = source.results
    values_by_name: dict[str, Child] = {
        "machine": _machine(results.machine),
        "network": _network(results.machine.get("emulation")),
        "graph": _graph(results.dataset),
        "graph's source": str(results.dataset.get("source", "")),
        "commit": tag("code", results.commit) if results.commit else "",
        "versions": ", ".join(f"{k} {v}" for k, v in results.versions.items() if v is not None),
        **{f"options of {name}": options_text(source.runs_of(name)[0].options)
           for name in source.names},
    }  # fmt: skip
    present = {key: value for key, value in values_by_name.items() if value}
    missing = [tag("li", sentence) for sentence in source.missing]
    return [
        facts("What was measured on what", present) if present else None,
        tag("div", tag("h3", "Not shown"), tag("ul", missing), class_="note") if missing else None,
        tag("details", tag("summary", "Configuration"),
            tag("pre", config_text(results.config), tabindex=0)) if results.config else None,
        tag("details", tag("summary", "Every round and epoch"), _raw(source)),
    ]  # fmt: skip


def _machine(machine: Mapping[str, Any]) -> str:
    words = [str(machine.get("cpu", ""))]
    words += [
        f"{machine[k]} {w}" for k, w in (("cores", "cores"), ("memory_gib", "GiB")) if k in machine
    ]
    return ", ".join(word for word in [*words, str(machine.get("kernel", ""))] if word)


def _network(emulation: Any) -> str:
    """Describe the emulated hosts that were asked for. "" if the file has no entry about them."""
    if not isinstance(emulation, Mapping):
        return ""
    bounds = {key: value for key, value in emulation.items() if key != "effective"}
    where = "emulated hosts" if emulation.get("effective") else "loopback"
    return f"{where}: {options_text(bounds)}" if bounds else where


def _graph(dataset: Mapping[str, Any]) -> str:
    types, relations = dataset.get("node_types"), dataset.get("relations")
    parts = [str(dataset.get("name", ""))]
    if isinstance(types, Mapping):
        for name, kind in types.items():
            if isinstance(kind, Mapping) and is_number(kind.get("count")):
                dim = kind.get("feature_dim") or "no"
                parts.append(f"{name}: {kind['count']:,} nodes, {dim} features")
    if isinstance(relations, Mapping):
        parts += [
            f"{name}: {count:,} edges" for name, count in relations.items() if is_number(count)
        ]
    return "; ".join(text for text in parts if text)


def _raw(source: Source) -> Markup:
    head = ["engine", "round", "epoch", "seconds", "loss", *(f"{cause}, B" for cause in CAUSES),
            *(f"{stage}, s" for stage in STAGES)]  # fmt: skip
    rows = [
        [run.name, Cell(run.round + 1), Cell(index), Cell(f"{epoch.seconds:.4f}"),
         Cell(f"{epoch.loss:.6g}"), *(Cell(f"{epoch.bytes[c]:,.0f}") for c in CAUSES),
         *(Cell(f"{epoch.stage_seconds[s]:.4f}") for s in STAGES)]
        for run in source.results.runs
        for index, epoch in enumerate(run.epochs)
    ]  # fmt: skip
    caption = "Every round and epoch; bytes summed over ranks, stages as mean over ranks"
    if len(rows) > _MOST_ROWS:
        caption += f"; the first {_MOST_ROWS} of {len(rows)} lines"
    return table(caption, head, rows[:_MOST_ROWS], hidden=False)
