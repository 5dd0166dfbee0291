"""Graphs that SQL queries describe, over files, an S3 server, and databases that really run."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import duckdb
import numpy as np
import pandas
import pyarrow.parquet
import pytest

from hopper.cli import main
from hopper.errors import GraphError
from hopper.graph import GraphDirectory
from hopper.graph.importers import import_graph
from hopper.graph.importers.propose import propose_queries

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # notes on the import

CUSTOMERS = pandas.DataFrame(
    {
        "number": [30, 10, 20, 40],
        "country": ["de", "fr", "de", None],
        "balance": [1.5, -2.0, None, 1e6],
        "since": pandas.to_datetime(["2025-01-01", "2025-02-01", "2025-03-01", "2026-01-01"]),
        "churned": [True, False, None, False],
    }
)
ORDERS = pandas.DataFrame(
    {"customer": [10, 10, 40, 20], "product": ["a", "b", "b", "a"], "price": [1.25, 2.5, 5.0, 0.1]}
)


NODES = """
    SELECT number AS id, country, coalesce(balance, 0) AS balance,
           CAST(churned AS INTEGER) AS label,
           CASE WHEN since < '2025-03-01' THEN 'train' ELSE 'test' END AS split
    FROM {customers} ORDER BY number"""
PRODUCTS = "SELECT DISTINCT product AS id FROM {orders} ORDER BY product"
BOUGHT = "SELECT customer AS src, product AS dst, price FROM {orders}"


def describe(customers: str, orders: str, database: str = "") -> str:
    """The file of queries for the shop's two tables."""
    lines = ['name = "shop"', f'databases.shop = "{database}"'] if database else []
    queries = {"nodes.customer": NODES, "nodes.product": PRODUCTS}
    queries["edges.'customer/bought/product'"] = BOUGHT
    for name, text in queries.items():
        sql = text.format(customers=customers, orders=orders)
        value = f'{{database = "shop", sql = """{sql}"""}}' if database else f'"""{sql}"""'
        lines.append(f"{name} = {value}".replace("\n", " "))
    return "\n".join(lines)


def read(folder: Path, text: str) -> GraphDirectory:
    """Import the queries of a file."""
    (folder / "graph.toml").write_text(text)
    import_graph("sql", str(folder / "graph.toml"), folder / "out")
    return GraphDirectory.open(folder / "out")


def assert_is_the_shop(graph: GraphDirectory) -> None:
    (bought,) = graph.schema.relations
    assert str(bought) == "customer/bought/product"
    np.testing.assert_array_equal(graph.labels("customer"), [0, -1, 1, 0])
    features = [[0, 1, -2], [1, 0, 0], [1, 0, 1.5], [0, 0, 1e6]]
    np.testing.assert_array_equal(graph.features("customer"), features)
    np.testing.assert_array_equal(graph.split("test"), [1, 3])
    topology = graph.topology(bought)
    np.testing.assert_array_equal(topology.indptr, [0, 2, 4])
    np.testing.assert_array_equal(topology.indices, [0, 1, 0, 3])
    prices = np.float32([0.1, 1.25, 2.5, 5.0])
    np.testing.assert_array_equal(np.sort(graph.features(bought)[:, 0]), prices)


@pytest.fixture(scope="module")
def postgres(postgres_server) -> str:
    """The address of a Postgres server with the shop's tables, of NUMERIC, DATE and BOOLEAN."""
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(postgres_server) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE customers (number BIGINT PRIMARY KEY, country VARCHAR(2), "
            "balance NUMERIC(12, 2), since DATE, churned BOOLEAN)"
        )
        cursor.execute(
            "INSERT INTO customers VALUES (30, 'de', 1.5, '2025-01-01', true), "
            "(10, 'fr', -2, '2025-02-01', false), (20, 'de', NULL, '2025-03-01', NULL), "
            "(40, NULL, 1e6, '2026-01-01', false)"
        )
        cursor.execute(
            "CREATE TABLE orders (customer BIGINT REFERENCES customers, product TEXT, "
            "price NUMERIC)"
        )
        cursor.execute(
            "INSERT INTO orders VALUES (10, 'a', 1.25), (10, 'b', 2.5), (40, 'b', 5), "
            "(20, 'a', 0.1)"
        )
        connection.commit()
    return postgres_server


def test_files_on_an_s3_server(bucket, tmp_path):
    import fsspec

    for name, frame in {"customers": CUSTOMERS, "orders": ORDERS}.items():
        for part in range(2):
            with fsspec.open(f"{bucket}/{name}/part-{part}.parquet", "wb") as stream:
                frame[2 * part : 2 * part + 2].to_parquet(stream)
    names = [f"'{bucket}/{name}/*.parquet'" for name in ("customers", "orders")]
    assert_is_the_shop(read(tmp_path, describe(*names)))


