"""The scripts of the pages train the same however they are started, and the pages show their
loops."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from textwrap import indent
from typing import Any
from warnings import catch_warnings

import numpy as np
import pytest
import torch

import hopper
from hopper.cli import main
from hopper.graph import GraphDirectory
from tests.conftest import free_ports
from tests.docs.markdown_pages import read_code, read_snippets
from tests.server_processes import REPOSITORY, run_python

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data

EXAMPLES = REPOSITORY / "examples"
HOPPER = ("-m", "hopper.cli")
LIMIT = 120.0


def start(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python to its end."""
    common = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    return run_python(*words, limit=LIMIT, **common, **environment)


def config(folder: Path, parts: Path, script: Path, **cluster: Any) -> str:
    """Write a configuration that names a script."""
    train = {"script": str(script), "run_dir": str(folder / "run")}
    cluster |= {"start_timeout_seconds": LIMIT}
    sections = {"data": {"partitioned": str(parts)}, "train": train, "cluster": cluster}
    (folder / "config.json").write_text(json.dumps(sections))
    return str(folder / "config.json")


def losses(ended: subprocess.CompletedProcess[str], ranks: int) -> list[float]:
    """The mean loss of each epoch over all ranks."""
    assert ended.returncode == 0, ended.stderr
    return read_losses(ended.stdout, ranks)


def read_losses(printed: str, ranks: int) -> list[float]:
    found = re.findall(r"epoch (\d): 2 batches, loss (\d\.\d+)", printed)
    assert len(found) == 3 * ranks, printed
    return np.array([float(loss) for _, loss in sorted(found)]).reshape(3, ranks).mean(1).tolist()


def run_alone(script: str, *words: str) -> list[float]:
    """The losses of a script that runs by itself, in this process, which has imported PyG."""
    with (
        pytest.MonkeyPatch.context() as patch,
        catch_warnings(action="ignore"),
        redirect_stdout(StringIO()) as printed,
    ):
        patch.setattr(sys, "argv", [script, *words])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    return read_losses(printed.getvalue(), 1)


@pytest.fixture(scope="module")
def alone(parts) -> Callable[[str], list[float]]:
    """The losses of a script that is given the graph."""
    return cache(lambda script: run_alone(script, str(parts)))


@pytest.mark.parametrize("script", ["pyg_script.py", "dgl_script.py"])
def test_a_script_trains_the_same_under_torchrun(script, parts, alone, serve_partitions):
    if script == "dgl_script.py":
        pytest.importorskip("dgl")
    words = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
    file, servers = str(EXAMPLES / script), serve_partitions(parts, 2)
    found = losses(start(*words, file, str(parts), *servers), 2)
    assert found[-1] < found[0]
    assert found == pytest.approx(alone(script), abs=2e-4)


@pytest.mark.timeout(3 * LIMIT)
@pytest.mark.parametrize("way", ["configuration", "host", "train"])
def test_a_script_trains_the_same_without_arguments(way, parts, alone, tmp_path, monkeypatch):
    """A configuration that the environment names tells it all, and launchers name theirs."""
    first, script = free_ports(3), EXAMPLES / "pyg_script.py"
    if way == "configuration":
        monkeypatch.setenv("HOPPER_CONFIG", config(tmp_path, parts, script))
        found = run_alone(script.name)
    elif way == "host":
        servers = [f"127.0.0.1:{first + 1}", f"127.0.0.1:{first + 2}"]
        file = config(tmp_path, parts, script, servers=servers)
        words = ["--server", "0", "--server", "1", "--meet", f"127.0.0.1:{first}"]
        found = losses(start(*HOPPER, "host", file, *words, "--listen", "127.0.0.1"), 2)
    else:
        found = losses(start(*HOPPER, "train", config(tmp_path, parts, script)), 2)
    assert found == pytest.approx(alone("pyg_script.py"), abs=2e-4)


