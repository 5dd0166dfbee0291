"""Which kernels are chosen, and what is said where Triton is absent."""

import logging

import pytest

from hopper.errors import ConfigError, RequestError
from hopper.ops import backend, selection, use_backend
from tests.server_processes import run_python


@pytest.fixture(autouse=True)
def no_backend_chosen(monkeypatch):
    monkeypatch.setattr(selection, "_chosen", None)
    monkeypatch.delenv("HOPPER_OPS", raising=False)


def test_environment_chooses(monkeypatch):
    monkeypatch.setenv("HOPPER_OPS", "torch")
    assert backend() == "torch"
    monkeypatch.setenv("HOPPER_OPS", "dgl")
    with pytest.raises(
        ConfigError, match="HOPPER_OPS: expected one of auto, numba, torch, triton; given 'dgl'"
    ):
        backend()


def test_use_backend_holds_at_once_and_restores(monkeypatch):
    monkeypatch.setenv("HOPPER_OPS", "auto")
    with use_backend("torch"):
        assert backend("cpu") == "torch"
    assert selection._chosen is None
    use_backend("torch")
    assert backend() == "torch"
    with pytest.raises(ConfigError, match="use_backend"):
        use_backend("numpy")
    assert backend() == "torch"


def test_auto_is_numba_on_the_cpu():
    assert backend("cpu") == "numba"
    assert backend("cuda") == ("torch" if isinstance(selection.load_triton(), str) else "triton")
    with use_backend("torch"):
        assert backend("cuda") == "torch"


def test_without_triton_gpus_use_torch(monkeypatch, caplog):
    absence = "Triton cannot be imported (...)"
    monkeypatch.setattr(selection, "load_triton", lambda: absence)
    selection._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "hopper.ops"):
        assert backend("cuda") == "torch"
    assert caplog.messages == [f"message passing uses torch kernels on cuda: {absence}"]
    with use_backend("triton"), pytest.raises(RequestError, match="'triton' was asked for, but T"):
        backend("cuda")


@pytest.mark.parametrize(
    ("name", "device", "text"),
    [("triton", "cpu", "on GPUs only, but a block is"),
     ("numba", "cuda:1", "CPU only, but a block is on cuda:1")],
)  # fmt: skip
def test_kernels_of_other_devices_are_refused(name, device, text, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with use_backend(name), pytest.raises(RequestError, match=text):
        backend(device)


def test_absence_is_said_by_rank_0_only(monkeypatch, caplog):
    monkeypatch.setattr(selection, "load_triton", lambda: "Triton cannot be imported (...)")
    monkeypatch.setenv("RANK", "1")
    selection._say_once.cache_clear()
    assert backend("cuda") == backend("cuda") == "torch"
    assert not caplog.records


SILENT = """
import sys, warnings
warnings.simplefilter("error")
import torch
import hopper.ops
from hopper.graph.block import Edges
assert not {"dgl", "cupy", "triton"} & sys.modules.keys()
block = Edges(1, 1, torch.arange(2), torch.arange(1))
x = torch.ones(1, 4, requires_grad=True)
w = torch.ones(1, requires_grad=True)
for backend in ("numba", "torch"):
    with hopper.ops.use_backend(backend):
        sums = hopper.ops.copy_sum(block, x) + hopper.ops.weighted_sum(block, x, w)
        sums.sum().backward()
assert "dgl" not in sys.modules
"""


def test_import_is_lazy_and_the_kernels_are_silent():
    run = run_python("-c", SILENT, HOPPER_OPS="auto")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
