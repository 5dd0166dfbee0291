"""The page of an experiment, in Markdown: what the paper reports, if there is one, what was
measured, why they differ. Every number comes from result.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.paper.experiment import Experiment, Result, Table
from benchmarks.paper.result import RESULT_FILE
from benchmarks.paper.tables import graph_name
from hopper.bench.machine import tell_machine
from hopper.whole_files import write_text

PAGE_FILE: Final = "README.md"
PICTURE_FILE: Final = "picture.webp"


def write_page(out: Path, experiment: Experiment, result: Result) -> Path:
    """Write the page beside its result."""
    path = out / PAGE_FILE
    picture = (out / PICTURE_FILE).is_file()
    write_text(path, "\n".join(_lines(experiment, result, picture)) + "\n")
    return path


def _lines(experiment: Experiment, result: Result, picture: bool) -> Iterator[str]:
    yield f"# {result['experiment']}: {result['title']}"
    yield ""
    published = [
        [figure["place"], figure["what"], figure["value"]] for figure in result["published"]
    ]
    if published:
        yield "## What the paper reports"
        yield ""
        yield from markdown(Table("", ("where", "what", "figure"), published))
        yield ""
    yield "## What Hopper measured"
    yield ""
    yield from (f"- {line}" for line in describe_setting(result))
    problems = [
        f"{cell['name']}: {problem}" for cell in result["cells"] for problem in cell["problems"]
    ]
    if problems:
        yield "- **Not equal**, so no speed-up is told in these cells: " + "; ".join(problems)
    if picture:
        yield ""
        yield f"![{result['title']}]({PICTURE_FILE})"
    for make in experiment.tables:
        table = make(result)
        if not table.rows:
            continue
        yield ""
        yield f"### {table.title}"
        yield ""
        yield from markdown(table)
        if table.note:
            yield ""
            yield table.note
    yield ""
    yield "## Why they differ" if published else "## What to mind"
    yield ""
    yield from (f"- {reason}" for reason in reasons(result))
    yield ""
    yield (
        f"Numbers: [{RESULT_FILE}]({RESULT_FILE}), a line a cell, with its configuration and the "
        "commands that repeat it."
    )


def markdown(table: Table) -> Iterator[str]:
    """Write a table in Markdown. Columns of numbers are set to the right."""
    yield "| " + " | ".join(table.headings) + " |"
    sides = ["---:" if _is_numeric(table.rows, i) else "---" for i in range(len(table.headings))]
    yield "|" + "|".join(sides) + "|"
    for row in table.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    cells = [row[column] for row in rows]
    return bool(cells) and all(cell[:1].isdigit() or cell[:1] in "-—" for cell in cells)


def describe_setting(result: Result) -> list[str]:
    """Describe date, commit, machine and graphs of a result."""
    machine, request = result["machine"], result["asked"]
    gpu = machine["gpu"] or "no GPU"
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items() if value)
    # A page may be written again from existing cells.
    commits = dict.fromkeys(cell.get("commit", result["commit"]) for cell in result["cells"])
    lines = [
        f"{result['date']}, commit {', '.join(f'`{_short(commit)}`' for commit in commits)}; "
        f"{tell_machine(machine)}, {gpu}; {versions}"
    ]
    graphs = {
        (cell["graph"], cell["scale"]): f"{graph_name(cell)}: {cell['nodes']:,} nodes, "
        f"{cell['edges']:,} edges"
        for cell in result["cells"]
    }
    lines.append("; ".join(graphs.values()))
    lines.append(_partitions(result))
    batches = sorted({cell["batch_size"] for cell in result["cells"] if cell.get("batch_size")})
    if batches:
        lines.append(
            f"batches of {', '.join(map(str, batches))} roots a rank; {_runs_text(result)}"
        )
    if request["cells"] > len(result["cells"]):
        lines.append(f"unfinished: {len(result['cells'])} of {request['cells']} cells")
    if request["overrides"]:
        lines.append(f"with {' '.join(request['overrides'])}")
    return lines


def _runs_text(result: Result) -> str:
    """Return what the runs of a side were; results of older commits have no words of their own."""
    request = result["asked"]
    if result.get("runs") or not result["timed"]:
        return str(result.get("runs") or f"{request['epochs']} whole epochs")
    rounds = f"{request['rounds']} round" + ("" if request["rounds"] == 1 else "s")
    return (
        f"{rounds} of {request['epochs']} epochs of at most {request['iterations']} iterations, "
        "the first and last epoch of each run not measured"
    )


def _partitions(result: Result) -> str:
    """Describe how graphs are divided and, if cells train, where servers and ranks ran."""
    servers: dict[str, dict[int, None]] = {}
    for cell in result["cells"]:
        servers.setdefault(cell["method"], {})[cell["servers"]] = None
    lines = [
        f"{method} over {', '.join(map(str, numbers))} servers"
        for method, numbers in servers.items()
    ]
    if any(cell.get("batch_size") for cell in result["cells"]):
        lines += dict.fromkeys(network_text(cell) for cell in result["cells"])
    return "; ".join(lines)


def network_text(cell: Mapping[str, Any]) -> str:
    """Describe where servers and ranks of a cell ran."""
    emulation = cell.get("emulation") or {}
    if not emulation:
        return "all on loopback"
    if not emulation["effective"]:
        return f"on loopback, since hosts could not be emulated: {emulation['why_not']}"
    rate = emulation["link_rate"]
    links = "links without a rate" if rate == "none" else f"links of {rate} in each direction"
    cpus, memory = emulation["host_cpus"], emulation["host_memory"]
    bounds = [f"{cpus:g} CPUs each" if cpus else "", f"{memory >> 20} MiB each" if memory else ""]
    return ", ".join(
        text for text in (f"{emulation['hosts']} emulated hosts", links, *bounds) if text
    )


def reasons(result: Result) -> list[str]:
    """List reasons why figures differ from the paper's, as far as the result shows them."""
    cells = result["cells"]
    reasons = list(result["differs"])
    scales = [cell["scale"] for cell in cells if cell["scale"] is not None]
    if scales:
        small = f"; they are smaller, at scale {_range(scales)}" if min(scales) < 1 else ""
        reasons.append(
            "The graphs are synthetic stand-ins with the published degrees, widths and (where it "
            f"was published) locality{small}."
        )
    if result["timed"]:
        shrunk = scales and min(scales) < 1
        if shrunk and result["asked"].get("shared_batch"):
            reasons.append(
                "The batch does not shrink with the graph, so an iteration touches a larger share "
                "of it, and a fetched row serves more roots."
            )
        elif shrunk:
            reasons.append(
                "The batch shrinks with the graph, so an iteration touches about the same share "
                "of it, but fixed costs of an iteration (barriers, migrations, the gradient's "
                "all-reduce) are spread over fewer roots: this counts against every engine that "
                "has more of them."
            )
        reasons += _hardware_reasons(result)
    return reasons


