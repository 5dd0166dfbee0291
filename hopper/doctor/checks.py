"""All checks, in the order in which they run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from hopper.config import change_config, load_config
from hopper.doctor.case import Case, is_elsewhere
from hopper.doctor.certificates import check_certificates
from hopper.doctor.configuration import check_configuration, check_plug_ins, check_run_folder
from hopper.doctor.files import check_columns, check_files
from hopper.doctor.finding import Finding, warning, wrong
from hopper.doctor.machine import (
    check_device,
    check_network,
    check_open_files,
    check_shared_memory,
    check_threads,
)
from hopper.doctor.room import check_disk, check_memory, measure_sizes
from hopper.doctor.servers import check_servers
from hopper.engines import Request
from hopper.errors import ConfigError, HopperError
from hopper.features import open_graph


def run_checks(
    path: str | os.PathLike[str], overrides: Sequence[str], checksums: bool, limit: float
) -> Iterator[Finding]:
    """Run all checks. The parameters are those of :func:`hopper.doctor.examine`."""
    try:
        config = load_config(path, overrides)
    except ConfigError as error:
        yield from (wrong("configuration", problem) for problem in error.problems)
        yield warning("all else", "not looked at: the configuration says what to look at")
        return
    request: Request | None = None
    yield from check_plug_ins(config)
    try:
        # check_files verifies the files, so no other check has to.
        request = Request(change_config(config, data={"verify": "off"}), open_graph(config))
    except HopperError as error:
        yield wrong("data.partitioned", error)
    case = Case(config, request, is_elsewhere(config, limit), checksums, limit)
    refusals = list(check_configuration(case))
    yield from refusals
    yield from check_run_folder(case)
    if case.request is None:
        yield warning("files, memory, threads", "not looked at: they depend on the graph")
    else:
        for check in (
            check_files,
            check_columns,
            check_device,
            check_threads,
            check_open_files,
            check_shared_memory,
        ):
            yield from check(case)
        if any(refusal.state == "wrong" for refusal in refusals):
            yield warning("memory and disk", "not looked at: they depend on what is trained")
        else:
            sizes = measure_sizes(case.request)
            yield from check_memory(case, sizes)
            yield from check_disk(case, sizes)
    for check in (check_certificates, check_network, check_servers):
        yield from check(case)
