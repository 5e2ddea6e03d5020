"""The clients of a round: refusals, the choice of those to check, and of those to compute on."""

from dataclasses import replace

from securemedian.common.receipts import DIFFERENT
from securemedian.common.states import State
from securemedian.common.status import DECLINED, by_reason
from securemedian.mpc.errors import (
    BadUpload,
    ClientsDiffer,
    ConfigError,
    DuplicateUpload,
    NotAllowed,
    RoundClosed,
    TooFewClients,
    cut,
    quoted,
)
from securemedian.servers.machine.round import ServerRound

# why a client is left out with security malicious, once it has uploaded
SILENT = "its fold did not reach both servers in time"
MISFOLDED = "its fold is not that of its upload"

# Refusals of clients and the coordinator, each with the reason


def group_named(here: ServerRound, group: int) -> int | None:
    """Return the group that an upload names, or None where groups are not visible.

    Raises BadUpload for an unknown group, or if none is visible and it is not 0.
    """
    visible = here.params.method.visible
    groups = here.params.method.groups if visible else 1
    if not 0 <= group < groups:
        raise BadUpload(
            f"an upload for round {here.round_id} names an unknown group: {quoted(group)}; name "
            f"one from 0 to {groups - 1}"
        )
    return group if visible else None


def check_dealing(here: ServerRound, client: str) -> None:
    """Check that a dealing of this client may be stored now.

    Raises BadUpload, RoundClosed or NotAllowed if it may not.
    """
    if not here.dealt:
        raise BadUpload(
            f"clients do not deal in this round: {here.round_id}; upload shares of your update"
        )
    _check_sender(here, client, "dealings")


def check_asked(here: ServerRound, client: str, failed: bool) -> None:
    """Check that the verdict on this client's dealing is known, or may still come.

    Raises BadUpload if no whole dealing of it is here, and RoundClosed if it is
    useless now. A caller that takes an answer of a `failed` round gets one.
    """
    if client not in here.dealt_here:
        raise BadUpload(
            f"no whole dealing of yours is stored here for the round: {here.round_id}; deal first"
        )
    known = here.failed | (here.passed if failed and here.state is State.FAILED else set())
    if here.state is not State.OPEN and client not in known:
        raise RoundClosed(
            f"round {here.round_id} takes no uploads: it is {here.state}; wait for the next one"
        )


def is_repeated(here: ServerRound, stored: bytes | None, digest: bytes, kind: str) -> bool:
    """Return whether a client has sent exactly this before, in any state of the round.

    Raises DuplicateUpload if it has sent something else.
    """
    if stored not in (None, digest):
        raise DuplicateUpload(
            f"another {kind} of yours is stored already for the round: {here.round_id}; leave "
            "it, for the first one counts"
        )
    return stored == digest


def check_upload(here: ServerRound, client: str, vote: int = 0, path: str = "") -> None:
    """Check that an upload of this client may be stored now: this vote, within these digits.

    Raises RoundClosed, NotAllowed or BadUpload if it may not.
    """
    if not vote:
        _check_sender(here, client, "uploads")
    elif here.state is not State.VOTING or vote != here.level:
        raise RoundClosed(
            f"round {here.round_id} does not take vote {vote + 1}: it is {here.state}, at vote "
            f"{here.level + 1}; ask for its level"
        )
    else:
        check_included(here, client)
    if here.dealt and client not in here.dealt_here:
        raise BadUpload(
            f"no whole dealing of yours is stored here for the round: {here.round_id}; deal "
            "before you upload"
        )
    if path != here.path:
        raise BadUpload(
            f"this vote is within other digits than those told here: {here.round_id}; ask both "
            "operators, for one server does not tell the truth"
        )


def check_included(here: ServerRound, client: str) -> None:
    """Raise NotAllowed unless the round is computed on this client."""
    if client not in here.included:
        raise NotAllowed(
            f"you are not among the clients that a round is computed on: {here.round_id}; wait for "
            "its result"
        )


def _check_sender(here: ServerRound, client: str, what: str) -> None:
    if here.state is not State.OPEN:
        raise RoundClosed(
            f"round {here.round_id} takes no {what}: it is {here.state}; wait for the next one"
        )
    if client not in here.members:
        raise NotAllowed(why_not_for_you(here))
    if here.params.weights and client not in here.params.weights:
        raise NotAllowed(
            f"a weighted round, whose coordinator gave you no weight: {here.round_id}; ask the "
            "coordinator for one"
        )
    if here.repeats and client not in here.repeats:
        raise NotAllowed(
            f"round {here.round_id} takes no upload of yours: {here.repeats_whom()}; wait for "
            "the next one"
        )
    if reason := here.members[client].declined:
        raise NotAllowed(
            f"you have declined round {here.round_id}: {DECLINED[reason]}; wait for the next one"
        )
    if client in here.failed:
        raise NotAllowed(
            f"your dealing failed the check, and you are left out: round {here.round_id}; wait "
            "for the next one"
        )