def _hardware_reasons(result: Result) -> list[str]:
    cells, machine = result["cells"], result["machine"]
    beside = lambda text: f"; {text}" if result["published"] else ""  # noqa: E731
    reasons = []
    if machine["gpu"] is None:
        reasons.append(
            f"Models are computed on CPUs{beside('those of the paper on ' + result['hardware'])}: "
            "computing takes a larger share of the time here, and what moving less can save is "
            "smaller."
        )
    emulated = [c for c in cells if (c.get("emulation") or {}).get("effective")]
    servers = max(cell["servers"] for cell in cells)
    if emulated and servers > 1:
        rates = sorted({cell["emulation"]["link_rate"] for cell in emulated})
        links = beside(f"those of the paper {result['link']}") if result["link"] else ""
        shared = f"{machine['cores']} cores" + (" and the GPUs" if machine["gpu"] else "")
        reasons.append(
            f"All hosts (up to {servers}) share the {shared} of one machine; links have a rate of "
            f"{', '.join(rates)}{links}."
        )
    if len(emulated) < len(cells):
        reasons.append(
            "Servers and ranks ran on one machine's loopback, where moving bytes costs next to "
            "nothing: ratios of times say little of a network, those of bytes and rows do."
        )
    labels = {side["label"] for cell in cells for side in cell["sides"].values()}
    if "model_centric" not in labels:
        return reasons
    reasons.append(
        "The baseline is Hopper's own model-centric engine: the same kernels, sampler and feature "
        "service as the other sides"
        + beside("that of the paper is DGL, and its comparison engines are others")
        + "."
    )
    return reasons


def _short(commit: str) -> str:
    """Return a commit's first digits; "+" stays, which says that files differed from it."""
    return commit[:12] + ("+" if commit.endswith("+") else "")


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
