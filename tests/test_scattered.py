"""Shares whose blocks lie on several machines."""

import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian.clients.door import Door
from securemedian.common.blocks import BLOCK_BYTES, count
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import DamagedUpload
from securemedian.mpc.protocols.share import Layout
from securemedian.mpc.rounds import cutting
from securemedian.servers.computing.backends.slices import for_shard
from securemedian.servers.storage.doors import Doors
from securemedian.servers.storage.files import WordsFile
from securemedian.servers.storage.scattered import (
    HERE,
    Extent,
    NoNodes,
    ScatteredUpload,
    extents_of,
    pack_nodes,
    words_path,
)
from tests.daemons import wait_until
from tests.doors_here import NodesHere
from tests.servers_alone import Server
from tests.test_doors import PARAMS, SIZE, Alone, cut, share
from tests.workers import HeldWords

RNG = np.random.default_rng(28)


@pytest.mark.parametrize(
    "nodes",
    [
        ["a"] * 5,
        ["a", "a", HERE, "b", "b"],
        [HERE, "a", HERE, "a", HERE],
        list("abcde"),
    ],
)
def test_a_row_says_where_its_blocks_lie(nodes: list[str]) -> None:
    extents = extents_of(pack_nodes(nodes), 80, SIZE)
    assert [each.node for each in extents] == [node for node, _ in itertools.groupby(nodes)]
    assert extents[0].begin == 80 and sum(8 * each.count for each in extents) == SIZE
    for one, next_one in itertools.pairwise(extents):
        assert next_one.begin == one.begin + 8 * one.count
        assert 8 * one.count % BLOCK_BYTES == 0


