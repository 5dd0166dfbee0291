"""The house rules: who may import what, how modules are named, and that nothing is unpickled.

Imports are read from the source, those inside functions included.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("cache_server", "hopper")
EVERYTHING = (*PACKAGES, "benchmarks", "scripts", "tests")

# A part imports from its own line and from the lines above it.
LINES = (
    (
        "config",
        "errors",
        "plug_ins",
        "cluster",
        "traffic",
        "run_log",
        "phases",
        "scratch",
        "signal_handlers",
        "quick_imports",
        "ray_cluster",
        "array_exchange",
        "console_tables",
        "array_module",
        "device_copies",
        "kernel_threads",
        "override_words",
        "paired_ratio",
        "palette",
        "rank_store",
        "rendezvous",
        "torchrun",
        "whole_files",
    ),
    ("graph",),
    ("partition",),
    ("ops",),
    ("features",),
    ("models",),
    ("micrograph",),
    ("tasks",),
    ("partials",),
    ("migrate",),
    ("hetero",),
    ("engines",),
    ("pipeline",),
    ("inference",),
    ("train",),
    ("rehearsal",),
    ("doctor",),
    ("predict",),
    ("bench",),
    ("cli",),
)
LINE_OF = {part: number for number, line in enumerate(LINES) for part in line}

# Third-party packages that are kept to a few places; a name stands for itself and what is below it.
HOMES = {
    "dgl": (
        "hopper.partition.assign",
        "hopper.partition.metis",
        "hopper.graph.block",
        "hopper.graph.importers",
        "hopper.bench.peers",
    ),
    "cupy": ("hopper.array_module",),
    "networkx": ("hopper.hetero", "hopper.graph.importers"),
    "triton": ("hopper.ops",),
    "duckdb": ("hopper.graph.importers",),
    "grpc": ("cache_server",),
    "grpc_health": ("cache_server",),
    "prometheus_client": (
        "cache_server.metrics",
        "cache_server.metrics_port",
        "hopper.train.run_metrics",
    ),
}

BAD_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
EXECUTABLE_DATA = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
}
# Reads pickles of arrays, and calls nothing that a file names; tests/graph/test_import_ogb.py.
CLOSED_READER = "hopper/graph/importers/array_pickle.py"
PICKLING_CALLS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "read_pickle",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
    "to_pickle",
}

ENGINES = {"model_centric", "hop", "zero_hop", "cooperative", "raf", "locality"}
KNOW_ENGINES = ("hopper.config.engines",)
"""what lists them for users"""


class Import(NamedTuple):
    module: str
    line: int


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: str
    tree: ast.Module

    def package(self) -> list[str]:
        """What relative imports start from."""
        parts = self.name.split(".")
        return parts if self.path.endswith("__init__.py") else parts[:-1]

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Every module named in an import, or in ``import_module`` with a constant."""
        return [each for node in self.nodes for each in self.imports_of(node)]

    def imports_of(self, node: ast.AST) -> Iterator[Import]:
        """Modules that one node imports, its children aside."""
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                package = self.package()[: len(self.package()) + 1 - node.level]
                base = ".".join([*package, *([node.module] if node.module else [])])
            else:
                base = node.module or ""
            # ``from package import name`` may name a module.
            yield Import(base, node.lineno)
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and _called(node) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield Import(str(node.args[0].value), node.lineno)


def _called(call: ast.Call) -> str:
    """The last part of what is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def parse(name: str, source: str, path: str = "example.py") -> Module:
    return Module(name, path, ast.parse(source))


def read_modules(*folders: str) -> Iterator[Module]:
    """All sources below some folders, generated ones aside."""
    for folder in folders:
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            relative = file.relative_to(REPOSITORY)
            if "generated" not in relative.parts:
                parts = relative.with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                yield parse(name, file.read_text(encoding="utf-8"), str(relative))


def _below(module: str, ancestor: str) -> bool:
    return module == ancestor or module.startswith(f"{ancestor}.")


def _part(module: str) -> str:
    """The part of hopper that a module belongs to; "" for ``hopper`` itself."""
    return module.split(".")[1] if "." in module else ""


def against_direction(module: Module) -> list[str]:
    """Imports of a module of hopper from a line below its own."""
    mine = _part(module.name)
    wrong = {
        f"{module.path}:{line}: {module.name} imports {target}"
        for target, line in module.imports
        if _below(target, "hopper")
        and _part(target) in LINE_OF
        and (mine in LINE_OF and LINE_OF[_part(target)] > LINE_OF[mine])
    }
    return sorted(wrong)


def out_of_place(module: Module) -> list[str]:
    """Imports of third-party packages that belong elsewhere."""
    return sorted(
        f"{module.path}:{line}: {module.name} imports {package}, which belongs in {homes}"
        for package, homes in HOMES.items()
        for target, line in module.imports
        if target.split(".")[0] == package and not any(_below(module.name, h) for h in homes)
    )


def unsafe_loading(module: Module) -> list[str]:
    """Whatever would run code found in a file or a message."""
    wrong = [
        f"{module.path}:{line}: imports {target}"
        for target, line in module.imports
        if target.split(".")[0] in EXECUTABLE_DATA and module.path != CLOSED_READER
    ]
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        given = {each.arg: each.value for each in node.keywords}
        called = ast.unparse(node.func)
        if called in ("torch.load", "load") and _imports_load(module, called):
            given.setdefault("weights_only", ast.Constant(False))
        if "weights_only" in given and ast.unparse(given["weights_only"]) != "True":
            wrong.append(f"{module.path}:{node.lineno}: {called} without weights_only=True")
        # A test may write what must be refused.
        is_bait = module.path.startswith("tests") and _called(node) == "save"
        if (
            "allow_pickle" in given
            and ast.unparse(given["allow_pickle"]) != "False"
            and not is_bait
        ):
            wrong.append(f"{module.path}:{node.lineno}: {called} with allow_pickle")
        if _called(node) in PICKLING_CALLS:
            wrong.append(f"{module.path}:{node.lineno}: {called} pickles")
    return wrong


def _imports_load(module: Module, called: str) -> bool:
    """Whether ``called`` is torch's."""
    return called == "torch.load" or any(target == "torch.load" for target, _ in module.imports)


