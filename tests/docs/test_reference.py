"""The lists of the reference's pages are those that the code makes."""

import sys

import pytest

import hopper
from hopper.config import Config
from scripts.make_reference import LISTS, ROOT, fill


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="made by Python 3.11's argparse")
@pytest.mark.parametrize("page", LISTS)
def test_lists_are_up_to_date(page):
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert fill(page) == text, "run python scripts/make_reference.py"


def test_every_key_command_and_name_is_there():
    pages = {page: fill(page) for page in LISTS}
    for section, field in Config.model_fields.items():
        for key in field.annotation.model_fields:  # type: ignore[union-attr]
            assert f"**`{section}.{key}`**" in pages["configuration.md"]
    for command in ("hopper train", "hopper dataset import", "hopper inspect cache"):
        assert f"# `{command}`\n" in pages["commands.md"]
    for name in hopper.__all__:
        assert f"### hopper.{name}\n" in pages["api.md"]
