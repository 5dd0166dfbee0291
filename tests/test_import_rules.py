"""Rules for sources: which modules may import which, how modules are named, and no unpickling.

Imports are read from the source text, including those inside functions.
"""

import ast
import functools
import graphlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.server_processes import REPOSITORY, run_python

PACKAGES = ("cache_server", "hopper")
EVERYTHING = (*PACKAGES, "benchmarks", "scripts", "tests")

# A part may import from its own line and from the lines above it.
LINES = (
    ("config", "errors", "cluster", "device", "display", "files", "process", "timing"),
    ("graph",),
    ("partition",),
    ("ops",),
    ("features",),
    ("models",),
    ("micrograph",),
    ("pipeline",),
    ("tasks",),
    ("pyg",),
    ("partials",),
    ("migrate",),
    ("hetero",),
    ("engines",),
    ("inference",),
    ("train",),
    ("launch",),
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
        "hopper.partition.partitioner",
        "hopper.partition.metis",
        "hopper.graph.block",
        "hopper.graph.importers",
        "hopper.bench.peers",
    ),
    "cupy": ("hopper.device.array_module",),
    "networkx": ("hopper.graph.importers",),
    "triton": ("hopper.ops",),
    "pytorch_lightning": ("hopper.pyg.lightning",),
    "torch_geometric": ("hopper.pyg", "hopper.graph.importers", "hopper.bench.peers"),
    "duckdb": ("hopper.graph.importers",),
    "grpc": ("cache_server",),
    # Its messages refuse every protobuf that is older than their compiler.
    "grpc_health": (),
    "prometheus_client": ("cache_server.service.metrics", "hopper.train.run_metrics"),
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
CLOSED_READER = "hopper/graph/importers/ogb.py"
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
MAY_NAME_ENGINES = ("hopper.config.engines",)
"""modules that list engines for users"""


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
        """The package that relative imports start from."""
        parts = self.name.split(".")
        return parts if self.path.endswith("__init__.py") else parts[:-1]

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Every module named in an import, or in ``import_module`` with a constant."""
        return [imported for node in self.nodes for imported in self.imports_of(node)]

    def imports_of(self, node: ast.AST) -> Iterator[Import]:
        """Modules that one node imports, without those of its children."""
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
            and _called_name(node) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield Import(str(node.args[0].value), node.lineno)


def _called_name(call: ast.Call) -> str:
    """The last part of the name of the called function."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def parse(name: str, source: str, path: str = "example.py") -> Module:
    return Module(name, path, ast.parse(source))


def read_modules(*folders: str) -> Iterator[Module]:
    """All sources in some folders, except generated ones and other systems' environments."""
    for folder in folders:
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            relative = file.relative_to(REPOSITORY)
            if not {"generated", "environments"} & set(relative.parts):
                parts = relative.with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                yield parse(name, file.read_text(encoding="utf-8"), str(relative))


def _below(module: str, ancestor: str) -> bool:
    return module == ancestor or module.startswith(f"{ancestor}.")


def _part(module: str) -> str:
    """The part of hopper that a module belongs to; "" for ``hopper`` itself."""
    return module.split(".")[1] if "." in module else ""


def find_wrong_directions(module: Module) -> list[str]:
    """Imports of a module of hopper from a line below its own."""
    part = _part(module.name)
    violations = {
        f"{module.path}:{line}: {module.name} imports {target}"
        for target, line in module.imports
        if _below(target, "hopper")
        and _part(target) in LINE_OF
        and (part in LINE_OF and LINE_OF[_part(target)] > LINE_OF[part])
    }
    return sorted(violations)


def find_misplaced_packages(module: Module) -> list[str]:
    """Imports of third-party packages that belong elsewhere."""
    return sorted(
        f"{module.path}:{line}: {module.name} imports {package}, which belongs in {homes}"
        for package, homes in HOMES.items()
        for target, line in module.imports
        if target.split(".")[0] == package and not any(_below(module.name, h) for h in homes)
    )


