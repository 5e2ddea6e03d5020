"""The conditions of the table, and why a round fails.

The generated page of states shows what follows "Return whether".
"""

from securemedian.mpc.errors import (
    ChannelTimeout,
    ClientsDiffer,
    ConfigError,
    ParametersDiffer,
    PeerDeviated,
    PeerProtocolError,
    PeerUnavailable,
    ReceiptInvalid,
    RoundFailed,
    TooFewClients,
)
from securemedian.servers.machine import events, members
from securemedian.servers.machine.round import ServerRound
from securemedian.servers.network.control import Again, Compute, Done, Failed, Opened, Ready, Resume


def always(_: ServerRound, __: events.Event) -> bool:
    """Return True, for a line that has no condition."""
    return True


def checked(here: ServerRound, _: events.Event | None) -> bool:
    """Return whether this is a round in which the servers check what clients send."""
    return here.checks


def checkable(here: ServerRound, _: events.Event) -> bool:
    """Return whether no check is under way and there is something to check."""
    return bool(members.unchecked(here))


def incomplete(here: ServerRound, _: events.Event) -> bool:
    """Return whether a check is under way, or there is something to check."""
    return bool(here.check or members.unchecked(here))


def discordant(here: ServerRound, _: events.Event) -> bool:
    """Return whether the two servers do not agree on what to check or on the verdicts."""
    return bool(here.discord)


def full(here: ServerRound, _: events.Event) -> bool:
    """Return whether both servers hold the uploads of all clients that the round can take."""
    ready = members.complete_clients(here)
    if here.dealt:
        ready &= here.passed
    able = {key for key in here.names if not members.is_lost(here, key)}
    if here.repeats:
        return ready >= here.repeats & able
    return len(ready) >= min(here.params.max_clients, len(able))


def both_computed(here: ServerRound, _: events.Event) -> bool:
    """Return whether both servers have their result."""
    return here.computed_here and here.computed_there


def disputed(here: ServerRound, event: events.Event) -> bool:
    """Return whether both have their result, and sign different ones."""
    other = f"s{1 - here.party}"
    return (
        both_computed(here, event)
        and here.receipt is not None
        and not here.receipt.is_signed(other, here.signing_key)
    )


def current(here: ServerRound, event: events.Event) -> bool:
    """Return whether the message is about the latest run of the protocol, or asks for one."""
    if isinstance(event, Again) and event.attempt == 0:
        return True
    return isinstance(event, Ready | Again) and event.attempt == here.attempt


def of_session(here: ServerRound, event: events.Event) -> bool:
    """Return whether the message is about the session that was asked for last."""
    return isinstance(event, Opened) and event.session == here.session


def drifting(here: ServerRound, _: events.Event) -> bool:
    """Return whether the two servers have yet to resynchronise."""
    return here.adrift


def computed(here: ServerRound, _: events.Event) -> bool:
    """Return whether this server has its result, which the other one may publish."""
    return here.computed_here


def left_alone(here: ServerRound, _: events.Event) -> bool:
    """Return whether the other server was away for too long."""
    return here.abandoned


def given_up(here: ServerRound, _: events.Event) -> bool:
    """Return whether it broke off too often, or the other server was away for too long."""
    return here.abandoned or here.setbacks >= here.runs


def obstructed(here: ServerRound, event: events.Event) -> bool:
    """Return whether the round cannot run with the chosen clients."""
    return obstacle(here, event) is not None


def obstacle(here: ServerRound, event: events.Event) -> events.Failure | None:
    """Return why the round fails at this event; None if it does not."""
    match event:
        case Failed(code=PeerDeviated.code):
            reason = (
                f"s{1 - here.party} claims that s{here.party} deviated, and s{here.party} has "
                f"found and signed nothing of the kind: {event.reason}"
            )
            return events.Failure(event.code, reason)
        case events.Failure() | Failed():
            return events.Failure(event.code, event.reason)
        case events.Interrupted() | Again() if not here.begun:
            return events.Failure(event.code, event.reason)
        case _ if here.discord:
            return events.Failure(PeerProtocolError.code, here.discord)
        case _ if here.abandoned:
            reason = (
                f"s{1 - here.party} has not gone on within resume_limit_s: "
                "the round has failed for good, open a new one"
            )
            return events.Failure(PeerUnavailable.code, reason)
        case events.Unlinked() | events.Interrupted() | Again() | Resume() | events.Overdue() if (
            here.setbacks >= here.runs
        ):
            reason = (
                f"{here.reason}. It broke off {here.setbacks} times (max_attempts): "
                "the round has failed for good, open a new one"
            )
            return events.Failure(here.code, reason)
        case events.Overdue():
            reason = f"round {here.round_id} was {here.state} for longer than its limit"
            return events.Failure(ChannelTimeout.code, reason)
        case events.Computed() | Done() | Resume() if disputed(here, event):
            reason = (
                f"s{1 - here.party} vouches for another result of round {here.round_id} than "
                f"s{here.party} has: nothing is published, and the round has failed for good"
            )
            return events.Failure(ReceiptInvalid.code, reason)
        case Compute() if here.check or (here.checks and not here.passed.issuperset(here.included)):
            reason = "s0 asks to run the protocol before all clients are checked"
            return events.Failure(PeerProtocolError.code, reason)
        case Compute() if here.audited and (event.new_session or here.folded != here.included):
            reason = "s0 asks to run the protocol before the folds of all clients are compared"
            return events.Failure(PeerProtocolError.code, reason)
        case Compute() if event.attempt > here.runs:
            reason = (
                f"s0 asks for run {event.attempt} of the protocol, and s{here.party} makes at most "
                f"{here.runs} (max_attempts): open a new round"
            )
            return events.Failure(RoundFailed.code, reason)
        case Compute() if event.digest != here.digest:
            reason = f"the servers have different clients or parameters in round {here.round_id}"
            return events.Failure(ParametersDiffer.code, reason)
    try:
        members.check_clients(here)
    except (ClientsDiffer, ConfigError, TooFewClients) as error:
        return events.Failure(error.code, str(error))
    return None
