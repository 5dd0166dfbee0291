"""Layers and fanouts that a configuration does not give follow from the model."""

import pytest

from hopper.config import make_config
from hopper.errors import ConfigError

DATA = {"data": {"partitioned": "parts"}}


@pytest.mark.parametrize(
    ("model", "layers", "fanouts"),
    [
        ({}, 3, [10] * 3),
        ({"name": "gat"}, 3, [10] * 3),
        ({"name": "own:Model", "layers": 2}, 2, [10] * 2),
        ({"name": "deepgcn"}, 7, [2] * 7),
        ({"name": "film"}, 10, [2] * 10),
        ({"name": "film", "layers": 3, "hidden": 8}, 3, [2] * 3),
    ],
)
def test_missing_layers_and_fanouts_follow_from_the_model(model, layers, fanouts):
    config = make_config({**DATA, "model": model})
    assert (config.model.layers, config.sampler.fanouts) == (layers, fanouts)
    assert make_config({**DATA, "model": model, "sampler": {"kind": "auto"}}) == config
    assert make_config(config.model_dump()) == config, "what was resolved is kept when read back"


def test_overrides_choose_the_model_first():
    config = make_config(DATA, ["--model.name", "deepgcn"])
    assert (config.model.layers, config.sampler.fanouts) == (7, [2] * 7)
    config = make_config(DATA, ["--model.name", "film", "--sampler.fanouts", "[3, -1]", *LAYERS])
    assert (config.model.layers, config.sampler.fanouts) == (2, [3, -1])


LAYERS = ["--model.layers", "2"]


@pytest.mark.parametrize(
    ("model", "sampler", "text"),
    [
        ({"name": "deepgcn"}, {"fanouts": [5, 5]}, r"sampler\.fanouts: expected one .*layer \(7\)"),
        ({"name": "film", "layers": 0}, {}, r"model\.layers: "),
        ({"name": ["film"]}, {}, r"model\.name: "),
        ({"name": "film"}, 3, r"sampler: "),
    ],
)
def test_bad_values_are_named(model, sampler, text):
    with pytest.raises(ConfigError, match=text):
        make_config({**DATA, "model": model, "sampler": sampler})
