"""Result, page and picture of ``hopper bench faults``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.picture import PICTURE_FILE, draw
from hopper.bench.machine import tell_machine
from hopper.bench.results import format_result
from hopper.whole_files import write_text

PARTS = ("matrix", "fuzz", "files", "load")


class Table(NamedTuple):
    """A table of a page."""

    title: str
    headings: tuple[str, ...]
    rows: list[list[str]]


def markdown(table: Table) -> Iterator[str]:
    """Write a table in Markdown. Columns of numbers are set to the right."""
    yield "| " + " | ".join(table.headings) + " |"
    columns = [[row[i] for row in table.rows] for i in range(len(table.headings))]
    numeric = [all(cell[:1].isdigit() or cell[:1] in "-—" for cell in cells) for cells in columns]
    yield "|" + "|".join("---:" if is_number else "---" for is_number in numeric) + "|"
    for row in table.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def write_all(out: Path, result: dict[str, Any], page: bool = True) -> None:
    """Write ``result.json`` and, unless told not to, the page, and what a picture can show."""
    write_text(out / "result.json", format_result(result))
    if page:
        if result.get("matrix") or result.get("fuzz"):
            draw(result, out / PICTURE_FILE)
        write_text(out / "README.md", "\n".join(_lines(result)) + "\n")


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield "# What runs, servers and files stand"
    yield ""
    yield (
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}; "
        f"`{result['command']}`"
    )
    if result["busy"]:
        yield "- Other work ran on the machine meanwhile: counts say something, seconds do not."
    for part in PARTS:
        wrong = result.get(part, {}).get("wrong", [])
        yield from (f"- **{part}**: {line}".replace("\n", " ") for line in wrong)
    if "matrix" in result:
        yield from _matrix(result["matrix"], result["at_once"])
    if "fuzz" in result:
        yield from _fuzz(result["fuzz"])
    if "files" in result:
        yield from _files(result["files"])
    if "load" in result:
        yield from _load(result["load"])
    yield ""
    yield "Numbers: [result.json](result.json)."


def _matrix(matrix: dict[str, Any], at_once: int) -> Iterator[str]:
    limits, times, cases = matrix["limits"], matrix["undisturbed_seconds"], matrix["cases"]
    total = {key: sum(case[key] for case in cases) for key in ("recovered", "errors", "wrong")}
    writing = sum(case["while_writing"] for case in cases)
    unfinished = "" if matrix["runs"] == matrix["asked"] else f" of {matrix['asked']}"
    yield ""
    yield "## Runs"
    yield ""
    yield (
        f"{matrix['runs']}{unfinished} runs: {total['recovered']} recovered, {total['errors']} "
        f"ended in a named error within the deadline, {total['wrong']} wrong. Recovered: all "
        "losses are, bit for bit, those of a run that nothing happened to. Wrong is anything else: "
        "other losses, a traceback, an error that names something else or comes too late, no end, "
        "processes or temporary files that are left. Every fourth run that ended in an error was "
        "started again, and had to recover."
    )
    yield ""
    yield (
        f"A run that nothing happens to takes {times['total']:.1f} s, its first epoch ends after "
        f"{times['start']:.1f}; {at_once} at a time. `cluster.start_timeout_seconds` "
        f"{limits['start']:g}, `cluster.timeout_seconds` {limits['wait']:g}; a run may take "
        f"{limits['grace']:g} s more. Seconds are from what happened to the end of the run, or of "
        f"the one that went on. Runs that were writing a checkpoint then: {writing}. Cases that "
        "have to end in an error may recover where what happened came too late."
    )
    yield ""
    yield f"![how soon runs end or recover]({PICTURE_FILE})"
    yield ""
    headings = ("what happens", "right", "runs", "recovered", "named errors", "wrong",
                "seconds: median", "longest", "start-up / epochs / shut-down / after")  # fmt: skip
    yield from markdown(Table("", headings, [_row(case) for case in cases]))


def _row(case: dict[str, Any]) -> list[str]:
    seconds = case["seconds"]
    right = {"recovered": "recovers", "error": "named error", "either": "either"}[case["right"]]
    return [
        case["case"],
        right,
        *(str(case[key]) for key in ("runs", "recovered", "errors", "wrong")),
        f"{seconds['median']:.1f}" if seconds else "-",
        f"{seconds['longest']:.1f}" if seconds else "-",
        " / ".join(str(count) for count in case["stages"].values()),
    ]


def _fuzz(fuzz: dict[str, Any]) -> Iterator[str]:
    before, after, clients = fuzz["before"], fuzz["after"], fuzz["beside"]
    yield ""
    yield "## Requests that make no sense"
    yield ""
    yield (
        f"{fuzz['requests']:,} requests to one feature server, {fuzz['requests_per_second']:,.0f} "
        f"a second, beside {fuzz['connections']:,} connections that speak another protocol or are "
        f"reset, {fuzz['floods']:,} requests in floods and {fuzz['slow_readers']} readers that do "
        f"not read; the slowest answer took {fuzz['slowest_seconds']:.2f} s. Memory before "
        f"{before['rss_mib']:.1f} MiB, after {after['rss_mib']:.1f}; at its lowest it grew by "
        f"{fuzz['growth_mib']} MiB from the fourth fifth to the last. Open files {before['files']} "
        f"before and {after['files']} after, threads {before['threads']} and {after['threads']}. "
        f"Told to end, the server ended with {fuzz['end']['exit_code']} after "
        f"{fuzz['end']['seconds']:.1f} s."
    )
    yield ""
    rows = [
        [
            name,
            f"{latencies['requests']:,}",
            f"{latencies['p50_ms']:.2f}",
            f"{latencies['p99_ms']:.2f}",
        ]
        for name, latencies in clients.items()
    ]
    headings = ("a client whose requests make sense", "requests", "ms: p50", "p99")
    yield from markdown(Table("", headings, rows))
    yield ""
    statuses = sorted({status for counts in fuzz["statuses"].values() for status in counts})
    rows = [
        [kind, *(f"{counts.get(status, 0):,}" for status in statuses)]
        for kind, counts in fuzz["statuses"].items()
    ]
    yield from markdown(Table("", ("request", *statuses), rows))


def _files(files: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## Altered files"
    yield ""
    rows = [
        [what, *(str(counts.get(outcome, 0)) for outcome in ("refused", "accepted", "wrong"))]
        for what, counts in files["outcomes"].items()
    ]
    headings = ("what was altered", "refused in a line", "accepted", "wrong")
    yield from markdown(Table("", headings, rows))
    yield ""
    yield (
        "What has checksums is accepted only where it was not altered after all (zeros over "
        "zeros): partitioned directories and checkpoints. Graphs, configurations and what `hopper "
        "dataset import` reads have none: another number is another graph, or another run."
    )


def _load(load: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## Load"
    yield ""
    yield (
        f"Clients in {load['processes']} processes, each with a connection of its own, ask one "
        f"server for {load['ids']} rows of {load['row_bytes']} bytes at a time and compare them, "
        f"for {load['seconds']:g} s. Fairness: requests of the client with the fewest, over those "
        "of the one with the most."
    )
    yield ""
    rows = [
        [str(cell["clients"]), "yes" if cell["tls"] else "no", f"{cell['requests']:,}",
         f"{cell['requests_per_second']:,.0f}",
         *(f"{cell[name]:.1f}" for name in ("p50_ms", "p99_ms", "p999_ms")),
         f"{cell['fairness']:.2f}", f"{cell['rss_mib'][0]:.0f} to {cell['rss_mib'][1]:.0f}"]
        for cell in load["cells"]
    ]  # fmt: skip
    headings = ("clients", "TLS", "requests", "a second", "ms: p50", "p99", "p999", "fairness",
                "server's MiB")  # fmt: skip
    yield from markdown(Table("", headings, rows))