def named_engines(module: Module) -> Iterator[tuple[int, str]]:
    """Lines that compare with the name of an engine, list one or assign one; an engine's own
    ``name`` is none of these."""
    for node in module.nodes:
        values: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            values = node.elts
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not any(isinstance(each, ast.Name) and each.id == "name" for each in targets):
                values = [node.value]
        for value in values:
            if isinstance(value, ast.Constant) and value.value in ENGINES:
                yield node.lineno, value.value


def from_outside(module: Module) -> list[str]:
    """Imports of what only a checkout has."""
    return sorted(
        f"{module.path}:{line}: {target}"
        for target, line in module.imports
        if target.split(".")[0] in ("benchmarks", "scripts", "tests")
    )


def knowing_of_training(module: Module) -> list[str]:
    """Imports of what trains."""
    return [
        f"{module.path}:{line}: {target}"
        for target, line in module.imports
        if _below(target, "hopper") or _below(target, "torch")
    ]


def meeting_strangers(module: Module) -> list[str]:
    """Imports between migrate and hetero."""
    pairs = {("hopper.migrate", "hopper.hetero"), ("hopper.hetero", "hopper.migrate")}
    return [
        f"{module.path}:{line}: {target}"
        for target, line in module.imports
        for mine, other in pairs
        if _below(module.name, mine) and _below(target, other)
    ]


def too_early(module: Module) -> list[str]:
    """Imports of optional packages at the top of a module."""
    return [
        f"{module.path}:{line}"
        for statement in module.tree.body
        for target, line in module.imports_of(statement)
        if target.split(".")[0] in ("dgl", "cupy", "ogb", "pandas", "pyarrow")
    ]


def badly_named(module: Module) -> list[str]:
    """The path of a module whose name says nothing."""
    parts = Path(module.path).with_suffix("").parts
    return [module.path] if BAD_NAMES & {word for part in parts for word in part.split("_")} else []


def made_from_text(module: Module) -> list[str]:
    """Calls that make code from text."""
    return [
        f"{module.path}:{node.lineno}"
        for node in module.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("eval", "exec", "compile")
    ]


def knowing_engines(module: Module) -> list[str]:
    """Names of engines where there should be none."""
    if module.name.startswith(KNOW_ENGINES):
        return []
    return [f"{module.path}:{line}: {name}" for line, name in named_engines(module)]


RULES: tuple[tuple[Callable[[Module], list[str]], tuple[str, ...]], ...] = (
    (against_direction, ("hopper",)),
    (from_outside, PACKAGES),
    (knowing_of_training, ("cache_server",)),
    (meeting_strangers, ("hopper",)),
    (out_of_place, PACKAGES),
    (too_early, PACKAGES),
    (badly_named, EVERYTHING),
    (unsafe_loading, EVERYTHING),
    (made_from_text, PACKAGES),
    (knowing_engines, ("hopper",)),
)
"""what is wrong in a module, and the folders where it is"""


@dataclass
class Reading:
    """What one reading of all sources found."""

    names: set[str]
    """of all modules"""
    wrong: dict[Callable[[Module], list[str]], list[str]]
    """by rule"""


@pytest.fixture(scope="module")
def reading() -> Reading:
    """Every source is parsed once and let go of. A million nodes that stay would be looked through
    again and again for garbage."""
    result = Reading(set(), {rule: [] for rule, _ in RULES})
    for folder in EVERYTHING:
        names = len(result.names)
        for module in read_modules(folder):
            result.names.add(module.name)
            for rule, folders in RULES:
                if folder in folders:
                    result.wrong[rule] += rule(module)
        assert len(result.names) > names, f"no sources in {folder}"
    return result