def test_a_postgres_server(postgres, tmp_path):
    assert_is_the_shop(read(tmp_path, describe("customers", "orders", postgres)))


def test_a_sqlite_file_beside_the_queries(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        CUSTOMERS.to_sql("customers", connection, index=False)
        ORDERS.to_sql("orders", connection, index=False)
    assert_is_the_shop(read(tmp_path, describe("customers", "orders", "sqlite:shop.sqlite")))


def test_tables_of_several_sources_are_joined(postgres, tmp_path):
    ORDERS.to_csv(tmp_path / "orders.csv", index=False)
    customers = f"""
        databases.shop = "{postgres}"
        tables.customers = {{database = "shop", sql = "SELECT * FROM customers"}}
        tables.known = "SELECT * FROM 'orders.csv' SEMI JOIN customers ON customer = number"
    """
    assert_is_the_shop(read(tmp_path, dedent(customers) + describe("customers", "known")))


KEYED = "number INTEGER PRIMARY KEY, country VARCHAR, balance REAL, since DATE, churned BOOLEAN"
REFERRING = "customer INTEGER REFERENCES customers (number), product VARCHAR, price DOUBLE"


def make_sqlite(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        connection.execute(f"CREATE TABLE customers ({KEYED})")
        connection.execute(f"CREATE TABLE orders ({REFERRING})")
        connection.execute(
            "CREATE TABLE seen (c INTEGER REFERENCES customers (number), n BLOB, "
            "o INTEGER REFERENCES customers (number))"
        )
        connection.execute("INSERT INTO seen VALUES (10, NULL, 20)")
        CUSTOMERS.to_sql("customers", connection, index=False, if_exists="append")
        ORDERS.to_sql("orders", connection, index=False, if_exists="append")
    return f"sqlite:{folder}/shop.sqlite"


def make_duckdb(folder: Path) -> str:
    with duckdb.connect(folder / "shop.duckdb") as connection:
        connection.execute(f"CREATE TABLE customers ({KEYED})")
        connection.execute(f"CREATE TABLE orders ({REFERRING})")
        for name, frame in {"customers": CUSTOMERS, "orders": ORDERS}.items():
            connection.register("frame", frame)
            connection.execute(f"INSERT INTO {name} FROM frame")
    return f"duckdb:{folder}/shop.duckdb"


def make_relbench(folder: Path) -> str:
    """As relbench.base.Table.save writes tables."""
    described = {
        "customers": ({}, "number", "since"),
        "orders": ({"customer": "customers"},) + (None,) * 2,
    }
    for name, frame in {"customers": CUSTOMERS, "orders": ORDERS}.items():
        table = pyarrow.Table.from_pandas(frame, preserve_index=False)
        names = "fkey_col_to_pkey_table", "pkey_col", "time_col"
        metadata = dict(zip(names, map(json.dumps, described[name]), strict=True))
        table = table.replace_schema_metadata({**table.schema.metadata, **metadata})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    return str(folder)


@pytest.mark.parametrize("make", [make_sqlite, make_duckdb, make_relbench, None])
def test_what_is_proposed_for_keyed_tables_can_be_imported(make, tmp_path, request, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "paint")
    source = make(tmp_path) if make else request.getfixturevalue("postgres")
    file, out = str(tmp_path / "graph.toml"), str(tmp_path / "out")
    assert main(["dataset", "import", "database", source, "--out", file]) == 0
    words = "--target", "customer", "--missing", "zero"
    assert main(["dataset", "import", "sql", file, "--out", out, *words]) == 0
    graph = GraphDirectory.open(out)
    assert "paint" not in Path(file).read_text()
    assert set(graph.schema.node_types) == {"customers", "orders"}
    relation = next(one for one in graph.schema.relations if one.rel == "customer")
    assert sorted(np.diff(graph.topology(relation).indptr)) == [0, 1, 1, 2]
    assert "customers" in graph.schema.timed
    columns = [column.name for column in graph.schema.node_types["customers"].columns]
    assert columns == ["country", "balance", "churned"]
    # Nothing is written over.
    assert main(["dataset", "import", "database", source, "--out", file]) == 1


@pytest.mark.parametrize("source", ["sqlite:none", "duckdb:none", "oracle:x", "none", "."])
def test_a_database_that_is_none_is_told(source, tmp_path):
    with pytest.raises(GraphError) as caught:
        propose_queries(source.replace(".", str(tmp_path)), tmp_path / "graph.toml")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


SQL = "SELECT 1 AS id"
WRONG = {
    "nodes.a = 5": r"nodes\.a.*expected",
    "nodes.a = 'SELECT id FROM nowhere'": r"nodes\.a: .*nowhere",
    "nodes.a = '''SELECT 1 AS id,\n  nonsense(2) AS x'''": r"nodes\.a: .*nonsense.*\(line 2: ",
    "nodes.a = 'SELEKT 1'": r"nodes\.a: .*SELEKT",
    "nodes.a = 'DROP TABLE a'": r"nodes\.a: expected one SELECT, given DROP",
    "nodes.a = \"COPY (SELECT 1) TO 'x.csv'\"": r"nodes\.a: expected one SELECT, given COPY",
    "nodes.a = 'SELECT 1 AS id; SELECT 2 AS id'": r"nodes\.a: expected one SELECT, given SELECT, S",
    "nodes.a = ''": r"nodes\.a: expected one SELECT, given nothing",
    "nodes.a = 'SELECT 1 AS x'": r"nodes\.a: column id: expected, but missing in \['x'\]",
    "nodes.a = \"SELECT 1 AS id, CAST('x' AS INT) AS y\"": r"nodes\.a: .*Could not convert",
    "nodes.a = \"FROM 'none.parquet'\"": r"nodes\.a: .*none\.parquet",
    "nodes.a = \"FROM 'nothing://b/c.parquet'\"": r"nodes\.a: .*nothing",
    "nodes.'a b' = 'SELECT 1 AS id'": r"nodes\.a b: name: expected a name of letters",
    f"nodes.a = '{SQL}'\nedges.'a/b' = '{SQL}'": r"edges\.a/b: expected src/rel/dst, given 'a/b'",
    f"nodes.a = '{SQL}'\nedges.'a/b/c' = '{SQL}'": r"edges\.a/b/c: expected a query nodes\.c",
    f"nodes.a = '{SQL}'\nedge = 1": r"edge: unknown field",
    "nodes.a = {database = 'x', sql = 'S'}": r"nodes\.a: database: expected one of none, given 'x'",
    "databases.x = 'oracle:y'\nnodes.a = {database = 'x', sql = 'S'}": r"expected duckdb:PATH, sql",
    "databases.x = 'sqlite:none'\nnodes.a = {database = 'x', sql = 'S'}": r".*none: .*missing",
    "databases.x = 'duckdb:none'\nnodes.a = 'SELECT 1 AS id'": r"databases\.x: .*none",
    "tables.t = 'SELECT no'\nnodes.a = 'FROM t'": r"tables\.t: .*no",
    "nodes.a = ": r"not valid TOML: ",
    "name = 'x'": r"nodes: missing field",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_in_a_line(text, tmp_path):
    with pytest.raises(GraphError, match=r"graph\.toml: (.*: )?" + WRONG[text]) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["graph.toml"]


@pytest.mark.parametrize(
    "text",
    [
        "databases.x = 'postgresql://shop:secret@127.0.0.1:1/x'\n"
        "nodes.a = {database = 'x', sql = 'SELECT 1'}",
        "databases.x = 'postgresql://127.0.0.1:1/x?user=shop&password=secret'\n"
        "nodes.a = {database = 'x', sql = 'SELECT 1'}",
        "databases = 'postgresql://shop:secret@127.0.0.1:1/x'\nnodes.a = 'SELECT 1'",
        "databases.x = 'mysql://shop:secret@127.0.0.1:1/x'\n"
        "nodes.a = {database = 'x', sql = 'SELECT 1'}",
    ],
)
def test_errors_have_no_password(text, tmp_path):
    with pytest.raises(GraphError) as caught:
        read(tmp_path, text)
    assert "secret" not in str(caught.value)


def test_truth_values_are_classes_and_a_split_without_labels_is_told(tmp_path, capsys):
    rows = "SELECT * FROM (VALUES ('x', true, 'train'), ('y', false, 'test')) AS t(id, {}, split)"
    graph = read(tmp_path, f'nodes.a = "{rows.format("label")}"')
    np.testing.assert_array_equal(graph.labels("a"), [1, 0])
    (tmp_path / "graph.toml").write_text(f'nodes.a = "{rows.format("banned")}"')
    words = "import", "sql", f"{tmp_path}/graph.toml", "--out", f"{tmp_path}/b"
    assert main(["dataset", *words]) == 0
    told = capsys.readouterr().out
    text = "a: a split but no column label or value, so nothing is predicted; features: banned"
    assert text in told
