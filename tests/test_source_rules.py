"""Rules for sources that neither ruff nor import-linter has; theirs stand in pyproject.toml."""

import ast
import graphlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.server_processes import REPOSITORY, run_python

PACKAGES = ("cache_server", "hopper")
FOLDERS = (*PACKAGES, "benchmarks", "scripts", "tests")
BAD_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
ENGINES = {"model_centric", "hop", "zero_hop", "cooperative", "raf", "locality"}
LISTS_ENGINES = "hopper/config/engines.py"
"""for users"""
EXCEPTION = re.compile(r"# noqa: (S\d{3})\b")


def read_sources() -> Iterator[tuple[str, ast.Module]]:
    """Path and tree of all sources, except generated ones and other systems' environments."""
    for folder in FOLDERS:
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            path = file.relative_to(REPOSITORY)
            if not {"generated", "environments"} & set(path.parts):
                yield str(path), ast.parse(file.read_text(encoding="utf-8"))


def unsafe_loading(tree: ast.Module) -> Iterator[str]:
    """Calls whose arguments let a file run code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            yield from ("from torch import load" for name in node.names if name.name == "load")
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if function == "torch.load":
            keywords.setdefault("weights_only", "False")
        if keywords.get("weights_only", "True") != "True":
            yield f"{function} without weights_only=True"
        if keywords.get("allow_pickle", "False") != "False":
            yield f"{function} with allow_pickle"
        if function.endswith((".read_pickle", ".to_pickle")):
            yield f"{function} pickles"


def engine_names(tree: ast.Module) -> Iterator[str]:
    """Names of engines that are compared with, listed or assigned, but for an engine's own."""
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            values = node.elts
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not any(isinstance(target, ast.Name) and target.id == "name" for target in targets):
                values = [node.value]
        for value in values:
            if isinstance(value, ast.Constant) and value.value in ENGINES:
                yield value.value


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What is wrong, by rule. No tree is kept: the garbage collector would look through its nodes
    again and again."""
    found: dict[str, list[str]] = {"loading": [], "engines": [], "names": []}
    paths = []
    for path, tree in read_sources():
        paths.append(path)
        # A test may write what must be refused.
        bait = "np.save with allow_pickle" if path.startswith("tests") else ""
        found["loading"] += [f"{path}: {what}" for what in unsafe_loading(tree) if what != bait]
        if path.startswith("hopper") and path != LISTS_ENGINES:
            found["engines"] += [f"{path}: {name}" for name in engine_names(tree)]
        words = {word for part in Path(path).with_suffix("").parts for word in part.split("_")}
        found["names"] += [path] if words & BAD_NAMES else []
    assert {path.split("/")[0] for path in paths} == set(FOLDERS)
    return found


@pytest.mark.parametrize("rule", ["loading", "engines", "names"])
def test_no_source_breaks_a_rule(wrong, rule):
    assert wrong[rule] == []


def test_no_imports_go_round_in_a_circle():
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {
        name: {
            target
            for target in graph.find_modules_directly_imported_by(name)
            if not name.startswith(f"{target}.")
        }
        for name in graph.modules
    }
    assert sum(map(len, imports.values())) > 1000
    graphlib.TopologicalSorter(imports).prepare()  # raises an error that tells a circle
    imports["hopper.errors"] = {"hopper.config"}
    with pytest.raises(graphlib.CycleError, match=r"hopper\.config.*hopper\.errors"):
        graphlib.TopologicalSorter(imports).prepare()


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import torch\ntorch.load(path)", 1),
        ("import torch\ntorch.load(path, weights_only=False)", 1),
        ("import torch\ntorch.load(path, weights_only=True)", 0),
        ("from torch import load\nload(path)", 1),
        ("from json import load\nload(path)", 0),
        ("np.load(path, allow_pickle=True)", 1),
        ("np.load(path, allow_pickle=trusted)", 1),
        ("np.load(path, allow_pickle=False)", 0),
        ("table.to_pickle(path)", 1),
    ],
)
def test_unsafe_loading_is_found(source, count):
    assert len(list(unsafe_loading(ast.parse(source)))) == count


def test_names_of_engines_are_found():
    bad = 'if engine == "raf" or engine in ("hop",):\n    own = "zero_hop"\nname = "locality"\n'
    assert list(engine_names(ast.parse(bad))) == ["zero_hop", "raf", "hop"]


IMPORT_ALL = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dgl", "cupy", "ogb", "pandas", "pyarrow", "torch_geometric"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
import hopper, cache_server
for package in (cache_server, hopper):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name == "hopper.pyg":
            continue
        importlib.import_module(module.name)
        print(module.name)
for name in hopper.__all__:
    getattr(hopper, name)
"""


def test_everything_imports_without_dgl_and_cupy():
    process = run_python("-W", "error", "-c", IMPORT_ALL)
    assert process.returncode == 0, process.stderr
    modules = {
        str(file.relative_to(REPOSITORY).with_suffix("")).replace("/", ".")
        for package in PACKAGES
        for file in (REPOSITORY / package).rglob("*.py")
        if file.name != "__init__.py"
    }
    # PyG is what this package is for.
    expected = {name for name in modules if not name.startswith("hopper.pyg")}
    assert set(process.stdout.split()) >= expected


def test_every_exception_of_security_rules_is_listed():
    """What ruff's rules of bandit are told to let be stands in SECURITY.md."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in settings["select"]
    exceptions = {
        (rule, "pyproject.toml") for rule in settings["ignore"] if re.fullmatch(r"S\d+", rule)
    }
    for package in PACKAGES:
        for file in (REPOSITORY / package).rglob("*.py"):
            for rule in EXCEPTION.findall(file.read_text()):
                exceptions.add((rule, str(file.relative_to(REPOSITORY))))
    listed = (REPOSITORY / "SECURITY.md").read_text().partition("## Static analysis")[2]
    rows = [
        set(re.findall(r"[\w./]+", row)) for row in listed.splitlines() if row.startswith("| S")
    ]
    missing = [
        exception for exception in exceptions if not any(set(exception) <= row for row in rows)
    ]
    assert missing == []
    assert {rule for row in rows for rule in row if re.fullmatch(r"S\d+", rule)} == {
        rule for rule, _ in exceptions
    }
