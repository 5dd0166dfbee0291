"""The configuration: defaults, overrides, and errors that name the key."""

import json
import re
from typing import Any

import pytest

from hopper.config import ENGINES, Config, load_config, make_config
from hopper.errors import ConfigError

DATA = {"data": {"partitioned": "parts"}}


def make(*overrides: str, **sections: Any) -> Config:
    return make_config({**DATA, **sections}, overrides)


def error_of(*overrides: str, **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(*overrides, **sections)
    return str(caught.value)


def test_defaults():
    config = make()
    assert config.data.partitioned == "parts"
    assert (config.model.name, config.model.layers, config.model.hidden) == ("sage", 3, 16)
    assert config.sampler.fanouts == [10, 10, 10]
    assert (config.train.batch_size, config.train.learning_rate) == (1024, 0.003)
    hop = config.hop
    assert (hop.migrate, hop.pregather, hop.merge) == ("gradients", True, "off")
    assert config.cluster.servers == []


def test_engines_are_known_by_name():
    assert make().train.engine == "auto"
    for engine in ENGINES:
        assert make(train={"engine": engine}).train.engine == engine


def test_data_is_required():
    with pytest.raises(ConfigError, match="configuration: data: missing"):
        make_config({})
    with pytest.raises(ConfigError, match=r"data\.partitioned: missing"):
        make_config({"data": {}})


@pytest.mark.parametrize(
    ("words", "section", "key", "value"),
    [
        (["--train.epochs", "7"], "train", "epochs", 7),
        (["--train.epochs=7"], "train", "epochs", 7),
        (["--train.learning_rate", "0.5"], "train", "learning_rate", 0.5),
        (["--train.learning_rate", "1"], "train", "learning_rate", 1.0),
        (["--train.engine", "hop"], "train", "engine", "hop"),
        (["--train.engine", '"hop"'], "train", "engine", "hop"),
        (["--hop.pregather", "false"], "hop", "pregather", False),
        (["--hop.merge", "0"], "hop", "merge", 0),
        (["--hop.merge", "off"], "hop", "merge", "off"),
        (["--sampler.fanouts", "[5, -1, 3]"], "sampler", "fanouts", [5, -1, 3]),
        (["--sampler.fanouts=[5,-1,3]"], "sampler", "fanouts", [5, -1, 3]),
        (["--data.partitioned", "/a b/c=d"], "data", "partitioned", "/a b/c=d"),
        (["--data.partitioned=/a b/c=d"], "data", "partitioned", "/a b/c=d"),
        (["--cluster.servers", '["a:1", "b:2"]'], "cluster", "servers", ["a:1", "b:2"]),
        (["--train.epochs", "2", "--train.epochs", "9"], "train", "epochs", 9),
        (["--train.run_dir", ""], "train", "run_dir", ""),
    ],
)
def test_overrides(words, section, key, value):
    assert getattr(getattr(make(*words), section), key) == value


def test_each_sampler_reads_its_own_sizes():
    """One file may hold the sizes of several kinds, so that the kind alone can be overridden."""
    sampler = {"fanouts": [5, 4, 3], "layer_sizes": [90, -1, 70]}
    for kind, sizes in (("node", [5, 4, 3]), ("labor", [5, 4, 3]), ("layer", [90, -1, 70])):
        assert make("--sampler.kind", kind, sampler=sampler).sampler.sizes == sizes
    config = make(sampler={"kind": "layer", "layer_sizes": [9, 9, 9]})
    assert Config.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("ladies", "its probabilities are sums over the frontier"),
        ("LADIES", "its probabilities are sums over the frontier"),
        ("pladies", "its probabilities are sums over the frontier"),
        ("as-gcn", "its probabilities depend on the frontier"),
        ("labor-1", "(LABOR-0, kind 'labor', does not)"),
        ("labor_12", "adapts the probability of a source"),
        ("labor-*", "adapts the probability of a source"),
        ("labor_i", "adapts the probability of a source"),
        ("cluster", "edges are those among all the nodes of a batch"),
        ("cluster-gcn", "edges are those among all the nodes of a batch"),
        ("saint", "edges are those among all the nodes of a batch"),
        ("GraphSAINT-rw", "edges are those among all the nodes of a batch"),
    ],
)
def test_samplers_that_depend_on_the_frontier_are_refused(kind, reason):
    text = error_of("--sampler.kind", kind)
    assert f"sampler.kind: {kind!r} is refused: " in text
    assert reason in text
    assert "engines would train on different graphs; expected node, full, layer, labor" in text


