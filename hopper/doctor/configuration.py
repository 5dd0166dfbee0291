"""Checks of what ``hopper train`` would refuse: plug-ins, configuration and the run's folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from hopper.config import Config
from hopper.config.plug_ins import import_class
from hopper.doctor.case import Case, folders_here
from hopper.doctor.finding import Finding, find_refusal, fine, warning, wrong
from hopper.process.time_limit import finish_within
from hopper.train.checkpoint_files import CheckpointFiles, will_resume
from hopper.train.results import refuse_finished
from hopper.train.run_checks import RunCheck, checks_of_graph, checks_without_graph

_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PLACES: Final = frozenset(
    {"partitioned", "run_dir", "init_from", "checkpoint_copy", "replay", "initial", "folder"}
)
"""Keys whose values are file names, which may look like names of classes."""
_CLASSES: Final = "classes of your own"
_NAMES_SECONDS: Final = 60.0
"""Time limit of checks that may wait for a name server."""


def check_plug_ins(config: Config) -> Iterator[Finding]:
    """Check that the user-defined classes of a configuration can be imported."""
    values = config.model_dump(exclude={"cluster"})
    classes = list(_find_classes("", values))
    looks = (partial(import_class, key, name) for key, name in classes)
    refusals = [refusal for look in looks if (refusal := find_refusal(_CLASSES, look))]
    advice = "install their packages, or name their folders in PYTHONPATH (docs/howto/plug-ins.md)"
    for refusal in refusals:
        yield wrong(refusal.subject, refusal.found, advice)
    if classes and not refusals:
        names = ", ".join(dict.fromkeys(name for _, name in classes))
        yield fine(_CLASSES, f"{names}: can be imported")


def _find_classes(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of the form "package.module:Class"."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            if name not in _PLACES and not name.endswith("_options"):
                yield from _find_classes(f"{key}.{name}" if key else name, entry)
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _find_classes(f"{key}[{number}]", entry)
    elif isinstance(value, str) and _CLASS.fullmatch(value):
        yield key, value


def check_configuration(case: Case) -> Iterator[Finding]:
    """Run the checks that a run begins with."""
    limited = (
        replace(check, run=partial(finish_within, _NAMES_SECONDS, check.run))
        for check in checks_without_graph(case.config)
    )
    refusals = list(_find_refusals(limited))
    if case.request is not None:
        here = folders_here(case.request.graph)
        refusals += _find_refusals(checks_of_graph(case.request, here))
    yield from refusals
    if not refusals:
        what = "" if case.request else ", as far as it can be told without a graph"
        yield fine("configuration", f"nothing that a run would be refused for{what}")


def _find_refusals(checks: Iterable[RunCheck]) -> Iterator[Finding]:
    """Run checks, except those that rely on one that has failed."""
    has_passed = True
    for check in checks:
        refusal = find_refusal(check.subject, check.run) if has_passed or not check.relies else None
        if refusal is not None:
            has_passed = False
            yield refusal


def check_run_folder(case: Case) -> Iterator[Finding]:
    """Check whether a run may begin in its folder, or continue there."""
    train, messages = case.config.train, list[str]()
    if not train.run_dir:
        yield fine("train.run_dir", "none is named: `hopper train` makes one in runs/")
        return
    folder, goes_on = Path(train.run_dir), will_resume(case.config, messages.append)
    for message in messages:
        yield warning("train.resume", message)
    if not goes_on:
        refusal = find_refusal("train.run_dir", lambda: refuse_finished(folder))
        yield refusal or fine("train.run_dir", f"{folder}: a run may begin there")
        return
    files = CheckpointFiles(folder)
    if files.have_whole_model(messages.append):
        yield fine("train.run_dir", f"{folder}: goes on from {files.newest}")
        return
    text = messages[-1] if messages else f"{files.folder}: no checkpoint to resume from"
    advice = 'begin anew with train.resume = false, or "auto"'
    if case.elsewhere:
        yield warning("train.resume", f"{text}; they lie where rank 0 ran", advice)
    else:
        yield wrong("train.resume", text, advice)
