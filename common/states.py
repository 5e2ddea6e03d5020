"""The states of a round, which servers go through and callers read in `status`."""

from enum import StrEnum


class State(StrEnum):
    """The state of a round at one server."""

    # The round is made, and nobody has been told of it; this state is never seen from outside.
    NEW = "new"
    # at S0: S1 has been asked to take part, and has not answered yet
    OPENING = "opening"
    # Uploads are taken.
    OPEN = "open"
    # Uploads are refused, and the servers tell each other which they hold.
    CLOSING = "closing"
    # Both servers check the uploads that have not been checked yet.
    CHECKING = "checking"
    # The set of uploads is fixed, and the protocol does not run yet, or no longer.
    QUEUED = "queued"
    # at S0: S1 has been asked to run the protocol, and has not answered yet
    STARTING = "starting"
    # The protocol runs on the shares of the clients that both servers hold.
    RUNNING = "running"
    # The digits of a vote can be fetched, and votes within them are taken of the same clients.
    VOTING = "voting"
    # The result can be fetched.
    PUBLISHED = "published"
    # The round has ended without a result, and `reason` says why.
    FAILED = "failed"


# the states of a round that has begun and not ended
LIVE = (
    State.OPENING,
    State.OPEN,
    State.CLOSING,
    State.CHECKING,
    State.QUEUED,
    State.STARTING,
    State.RUNNING,
    State.VOTING,
)
