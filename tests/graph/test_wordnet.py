"""The example of WordNet: its tables become a graph of words with topics."""

import re
import shutil
from pathlib import Path

import duckdb

from hopper.cli import main
from hopper.graph.directory import GraphDirectory

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "wordnet"


def test_tables_become_a_graph(tmp_path, monkeypatch):
    """A third of the words has all relations."""
    shutil.copy(EXAMPLE / "graph.toml", tmp_path)
    copy = f"COPY (FROM '{EXAMPLE}/{{0}}.parquet' {{1}}) TO '{tmp_path}/{{0}}.parquet'"
    kept = "hash({}) % 3 = 0"
    duckdb.sql(copy.format("synsets", f"WHERE {kept.format('id')}"))
    duckdb.sql(copy.format("relations", f"WHERE {kept.format('src')} AND {kept.format('dst')}"))
    monkeypatch.syspath_prepend(EXAMPLE)
    words = ["dataset", "import", "sql", str(tmp_path / "graph.toml"), "--add-reverse", "all"]
    assert main([*words, "--split", "random:0.6:0.2", "--out", str(tmp_path / "graph")]) == 0
    graph = GraphDirectory.open(tmp_path / "graph")
    assert list(graph.schema.node_types) == ["noun", "verb", "adjective", "adverb"]
    assert len(graph.schema.relations) == 50


def test_the_quick_start_runs_the_commands_of_its_page():
    page = (EXAMPLE / "README.md").read_text()
    script = (ROOT / "scripts" / "quickstart.sh").read_text().replace("\\\n  ", "")
    for name, value in (("wordnet", "runs/wordnet"), ("hopper", "hopper"), ("venv/bin/", "")):
        script = script.replace(f"${name}", value)
    block = re.search(r"```bash\nexport (\S+)\n(.*?)```", page, re.DOTALL)
    assert block is not None
    for command in block[2].splitlines():
        assert command in script.replace('"', ""), command
    assert block[1] in script
