"""The pages for users of a database, of a data lake and of other systems' directories: their
statements, files and commands run as they stand, against servers that really run."""

import os
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import numpy as np
import pandas
import pytest
import torch
import yaml
from numpy.typing import NDArray

from hopper.graph import GraphDirectory
from tests.docs.markdown_pages import read_code

DOCS = Path(__file__).resolve().parents[2] / "docs"
CUSTOMERS, PRODUCTS = 150, 20
Rows = dict[str, list[tuple[Any, ...]]]
COLUMNS = {
    "customers": ["id", "age", "country", "plan"],
    "products": ["sku", "price", "kind"],
    "orders": ["customer", "product", "quantity"],
}


@pytest.fixture(scope="module")
def shop() -> tuple[Rows, dict[str, str]]:
    """The pages' tables, in which who buys books has the plan "reader", and the plans by customer;
    one in three is not in the table."""
    generator = np.random.default_rng(4)
    plans = {f"c{number}": ("reader", "gamer")[number % 2] for number in range(CUSTOMERS)}
    rows: Rows = {name: [] for name in COLUMNS}
    for number, (name, plan) in enumerate(plans.items()):
        values = name, 20.0 + number % 50, ("de", "uk")[number % 5 == 0]
        rows["customers"].append((*values, plan if number % 3 else None))
        for product in generator.integers(0, PRODUCTS // 2, 6) * 2 + number % 2:
            rows["orders"].append((name, f"p{product}", 1.0))
    for number in range(PRODUCTS):
        rows["products"].append((f"p{number}", 1.0 + number, ("book", "game")[number % 2]))
    return rows, plans


class Page:
    """The blocks of a page, with another address in them."""

    def __init__(self, name: str, address: str = "", stand_in: str = "") -> None:
        assert address in (DOCS / name).read_text()
        self.name, self._address, self._stand_in = name, address, stand_in

    def texts(self, language: str) -> list[str]:
        """The texts of the blocks in a language."""
        texts = read_code(DOCS / self.name, language)
        return [text.replace(self._address, self._stand_in) for text in texts]

    def commands(self, language: str = "", beginning: str = "") -> list[str]:
        """The commands of blocks that begin so."""
        texts = [text for text in self.texts(language) if text.startswith(beginning)]
        return "\n".join(texts).splitlines()

    def run(self, command: str, runs: Any) -> None:
        """Run a command; fails unless it exits with 0."""
        runs.call_to_end(self.name, *shlex.split(command)[1:])

    def run_python(self) -> None:
        """Run the last block of Python."""
        exec(compile(self.texts("python")[-1], self.name, "exec"), {})


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_from_a_database_to_plans_by_name(kind, shop, tmp_path, runs, request, monkeypatch, capsys):
    (rows, plans), address = shop, "sqlite:shop.sqlite"
    monkeypatch.chdir(tmp_path)
    if kind == "postgres":
        monkeypatch.setenv("PGPASSWORD", "paint")
        address = request.getfixturevalue("postgres_server").replace(":paint", "")
    else:
        pytest.importorskip("adbc_driver_sqlite", reason="the driver is not installed")
    page = Page("start/from-a-database.md", "sqlite:shop.sqlite", address)
    fill(address, page.texts("sql")[0], rows)
    (tmp_path / "config.toml").write_text(page.texts("toml")[0])
    before, after = (
        "".join(line[1:] for line in page.texts("diff")[0].splitlines(True) if line[0] in marks)
        for marks in (" -", " +")
    )
    file = tmp_path / "graph.toml"
    for number, command in enumerate(page.commands()):
        page.run(command, runs)
        if number == 0:
            assert before in file.read_text()
            file.write_text(file.read_text().replace(before, after))
    page.run_python()
    assert "customer" in capsys.readouterr().out
    found = dict(duckdb.sql("SELECT name, label_name FROM 'plans/*.parquet'").fetchall())
    assert found.keys() == plans.keys()
    assert np.mean([found[name] == plan for name, plan in plans.items()]) > 0.9


def fill(address: str, statements: str, rows: Rows) -> None:
    """Make the page's tables in a database."""
    if address.startswith("sqlite:"):
        connection: Any = sqlite3.connect(address.removeprefix("sqlite:"))
    else:
        from adbc_driver_postgresql import dbapi

        connection = dbapi.connect(address)
    with closing(connection), closing(connection.cursor()) as cursor:
        for statement in filter(str.strip, statements.split(";")):
            cursor.execute(statement)
        for name, values in rows.items():
            marks = ", ".join(f"${n + 1}" for n in range(len(values[0])))
            marks = marks if "postgres" in address else re.sub(r"\$\d", "?", marks)
            cursor.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        connection.commit()


def test_from_a_data_lake_to_predictions_beside_it(
    shop, bucket, tmp_path, runs, monkeypatch, capsys
):
    (rows, plans), page = shop, Page("start/from-a-data-lake.md", "s3://lake", bucket)
    monkeypatch.chdir(tmp_path)
    for name, values in rows.items():
        table = pandas.DataFrame(values, columns=COLUMNS[name])
        for part in range(2):
            with fsspec.open(f"{bucket}/{name}/part-{part}.parquet", "wb") as stream:
                table[part::2].to_parquet(stream)
    for name, text in zip(("graph", "config"), page.texts("toml"), strict=True):
        (tmp_path / f"{name}.toml").write_text(text)
    for command in page.commands():
        page.run(command, runs)
    page.run_python()
    assert "probability" in capsys.readouterr().out
    with fsspec.open_files(f"{bucket}/plans/*.parquet", "rb") as files:
        table = pandas.concat(map(pandas.read_parquet, files))
    found = {name: label[0] for name, label in zip(table["name"], table["label_name"], strict=True)}
    assert found.keys() == plans.keys()
    assert np.mean([found[name] == plan for name, plan in plans.items()]) > 0.9


def write_graphbolt(graph: GraphDirectory) -> NDArray[np.int64]:
    """Write the dataset ``shop`` as GraphBolt's users do; return the original id of each id."""
    folder, sets = Path("shop"), {"train": "train_set", "val": "validation_set"}
    folder.mkdir()
    np.savetxt(folder / "edges.csv", np.stack(ends_of(graph), 1), "%d", ",")
    np.save(folder / "x.npy", graph.features("item"))
    tasks: dict[str, Any] = {"name": "topic"}
    for split, name in sets.items():
        ids = graph.split(split)
        np.save(folder / f"{split}.npy", ids)
        np.save(folder / f"{split}-labels.npy", graph.labels("item")[ids])
        files = {"seeds": f"{split}.npy", "labels": f"{split}-labels.npy"}
        data = [{"name": key, "format": "numpy", "path": path} for key, path in files.items()]
        tasks[name] = [{"data": data}]
    x = {"domain": "node", "name": "x", "format": "numpy", "path": "x.npy"}
    count = graph.schema.node_types["item"].count
    described = {"nodes": [{"num": count}], "edges": [{"format": "csv", "path": "edges.csv"}]}
    metadata = {"graph": described, "feature_data": [x], "tasks": [tasks]}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata))
    return np.arange(count)


