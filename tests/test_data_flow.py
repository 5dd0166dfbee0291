"""Pages about an iteration name functions that exist, and all causes, stages and counts."""

import importlib
import re
from pathlib import Path

import pytest

from hopper.cluster.traffic import CAUSES
from hopper.timing.run_log import STAGES
from hopper.train.results import ROW_KINDS

DOCUMENTS = Path(__file__).resolve().parents[1] / "docs" / "inside"
PAGE = "\n".join(
    (DOCUMENTS / f"{name}.md").read_text(encoding="utf-8")
    for name in ("data-flow", "engines", "merging", "counting")
)
NAMES = sorted(set(re.findall(r"`((?:hopper|benchmarks)(?:\.\w+)+)`", PAGE)))


def first_cells(header: str) -> list[str]:
    """The code words in the first column of the table that starts with a header."""
    table = PAGE.split(f"| {header} |")[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_named_functions_exist(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            value = getattr(value, attribute)
        return
    pytest.fail(f"{name} does not exist")


def test_tables_list_all_causes_stages_and_counts():
    assert len(NAMES) > 15
    assert first_cells("cause") == list(CAUSES)
    assert first_cells("stage") == list(STAGES)
    assert first_cells("count") == list(ROW_KINDS)


def test_a_batch_is_walked_in_ten_files():
    """Each file of a column is named once."""
    table = PAGE.split("| | `hop` | `cooperative` | `raf` |")[1].split("\n\n")[0]
    rows = [re.findall(r"`(hopper[\w.]+)`", line) for line in table.splitlines()[2:]]
    for column in range(3):
        files = [row[column % len(row)] for row in rows]
        assert len(set(files)) == len(files) <= 10
