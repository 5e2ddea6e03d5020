"""Images, tables and text to train on, and each client's part of them.

A new data set is one file with a `Source`, and its line in `SOURCES`.
"""

from pathlib import Path

from securemedian.laboratory.data.base import (
    SPLITS,
    Dataset,
    Source,
    draw_public,
    split,
    with_fewer_tests,
    without,
)
from securemedian.laboratory.data.clinic import CLINIC
from securemedian.laboratory.data.hospitals import HEART
from securemedian.laboratory.data.images import CIFAR10, DIGITS, MNIST
from securemedian.laboratory.data.shakespeare import SHAKESPEARE
from securemedian.mpc.errors import ConfigError

__all__ = [
    "SOURCES",
    "SPLITS",
    "Dataset",
    "Source",
    "draw_public",
    "load",
    "split",
    "with_fewer_tests",
    "without",
]

SOURCES = {source.name: source for source in (MNIST, CIFAR10, DIGITS, HEART, CLINIC, SHAKESPEARE)}


def load(directory: str | Path | None = None, name: str | None = None) -> Dataset:
    """Return the data set in a folder, which is recognised by its files unless it is named.

    Without a folder and a name, the data set is scikit-learn's digits. Raises ConfigError if the
    name, the folder or its files are not known.
    """
    if name is not None and name not in SOURCES:
        raise ConfigError(f"unknown data set: {name!r}; take one of {', '.join(SOURCES)}")
    if directory is None:
        source = SOURCES[name] if name else DIGITS
        if source.files:
            raise ConfigError(
                f"a data set that is read from a folder: {source.name}; name one. {source.advice}"
            )
        return source.read(Path())
    folder = Path(directory)
    return (SOURCES[name] if name else _recognise(folder)).read(folder)


def _recognise(directory: Path) -> Source:
    found = [source for source in SOURCES.values() if source.recognises(directory)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"a folder with several data sets: {directory} has files of "
            f"{' and of '.join(source.name for source in found)}; put each data set into a "
            "folder of its own"
        )
    what = "has the files of no data set that is known" if directory.is_dir() else "is not a folder"
    advice = "; ".join(source.advice for source in SOURCES.values() if source.files)
    raise ConfigError(f"no data set: {directory} {what}; {advice}")
