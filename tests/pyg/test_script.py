"""The script of the page runs alone and under torchrun, and the page shows its loop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest

from hopper.graph import GraphDirectory
from hopper.partition import partition_graph

pytest.importorskip("torch_geometric")

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "examples" / "pyg_script.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_script_runs_unchanged_alone_and_under_torchrun(
    ranks: int,
    community_graph: GraphDirectory,
    serve_partitions: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    partition_graph(community_graph, tmp_path / "parts", 2, "random")
    command, servers = [sys.executable], []
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        servers = serve_partitions(tmp_path / "parts", 2)
    ended = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path / "parts"), *servers],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    batches = 3 if ranks == 1 else 2
    lines = [line for line in ended.stdout.splitlines() if line.startswith("epoch")]
    assert len(lines) == 3 * ranks
    assert all(f"{batches} batches, loss " in line for line in lines)
    first, last = (float(line.split()[-1]) for line in (min(lines), max(lines)))
    assert last < first


def test_the_page_shows_the_loop() -> None:
    page = (REPOSITORY / "docs" / "howto" / "pyg.md").read_text()
    loop = page.split("```python\n")[1].split("```")[0]
    assert "for batch in loader:" in loop
    assert indent(loop, " " * 8) in SCRIPT.read_text()