@pytest.mark.parametrize("name", ["2024", "2026-07-01", "1e3", "true", "nan", "07:32:00"])
def test_a_text_on_the_command_line_needs_no_quotes(name):
    """Run directories are often dates and numbers, and a shell removes quotes."""
    assert make("--train.run_dir", name).train.run_dir == name


def test_overrides_replace_single_values():
    values = {**DATA, "train": {"epochs": 5, "seed": 3}}
    config = make_config(values, ["--train.epochs", "6"])
    assert (config.train.epochs, config.train.seed) == (6, 3)
    assert values["train"] == {"epochs": 5, "seed": 3}


@pytest.mark.parametrize(
    "word", ["epochs", "--epochs", "--train.", "--.epochs", "-train.epochs", "train.epochs", ""]
)
def test_words_that_are_no_overrides_are_refused(word):
    assert re.search(r"expected --section\.key value, got", error_of(word, "3"))


def test_an_override_without_a_value():
    assert error_of("--train.epochs") == "--train.epochs: a value is missing"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--train.epoch", "3"], "train.epoch: unknown key; did you mean train.epochs?"),
        (["--training.epochs", "3"], "training: unknown key; did you mean train?"),
        (["--train.lr", "3"], "train.lr: unknown key; did you mean train.learning_rate?"),
        (["--train.hidden", "3"], "train.hidden: unknown key; did you mean model.hidden?"),
        (["--train.deep.er", "3"], "train.deep.er: unknown key"),
        (["--train.epochs", "0"], "train.epochs: Input should be greater than 0, got 0"),
        (["--train.epochs", "2.5"], "train.epochs: "),
        (["--train.epochs", "many"], "train.epochs: "),
        (["--train.epochs", "true"], "train.epochs: "),
        (["--train.learning_rate", "0"], "train.learning_rate: "),
        (["--train.learning_rate", "nan"], "train.learning_rate: "),
        (["--train.seed", "-1"], "train.seed: "),
        (["--train.dtype", "float16"], "train.dtype: Input should be 'float32' or 'float64'"),
        (["--train.last_batch", "pad"], "train.last_batch: "),
        (["--model.dropout", "1.0"], "model.dropout: "),
        (["--model.dropout", "-0.1"], "model.dropout: "),
        (["--model.layers", "0"], "model.layers: "),
        (["--sampler.fanouts", "[]"], "sampler.fanouts: "),
        (["--sampler.fanouts", "10"], "sampler.fanouts: "),
        (["--sampler.fanouts", "[5, 0, 5]"],
         "sampler.fanouts: expected positive numbers below 2**31 or -1"),
        (["--sampler.fanouts", "[5, -2, 5]"], "got [5, -2, 5]"),
        (["--sampler.fanouts", "[5, 5]"], "sampler.fanouts: expected one fanout per layer (3)"),
        (["--sampler.kind", "walk"],
         "sampler.kind: expected auto, node, full, layer, labor, weighted, replacement, "
         "temporal or package"),
        (["--sampler.kind", "layer"],
         "sampler.layer_sizes: expected one number of nodes per layer"),
        (["--sampler.layer_sizes", "[0]"],
         "sampler.layer_sizes: expected positive numbers below 2**31 or -1"),
        (["--sampler.kind", "layer", "--sampler.layer_sizes", "[9, 9]"],
         "sampler.layer_sizes: expected one number of nodes per layer (3), got [9, 9]"),
        (["--sampler.kind", "labor", "--sampler.fanouts", "[9, 9]"],
         "sampler.fanouts: expected one fanout per layer (3), got [9, 9]"),
        (["--train.engine", "ring"], "train.engine: expected auto, model_centric, hop, zero_hop"),
        (["--hop.merge", "sometimes"], "hop.merge"),
        (["--sampler.device", "cuda", "--sampler.kind", "labor"], "sampler.device: 'cuda' draws"),
        (["--hop.merge_selection", "most"], "hop.merge_selection"),
        (["--hop.merge", "-1"], "hop.merge"),
        (["--hop.replicas", "independent"], 'hop.replicas: "independent" needs'),
        (["--cooperative.wire", "int8"], "cooperative.wire"),
        (["--cooperative.wire", "bfloat16", "--train.engine", "auto"],
         """cooperative.wire: 'bfloat16' is an approximation"""),
        (["--cluster.ranks_per_server", "0"], "cluster.ranks_per_server: "),
        (["--cluster.timeout_seconds", "0"], "cluster.timeout_seconds: "),
        (["--cluster.servers", "a:1"], "cluster.servers: "),
        # Every wait must have a deadline.
        (["--cluster.timeout_seconds", "inf"], "cluster.timeout_seconds: "),
        (["--cluster.start_timeout_seconds", "inf"], "cluster.start_timeout_seconds: "),
        (["--train.learning_rate", "inf"], "train.learning_rate: "),
        # Options are those of the model.
        (["--model.bases", "2"], "model.bases: an option of rgcn, not of 'sage'; got 2"),
        (["--model.name", "hgt", "--model.head", "true"],
         "model.head: an option of rgcn, rgat, not of 'hgt'"),
        (["--model.name", "rgcn", "--model.aggregate", "a:B"],
         "model.aggregate: an option of hgnn, not of 'rgcn'"),
        (["--model.name", "hgnn"],
         "model.aggregate: hgnn needs one; expected package.module:Class"),
        (["--model.name", "hgnn", "--model.aggregate", "a:B", "--model.combine", "max"],
         "model.combine: expected sum, mean"),
        (["--model.name", "rgcn", "--model.bases", "2", "--model.diagonal_blocks", "2"],
         "model.bases: excludes diagonal_blocks"),
    ],
)  # fmt: skip
def test_errors_name_the_key(words, text):
    assert text in error_of(*words)


