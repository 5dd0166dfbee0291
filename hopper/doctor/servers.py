"""Checks of the feature servers: their names, answers and rates.

All addresses are asked at once. Rows are then fetched from one server after another, so that none
is measured while another one sends. The same time limit holds for each of the two phases.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from cache_server.client.operation import Deadline
from cache_server.errors import CacheServerError
from hopper.cluster.security import security_of
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.doctor.probe import Answer, Expected, ask_server, measure_rate
from hopper.errors import GraphError
from hopper.partition.checksums import read_division

_SUBJECT: Final = "cluster.servers"
_GRACE_SECONDS: Final = 1.0
"""Extra time for an answer which says that the limit has passed."""
_LEAST_SECONDS: Final = 0.05


def check_servers(case: Case) -> Iterator[Finding]:
    """Check each address of ``cluster.servers``."""
    servers = case.config.cluster.servers
    if not servers:
        text = "empty: `hopper train` starts a server for each part here, so none is asked"
        yield fine(_SUBJECT, text)
        return
    division = ""
    if case.request is not None:
        graph = case.request.graph
        # check_files reports a fingerprint that cannot be read.
        with suppress(GraphError):
            division = read_division(graph.path)
        if len(servers) != graph.book.servers:
            advice = "one address for each part, in their order; the graph's, or the list's, is old"
            text = f"{len(servers)} addresses; {graph.path} has {graph.book.servers} parts"
            yield wrong(_SUBJECT, text, advice)
    security = security_of(case.config)
    expected = [
        Expected(number, len(servers), division, address, security)
        for number, entry in enumerate(servers)
        for address in entry.split(",")
    ]
    answers = _ask_all(expected, case.limit)
    deadline = Deadline(case.limit)
    for server, answer in zip(expected, answers, strict=True):
        yield from _judge(server, answer, deadline)


def _ask_all(expected: Sequence[Expected], limit: float) -> list[Answer]:
    """Probe all servers at once. A server without an answer in time counts as refusing."""
    late = f"did not answer within {limit:g} s"
    answers = [Answer((wrong(server.subject, late),)) for server in expected]

    def ask(index: int) -> None:
        answers[index] = ask_server(expected[index], limit)

    # Daemon threads: the process does not wait for one that hangs in the look-up of a name.
    threads = [
        threading.Thread(target=ask, args=(index,), name="doctor-server", daemon=True)
        for index in range(len(expected))
    ]
    for thread in threads:
        thread.start()
    deadline = Deadline(limit + _GRACE_SECONDS)
    for thread in threads:
        thread.join(max(0.0, deadline.remaining()))
    return list(answers)


def _judge(expected: Expected, answer: Answer, deadline: Deadline) -> Iterator[Finding]:
    """Yield the findings about a server, with its rate if ranks can use it."""
    yield from answer.findings
    if answer.description is None:
        return
    subject, remaining = expected.subject, deadline.remaining()
    if remaining < _LEAST_SECONDS:
        yield warning(subject, f"{answer.text}; rows were not asked for: the others took the time")
        return
    try:
        rate = measure_rate(expected, answer.description, remaining)
    except CacheServerError as error:
        yield wrong(subject, error, "see what the server prints, and what is between it and here")
        return
    yield fine(subject, f"{answer.text}; {rate}")
