"""docs/results/figures.md is made of the results."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_up_to_date(forked_python: Path) -> None:
    command = [str(forked_python), str(ROOT / "scripts" / "make_figures_page.py"), "--check"]
    check = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert check.returncode == 0, check.stderr
