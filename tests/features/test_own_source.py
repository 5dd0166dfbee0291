"""Features from a plug-in class: what it must be, and what is said where it is not."""

import re
import sys
import types
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cache_server.errors import SourceError
from cache_server.store.row_source import SourceRequest
from cache_server.store.shard import Shard
from hopper.config import make_config
from hopper.errors import ConfigError, GraphError
from hopper.features import LocalRows, open_graph


class Squares:
    """Rows that are computed: every number of a row is the square of its id."""

    dtype: Any = "float16"
    dim: Any = 2

    def __init__(self, **options: Any) -> None:
        self.options = options

    def read(self, ids: NDArray[np.int64]) -> Any:
        return np.repeat((ids % 40)[:, None] ** 2, 2, 1).astype(np.float16)


def fail(_source: Any, _ids: NDArray[np.int64]) -> Any:
    raise OSError("the disk is gone")


def count_rows(_source: Any, ids: NDArray[np.int64]) -> Any:
    return np.repeat(np.arange(ids.size)[:, None], 2, 1).astype(np.float16)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "Wide": ({"dim": 0}, "features of word: row_sources:Wide: dim: expected an integer >= 1, got"),
    "Doubles": ({"dtype": "float64"}, "Doubles: dtype: expected float32 or float16, got 'float64'"),
    "OneLess": (
        {"read": lambda source, ids: Squares.read(source, ids)[1:]},
        "expected rows [3, 2] of float16; got [2, 2] of float16",
    ),
    "Ranks": ({"read": count_rows}, "expected the same row of an id every time"),
    "Fails": ({"read": fail}, "rows cannot be read (OSError: the disk is gone)"),
}


@pytest.fixture(autouse=True)
def module(monkeypatch) -> None:
    """Let the classes be found as those of a module ``row_sources``."""
    module = types.ModuleType("row_sources")
    wrong = {name: type(name, (Squares,), members) for name, (members, _) in WRONG.items()}
    vars(module).update(wrong, Squares=Squares)
    monkeypatch.setitem(sys.modules, "row_sources", module)


def make_source_config(tables: Any, **features: str) -> Any:
    return make_config({"data": {"partitioned": str(tables.graph.path), "features": features}})


def test_a_type_without_features_gets_them(tables):
    """Ranks and servers both read rows by original id, so no division matters."""
    graph = open_graph(make_source_config(tables, word="row_sources:Squares"))
    dims = [of.schema.node_types["word"].feature_dim for of in (graph, tables.graph)]
    assert dims == [2, None]
    ids = np.arange(*graph.book.offsets["word"][1:3])
    expected = Squares().read(graph.original_ids("word")[ids])
    assert np.array_equal(LocalRows(graph, 1).gather("features", "word", ids), expected)
    requests = {"word": SourceRequest("row_sources:Squares", {"more": 1})}
    table = Shard.open(graph.path / "server-1", requests).table("features", "word")
    out = np.empty((ids.size, table.row_bytes), np.uint8)
    table.gather(table.local_rows(ids), out)
    assert np.array_equal(out.view(np.float16), expected)
    with pytest.raises(GraphError, match="is not stored on server 0"):
        LocalRows(graph, 0).gather("features", "word", ids)


@pytest.mark.parametrize("name", WRONG)
def test_a_source_is_tried_before_anything_depends_on_it(tables, name):
    message = re.escape(WRONG[name][1])
    with pytest.raises(ConfigError, match=message):
        open_graph(make_source_config(tables, word=f"row_sources:{name}"))
    with pytest.raises(SourceError, match=message):
        Shard.open(tables.graph.path / "server-1", {"word": SourceRequest(f"row_sources:{name}")})


def test_a_source_that_cannot_be_made_is_named(tables):
    for node_type, message in (
        ("word", r"features of word: nowhere:B cannot be made \(ModuleN"),
        ("page", "features of page: "),
    ):
        requests = {node_type: SourceRequest("nowhere:B")}
        with pytest.raises(SourceError, match=message):
            Shard.open(tables.graph.path / "server-1", requests)