def test_an_error_names_every_wrong_key():
    text = error_of(train={"epochs": 0, "sed": 1}, model={"heads": -1})
    for part in ("train.epochs: ", "train.sed: unknown key", "model.heads: "):
        assert part in text


def test_a_section_must_be_a_table():
    assert "model: " in error_of(model=3)
    assert "model: " in error_of("--model.layers", "2", model=3)


def test_files(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\npartitioned = "parts"\n[train]\nepochs = 4\n')
    config = load_config(path, ["--train.seed", "5"])
    assert (config.train.epochs, config.train.seed) == (4, 5)
    # What a run writes down is read back as the same configuration.
    saved = tmp_path / "config.json"
    saved.write_text(json.dumps(config.model_dump(mode="json")))
    assert load_config(saved) == config


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("run.toml", b"[data\n", "run.toml: not valid TOML: "),
        ("run.toml", b'[data]\npartitioned = "\xff"\n', "run.toml: "),
        ("run.json", b"{", "run.json: not valid JSON: "),
        ("run.json", b"[1]", "run.json: "),
        ("run.toml", b"[data]\n", "run.toml: data.partitioned: missing"),
        ("run.toml", b'[data]\npartitioned = "x"\n[trian]\n', "run.toml: trian: unknown key"),
    ],
)
def test_unusable_files(tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(text)):
        load_config(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot read the configuration: No such"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot read the configuration: expected a file"):
        load_config(tmp_path)


def test_a_configuration_does_not_change():
    config = make()
    with pytest.raises(ValueError, match="frozen"):
        config.train.epochs = 9


def test_options_by_model():
    config = make(model={"name": "rgat", "head": True})
    assert config.model.options == {"head": True}
    assert make_config(config.model_dump()) == config
    assert make().model.options == {"aggregator": "mean"}
    assert make(model={"name": "gcn"}).model.options == {}


def test_a_full_batch_takes_all_neighbours():
    full = {"model": {"layers": 2}, "sampler": {"kind": "full", "fanouts": [3, 3, 3]}}
    config = make(**full)
    assert config.sampler.sizes == [-1, -1]
    assert make_config(config.model_dump()) == config
    assert config.roots_a_pass > 1 << 30
    assert config.pipeline.lookahead == 1
    for pipeline in ({"depth": 0}, {"lookahead": 0}):
        assert make(**full, pipeline=pipeline).pipeline.lookahead == 0
    assert make(**full, train={"micro_batch": 7}).roots_a_pass == 7
    assert make().roots_a_pass == 4096
