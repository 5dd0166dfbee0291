"""Checks of the partitioned directory: which files this machine has, and whether they changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hopper.config import change_config
from hopper.doctor.case import Case, folders_here
from hopper.doctor.finding import Finding, find_refusal, fine, warning, wrong
from hopper.errors import GraphError
from hopper.graph.columns import tell_wide_columns
from hopper.partition.checksums import check_sizes, read_checksums
from hopper.partition.memory import format_bytes
from hopper.train.verify import verify_data

_SUBJECT: Final = "files of the graph"
_ADVICE: Final = "copy the directory anew, or divide the graph again (docs/howto/partition.md)"


def check_files(case: Case) -> Iterator[Finding]:
    """Check the sizes of files or, if asked to, their content."""
    graph = case.graph_request.graph
    here = folders_here(graph)
    yield from _check_folders(case, here)
    try:
        files = check_sizes(graph.path, here)
    except GraphError as error:
        is_asked = case.config.data.verify != "off"
        yield wrong(_SUBJECT, error, _ADVICE) if is_asked else warning(_SUBJECT, str(error))
        return
    if case.checksums:
        config = change_config(case.config, data={"verify": "full"})
        refusal = find_refusal(_SUBJECT, lambda: verify_data(config, graph, here), _ADVICE)
        if refusal:
            yield refusal
            return
    size = format_bytes(sum(file.size for file in files.values()))
    how = "all as they were written"
    if not case.checksums:
        how = "of the sizes that were written; --checksums compares their content"
    division = read_checksums(graph.path).division
    yield fine(_SUBJECT, f"{len(files):,} files, {size}, {how}; division {division}")


def check_columns(case: Case) -> Iterator[Finding]:
    """Warn of features whose numbers are far from 1, as ``graph.json`` tells them."""
    found, _, advice = tell_wide_columns(case.graph_request.columns).partition("; ")
    if found:
        yield warning("features", found, advice)


def _check_folders(case: Case, here: list[int]) -> Iterator[Finding]:
    graph = case.graph_request.graph
    missing = [server for server in range(graph.book.servers) if server not in here]
    if not missing:
        return
    names = ", ".join(f"server-{server}" for server in missing)
    text = f"{graph.path} has no {names}"
    if not here or not case.elsewhere:
        advice = "copy them here, or name their feature servers in cluster.servers"
        yield wrong(_SUBJECT, f"{text}, which ranks of this machine read", advice)
    else:
        yield fine(_SUBJECT, f"{text}: ranks of these servers run elsewhere")
