"""Whatever happens to the files of a source, an import tells it in a line or is not affected."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hopper.errors import GraphError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, import_graph

from . import test_import_kinds as sources

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # notes on the import
LONGEST = 500
SOURCES = {
    "csv": "",
    "parquet": "",
    "sql": "graph.toml",
    "sqlite": "",
    "npy": "",
    "graphbolt": "",
    "distdgl": "metadata.json",
    "pyg": "graph.pt",
}
"""what an import is given, by kind; '' = the folder"""


def flip(content: bytes, draw: random.Random, bits: int = 1) -> bytes:
    changed = bytearray(content)
    for _ in range(bits):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def insert(content: bytes, draw: random.Random, new: bytes) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + new + content[place:]


def replace(content: bytes, draw: random.Random) -> bytes:
    """Replace a word."""
    word = draw.choice(list(re.finditer(rb"[A-Za-z0-9_.-]+", content)))
    others = [b"", b"abc", b"-1", b"1e400", b"NaN", b"9" * 20, b"null", b'"x', b"../../x", b"'"]
    return content[: word.start()] + draw.choice(others) + content[word.end() :]


ALTERATIONS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda content, draw: b"",
    "noise": lambda content, draw: draw.randbytes(len(content)),
    "cut early": lambda content, draw: content[: len(content) // 10],
    "cut late": lambda content, draw: content[: len(content) * 99 // 100],
    "one bit": flip,
    "eight bits": lambda content, draw: flip(content, draw, 8),
    "zeros": lambda content, draw: insert(content, draw, bytes(8)),
    "no UTF-8": lambda content, draw: insert(content, draw, b"\xe9\xff"),
    "a word": replace,
    "another word": replace,
    "twice": lambda content, draw: content * 2,
}


def read(kind: str, folder: Path) -> None:
    if kind == "sqlite":
        sources.from_database(folder, f"sqlite:{folder}/shop.sqlite", ImportOptions())
    else:
        import_graph(kind, str(folder / SOURCES[kind]), folder / "out")


@pytest.mark.parametrize("kind", SOURCES)
def test_an_altered_file_is_told_in_a_line_or_harmless(kind, tmp_path):
    if kind == "sqlite":
        pytest.importorskip("adbc_driver_sqlite", reason="the driver is not installed")
    draw, refused = random.Random(kind), 0
    sources.KINDS[kind](tmp_path, ImportOptions())
    shutil.rmtree(tmp_path / "out")
    files = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    chosen = [(file, way) for file in files for way in [*ALTERATIONS, "gone", "a folder"]]
    for file, way in draw.choices(chosen, k=30):
        content = file.read_bytes()
        file.unlink()
        if way == "a folder":
            file.mkdir()
        elif way != "gone":
            file.write_bytes(ALTERATIONS[way](content, draw))
        try:
            read(kind, tmp_path)
        except GraphError as error:
            refused += 1
            first, *more = str(error).splitlines()
            assert not more or first.endswith("problems with the source:"), (file, way)
            assert all(0 < len(line) < LONGEST for line in (first, *more)), (file, way, first)
        else:
            GraphDirectory.open(tmp_path / "out")
            shutil.rmtree(tmp_path / "out")
        if file.is_dir():
            file.rmdir()
        file.write_bytes(content)
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files, (file, way)
    assert refused > 12
