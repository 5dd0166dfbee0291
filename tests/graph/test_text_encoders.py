"""Text encoders as functions of SQL: what they return, what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from hopper.errors import HopperError
from hopper.graph import GraphDirectory
from hopper.graph.importers import import_graph

HERE = "tests.graph.test_text_encoders"


class Letters:
    """Counts letters. ``fails_at`` lets it fail at a text, as a killed import does."""

    encoded: ClassVar[list[str]] = []
    fails_at = ""

    def __init__(self, letters: str = "abc") -> None:
        self.letters = letters

    def encode(self, texts: list[str]) -> NDArray[np.float64]:
        if self.fails_at in texts and self.fails_at:
            raise OSError("out of paper")
        self.encoded += texts
        return np.array([[text.count(letter) for letter in self.letters] for text in texts])


class NoRows(Letters):
    def encode(self, texts: list[str]) -> NDArray[np.float64]:
        return super().encode(texts)[:, 0]


class NoEncoder:
    pass


def describe(rows: int = 6, name: str = "Letters", more: str = "") -> str:
    return f"""
        encoders.count_letters = {{encoder = "{HERE}:{name}"{more}}}
        nodes.paper = '''
            SELECT i AS id, i % 2 AS label, 'train' AS split,
                   count_letters(repeat('a', (i % 4)::BIGINT) || 'b') AS title, i::FLOAT AS year
            FROM range({rows}) t(i)'''
    """


def read(folder: Path, text: str, out: str = "out") -> NDArray[np.float32]:
    (folder / "graph.toml").write_text("\n".join(map(str.strip, text.splitlines())))
    import_graph("sql", str(folder / "graph.toml"), folder / out)
    return np.asarray(GraphDirectory.open(folder / out).features("paper"))


def test_each_text_is_encoded_once_and_what_is_kept_never_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Letters, "encoded", [])
    cache = ", cache = 'letters.sqlite'"
    expected = [[i % 4, 1, 0, i] for i in range(6)]
    np.testing.assert_array_equal(read(tmp_path, describe(more=cache)), expected)
    assert sorted(Letters.encoded) == ["aaab", "aab", "ab", "b"]
    np.testing.assert_array_equal(read(tmp_path, describe(more=cache), "again"), expected)
    assert len(Letters.encoded) == 4
    # Other options are another encoder.
    words = cache + ", options = {letters = 'b'}"
    np.testing.assert_array_equal(read(tmp_path, describe(more=words), "other")[:, 0], 1)
    assert len(Letters.encoded) == 8
    read(tmp_path, describe(), "nothing kept")
    assert len(Letters.encoded) == 12


def test_an_import_goes_on_where_the_encoder_failed(tmp_path, monkeypatch):
    """A batch has 2,048 rows."""
    monkeypatch.setattr(Letters, "encoded", [])
    text = describe(4096, more=", cache = 'letters.sqlite'").replace(
        "(i % 4)::BIGINT", "(i % 4 + 4 * (i // 2048))::BIGINT"
    )
    monkeypatch.setattr(Letters, "fails_at", "aaaaab")
    with pytest.raises(
        HopperError, match=r"encoders\.count_letters failed \(OSError: out of paper"
    ) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.toml", "letters.sqlite"]
    assert len(Letters.encoded) == 4
    monkeypatch.setattr(Letters, "fails_at", "")
    assert read(tmp_path, text)[:, 0].max() == 7
    assert len(Letters.encoded) == len(set(Letters.encoded)) == 8


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (describe(name="NoEncoder"), r"encoders\.count_letters: encoder: .*lacks encode"),
        (describe(name="NoRows"), r"count_letters: expected rows of shape \[4, width\], given \[4"),
        (describe(name="Missing"), r"encoders\.count_letters: encoder: .*Missing"),
        (
            describe(more=", options = {size = 3}"),
            r"encoders\.count_letters: options\.size: .*takes letters",
        ),
        (describe(more=", cache = 'none/x'"), r"none/x: cannot keep encoded texts"),
        (describe(more=", batch = 3"), r"encoders\.count_letters\.batch: unknown field"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(text, error, tmp_path):
    with pytest.raises(HopperError, match=r"graph\.toml: .*" + error) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["graph.toml"]
