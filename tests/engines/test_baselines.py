"""The engines of papers are plug-ins: what they import, and how a comparison finds them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hopper.bench import contender
from hopper.bench.contender import Contender
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import ENGINE_CLASSES, find_engine
from hopper.errors import ConfigError, RequestError

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "howto" / "plug-ins.md"
PLUG_INS = [*sorted(REPOSITORY.glob("benchmarks/baselines/*.py")), "examples/nearest_rows.py"]


def public_modules() -> list[str]:
    """The modules that the page lets an engine import."""
    table = PAGE.read_text(encoding="utf-8").split("| package or module |")[1].split("\n\n")[0]
    return re.findall(r"`(hopper[\w.]*)`[,| ]", table)


@pytest.mark.parametrize("file", PLUG_INS, ids=lambda file: Path(file).stem)
def test_an_engine_from_outside_imports_what_the_page_names(file: Path | str) -> None:
    allowed = public_modules()
    assert len(allowed) > 10
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("hopper") for alias in node.names)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hopper"):
            module = str(node.module)
            # Of the engines only the modules that are named, of other packages all.
            is_engine = module.startswith("hopper.engines")
            below = [name for name in allowed if module == name or module.startswith(f"{name}.")]
            assert module in allowed if is_engine else below, f"{file}:{node.lineno}: {module}"
            assert not any(alias.name.startswith("_") for alias in node.names), node.lineno


@pytest.mark.parametrize("name", BASELINES)
def test_a_comparison_takes_short_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    side = Contender.parse(f"{name}:train.epochs=2")
    assert (side.label, side.engine) == (f"{name}:train.epochs=2", name)
    config = side.configure(make_config({"data": {"partitioned": "parts"}}))
    assert find_engine(config).kind.spec.name == name
    assert name not in ENGINE_CLASSES
    assert side.exact(make_config({"data": {"partitioned": "parts"}}))


def test_elsewhere_one_line_says_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"train\.engine: naive is a baseline, which only a chec"):
        make_config({"data": {"partitioned": "parts"}, "train": {"engine": "naive"}})
    monkeypatch.setattr(contender, "_CHECKOUT", tmp_path)
    with pytest.raises(RequestError, match=r"^--engines: p3 is a baseline, which only a checkout"):
        Contender.parse("p3:partitioned=parts")