def find_unsafe_loading(module: Module) -> list[str]:
    """Imports and calls that could run code from a file or a message."""
    violations = [
        f"{module.path}:{line}: imports {target}"
        for target, line in module.imports
        if target.split(".")[0] in EXECUTABLE_DATA and module.path != CLOSED_READER
    ]
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        function = ast.unparse(node.func)
        if function in ("torch.load", "load") and _imports_load(module, function):
            keywords.setdefault("weights_only", ast.Constant(False))
        if "weights_only" in keywords and ast.unparse(keywords["weights_only"]) != "True":
            violations.append(f"{module.path}:{node.lineno}: {function} without weights_only=True")
        # A test may write what must be refused.
        is_bait = module.path.startswith("tests") and _called_name(node) == "save"
        if (
            "allow_pickle" in keywords
            and ast.unparse(keywords["allow_pickle"]) != "False"
            and not is_bait
        ):
            violations.append(f"{module.path}:{node.lineno}: {function} with allow_pickle")
        if _called_name(node) in PICKLING_CALLS:
            violations.append(f"{module.path}:{node.lineno}: {function} pickles")
    return violations


def _imports_load(module: Module, function: str) -> bool:
    """Whether ``function`` is the one of torch."""
    return function == "torch.load" or any(target == "torch.load" for target, _ in module.imports)


def engine_names_in(module: Module) -> Iterator[tuple[int, str]]:
    """Lines that compare with the name of an engine, list one or assign one, and the name.

    An engine's assignment to its own ``name`` does not count.
    """
    for node in module.nodes:
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
                yield node.lineno, value.value


def find_imports_of_the_checkout(module: Module) -> list[str]:
    """Imports of packages that only a checkout has."""
    return sorted(
        f"{module.path}:{line}: {target}"
        for target, line in module.imports
        if target.split(".")[0] in ("benchmarks", "scripts", "tests")
    )


def find_imports_of_training(module: Module) -> list[str]:
    """Imports of hopper and torch."""
    return [
        f"{module.path}:{line}: {target}"
        for target, line in module.imports
        if _below(target, "hopper") or _below(target, "torch")
    ]


def find_imports_between_strangers(module: Module) -> list[str]:
    """Imports of hetero by migrate, and the other way round."""
    pairs = {("hopper.migrate", "hopper.hetero"), ("hopper.hetero", "hopper.migrate")}
    return [
        f"{module.path}:{line}: {target}"
        for target, line in module.imports
        for importer, imported in pairs
        if _below(module.name, importer) and _below(target, imported)
    ]


def find_early_imports(module: Module) -> list[str]:
    """Imports of optional packages at the top of a module."""
    return [
        f"{module.path}:{line}"
        for statement in module.tree.body
        for target, line in module.imports_of(statement)
        if target.split(".")[0] in ("dgl", "cupy", "ogb", "pandas", "pyarrow")
    ]


def find_bad_names(module: Module) -> list[str]:
    """The path of a module whose name says nothing."""
    parts = Path(module.path).with_suffix("").parts
    return [module.path] if BAD_NAMES & {word for part in parts for word in part.split("_")} else []


def find_code_from_text(module: Module) -> list[str]:
    """Calls that make code from text."""
    return [
        f"{module.path}:{node.lineno}"
        for node in module.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("eval", "exec", "compile")
    ]


def find_engine_names(module: Module) -> list[str]:
    """Names of engines in modules that should not know them."""
    if module.name.startswith(MAY_NAME_ENGINES):
        return []
    return [f"{module.path}:{line}: {name}" for line, name in engine_names_in(module)]


RULES: tuple[tuple[Callable[[Module], list[str]], tuple[str, ...]], ...] = (
    (find_wrong_directions, ("hopper",)),
    (find_imports_of_the_checkout, PACKAGES),
    (find_imports_of_training, ("cache_server",)),
    (find_imports_between_strangers, ("hopper",)),
    (find_misplaced_packages, PACKAGES),
    (find_early_imports, PACKAGES),
    (find_bad_names, EVERYTHING),
    (find_unsafe_loading, EVERYTHING),
    (find_code_from_text, PACKAGES),
    (find_engine_names, ("hopper",)),
)
"""functions that list what is wrong in a module, and the folders that each applies to"""