def check_decline(here: ServerRound, client: str) -> None:
    """Check that this client may decline to take part now.

    Raises NotAllowed if it is not one of the round's, and RoundClosed if its upload is stored
    or the round takes none.
    """
    if client not in here.members:
        raise NotAllowed(why_not_for_you(here))
    if here.state is State.VOTING and client in here.included:
        # also one whose vote is stored: the round ends
        return
    if here.state is not State.OPEN or client in here.here:
        raise RoundClosed(
            f"too late to decline: round {here.round_id} is {here.state}, and your upload is "
            f"{'stored' if client in here.here else 'not expected any more'}; wait for its "
            "result"
        )


def why_not_for_you(here: ServerRound) -> str:
    """Return the refusal of a client that is not one of the round's."""
    if here.asked.participants:
        why = "is for participants whom its coordinator has named, and you are not among them"
    else:
        why = "was opened before you were on the list of clients"
    return f"round {here.round_id} {why}: wait for the next one"


def check_close(here: ServerRound) -> None:
    """Raise RoundClosed unless the coordinator may close the round now."""
    if here.state is not State.OPEN:
        raise RoundClosed(
            f"round {here.round_id} cannot be closed: it is {here.state}; see `round status`"
        )


def check_abort(here: ServerRound) -> None:
    """Raise RoundClosed unless the coordinator may abort the round now.

    Once the round may have opened values, it may not.
    """
    if not here.live:
        raise RoundClosed(f"round {here.round_id} has ended: it is {here.state}; open another")
    if here.state in (State.STARTING, State.RUNNING) or here.ran:
        raise RoundClosed(
            f"round {here.round_id} may have opened values: it is {here.state}; wait for its end"
        )


# The clients that the servers check


def unchecked(here: ServerRound) -> list[str]:
    """Return the clients to check now, at S0: none while a check is under way.

    They all have the same coin already, or none. In an audited round the folds of all chosen
    clients are checked together, in the session in which the protocol then runs.
    """
    if here.check or here.adrift or not here.checks:
        return []
    if here.state is State.OPEN:
        # dealings can be checked as soon as they are whole, uploads once the round is closed
        whole = here.dealt_here.keys() & here.dealt_there
        todo = sorted(whole - here.passed - here.failed)
    else:
        todo = [key for key in here.included if key not in here.passed]
        if not todo and here.audited and here.folded != here.included:
            return here.included
    coins = [here.members[key].coin for key in todo]
    return [key for key, coin in zip(todo, coins, strict=True) if coin == coins[0]]


def may_check(here: ServerRound, clients: list[str], coin: bytes) -> bool:
    """Return whether S1 can check these clients now, as S0 asks it to.

    SECURITY: a dealing is checked again only under the coin of its first check, which this
    server has stored; no other coin is S0's to name. Values are checked as often as `runs`
    allows, because each check opens verdicts, which a server that deviates asks of something
    else each time.
    """
    if here.check or (not here.dealt and here.setbacks >= here.runs):
        return False
    if here.may_fold(clients):
        return all_here(here) and clients == here.included != here.folded
    if here.dealt:
        held = set(here.dealt_here)
    else:
        held = set(here.here) if here.state is State.CHECKING else set()
    return set(clients) <= held - here.passed - here.failed and all(
        (here.members[key].coin or b"") == coin for key in clients
    )


# The later votes of the clients that the servers compute on


def lacking(here: ServerRound) -> dict[str, str]:
    """Return by name where the vote is of each client that the next run waits for.

    That is "here", "there" or "none".
    """
    where = here.whereabouts()
    names = sorted(here.names[key] for key in here.included)
    return {name: where[name] for name in names if where[name] != "both"}


def all_here(here: ServerRound) -> bool:
    """Return whether this server has what the next run is of; the digests compare the rest."""
    return here.here.keys() >= set(here.included)


def unfit(here: ServerRound) -> str:
    """Return why the votes that are here end the round; "" if they do not."""
    for key in here.included:
        if reason := here.members[key].declined:
            return f"{here.names[key]} votes no more: {DECLINED[reason]}"
        if _differs(here, key):
            return f"s0 and s1 have different votes of {here.names[key]}"
    return ""


# The clients that the servers compute on


