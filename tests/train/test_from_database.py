"""The page for users of a database: its statements, its change and its commands run as they
stand."""

from __future__ import annotations

import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the driver is not installed")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "start" / "from-a-database.md"
CUSTOMERS, PRODUCTS = 150, 20


def read_blocks() -> list[tuple[str, str]]:
    """The languages and texts of the page's blocks."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def fill(database: Path, statements: str) -> dict[str, str]:
    """Make the page's tables: who buys books has the plan "reader". Return the plans by customer;
    one in three is not in the table."""
    generator = np.random.default_rng(4)
    plans = {f"c{number}": ("reader", "gamer")[number % 2] for number in range(CUSTOMERS)}
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(statements)
        for number, (name, plan) in enumerate(plans.items()):
            values = name, 20.0 + number % 50, ("de", "uk")[number % 5 == 0]
            known = plan if number % 3 else None
            connection.execute("INSERT INTO customers VALUES (?, ?, ?, ?)", (*values, known))
        for number in range(PRODUCTS):
            values = f"p{number}", 1.0 + number, ("book", "game")[number % 2]
            connection.execute("INSERT INTO products VALUES (?, ?, ?)", values)
        for number, name in enumerate(plans):
            for product in generator.integers(0, PRODUCTS // 2, 6) * 2 + number % 2:
                connection.execute("INSERT INTO orders VALUES (?, ?, 1.0)", (name, f"p{product}"))
        connection.commit()
    return plans


def test_the_page_leads_from_tables_to_plans_by_name(
    tmp_path: Path, runs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = read_blocks()
    texts = {language: text for language, text in blocks if language}
    plans = fill(tmp_path / "shop.sqlite", texts["sql"])
    (tmp_path / "config.toml").write_text(texts["toml"])
    before, after = (
        "".join(line[1:] for line in texts["diff"].splitlines(True) if line[0] in marks)
        for marks in (" -", " +")
    )
    commands = [line for language, text in blocks if not language for line in text.splitlines()]
    assert len(commands) == 5
    for number, command in enumerate(commands):
        run = runs.call(f"step {number}", *shlex.split(command)[1:])
        assert run.code == 0, run.stdout + run.stderr
        if number == 0:
            file = tmp_path / "graph.toml"
            assert before in file.read_text()
            file.write_text(file.read_text().replace(before, after))
    exec(compile(texts["python"], PAGE.name, "exec"), {})
    assert "customer" in capsys.readouterr().out
    query = "SELECT name, label_name FROM 'plans/*.parquet'"
    found = dict(duckdb.sql(query).fetchall())
    assert found.keys() == plans.keys()
    assert np.mean([found[name] == plan for name, plan in plans.items()]) > 0.9
