"""The pages for users of a database and of a data lake: their statements, files and commands run as
they stand, against databases and an S3 server that really run."""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import numpy as np
import pandas
import pytest

START = Path(__file__).resolve().parents[2] / "docs" / "start"
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
    """The blocks of a page, with other addresses in them."""

    def __init__(self, name: str, *changes: tuple[str, str]) -> None:
        text = (START / name).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.name = name
        self._blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)

    def texts(self, language: str) -> list[str]:
        """The texts of the blocks in a language."""
        return [text for of, text in self._blocks if of == language]

    def commands(self) -> Iterator[list[str]]:
        """The commands, as words."""
        for text in self.texts(""):
            yield from map(shlex.split, text.splitlines())

    def run(self, number: int, words: list[str], runs: Any) -> None:
        """Run a command; fails unless it exits with 0."""
        run = runs.call(f"{self.name} {number}", *words[1:])
        assert run.code == 0, run.stdout + run.stderr

    def run_python(self) -> None:
        """Run the last block of Python."""
        exec(compile(self.texts("python")[-1], self.name, "exec"), {})


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_from_a_database_to_plans_by_name(
    kind: str,
    shop: tuple[Rows, dict[str, str]],
    tmp_path: Path,
    runs: Any,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (rows, plans), address = shop, "sqlite:shop.sqlite"
    monkeypatch.chdir(tmp_path)
    if kind == "postgres":
        monkeypatch.setenv("PGPASSWORD", "paint")
        address = request.getfixturevalue("postgres_server").replace(":paint", "")
    else:
        pytest.importorskip("adbc_driver_sqlite", reason="the driver is not installed")
    page = Page("from-a-database.md", ("sqlite:shop.sqlite", address))
    fill(address, page.texts("sql")[0], rows)
    (tmp_path / "config.toml").write_text(page.texts("toml")[0])
    before, after = (
        "".join(line[1:] for line in page.texts("diff")[0].splitlines(True) if line[0] in marks)
        for marks in (" -", " +")
    )
    file = tmp_path / "graph.toml"
    for number, words in enumerate(page.commands()):
        page.run(number, words, runs)
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
    shop: tuple[Rows, dict[str, str]],
    bucket: str,
    tmp_path: Path,
    runs: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (rows, plans), page = shop, Page("from-a-data-lake.md", ("s3://lake", bucket))
    monkeypatch.chdir(tmp_path)
    for name, values in rows.items():
        table = pandas.DataFrame(values, columns=COLUMNS[name])
        for part in range(2):
            with fsspec.open(f"{bucket}/{name}/part-{part}.parquet", "wb") as stream:
                table[part::2].to_parquet(stream)
    for name, text in zip(("graph", "config"), page.texts("toml"), strict=True):
        (tmp_path / f"{name}.toml").write_text(text)
    for number, words in enumerate(page.commands()):
        page.run(number, words, runs)
    page.run_python()
    assert "probability" in capsys.readouterr().out
    with fsspec.open_files(f"{bucket}/plans/*.parquet", "rb") as files:
        table = pandas.concat(map(pandas.read_parquet, files))
    found = {name: label[0] for name, label in zip(table["name"], table["label_name"], strict=True)}
    assert found.keys() == plans.keys()
    assert np.mean([found[name] == plan for name, plan in plans.items()]) > 0.9
