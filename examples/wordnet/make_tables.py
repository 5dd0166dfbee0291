"""Make the two tables of this folder from WordNet's database files.

    apt install wordnet-base
    python examples/wordnet/make_tables.py /usr/share/wordnet examples/wordnet

Their format is that of the manual page wndb(5WN). ``synsets.parquet`` has a row for each set of
synonyms: its ``id``, such as ``dog.n.01`` (its first word, and which of that word's senses it is),
its ``part`` of speech, ``words``, ``definition`` and, if it is a noun, its ``topic``.
``relations.parquet`` has ``relation``, ``src`` and ``dst``, each pair of synsets once: without the
pointers that are the reverse of others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PARTS = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
# Numbers 3 to 28 of lexnames(5WN).
TOPICS = """
tops act animal artifact attribute body cognition communication event feeling food group location
motive object person phenomenon plant possession process quantity relation shape state substance
time"""
RELATIONS = {
    "@": "hypernym",
    "@i": "instance_of",
    "#m": "member_of",
    "#p": "part_of",
    "#s": "substance_of",
    "\\": "pertains_to",
    "*": "entails",
    ">": "causes",
    ";c": "in_topic",
    ";r": "in_region",
    ";u": "in_usage",
}
# Both synsets of a pair point to the other one.
SYMMETRIC = {
    "+": "derived_from",
    "&": "similar_to",
    "!": "antonym",
    "^": "see_also",
    "=": "attribute",
    "$": "verb_group",
}


def lines_of(file: Path) -> Iterator[str]:
    """Yield a file's lines below its licence, whose lines begin with blanks."""
    with open(file, encoding="latin-1") as lines:
        yield from (line for line in lines if not line.startswith("  "))


def main(folder: Path, out: Path) -> None:
    """Write both tables."""
    topics = TOPICS.split()
    # Which sense of a word a synset is: by part, the synset's offset and the word.
    senses = {}
    for part, file in FILES.items():
        for line in lines_of(folder / f"index.{file}"):
            word, _, count, *fields = line.split()
            for number, offset in enumerate(fields[-int(count) :], 1):
                senses[part, offset, word] = number
    synsets: list[dict[str, str | None]] = []
    pointers: list[tuple[str, str, str, str]] = []
    names: dict[tuple[str, str], str] = {}
    for part, file in FILES.items():
        for line in lines_of(folder / f"data.{file}"):
            head, gloss = line.split(" | ")
            offset, topic, _, count, *fields = head.split()
            end = 2 * int(count, 16)
            # An adjective may have a mark of where it stands: "galore(ip)".
            words = [word.partition("(")[0] for word in fields[:end:2]]
            name = f"{words[0]}.{part}.{senses[part, offset, words[0].lower()]:02}"
            names[part, offset] = name
            synsets.append(
                {
                    "id": name,
                    "part": PARTS[part],
                    "words": ", ".join(words).replace("_", " "),
                    "definition": gloss.partition('; "')[0].strip(),
                    "topic": topics[int(topic) - 3] if part == "n" else None,
                }
            )
            for start in range(end + 1, end + 1 + 4 * int(fields[end]), 4):
                symbol, target, target_part, _ = fields[start : start + 4]
                pointers.append((symbol, name, target_part, target))
    pairs = set()
    for symbol, src, part, offset in pointers:
        dst = names[part, offset]
        if symbol in RELATIONS:
            pairs.add((RELATIONS[symbol], src, dst))
        elif symbol in SYMMETRIC:
            # The end whose part of speech comes first in PARTS is the source.
            pairs.add((SYMMETRIC[symbol], *sorted((src, dst), key=lambda end: (by_part(end), end))))
    columns = [list(column) for column in zip(*sorted(pairs), strict=True)]
    relations = pa.table(columns, names=["relation", "src", "dst"])
    for name, table in (("synsets", pa.Table.from_pylist(synsets)), ("relations", relations)):
        pq.write_table(table, out / f"{name}.parquet", compression="zstd", compression_level=19)
        print(f"{name}: {table.num_rows:,} rows")


def by_part(name: str) -> int:
    """Return the place of a synset's part of speech in PARTS."""
    return list(PARTS).index(name.split(".")[-2])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
