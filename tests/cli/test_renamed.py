"""Former names of commands answer with the present ones."""

import pytest

from hopper.cli import main
from hopper.cli.commands import FORMER_NAMES, build_parser


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_a_former_name_is_misuse_and_names_the_present_one(former, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*former.split(), "c.toml", "--train.seed=3"])
    printed = capsys.readouterr().err
    assert f"error: `hopper {former}` is now `{FORMER_NAMES[former]}`" in printed
    is_of_a_checkout = FORMER_NAMES[former].startswith("python -m benchmarks.")
    assert ("in a checkout of Hopper's repository" in printed) == is_of_a_checkout


def test_present_names_are_no_former_ones(capsys):
    for now in FORMER_NAMES.values():
        if now.startswith("hopper "):
            words = [word for word in now.split()[1:] if word.islower()][:2]
            with pytest.raises(SystemExit, match="0"):
                build_parser().parse_args([*words[: 2 - words[-1].startswith("--")], "--help"])
