"""What ``hopper train`` would refuse: classes of one's own, the configuration, the run's folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from hopper.config import Config
from hopper.doctor.case import Case, folders_here
from hopper.doctor.finding import Finding, find_refusal, fine, look_within, warning, wrong
from hopper.plug_ins import import_class
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.results import refuse_finished
from hopper.train.resume import will_resume
from hopper.train.run_checks import RunCheck, checks_of_graph, checks_without_graph

_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PLACES: Final = frozenset(
    {"partitioned", "run_dir", "init_from", "checkpoint_copy", "replay", "initial", "folder"}
)
"""keys whose values are names of files, which may look like that of a class"""
_CLASSES: Final = "classes of your own"
_NAMES_SECONDS: Final = 60.0
"""for what may wait for a name server"""


def check_plug_ins(config: Config) -> Iterator[Finding]:
    """Whether the classes of one's own that a configuration names can be imported."""
    values = config.model_dump(exclude={"cluster"})
    named = list(_classes("", values))
    looks = (partial(import_class, key, name) for key, name in named)
    refusals = [each for look in looks if (each := find_refusal(_CLASSES, look))]
    advice = "install their packages, or name their folders in PYTHONPATH (docs/plug-ins.md)"
    for each in refusals:
        yield wrong(each.subject, each.found, advice)
    if named and not refusals:
        told = ", ".join(dict.fromkeys(name for _, name in named))
        yield fine(_CLASSES, f"{told}: can be imported")


def _classes(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Keys and names of "package.module:Class"."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name not in _PLACES and not name.endswith("_options"):
                yield from _classes(f"{key}.{name}" if key else name, each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _classes(f"{key}[{number}]", each)
    elif isinstance(value, str) and _CLASS.fullmatch(value):
        yield key, value


def check_configuration(case: Case) -> Iterator[Finding]:
    """What a run is refused for before anything is started."""
    refusals = list(_refusals(_in_time(checks_without_graph(case.config))))
    if case.request is not None:
        here = folders_here(case.request.graph)
        refusals += _refusals(checks_of_graph(case.request, here))
    yield from refusals
    if not refusals:
        what = "" if case.request else ", as far as it can be told without a graph"
        yield fine("configuration", f"nothing that a run would be refused for{what}")


def _in_time(checks: Iterable[RunCheck]) -> Iterator[RunCheck]:
    """The same, which may wait for a name server, with a limit."""
    for check in checks:
        yield replace(check, run=partial(look_within, _NAMES_SECONDS, check.run))


def _refusals(checks: Iterable[RunCheck]) -> Iterator[Finding]:
    has_passed = True
    for check in checks:
        refusal = find_refusal(check.subject, check.run) if has_passed or not check.relies else None
        if refusal is not None:
            has_passed = False
            yield refusal


def check_run_folder(case: Case) -> Iterator[Finding]:
    """Whether a run may begin in its folder, or go on in it."""
    train, said = case.config.train, list[str]()
    if not train.run_dir:
        yield fine("train.run_dir", "none is named: `hopper train` makes one in runs/")
        return
    folder, goes_on = Path(train.run_dir), will_resume(case.config, said.append)
    for each in said:
        yield warning("train.resume", each)
    if not goes_on:
        refusal = find_refusal("train.run_dir", lambda: refuse_finished(folder))
        yield refusal or fine("train.run_dir", f"{folder}: a run may begin there")
        return
    files = CheckpointFiles(folder)
    if files.have_whole_model(said.append):
        yield fine("train.run_dir", f"{folder}: goes on from {files.newest}")
        return
    found = said[-1] if said else f"{files.folder}: no checkpoint to resume from"
    advice = 'begin anew with train.resume = false, or "auto"'
    if case.elsewhere:
        yield warning("train.resume", f"{found}; they lie where rank 0 ran", advice)
    else:
        yield wrong("train.resume", found, advice)