def test_a_share_that_lies_here_says_nothing() -> None:
    assert pack_nodes([HERE] * 5) is None
    assert extents_of(None, 80, SIZE) == [Extent(HERE, 80, SIZE // 8)]


@pytest.fixture
def scattered(tmp_path: Path) -> tuple[ScatteredUpload, Words, NodesHere]:
    """Return an upload of two rows in pieces of odd lengths on two nodes and here, its words."""
    words = RNG.integers(0, 1 << 63, 2000, np.uint64)
    layout = Layout(2, 1000, 64)
    nodes, begin = NodesHere("a", "b"), 160
    extents: list[Extent] = []
    for node, size in (("a", 7), (HERE, 500), ("b", 600), ("a", 893)):
        first = sum(each.count for each in extents)
        extents.append(Extent(node, begin + 8 * first, size))
        file = WordsFile(words_path(tmp_path, node), 1 << 40)
        file.write(extents[-1].begin, words[first : first + size])
    file = WordsFile(words_path(tmp_path, HERE), 1 << 40)
    return ScatteredUpload(layout, tmp_path, file, nodes, extents), words, nodes


def test_scattered_words_are_those_of_the_share(
    scattered: tuple[ScatteredUpload, Words, NodesHere],
) -> None:
    upload, words, _ = scattered
    for row in (0, 1):
        for _ in range(200):
            start, stop = sorted(RNG.choice(1001, 2, replace=False))
            found = upload.words(row, int(start), int(stop))
            assert np.array_equal(found, words[1000 * row + start : 1000 * row + stop])


def test_a_shard_gets_its_words_from_the_nodes_and_the_daemon_fetches_none(
    scattered: tuple[ScatteredUpload, Words, NodesHere],
) -> None:
    upload, words, nodes = scattered
    kept: list[HeldWords] = []

    def keep(here: Words) -> HeldWords:
        kept.append(HeldWords(here))
        return kept[-1]

    shards = cutting.shards(1000, 3)
    slices = [for_shard(upload, upload.layout, shard, keep) for shard in shards]
    assert not nodes.fetched
    # what lies here goes by the daemon: the rest of the first row after 7 words, and before 507
    assert sum(each.words().size for each in kept) == 500
    for shard, sliced in zip(shards, slices, strict=True):
        for row in (0, 1):
            for start, stop in ((shard.begin, shard.end), (shard.begin + 1, shard.end - 3)):
                found = sliced.words(row, start, stop)
                assert np.array_equal(found, words[1000 * row + start : 1000 * row + stop])
    # each word once, however often it is read
    assert sum(size for _, size in nodes.fetched) == 8 * 1500


# A server whose doors are on nodes


@pytest.fixture
def nodes() -> Iterator[NodesHere]:
    made = NodesHere("one", "two")
    yield made
    for each in made.doors:
        each.kill()


@pytest.fixture
def alone(tmp_path: Path, nodes: NodesHere) -> Alone:
    made = Alone.__new__(Alone)
    make_doors = lambda: Doors(2, nodes.launch, nodes)  # noqa: E731
    made.server = Server(0, tmp_path / "state", PARAMS, make_doors=make_doors)
    made.round, made.key = made.server.open(), made.server.keys[0]
    made.server.store.doors.turn()
    return made


def send(alone: Alone, words: Words, nodes: NodesHere, most: int = 5) -> None:
    """Send doors the blocks that are missing, each at most so many."""
    said = alone.store(words).fields
    server: Any = SimpleNamespace(label="S0", host="", check_cancelled=lambda: None)
    for address, numbers in said["missing"].items():
        with closing(Door(server, address, said["room"], said["key"])) as made:
            made.send(numbers[:most], cut(words), lambda block: None)


def test_a_share_lies_where_its_doors_are_and_is_whole_after_a_restart(
    alone: Alone, nodes: NodesHere
) -> None:
    words = share()
    missing = alone.store(words).fields["missing"]
    assert len(missing) == 2 and sorted(sum(missing.values(), [])) == [0, 1, 2, 3, 4]
    send(alone, words, nodes)
    # what was acknowledged is known here at once
    assert alone.store(words).fields["missing"] == {}
    folder = alone.server.latest.spool._folder
    here = words_path(folder, HERE).stat()
    assert here.st_blocks == 0
    for _ in range(2):
        spool = alone.server.latest.spool
        spool.examination({alone.key})()
        upload = spool.get(alone.key)
        assert np.array_equal(upload.words(0, 0, words.size), words)
        assert {node for node, _ in nodes.fetched} == {"one", "two"}
        alone.server.restart()
    alone.server.fail()
    assert not folder.exists() and nodes.dropped == [folder]


def test_a_node_that_changes_a_block_is_noticed_and_one_that_is_gone(
    alone: Alone, nodes: NodesHere
) -> None:
    words = share()
    send(alone, words, nodes)
    assert alone.store(words).fields["missing"] == {}
    spool = alone.server.latest.spool
    with words_path(spool._folder, "two").open("r+b") as stored:
        stored.seek(-8, os.SEEK_END)
        stored.write(b"\0\1")
    with pytest.raises(DamagedUpload, match="not what it has sent"):
        spool.examination({alone.key})()
    nodes.gone.add("one")
    with pytest.raises(DamagedUpload, match="one is away"):
        spool.examination({alone.key})()
    # nor does a server read it whose cluster was taken out of its file
    spool._doors.nodes = NoNodes()
    with pytest.raises(DamagedUpload, match="names no longer"):
        spool.examination({alone.key})()


def test_what_a_lost_door_has_stored_stays_and_the_rest_goes_to_the_daemon(
    alone: Alone, nodes: NodesHere
) -> None:
    words = share()
    send(alone, words, nodes, most=1)
    nodes.doors[0].kill()
    for _ in range(2):
        # first what it has said before it ended
        missing = alone.store(words).fields["missing"]
    assert set(missing) == {"", f"127.0.0.1:{nodes.doors[1].port}"}
    assert len(sum(missing.values(), [])) == count(SIZE) - 2
    for number in missing[""]:
        alone.block(words, number)
    send(alone, words, nodes)
    assert alone.store(words).fields["missing"] == {}
    spool = alone.server.latest.spool
    spool.examination({alone.key})()
    assert np.array_equal(spool.get(alone.key).words(0, 0, words.size), words)
    assert {node for node, _ in nodes.fetched} == {"one", "two"}


def test_another_share_begins_anew_with_another_key(alone: Alone, nodes: NodesHere) -> None:
    first, second = share(1), share(2)
    send(alone, first, nodes, most=1)
    old = alone.store(first).fields
    # the doors first forget what they were granted
    assert alone.store(second).type == "error"
    wait_until(lambda: alone.store(second).type == "store")
    said = alone.store(second).fields
    assert said["key"] != old["key"]
    assert sorted(sum(said["missing"].values(), [])) == [0, 1, 2, 3, 4]
    send(alone, second, nodes)
    assert alone.store(second).fields["missing"] == {}
    assert np.array_equal(alone.server.latest.spool.get(alone.key).words(0, 0, second.size), second)