def leave_out_early(here: ServerRound) -> ServerRound:
    """Note who is left out of a round that is still open: who has failed, or declined."""
    early = [*sorted(here.failed), *(key for key in here.declined if _has_declined(here, key))]
    return replace(here, left_out={here.names[key]: _why_left_out(here, key) for key in early})


def complete_clients(here: ServerRound) -> set[str]:
    """Return the clients that both servers hold alike, and that have not failed a check."""
    there = here.there
    alike = {key for key, held in here.here.items() if there.get(key) == here.told(held)}
    if here.dealt:
        alike &= here.dealt_here.keys() & here.dealt_there
    if here.repeats:
        alike &= here.repeats
    return alike - here.failed - here.unfolded.keys()


def choose(here: ServerRound) -> ServerRound:
    """Choose whom to compute on: complete clients, in the same order at both servers.

    The verdicts may yet change the choice.
    """
    included = sorted(complete_clients(here))[: here.params.max_clients]
    out = here.members.keys() - included
    why = {key: _why_left_out(here, key) for key in here.members if key in out}
    sent = here.here.keys() | here.there.keys() | here.failed
    excluded = {key: reason for key, reason in why.items() if key in sent}
    # clients that only the other server lists: in the words that it uses, too
    what = "dealing" if here.dealt else "upload"
    excluded |= dict.fromkeys(here.unlisted, f"its {what} reached only s{1 - here.party}")
    return replace(
        here,
        included=included,
        left_out={here.names[key]: reason for key, reason in why.items()},
        excluded={
            reason: sorted(key for key, why in excluded.items() if why == reason)
            for reason in sorted(set(excluded.values()))
        },
    )


def _why_left_out(here: ServerRound, key: str) -> str:
    member = here.members[key]
    if member.unfolded:
        return member.unfolded
    if member.passed is False:
        return "its dealing failed the check" if here.dealt else here.params.form.fault
    if _has_declined(here, key):
        return DECLINED[str(member.declined)]
    dealt = key in here.dealt_here, key in here.dealt_there
    if here.dealt and not all(dealt):
        return f"its dealing reached {_whom(here, *dealt)}"
    uploaded = key in here.here, key in here.there
    if not all(uploaded):
        return f"its upload reached {_whom(here, *uploaded)}"
    if _differs(here, key):
        return DIFFERENT
    return f"its upload is complete, but max_clients is {here.params.max_clients}"


def _differs(here: ServerRound, key: str) -> bool:
    """Return whether both servers hold an upload of a client, and not the same one."""
    both = key in here.here and key in here.there
    return both and here.told(here.here[key]) != here.there[key]


def _has_declined(here: ServerRound, key: str) -> bool:
    """Return whether a client takes no part, as it has said, and no server has its upload.

    Of clients with an upload both servers must give the same reason.
    """
    declined = here.members[key].declined is not None
    return declined and not (key in here.here or key in here.there)


def _whom(here: ServerRound, held: bool, there: bool) -> str:
    if held or there:
        return f"only s{here.party if held else 1 - here.party}"
    return "neither server"


def is_lost(here: ServerRound, key: str) -> bool:
    """Return whether nothing that this client may still send can bring it into the round."""
    weights = here.params.weights
    gone = key in here.failed or _has_declined(here, key)
    return _differs(here, key) or gone or (bool(weights) and key not in weights)


def check_clients(here: ServerRound) -> None:
    """Check the chosen clients against this server's own rules.

    Raises ClientsDiffer, TooFewClients or ConfigError.
    """
    if lost := [key for key in here.included if key in here.unfolded]:
        told = ", ".join(f"{here.names[key]} ({here.unfolded[key]})" for key in lost)
        raise ClientsDiffer(
            "an earlier run may have opened values, and cannot be repeated without folds of "
            f"all its clients: {cut(told)}; open another round"
        )
    count = len(here.included)
    if here.repeats and set(here.included) != here.repeats:
        raise ClientsDiffer(
            f"other clients than in the earlier run: {count} complete uploads; "
            f"{here.repeats_whom()}"
        )
    if count < here.needed:
        raise TooFewClients(
            f"{count} complete upload{'' if count == 1 else 's'}, "
            f"and s{here.party} asks for at least {here.needed}: "
            + cut("; ".join(by_reason(here.left_out)))
        )
    validator = getattr(here.params.method, "validator", "")
    if validator and validator not in here.included:
        raise ConfigError(
            f"the validator is left out ({_why_left_out(here, validator)}), and no client can "
            f"be judged without it: {quoted(here.names[validator])}; open a round with another "
            "validator"
        )
    # the method's own rules, for so many clients with these weights
    here.computed.check_included(here.included, here.needed)