def write_distdgl(graph: GraphDirectory) -> NDArray[np.int64]:
    """Divide the graph as DistDGL's users do; return the original id of each of its ids."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    dgl = pytest.importorskip("dgl", reason="DGL is not installed", exc_type=ImportError)
    count = graph.schema.node_types["item"].count
    whole = dgl.graph(tuple(map(torch.from_numpy, ends_of(graph))), num_nodes=count)
    whole.ndata["feat"] = torch.from_numpy(np.array(graph.features("item")))
    whole.ndata["label"] = torch.from_numpy(np.array(graph.labels("item")))
    for split in ("train", "val"):
        whole.ndata[f"{split}_mask"] = torch.from_numpy(np.isin(range(count), graph.split(split)))
    words = {"part_method": "random", "return_mapping": True}
    ids: torch.Tensor = dgl.distributed.partition_graph(whole, "shop", 2, "shop", **words)[0]
    return ids.numpy()


def ends_of(graph: GraphDirectory) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    topology = graph.topology(next(iter(graph.schema.relations)))
    return np.array(topology.indices, np.int64), topology.list_destinations()


@pytest.mark.filterwarnings("ignore")  # of DGL
@pytest.mark.parametrize("write", [write_graphbolt, write_distdgl])
def test_other_systems_directories_lead_to_predictions(
    write, community_graph, tmp_path, runs, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    originals = write(community_graph)
    (tmp_path / "config.toml").write_text(
        "model = {name = 'sage', layers = 2}\nsampler.fanouts = [5, 5]\n"
        "train = {epochs = 6, batch_size = 16, learning_rate = 0.02}\n"
    )
    kind, page = write.__name__.removeprefix("write_"), Page("howto/import.md")
    commands = page.commands("bash", f"hopper dataset import {kind}")
    assert len(commands) == 4
    for command in commands:
        page.run(command, runs)
    mapping = pandas.DataFrame({"id": np.arange(originals.size), "original": originals})
    query = "SELECT original, labels FROM 'labels/*.parquet' JOIN mapping USING (id)"
    with duckdb.connect() as connection:
        connection.register("mapping", mapping)
        found = connection.execute(query).fetchnumpy()
    assert found["labels"].size == originals.size
    nodes = np.isin(found["original"], community_graph.split("val"))
    right = found["labels"] == community_graph.labels("item")[found["original"]]
    assert right[nodes].mean() > 0.6
