"""Features from a plug-in class: what it must be, and what is said where it is not."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cache_server.errors import SourceError
from cache_server.store.row_source import parse_requests
from cache_server.store.shard import Shard
from hopper.config import make_config
from hopper.errors import ConfigError, GraphError
from hopper.features import LocalRows, open_graph
from tests.cache_server.test_process import run_main


class Squares:
    """Rows that are computed: every number of a row is the square of its id."""

    dtype: Any = "float16"
    dim: Any = 2

    def __init__(self, **options: Any) -> None:
        self.options = options

    def read(self, ids: NDArray[np.int64]) -> Any:
        return np.repeat((ids % 40)[:, None] ** 2, 2, 1).astype(np.float16)


class Wide(Squares):
    dim = 0


class Doubles(Squares):
    dtype = "float64"


class OneLess(Squares):
    def read(self, ids: NDArray[np.int64]) -> Any:
        return super().read(ids)[1:]


class Ranks(Squares):
    def read(self, ids: NDArray[np.int64]) -> Any:
        return np.repeat(np.arange(ids.size)[:, None], 2, 1).astype(np.float16)


class Fails(Squares):
    def read(self, ids: NDArray[np.int64]) -> Any:
        raise OSError("the disk is gone")


@pytest.fixture
def this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this file's classes be found as those of a module ``row_sources``."""
    import types

    module = types.ModuleType("row_sources")
    kinds = (Squares, Wide, Doubles, OneLess, Ranks, Fails)
    module.__dict__.update({kind.__name__: kind for kind in kinds})
    monkeypatch.setitem(sys.modules, "row_sources", module)


def make_source_config(tables: Any, **features: str) -> Any:
    return make_config({"data": {"partitioned": str(tables.graph.path), "features": features}})


def test_a_type_without_features_gets_them(tables: Any, this_module: None) -> None:
    """Ranks and servers both read rows by original id, so no division matters."""
    graph = open_graph(make_source_config(tables, word="row_sources:Squares"))
    assert (graph.schema.node_types["word"].feature_dim, tables.graph.schema.node_types[
        "word"].feature_dim) == (2, None)  # fmt: skip
    ids = np.arange(*graph.book.offsets["word"][1:3])
    expected = Squares().read(graph.original_ids("word")[ids])
    assert np.array_equal(LocalRows(graph, 1).gather("features", "word", ids), expected)
    requests = parse_requests(["word=row_sources:Squares"], ['word={"more": 1}'])
    shard = Shard.open(graph.path / "server-1", requests)
    table = shard.table("features", "word")
    out = np.empty((ids.size, table.row_bytes), np.uint8)
    table.gather(table.local_rows(ids), out)
    assert np.array_equal(out.view(np.float16), expected)
    with pytest.raises(GraphError, match="is not stored on server 0"):
        LocalRows(graph, 0).gather("features", "word", ids)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wide", "features of word: row_sources:Wide: dim: expected an integer >= 1, got 0"),
        ("Doubles", "row_sources:Doubles: dtype: expected float32 or float16, got 'float64'"),
        ("OneLess", "expected rows [3, 2] of float16; got [2, 2] of float16"),
        ("Ranks", "expected the same row of an id every time"),
        ("Fails", "rows cannot be read (OSError: the disk is gone)"),
    ],
)
def test_a_source_is_tried_before_anything_depends_on_it(
    tables: Any, this_module: None, name: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        open_graph(make_source_config(tables, word=f"row_sources:{name}"))
    assert message in str(error.value)
    with pytest.raises(SourceError) as server_error:
        Shard.open(tables.graph.path / "server-1", parse_requests([f"word=row_sources:{name}"], []))
    assert message in str(server_error.value)


def test_a_server_says_what_is_wrong_with_its_options(tables: Any) -> None:
    features, options = "--features", "--features-options"
    messages = {
        (features, "paper"): "error: --features: expected TYPE=...; got 'paper'",
        (features, "paper=Sq"): "expected TYPE=package.module:Class; got paper=Sq",
        (features, "paper=a:B", options, "paper=[1]"): "expected TYPE={JSON}",
        (options, "paper={}"): "expected TYPE={JSON} of a type of --features",
        (features, "paper=nowhere:B"): "features of paper: nowhere:B cannot be made (ModuleN",
        (features, "page=nowhere:B"): "features of page: ",
    }
    usual = [str(tables.graph.path), "--server", "1", "--listen", "127.0.0.1:0"]
    for (status, error), message in zip(run_main(usual, messages), messages.values(), strict=True):
        assert status == 2
        assert message in error
