"""The examples run as their texts say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_a_relational_model_of_one_s_own_learns(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "heterogeneous.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "server 0 aggregates paper/cites/paper" in done.stdout
    found = re.search(r"test accuracy (0\.\d+); features of two papers: \(2, 128\)", done.stdout)
    assert found is not None, done.stdout
    # A guess is right once in 349 times.
    assert float(found[1]) > 0.3