@dataclass
class Reading:
    """What reading all sources once has found."""

    names: set[str]
    """the names of all modules"""
    wrong: dict[Callable[[Module], list[str]], list[str]]
    """violations, by rule"""
    imports: dict[str, set[str]]
    """by module of the product, what it imports, but for packages that it is in"""


@pytest.fixture(scope="module")
def reading() -> Reading:
    """Read every source once, and keep no tree: the garbage collector would look through its nodes
    again and again."""
    result = Reading(set(), {rule: [] for rule, _ in RULES}, {})
    for folder in EVERYTHING:
        names = len(result.names)
        for module in read_modules(folder):
            result.names.add(module.name)
            if folder in PACKAGES:
                targets = {target for target, _ in module.imports}
                result.imports[module.name] = {t for t in targets if not _below(module.name, t)}
            for rule, folders in RULES:
                if folder in folders:
                    result.wrong[rule] += rule(module)
        assert len(result.names) > names, f"no sources in {folder}"
    return result


def test_every_part_of_hopper_has_a_line(reading):
    parts = {_part(name) for name in reading.names if _below(name, "hopper")} - {""}
    assert parts <= set(LINE_OF), "add the part to LINES, where it belongs"


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=lambda rule: rule.__name__)
def test_no_source_breaks_a_rule(reading, rule):
    assert reading.wrong[rule] == []


def test_no_imports_go_round_in_a_circle(reading):
    own = {name: targets & reading.names for name, targets in reading.imports.items()}
    assert sum(map(len, own.values())) > 1000
    graphlib.TopologicalSorter(own).prepare()  # raises an error that tells a circle
    own["hopper.errors"] = {"hopper.config"}
    with pytest.raises(graphlib.CycleError, match=r"hopper\.config.*hopper\.errors"):
        graphlib.TopologicalSorter(own).prepare()


def test_imports_of_the_checkout_are_found():
    imported = parse("hopper.cli.bench", "from benchmarks.paper import command")
    assert find_imports_of_the_checkout(imported)
    imported = parse("hopper.cli.bench", "from hopper.bench import results")
    assert not find_imports_of_the_checkout(imported)


@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        ("hopper.graph.block", "import hopper.partition", 1),
        ("hopper.graph.block", "def f():\n    from hopper import engines", 1),
        ("hopper.graph.block", "from importlib import import_module\nimport_module('hopper.cli')",
         1),
        ("hopper.graph.block", "from ..train import loop", 2),
        ("hopper.graph.block", "from hopper.errors import GraphError\nimport hopper.graph.schema",
         0),
        ("hopper.config", "from hopper.timing.run_log import RunLog", 0),
        ("hopper.train.loop", "from hopper.graph import Topology", 0),
    ],
)  # fmt: skip
def test_imports_in_the_wrong_direction_are_found(name, source, count):
    assert len(find_wrong_directions(parse(name, source))) == count


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
def test_misplaced_packages_are_found(name, source, count):
    assert len(set(find_misplaced_packages(parse(name, source)))) == count


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
def test_unsafe_loading_is_found(source, count):
    assert len(find_unsafe_loading(parse("hopper.example", source))) == count


IMPORT_ALL = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dgl", "cupy", "ogb", "pyarrow", "torch_geometric"}:
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


def test_everything_imports_without_dgl_and_cupy(reading):
    process = run_python("-W", "error", "-c", IMPORT_ALL)
    assert process.returncode == 0, process.stderr
    imported = set(process.stdout.split())
    expected = {name for name in reading.names if name.split(".")[0] in PACKAGES} - set(PACKAGES)
    # PyG is what this package is for.
    expected = {name for name in expected if not name.startswith("hopper.pyg")}
    assert imported >= expected


def test_names_of_engines_are_found():
    bad = 'if engine == "raf" or engine in ("hop",):\n    own = "zero_hop"\nname = "locality"\n'
    assert [name for _, name in engine_names_in(parse("x", bad))] == ["zero_hop", "raf", "hop"]
