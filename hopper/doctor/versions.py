"""Check of the versions of Python and the packages that every run needs, without importing them."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from hopper.doctor.finding import Finding, fine, wrong

NEEDED: Final = {
    "torch": "2.4",
    "numpy": "1.26",
    "numba": "0.61",
    "grpcio": "1.62",
    "protobuf": "4.25",
}
"""The minimum version of each package, as in pyproject.toml."""
PYTHON: Final = (3, 11)
_SUBJECT: Final = "versions"


def check_versions() -> list[Finding]:
    """Check that Python and all packages are installed and new enough."""
    python = ".".join(map(str, sys.version_info[:3]))
    texts, findings = [f"Python {python}"], []
    if sys.version_info < PYTHON:
        least = ".".join(map(str, PYTHON))
        findings.append(wrong(_SUBJECT, f"Python {python}; expected {least} or newer"))
    for package, least in NEEDED.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            installed = "not installed"
        if installed != "not installed" and numbers(installed) >= numbers(least):
            texts.append(f"{package} {installed}")
            continue
        advice = f"pip install '{package}>={least}'"
        findings.append(
            wrong(_SUBJECT, f"{package}: {installed}; expected {least} or newer", advice)
        )
    return findings or [fine(_SUBJECT, ", ".join(texts))]


def numbers(text: str) -> tuple[int, ...]:
    """Return the comparable part of a version: (2, 13, 0) for "2.13.0+cpu"."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()
