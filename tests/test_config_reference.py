"""What ``hopper config`` prints about keys agrees with the loader."""

import copy
import json
import re
import tomllib
from typing import Any

import jsonschema
import pytest

from hopper.cli import main
from hopper.config import Config, make_config
from hopper.config.reference import describe_section, list_keys, make_schema, sections
from hopper.errors import ConfigError
from tests.docs.markdown_pages import PAGES, ROOT, read_snippets

KEYS = {key.name: key for key in list_keys()}


def read_configurations() -> dict[str, dict[str, Any]]:
    """Configurations of the examples, the README and the pages of ``docs/``."""
    texts = {str(file): file.read_text() for file in (ROOT / "examples").glob("*.toml")}
    # Where a sweep has lists, a run has single values.
    texts |= {
        str(snippet): snippet.text
        for page in PAGES
        if page.name != "sweeps.md"
        for snippet in read_snippets(page)
        if snippet.language == "toml" and "[data]" in snippet.text
    }
    return {name: tomllib.loads(block) for name, block in texts.items()}


CONFIGURATIONS = read_configurations()


def accepts(values: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(values, make_schema())
    except jsonschema.ValidationError:
        return False
    return True


def loads(values: dict[str, Any]) -> bool:
    try:
        make_config(values)
    except ConfigError:
        return False
    return True


def test_every_key_is_listed_and_described():
    kinds: dict[str, Any] = {name: of.annotation for name, of in Config.model_fields.items()}
    # What all models and engines have comes before what one of them has.
    assert list(KEYS) == [
        f"{section}.{key}"
        for section, kind in kinds.items()
        for is_own in (True, False)
        for key in kind.model_fields
        if (key in kind.__annotations__) == is_own
    ]
    assert [name for name, key in KEYS.items() if len(key.description) < 5] == []
    assert not any(":class:" in key.description for key in KEYS.values())


def test_descriptions_are_sentences():
    texts = {name: key.description for name, key in KEYS.items()}
    texts |= {name: describe_section(section) for name, section in sections().items()}
    assert [name for name, text in texts.items() if not re.fullmatch(r"[A-Z].*\.", text)] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("data.partitioned", ("text", "", "required")),
        ("train.epochs", ("whole number", "above 0, below 2**31", "3")),
        ("train.seed", ("whole number", "at least 0, below 2**63", "0")),
        ("train.model_seed", ("whole number", "at least 0, below 2**63", "not set")),
        ("train.learning_rate", ("number", "above 0, finite", "0.003")),
        ("model.dropout", ("number", "at least 0, below 1", "0.0")),
        ("model.root_weight", ("true or false", "", "true")),
        ("model.metapaths", ("list of lists of texts", "", "[]")),
        ("train.last_batch", ('"keep" | "drop"', "", '"keep"')),
        ("hop.merge", ('"off" | "adaptive" or whole number', "at least 0, below 2**31", '"off"')),
        ("sampler.fanouts", ("list of whole numbers", "at least 1 of them", "[10, 10, 10]")),
        ("task.weights", ("table of numbers", "at least 0, finite", "{}")),
        ("train.optimizer_options", ("table of values of any type", "", "{}")),
    ],
)  # fmt: skip
def test_types_bounds_and_defaults(name, expected):
    key = KEYS[name]
    assert (key.type, key.bounds, key.default_text) == expected


def test_listed_defaults_are_those_of_the_loader():
    config = make_config({"data": {"partitioned": "parts"}}).model_dump()
    for key in KEYS.values():
        section, name = key.name.split(".")
        if not key.is_required:
            assert config[section][name] == key.default, key.name


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_schema_accepts_configurations_of_the_documents(name):
    values = CONFIGURATIONS[name]
    jsonschema.validate(values, make_schema())
    for section, keys in values.items():
        wrong: dict[str, Any] = copy.deepcopy(values)
        wrong[section]["no_such_key"] = 1
        assert not accepts(wrong)
        assert not loads(wrong)
        assert keys
    assert not accepts(values | {"no_such_section": {}})


@pytest.mark.parametrize(
    ("section", "key", "value", "good"),
    [
        ("train", "epochs", 0, False),
        ("train", "epochs", True, False),
        ("train", "epochs", 1.5, False),
        ("train", "learning_rate", 1, True),
        ("train", "last_batch", "keeps", False),
        ("train", "resume", "auto", True),
        ("hop", "merge", 2, True),
        ("hop", "merge", "never", False),
        ("sampler", "fanouts", [], False),
        ("cluster", "servers", ["a:1", ["b:1", "c:1"]], True),
        ("cluster", "servers", [1], False),
        ("model", "dropout", 1.0, False),
    ],
)
def test_schema_and_loader_agree(section, key, value, good):
    values: dict[str, Any] = {"data": {"partitioned": "parts"}} | {section: {key: value}}
    assert accepts(values) == loads(values) == good


def test_the_schema_describes_everything(capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["data"]
    described = schema["$defs"]["Train"]["properties"]["epochs"]["description"]
    assert described == KEYS["train.epochs"].description


def test_a_key_a_section_and_all_are_explained(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["config", "explain", "train.seed"]) == 0
    assert capsys.readouterr().out == (
        "[train] How the model is trained.\n\n"
        "train.seed\n"
        "    whole number, at least 0, below 2**63; default 0\n"
        "    The seed of initialisation, dropout, shuffling and draws.\n\n"
    )
    assert main(["config", "explain", "[cooperative]"]) == 0
    assert capsys.readouterr().out.count("\ncooperative.") == 1
    assert main(["config", "explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in KEYS] == list(KEYS)
    assert max(map(len, lines)) <= 80


def test_an_unknown_key_is_answered_with_similar_ones(capsys):
    assert main(["config", "explain", "train.epoch"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: KEY: expected a key or a section, given 'train.epoch'")
    assert "train.epochs" in printed
