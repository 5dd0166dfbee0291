"""Check what is about to be released: the source distribution and the wheel of one version.

``python scripts/check_distribution.py DIST`` looks at the two files in DIST, and prints a line for
everything that is wrong: metadata that package indexes refuse or show badly, names and versions
that differ, files that have no place there (results of benchmarks above all), and modules that the
wheel lacks. It needs nothing but Python. The exit code is 1 where anything is wrong.
"""

from __future__ import annotations

import email
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

NEEDED: Final = ("Name", "Version", "Summary", "License-Expression", "Requires-Python")
PACKAGES: Final = ("hopper", "cache_server")
_VERSION: Final = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_MIB: Final = 2**20
SDIST_LIMIT: Final = 8 * _MIB
"""bytes: results would be far more"""


def main(words: list[str]) -> int:
    """Check the distributions in a folder; 0 where nothing is wrong."""
    if len(words) != 1:
        print("usage: check_distribution.py DIST", file=sys.stderr)
        return 2
    problems = list(find_problems(Path(words[0])))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return int(bool(problems))


def find_problems(folder: Path) -> Iterator[str]:
    """A line for everything that is wrong with the distributions in a folder."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        yield f"{folder}: expected one wheel and one .tar.gz, found {len(wheels)} and {len(sdists)}"
        return
    [wheel], [sdist] = wheels, sdists
    in_wheel, in_sdist = _wheel_files(wheel), _sdist_files(sdist)
    metadata = next((n for n in in_wheel if n.endswith(".dist-info/METADATA")), "")
    for file, content in ((wheel, in_wheel.get(metadata)), (sdist, in_sdist.get("PKG-INFO"))):
        yield from _metadata_problems(file.name, content, in_sdist.get("hopper/__init__.py", b""))
    yield from _content_problems(wheel.name, in_wheel, sdist, in_sdist)


def _metadata_problems(name: str, content: bytes | None, module: bytes) -> Iterator[str]:
    if content is None:
        yield f"{name}: no metadata"
        return
    told = email.message_from_bytes(content)
    for field in NEEDED:
        if not told.get(field):
            yield f"{name}: {field} is missing"
    version = _VERSION.search(module.decode())
    if version is None or told.get("Version") != version[1]:
        expected = "none" if version is None else version[1]
        yield f"{name}: version {told.get('Version')}, in hopper/__init__.py {expected}"
    if told.get("Description-Content-Type", "").split(";")[0] != "text/markdown":
        yield f"{name}: the description is not declared as text/markdown"
    if not str(told.get_payload()).strip():
        yield f"{name}: the description is empty"
    if "\n" in told.get("Summary", ""):
        yield f"{name}: the summary has more than one line"


def _content_problems(
    wheel: str, in_wheel: Mapping[str, bytes], sdist: Path, in_sdist: Mapping[str, bytes]
) -> Iterator[str]:
    tops = {name.split("/")[0] for name in in_wheel}
    for top in sorted(tops - set(PACKAGES)):
        if not top.endswith(".dist-info"):
            yield f"{wheel}: {top} is no part of the packages"
    for name in sorted(in_sdist):
        if name.startswith("benchmarks/") or name.endswith((".pyc", ".nbi", ".nbc")):
            yield f"{sdist.name}: {name} has no place there"
    if sdist.stat().st_size > SDIST_LIMIT:
        size = sdist.stat().st_size / _MIB
        yield f"{sdist.name}: {size:.1f} MiB, expected at most {SDIST_LIMIT / _MIB:g}"
    for name in sorted(in_sdist):
        if name.split("/")[0] in PACKAGES and name not in in_wheel:
            yield f"{wheel}: {name} is missing"


def _wheel_files(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _sdist_files(path: Path) -> dict[str, bytes]:
    """By path below the folder that all files of a source distribution are in."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                found[member.name.partition("/")[2]] = file.read()
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
