"""Tasks of a Ray cluster build the same parts as one process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from hopper.cluster import ray_cluster
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph
from hopper.partition.checksums import read_division
from hopper.partition.executor import Executor, RayExecutor, open_executor

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)


@pytest.mark.parametrize(
    ("where", "count", "text"),
    [
        ("spark", None, "--on: expected local, ray or ray:HOST:PORT, given 'spark'"),
        ("ray:", None, "--on: expected local, ray or ray:HOST:PORT, given 'ray:'"),
        ("local", 2, "--workers: expected at least 1, of --on ray alone, given 2 with --on local"),
        ("ray", 0, "--workers: expected at least 1, of --on ray alone, given 0 with --on ray"),
    ],
)
def test_options_that_do_not_fit_are_refused(where: str, count: int | None, text: str) -> None:
    with pytest.raises(RequestError, match=text), open_executor(where, count):
        pass


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match="pip install ray"), open_executor("ray"):
        pass


@pytest.mark.parametrize(
    ("address", "text"),
    [("nowhere", "expected ray:HOST:PORT"), ("127.0.0.1:1", "no Ray cluster: Connection")],
)
def test_an_address_where_nobody_listens_is_refused(
    address: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_import_ray", lambda option: None)
    where = f"ray:{address}"
    with pytest.raises(RequestError, match=f"--on {where}: {text}"), open_executor(where):
        pass


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_every_number_of_workers_builds_the_same_files(
    shared_library: GraphDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[dict[str, Any]] = [
        {"topology": "halo:1", "memory_limit": 300 << 20},
        {"features": "by-dimension"},
    ]

    def divide(name: str, executor: Executor, kinds: list[dict[str, Any]]) -> list[str]:
        outs = [tmp_path / f"{name}-{number}" for number in range(len(kinds))]
        for out, kind in zip(outs, kinds, strict=True):
            partition_graph(shared_library, out, 3, "random", executor=executor, **kind)
        return [read_division(out) for out in outs]

    # Ray's processes import the project from where this one does.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    with open_executor("local") as executor:
        expected = divide("local", executor, kinds)
    with open_executor("ray", 2) as executor:
        import ray

        assert divide("two tasks at a time", executor, kinds) == expected
        assert divide("one", RayExecutor(ray, "ray", 1), kinds[:1]) == expected[:1]
        # A failing task is reported in one line, and leaves no files.
        text = r"^--on ray: write_server \d: (Graph|OS|FileNotFound)Error: .*\.npy.*$"
        broken = BrokenGraph(shared_library.path, shared_library.schema)
        with pytest.raises(RequestError, match=text) as error:
            partition_graph(broken, tmp_path / "failed", 3, "random", executor=executor)
        assert "\n" not in str(error.value)
        assert not [path for path in tmp_path.iterdir() if "failed" in path.name]
    assert not ray.is_initialized()


class BrokenGraph(GraphDirectory):
    """A graph whose features are missing when another process reads them."""

    def features(self, node_type: str) -> Any:
        import ray

        if ray.get_runtime_context().get_task_id() is not None:
            raise FileNotFoundError(2, "No such file", str(self.features_file(node_type)))
        return super().features(node_type)
