"""Feature servers as they answer: where a name leads, who is there, and how fast it is.

All addresses are asked at once, and rows are fetched from one after another, so that no server is
measured while another one sends. Each of the two ends after the same limit, whatever servers do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from cache_server.errors import CacheServerError
from cache_server.retry import Deadline
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.doctor.probe import Answer, Expected, ask_server, measure_rate
from hopper.engines import Request
from hopper.errors import GraphError
from hopper.partition.checksums import read_division
from hopper.train.security import security_of

_SUBJECT: Final = "cluster.servers"
_GRACE_SECONDS: Final = 1.0
"""for an answer that says that the limit has passed"""
_LEAST_SECONDS: Final = 0.05


def check_servers(case: Case) -> Iterator[Finding]:
    """What each address of ``cluster.servers`` says and does."""
    servers = case.config.cluster.servers
    if not servers:
        found = "empty: `hopper train` starts a server for each part here, so none is asked"
        yield fine(_SUBJECT, found)
        return
    division = ""
    if case.request is not None:
        graph = case.request.graph
        division = _division_of(case.request)
        if len(servers) != graph.book.servers:
            advice = "one address for each part, in their order; the graph's, or the list's, is old"
            found = f"{len(servers)} addresses; {graph.path} has {graph.book.servers} parts"
            yield wrong(_SUBJECT, found, advice)
    security = security_of(case.config)
    expected = [
        Expected(number, len(servers), division, address, security)
        for number, several in enumerate(servers)
        for address in several.split(",")
    ]
    answers = _ask_all(expected, case.limit)
    deadline = Deadline(case.limit)
    for each, answer in zip(expected, answers, strict=True):
        yield from _tell(each, answer, deadline)


def _division_of(request: Request) -> str:
    """The graph's fingerprint; "" where it cannot be read, which is told with its files."""
    try:
        return read_division(request.graph.path)
    except GraphError:
        return ""


def _ask_all(expected: Sequence[Expected], limit: float) -> list[Answer]:
    """The answers of all servers, asked at once; those that are late have said nothing."""
    late = Answer(wrong("", f"did not answer within {limit:g} s"))
    answers = [late] * len(expected)

    def ask(place: int) -> None:
        answers[place] = ask_server(expected[place], limit)

    # Daemons: one that hangs in a look at a name is not waited for at the end, either.
    threads = [
        threading.Thread(target=ask, args=(place,), name="doctor-server", daemon=True)
        for place in range(len(expected))
    ]
    for thread in threads:
        thread.start()
    deadline = Deadline(limit + _GRACE_SECONDS)
    for thread in threads:
        thread.join(max(0.0, deadline.remaining()))
    return list(answers)


def _tell(expected: Expected, answer: Answer, deadline: Deadline) -> Iterator[Finding]:
    """The findings of a server, with the rate of a fetch where it can be asked for rows."""
    subject = f"server {expected.server}, {expected.address}"
    for each in answer.warnings:
        yield replace(each, subject=subject)
    if answer.refusal is not None:
        yield replace(answer.refusal, subject=subject)
        return
    left = deadline.remaining()
    if answer.description is None or left < _LEAST_SECONDS:
        yield warning(subject, f"{answer.told}; rows were not asked for: the others took the time")
        return
    try:
        rate = measure_rate(expected, answer.description, left)
    except CacheServerError as error:
        yield wrong(subject, error, "see what the server prints, and what is between it and here")
        return
    yield fine(subject, f"{answer.told}; {rate}")