def test_every_part_of_hopper_has_a_line(reading: Reading) -> None:
    parts = {_part(name) for name in reading.names if _below(name, "hopper")} - {""}
    assert parts <= set(LINE_OF), "add the part to LINES, where it belongs"


def test_imports_run_one_way(reading: Reading) -> None:
    assert reading.wrong[against_direction] == []


def test_packages_import_nothing_that_is_not_installed(reading: Reading) -> None:
    assert reading.wrong[from_outside] == []
    assert from_outside(parse("hopper.cli.bench", "from benchmarks.paper import command"))
    assert not from_outside(parse("hopper.cli.bench", "from hopper.bench import results"))


def test_cache_server_knows_nothing_of_training(reading: Reading) -> None:
    assert reading.wrong[knowing_of_training] == []


def test_migrate_and_hetero_are_strangers(reading: Reading) -> None:
    assert reading.wrong[meeting_strangers] == []


def test_third_party_packages_stay_where_they_belong(reading: Reading) -> None:
    assert reading.wrong[out_of_place] == []


def test_optional_packages_are_imported_when_needed(reading: Reading) -> None:
    """Not at the top of a module: that would make them a condition of importing it."""
    assert reading.wrong[too_early] == []


def test_no_module_is_called_utils(reading: Reading) -> None:
    assert reading.wrong[badly_named] == []


def test_nothing_executable_is_loaded(reading: Reading) -> None:
    assert reading.wrong[unsafe_loading] == []


def test_no_code_is_made_from_text(reading: Reading) -> None:
    assert reading.wrong[made_from_text] == []


@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        ("hopper.graph.block", "import hopper.partition", 1),
        ("hopper.graph.block", "def f():\n    from hopper import engines", 1),
        (
            "hopper.graph.block",
            "from importlib import import_module\nimport_module('hopper.cli')",
            1,
        ),
        ("hopper.graph.block", "from ..train import loop", 2),
        (
            "hopper.graph.block",
            "from hopper.errors import GraphError\nimport hopper.graph.schema",
            0,
        ),
        ("hopper.config", "from hopper.run_log import RunLog", 0),
        ("hopper.train.loop", "from hopper.graph import Topology", 0),
    ],
)
def test_the_reader_sees_the_direction(name: str, source: str, count: int) -> None:
    assert len(against_direction(parse(name, source))) == count


@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        ("hopper.models.gcn", "def f():\n    import dgl.function as fn", 1),
        ("hopper.partition.metis", "import dgl", 0),
        ("hopper.partition.metist", "import dgl", 1),
        ("hopper.train.loop", "import grpc", 1),
        ("hopper.train.loop", "import dglish", 0),
    ],
)
def test_the_reader_sees_packages(name: str, source: str, count: int) -> None:
    assert len(set(out_of_place(parse(name, source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import pickle", 1),
        ("from pickle import loads", 2),
        ("import torch\ntorch.load(path)", 1),
        ("import torch\ntorch.load(path, weights_only=False)", 1),
        ("import torch\ntorch.load(path, weights_only=True)", 0),
        ("from torch import load\nload(path)", 1),
        ("from json import load\nload(path)", 0),
        ("np.load(path, allow_pickle=True)", 1),
        ("np.load(path, allow_pickle=trusted)", 1),
        ("np.load(path, allow_pickle=False)", 0),
        ("dist.all_gather_object(found, mine)", 1),
    ],
)
def test_the_reader_sees_unsafe_loading(source: str, count: int) -> None:
    assert len(unsafe_loading(parse("hopper.example", source))) == count


IMPORT_ALL = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dgl", "cupy", "ogb", "pyarrow"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
import hopper, cache_server
for package in (cache_server, hopper):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
        print(found.name)
for name in hopper.__all__:
    getattr(hopper, name)
"""


def test_everything_imports_without_dgl_and_cupy(reading: Reading) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    expected = {name for name in reading.names if name.split(".")[0] in PACKAGES} - set(PACKAGES)
    assert imported >= expected


def test_importing_hopper_loads_nothing_else() -> None:
    """``import hopper`` is quick: torch and the rest come with what is first used."""
    script = "import sys, hopper; print([m for m in ('torch', 'numba', 'dgl') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_engines_are_asked_for_traits_and_not_for_their_names(reading: Reading) -> None:
    assert reading.wrong[knowing_engines] == []
    bad = 'if engine == "raf" or engine in ("hop",):\n    own = "zero_hop"\nname = "locality"\n'
    assert [name for _, name in named_engines(parse("x", bad))] == ["zero_hop", "raf", "hop"]
