"""docs/results/figures.md is made of the results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.usefixtures("forked_starts")
def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_figures_page.py"), "--check"]
    check = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert check.returncode == 0, check.stderr
