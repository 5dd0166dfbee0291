"""What loaders read over connections: addresses without a directory, caches, and certificates."""

from pathlib import Path
from typing import Any

import pytest
import torch

import hopper
from tests.doctor.test_servers import issue_for

pytest.importorskip("torch_geometric")

from hopper.pyg import LinkNeighborLoader, NeighborLoader


@pytest.fixture
def divided(parts_of) -> Path:
    """Parts of which each server draws from its own topology."""
    return Path(parts_of("items", "partitioned"))


def contents(loader: Any) -> list[str]:
    """All that the batches of two epochs have."""
    with torch.random.fork_rng(), loader:
        return [str(batch.to_dict()) for _ in range(2) for batch in loader]


def batches(data: Any, **arguments: Any) -> list[str]:
    return contents(NeighborLoader(data, [3, 3], "train", batch_size=16, shuffle=True, **arguments))


def test_addresses_alone_give_the_batches_of_the_directory(
    divided, serve_partitions, tmp_path, monkeypatch
):
    """All rows travel then, and servers make all draws."""
    addresses = serve_partitions(divided, 2)
    pairs = torch.arange(40).reshape(2, 20)
    links: dict[str, Any] = {"edge_label_index": pairs, "batch_size": 8, "neg_sampling": "binary"}
    monkeypatch.chdir(tmp_path)
    assert batches(addresses) == batches(divided)
    found, expected = (
        contents(LinkNeighborLoader(data, [2, 2], **links)) for data in (addresses, divided)
    )
    assert found == expected
    with hopper.loader(addresses, [3, 2], batch_size=16) as loader:
        for batch in loader:
            assert batch.x.shape == (batch.subgraph.nodes["item"].size, 10)
            with pytest.raises(hopper.RequestError, match="connect: servers do not tell degrees"):
                batch.blocks()[0].in_degree()
    with hopper.connect(servers=addresses) as graph:
        folder = graph.graph.path
        assert list(graph.graph.split("train"))
    assert not folder.exists()


def test_typed_addresses_give_the_batches_of_the_directory(serve_partitions, parts_of):
    parts = parts_of("bare", "partitioned")
    found, expected = (
        contents(NeighborLoader(data, [2, 2], ("paper", "train"), batch_size=9))
        for data in (serve_partitions(parts, 2), parts)
    )
    assert found == expected


def test_what_addresses_alone_do_not_tell_is_refused(
    parts, parts_of, serve_partitions, monkeypatch
):
    with pytest.raises(hopper.RequestError, match="these servers draw no neighbors; "):
        batches(serve_partitions(parts, 2))
    addresses = serve_partitions(parts_of("drawn", "partitioned"), 2)
    with pytest.raises(
        hopper.RequestError, match="where features of author/to/paper lie; expected"
    ):
        NeighborLoader(addresses, [2, 2], ("paper", "train"))
    with (
        hopper.connect(servers=addresses) as graph,
        pytest.raises(hopper.RequestError, match="servers do not tell the times of paper"),
    ):
        graph.graph.times("paper")
    monkeypatch.delenv("HOPPER_CONFIG", raising=False)
    with pytest.raises(hopper.RequestError, match="connect: expected a partitioned directory, ad"):
        hopper.connect()


@pytest.mark.parametrize("pipeline", [{}, {"lookahead": 3}])
def test_cached_rows_give_the_same_batches_and_travel_less(pipeline, parts, serve_partitions):
    servers, found, counts = serve_partitions(parts, 2), [], []
    for cache in (None, {"policy": "lru", "size": "50%"}):
        with hopper.connect(parts, servers, cache=cache) as graph:
            found.append(batches(graph, pipeline=pipeline))
            counts.append((graph.rows.traffic.totals()["feature"], graph.rows.take_rows()))
    assert found[0] == found[1]
    (bytes_without, without), (bytes_with, with_cache) = counts
    assert bytes_with < bytes_without
    assert with_cache.remote_unique < without.remote_unique
    hits, misses = with_cache.lookups["item"]
    assert hits > 0
    assert hits + misses == without.remote


@pytest.mark.parametrize(
    ("cache", "text"),
    [
        ({"policy": "hotness", "size": "1M"}, 'policy "none" or "lru" .* "hotness" and "host"'),
        ({"policy": "lru"}, "cache.size: expected room for rows, given '0'"),
        ({"polcy": "lru"}, "cache.polcy"),
    ],
)
def test_a_cache_that_is_not_there_is_refused(cache, text, divided):
    with pytest.raises((hopper.RequestError, hopper.ConfigError), match=text):
        hopper.connect(divided, cache=cache)


@pytest.mark.filterwarnings("ignore")
def test_the_data_module_shows_the_certificates_of_its_configuration(
    divided, serve_partitions, tmp_path
):
    pytest.importorskip("pytorch_lightning")
    from hopper.pyg.lightning import DataModule

    words = issue_for(tmp_path, 100.5)
    options = [
        word.removeprefix("--cluster.").replace("_", "-") for word in words[::2]
    ]  # the names of the same files
    given = [f"--{option}={file}" for option, file in zip(options, words[1::2], strict=True)]
    servers = serve_partitions(divided, 2, *given)
    sections = {"data": {"partitioned": str(divided)}, "cluster": {"servers": servers}}
    module = DataModule(hopper.make_config(sections, [*words, "--sampler.fanouts", "[2, 2, 2]"]))
    module.setup("fit")
    assert len(list(module.train_dataloader())) > 0
    module.teardown("fit")
    with pytest.raises(hopper.HopperError):
        hopper.connect(divided, servers, timeout=2.0)