@pytest.mark.timeout(3 * LIMIT)
def test_the_page_brings_a_script_from_one_machine_to_four(community_graph, tmp_path, monkeypatch):
    """Followed to the letter, with hosts of loopback."""
    monkeypatch.chdir(tmp_path)
    blocks = [*read_snippets(REPOSITORY / "docs/start/from-pyg.md")]
    first = [block.language for block in blocks].index("diff")
    diff, commands, settings, launch = (block.text for block in blocks[first : first + 4])
    lines = diff.splitlines()
    assert sum(line.startswith("+") for line in lines) == 11
    script = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    (tmp_path / "script.py").write_text(script)
    torch.save(data_of(community_graph), tmp_path / "data.pt")
    for command in commands.split("hopper ")[1:]:
        assert main(command.split()) == 0
    first = free_ports(5)
    for server in range(4):
        settings = settings.replace(f"node{server}:20000", f"127.0.0.1:{first + 1 + server}")
    (tmp_path / "config.toml").write_text(settings)
    words = launch.strip().removeprefix("hopper ").replace("node0:30000", f"127.0.0.1:{first}")
    # The last two machines are one here: each command imports torch, which takes long.
    hosts = [
        subprocess.Popen(
            [
                sys.executable,
                *HOPPER,
                *words.replace("--server 0", served).split(),
                "--listen",
                "127.0.0.1",
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for served in ("--server 0", "--server 1", "--server 2 --server 3")
    ]
    ended = [host.communicate(timeout=LIMIT) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0, 0], ended
    found = ["".join(sorted(re.findall(r"epoch (\d): 2 batches", out))) for out, _ in ended]
    assert found == ["012", "012", "001122"]


def data_of(graph: GraphDirectory) -> Data:
    """A graph of one type as PyG has it."""
    topology = graph.topology(next(iter(graph.schema.relations)))
    edges = np.stack([np.asarray(topology.indices, np.int64), topology.list_destinations()])
    masks = {}
    for split in graph.schema.splits:
        masks[f"{split}_mask"] = torch.zeros(300, dtype=torch.bool)
        masks[f"{split}_mask"][torch.from_numpy(np.array(graph.split(split)))] = True
    x, y = np.array(graph.features("item")), np.array(graph.labels("item"))
    return Data(
        x=torch.from_numpy(x), y=torch.from_numpy(y), edge_index=torch.from_numpy(edges), **masks
    )


FAILING = """
import os, sys, torch.distributed as dist
import hopper

dist.init_process_group("gloo")
with hopper.connect() as graph:
    if graph.rank == 1:
        {}
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("raise ValueError(sys.argv[1])", r"rank 1 \(pid \d+\) failed: ValueError: no paint\n"),
        ("os.kill(os.getpid(), 9)", r"rank 1 \(pid \d+\) was killed by SIGKILL; the other ranks"),
    ],
)
def test_the_rank_whose_script_failed_first_is_named(line, text, parts, tmp_path):
    (tmp_path / "script.py").write_text(FAILING.format(line))
    file = config(tmp_path, parts, tmp_path / "script.py")
    words = ["--train.script", f"{tmp_path / 'script.py'} 'no paint'"]
    ended = start(*HOPPER, "train", file, *words)
    assert ended.returncode == 1
    assert re.search(text, ended.stderr), ended.stderr


WORKERS = """
import hopper
import torch
from hopper.pyg import FeatureStore, GraphStore, Sampler
from torch_geometric.loader import NodeLoader

with hopper.connect() as graph:
    stores = FeatureStore(graph), GraphStore(graph)
    sampler, roots = Sampler(graph, [2, 2]), torch.from_numpy(graph.graph.split("train").copy())
    loader = NodeLoader(
        stores, node_sampler=sampler, input_nodes=roots, batch_size=32, num_workers=1
    )
    print("roots", sum(batch.batch_size for batch in loader), roots.numel())
"""


def test_a_started_script_may_have_workers(parts, tmp_path):
    (tmp_path / "script.py").write_text(WORKERS)
    ended = start(*HOPPER, "train", config(tmp_path, parts, tmp_path / "script.py"))
    assert ended.returncode == 0, ended.stderr
    found = re.findall(r"roots (\d+) (\d+)", ended.stdout)
    assert len(found) == 2, ended.stdout
    assert all(drawn == all_roots for drawn, all_roots in found)


@pytest.mark.parametrize("writes", [True, False])
def test_a_result_has_what_the_script_wrote(writes, parts, launched_in_pool, tmp_path):
    script = tmp_path / "script.py"
    line = f"pathlib.Path({str(tmp_path)!r}, 'run/summary.json').write_text('{{\"ranks\": 2}}')"
    script.write_text(f"import pathlib\n{line if writes else ''}\n")
    result = hopper.train(config(tmp_path, parts, script))
    if writes:
        assert result.ranks == 2
        return
    with pytest.raises(hopper.RequestError, match=r"ranks: a train\.script leaves no"):
        _ = result.ranks


def test_a_script_that_is_not_there_is_told(parts, tmp_path, capsys):
    assert main(["train", config(tmp_path, parts, tmp_path / "none.py")]) == 1
    given = f"train.script: expected a file, given '{tmp_path}/none.py'"
    assert given in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "script"),
    [("howto/pyg.md", "pyg_script.py"), ("start/from-distdgl.md", "dgl_script.py")],
)
def test_the_page_shows_the_loop(page, script):
    loop = read_code(REPOSITORY / "docs" / page, "python")[0]
    assert "for batch in loader:" in loop
    assert indent(loop, " " * 8) in (EXAMPLES / script).read_text()
