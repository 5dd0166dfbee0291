"""``hopper report``: a self-contained HTML page about an A/B or a training run."""

from __future__ import annotations

from pathlib import Path

from hopper.bench.report.page import page
from hopper.bench.report.source import read_source
from hopper.files.whole_files import write_text


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into the folder of an A/B or a run, and return its path.

    Raises
    ------
    RequestError: the folder belongs to neither, or one of its files cannot be read.
    """
    path = folder / "report.html"
    write_text(path, page(read_source(folder)))
    return path
