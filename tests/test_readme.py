"""Scripts that the README names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_commands_name_scripts_that_exist() -> None:
    for name in re.findall(
        r"(?:\./|python )((?:scripts|benchmarks)/[\w/]+\.\w+)", README.read_text()
    ):
        assert (ROOT / name).is_file(), name
