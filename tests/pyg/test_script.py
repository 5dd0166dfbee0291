"""The scripts of the pages run alone and under torchrun, and the pages show their loops."""

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
EXAMPLES = REPOSITORY / "examples"


@pytest.mark.parametrize(
    ("script", "ranks"), [("pyg_script.py", 1), ("pyg_script.py", 2), ("dgl_script.py", 2)]
)
def test_the_script_runs_unchanged_alone_and_under_torchrun(
    script: str,
    ranks: int,
    community_graph: GraphDirectory,
    serve_partitions: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    if script == "dgl_script.py":
        pytest.importorskip("dgl")
    partition_graph(community_graph, tmp_path / "parts", 2, "random")
    command, servers = [sys.executable], []
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        servers = serve_partitions(tmp_path / "parts", 2)
    ended = subprocess.run(
        [*command, str(EXAMPLES / script), str(tmp_path / "parts"), *servers],
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


@pytest.mark.parametrize(
    ("page", "script"),
    [("howto/pyg.md", "pyg_script.py"), ("start/from-distdgl.md", "dgl_script.py")],
)
def test_the_page_shows_the_loop(page: str, script: str) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    loop = text.split("```python\n")[1].split("```")[0]
    assert "for batch in loader:" in loop
    assert indent(loop, " " * 8) in (EXAMPLES / script).read_text()
