"""Make short English documents of WordNet 3.0 (Debian's wordnet-base), split into training and held-out text.

A synset gives two kinds of short document: its headwords with the definition, and each example sentence.
Neighbouring synsets are also joined into long documents, so that every position is trained. Whole
synsets are held out, chosen by a hash of their number: no held-out definition or example is ever trained on.
"""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "wordnet-base"
PARTS = ("noun", "verb", "adj", "adv")
HELD_OUT_PERCENT = 2
LONG_DOCUMENT_WORDS = 90
LONG_DOCUMENT_STRIDE = 4


@dataclass(frozen=True)
class Synset:
    """One WordNet entry.

    Attributes:
        key: part of speech and offset, unique.
        words: its headwords, with spaces for underscores.
        definition: the gloss up to the first quoted example.
        examples: quoted example sentences, without their quotes.
    """

    key: str
    words: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """Whether this synset belongs to the held-out split."""
        return int(hashlib.sha256(self.key.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def fetch_wordnet(cache: Path) -> Path:
    """Download and unpack Debian's wordnet-base into `cache`, once; return the folder of its data files."""
    folder = cache / "usr/share/wordnet"
    if not (folder / "data.noun").exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", PACKAGE], cwd=cache, check=True, capture_output=True)
        (package,) = cache.glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(cache)], check=True)
    return folder


def read_synsets(folder: Path) -> list[Synset]:
    """Read every entry of the four data files, in file order."""
    return [synset for part in PARTS for synset in _read_part(folder / f"data.{part}", part)]


def _read_part(path: Path, part: str) -> Iterator[Synset]:
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith("  "):  # the licence stands in front of the data
            continue
        fields, _, gloss = line.partition(" | ")
        parts = fields.split(" ")
        count = int(parts[3], 16)
        words = tuple(
            re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in parts[4 : 4 + 2 * count : 2]
        )
        examples = tuple(_tidy(example) for example in re.findall(r'"([^"]+)"', gloss))
        definition = _tidy(re.sub(r'"[^"]*"?.*', "", gloss).strip(" ;:"))
        if definition:
            yield Synset(
                f"{part}-{parts[0]}", words, definition, tuple(e for e in examples if " " in e)
            )


def _tidy(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("`", "'")).strip(" ;:,")


def short_documents(synset: Synset) -> list[str]:
    """Headwords with definition, then each example, as separate texts that end in a full stop."""
    head = ", ".join(synset.words[:3])
    return [
        _ended(f"{head}: {synset.definition}"),
        *(_ended(example) for example in synset.examples),
    ]


def _ended(text: str) -> str:
    return text if text[-1] in ".?!" else text + "."


def long_documents(synsets: list[Synset]) -> list[str]:
    """Neighbouring synsets of the files joined until about 90 words, and every fourth of these texts kept.

    They reach the late positions, which short documents don't.
    """
    documents: list[str] = []
    current: list[str] = []
    for synset in synsets:
        current += short_documents(synset)
        if sum(text.count(" ") + 1 for text in current) >= LONG_DOCUMENT_WORDS:
            documents.append(" ".join(current))
            current = []
    return documents[::LONG_DOCUMENT_STRIDE]
