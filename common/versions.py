"""The versions of what releases have in common, each a number of its own.

A party works with the wire version of its own release and the one before, if there is one. Two of
them use the lower of the highest that each speaks (`agree`). The two servers may need a later one
of each other (`PEER_WIRE`). An option or field of a message that is newer than the first version
has `since`. If it has its default, it is neither sent, stored nor signed (`canonical.flat`), so
that the same things have the same bytes in all versions. The page docs/maintaining.md says how
parties are updated.
"""

from collections.abc import Mapping
from typing import Any

import securemedian
from securemedian.mpc.errors import MAX_QUOTE, ConfigError, VersionsDiffer, cut, quoted
from securemedian.mpc.rounds.params import RoundParams

# The language of the parties: requests, the messages between the servers, and the computation of a
# round. 1: release 1.0.0rc1. 2: release 1.0.0, with all that has `since=2`. 3: release 1.1.0.
WIRE = 3
# the lowest that this release speaks
LOWEST_WIRE = 2
# The lowest that a server speaks to the other one. From 3 on they commit to shares before they open
# them (`Channel.open`): with an older one no round could be computed.
PEER_WIRE = 3
# The content of the state folders of servers and clients. 3: release 1.0.0rc1.
STORE = 3
# the lowest that this release reads
LOWEST_STORE = 3
# The form of a receipt's record. A server writes the lowest that has all that it has to say, so
# that servers of two releases sign the same. All from 1 on are read. 1: release 1.0.0rc1.
RECEIPT = 1
# The record of a vote has this instead. SECURITY: the round may still fail, and no release takes it
# for the receipt of a result.
VOTE = 1001


def own_versions(needed: int = 1, peer: bool = False) -> dict[str, Any]:
    """Return what a party says of itself: its release, and the wire versions that it speaks.

    Of a round, these are the versions from the one on that it is `needed` to speak. A server tells
    its `peer` those that it speaks with the other server.
    """
    return {"release": securemedian.__version__, "wire": [max(needed, _least(peer)), WIRE]}


def agree(who: str, said: Mapping[str, Any], peer: bool = False) -> int:
    """Return the wire version that this side uses with `who`, which has `said` what it speaks.

    `peer` says that both are servers. Raises VersionsDiffer, which names both releases, if they
    have no version in common.
    """
    (lowest, highest), least = _spoken(said), _least(peer)
    if highest >= least and lowest <= WIRE:
        return min(highest, WIRE)
    older = who if highest < least else "this side"
    raise VersionsDiffer(
        f"releases that do not work together: {who} runs {_release(said)} (wire version "
        f"{_range(lowest, highest)}), and here is release {securemedian.__version__} (wire "
        f"version {_range(least, WIRE)}); update {older}"
    )


def check_known(who: str, said: Mapping[str, Any], params: RoundParams, peer: bool = False) -> None:
    """Raise VersionsDiffer if parameters have options that are newer than what `who` speaks.

    It raises what `agree` raises, too.
    """
    agreed = agree(who, said, peer)
    if newer := [name for name, since in params.since.items() if since > agreed]:
        raise VersionsDiffer(
            f"{who} runs {_release(said)}, which does not know {', '.join(newer)}: wire version "
            f"{params.wire}, and it speaks {agreed}; update {who}, or leave that out"
        )


def check_store(what: str, number: object) -> None:
    """Raise ConfigError, which says what to do, unless this release reads that version on disk."""
    if type(number) is int and LOWEST_STORE <= number <= STORE:
        return
    raise ConfigError(
        f"{what} is of another release of securemedian: version {quoted(number)} on disk, and "
        f"release {securemedian.__version__} reads {_range(LOWEST_STORE, STORE)}. Nothing was "
        "changed; install that release again (docs/maintaining.md), or put the folder "
        "elsewhere to start without it"
    )


def _least(peer: bool) -> int:
    """Return the lowest version that a party speaks, or a server with its peer."""
    return max(LOWEST_WIRE, PEER_WIRE) if peer else LOWEST_WIRE


def _spoken(said: Mapping[str, Any]) -> tuple[int, int]:
    """Return the lowest and the highest wire version; releases before 1.0 say none, which is 0."""
    wire = said.get("wire")
    if isinstance(wire, list) and len(wire) == 2 and all(type(one) is int for one in wire):
        return wire[0], wire[1]
    return 0, 0


def _release(said: Mapping[str, Any]) -> str:
    release = said.get("release")
    if not isinstance(release, str) or not release:
        return "a release before 1.0"
    return f"release {cut(release, MAX_QUOTE)}"


def _range(lowest: int, highest: int) -> str:
    return str(highest) if lowest == highest else f"{lowest} to {highest}"
