"""The public API: every name is there, documented and typed, and ``import hopper`` is quick."""

import ast
import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest

import hopper
import hopper.config
from hopper.launch import run as launch
from tests.server_processes import REPOSITORY, run_python

PAGE = REPOSITORY / "docs" / "reference" / "python-api.md"
STRICT = (
    "check_untyped_defs",
    "disallow_any_generics",
    "disallow_incomplete_defs",
    "disallow_subclassing_any",
    "disallow_untyped_calls",
    "disallow_untyped_decorators",
    "disallow_untyped_defs",
    "extra_checks",
    "strict_equality",
    "warn_return_any",
    "warn_unused_ignores",
)
"""the options of ``mypy --strict`` that can be set for single modules"""
TYPES_OF_RESULTS = """
result = hopper.train({"data": {"partitioned": "p"}}, ["--train.epochs", "2"])
reveal_type(result)
reveal_type(result.epochs)
reveal_type(result.epochs[0].bytes["feature"])
reveal_type(result.metrics["accuracy"]["test"])
reveal_type(result.load_model())
reveal_type(result.trials[0].overrides)
reveal_type(hopper.config.Train(epochs=3).epochs)
hopper.train(Path("config.toml"))
hopper.train(hopper.load_config("config.toml"))
hopper.train(3)  # type: ignore[arg-type]
hopper.trian({})  # type: ignore[attr-defined]
"""


def run_script(script: str) -> str:
    process = run_python("-W", "error", "-c", script)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize("name", hopper.__all__)
def test_every_public_name_exists_and_is_documented(name):
    value = getattr(hopper, name)
    assert value.__doc__
    # A dataclass or NamedTuple without a docstring is given its signature as one.
    assert not value.__doc__.startswith(f"{name}(")
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
        assert value.__module__.startswith(("hopper", "cache_server"))


def test_type_checkers_and_python_import_the_same():
    tree = ast.parse(Path(hopper.__file__).read_text())
    [type_checking_block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ]
    homes = {
        alias.name: "" if node.module == "hopper" else node.module
        for node in type_checking_block.body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("hopper", "cache_server"))
        for alias in node.names
    }
    assert homes == hopper._HOMES


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hopper' has no attribute 'trian'"):
        _ = hopper.trian


def test_errors_and_train_need_no_other_imports_and_dir_shows_public_names_alone():
    """Neither torch nor pydantic is loaded, nor any module that only annotations name."""
    script = (
        "import sys\nbefore = set(sys.modules)\nimport hopper\n"
        "hopper.HopperError, hopper.RankSilent, hopper.train.__doc__, dir(hopper)\n"
        "print({name.split('.')[0] for name in set(sys.modules) - before})\n"
        "print([n for n in dir(hopper) if not n.startswith('__')])"
    )
    imported, shown = map(ast.literal_eval, run_script(script).splitlines())
    assert shown == sorted(hopper.__all__)
    assert len(set(shown)) == len(shown)
    assert imported - sys.stdlib_module_names == {"hopper"}
    assert not imported & {"asyncio", "inspect", "json", "multiprocessing", "subprocess"}


def test_train_stays_a_function_when_its_package_is_imported():
    """Without the module's care, Python would bind ``hopper.train`` to the package."""
    importlib.import_module("hopper.train.__main__")
    assert inspect.ismodule(sys.modules["hopper.train"])
    assert inspect.isfunction(hopper.train)
    from hopper import train

    assert train is hopper.train
    assert launch.__name__ == "hopper.launch.run"


def test_hopper_train_has_the_signature_of_its_implementation():
    assert inspect.signature(hopper.train) == inspect.signature(launch.train)


def test_a_configuration_of_another_type_is_refused():
    with pytest.raises(hopper.ConfigError, match=r"expected the path of a TOML file, .*, got int"):
        hopper.train(3)  # type: ignore[arg-type]


def test_a_configuration_may_be_a_path_a_table_or_a_config(tmp_path):
    values = {"data": {"partitioned": "parts"}, "train": {"epochs": 2}}
    file = tmp_path / "config.toml"
    file.write_text('[data]\npartitioned = "parts"\n[train]\nepochs = 2\n')
    config = hopper.make_config(values)
    for source in (values, file, str(file), config):
        assert hopper.config.read_config(source) == config
        words = ["--train.epochs", "5", "--model.name=gat"]
        overridden = hopper.config.read_config(source, words)
        assert (overridden.train.epochs, overridden.model.name) == (5, "gat")


def test_sections_of_the_configuration_are_public():
    assert {type(section).__name__ for _, section in hopper.make_config(
        {"data": {"partitioned": "parts"}}
    )} <= set(hopper.config.__all__)  # fmt: skip


def test_the_page_names_the_whole_api():
    names_on_page = set(re.findall(r"`(?:hopper\.)?(\w+)`", PAGE.read_text()))
    assert set(hopper.__all__) - names_on_page == set()
    for module, name in re.findall(r"`(hopper(?:\.\w+)*)\.(\w+)`", PAGE.read_text()):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.fixture(scope="module")
def mypy_output(tmp_path_factory) -> str:
    """What mypy prints for a user's scripts, which it checks with the options of ``--strict``.

    All other modules are checked with the project's settings. So mypy can read them from its cache,
    which saves half a minute if types were checked before.
    """
    folder = tmp_path_factory.mktemp("typed")
    reveals = "\n".join(f"reveal_type(hopper.{name})" for name in hopper.__all__)
    (folder / "names_of_hopper.py").write_text(
        f"from pathlib import Path\nimport hopper\n{reveals}\n{TYPES_OF_RESULTS}"
    )
    shutil.copy(REPOSITORY / "examples" / "train_from_python.py", folder)
    strict = "\n".join(f"{option} = true" for option in STRICT)
    settings = (REPOSITORY / "pyproject.toml").read_text()
    modules = '["names_of_hopper", "train_from_python"]'
    (folder / "strict.toml").write_text(
        f"{settings}\n[[tool.mypy.overrides]]\nmodule = {modules}\n{strict}\n"
    )
    scripts = [str(folder / name) for name in ("names_of_hopper.py", "train_from_python.py")]
    settings_file = str(folder / "strict.toml")
    mypy = run_python("-m", "mypy", "--config-file", settings_file, *scripts, limit=280)
    assert mypy.returncode == 0, mypy.stdout + mypy.stderr
    return mypy.stdout


def test_a_user_s_scripts_pass_mypy_strict(mypy_output):
    # The scripts hold calls that mypy must refuse: an ignore without an error is an error itself.
    assert "Success: no issues found in 2 source files" in mypy_output


def test_type_checkers_know_every_name(mypy_output):
    types = re.findall(r'Revealed type is "(.*)"', mypy_output)
    assert len(types) == len(hopper.__all__) + 7
    for name, revealed_type in zip(hopper.__all__, types, strict=False):
        is_module = inspect.ismodule(getattr(hopper, name))
        assert revealed_type.startswith(
            "types.ModuleType" if is_module else ("def ", "Overload")
        ), name
    assert types[len(hopper.__all__) :] == [
        "hopper.train.run_result.RunResult",
        "list[hopper.train.results.EpochRecord]",
        "int",
        "float",
        "torch.nn.modules.module.Module",
        "dict[str, str | int | float]",
        "int",
    ]
