"""The typed errors of this project.

Every failure that a caller may meet has a class of its own and a message that says what to do.
Outside values in a message go through `quoted`, and texts of others through `cut`. An error that
repeats a caller's megabyte is itself too long to send. One that repeats a caller's escapes commands
the terminal that prints it.
"""

import re
import reprlib

# Characters of a quoted value, and of a text from outside.
MAX_QUOTE = 80
MAX_TEXT = 1000


def printable(text: str) -> str:
    """Return `text` with what commands a terminal, such as an escape or a new line, written out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text`, `printable`, or its first `limit` characters and how many there were."""
    more = f"... ({len(text)} characters)" if len(text) > limit else ""
    return printable(text[:limit]) + more


def quoted(value: object) -> str:
    """Return the `repr` of a value from outside, cut to about MAX_QUOTE characters."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = MAX_QUOTE
    return cut(short.repr(value), MAX_QUOTE)


class SecureMedianError(Exception):
    """The base class of every error that this project raises on purpose.

    `code` is its stable name on the wire and in logs: that of the class, hyphenated, unless it says
    another.
    """

    code = "error"

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = re.sub("(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


class ConfigError(SecureMedianError):
    """A configuration file, option or parameter is wrong: fix it before trying again."""

    code = "bad-config"


class InputError(SecureMedianError, ValueError):
    """A caller's array has the wrong shape, dtype or value."""

    code = "bad-input"


class NotFinite(InputError):
    """An update has NaN, or infinite values in a round that does not take them."""


class LocalProtocolError(SecureMedianError):
    """A protocol was used wrongly by this program: a defect here, not at the peer."""

    code = "local-protocol"


class PeerProtocolError(SecureMedianError):
    """The other end sent something that the protocol does not allow."""

    code = "peer-protocol"


class PeerDeviated(PeerProtocolError):
    """The other server is proved not to have followed the protocol; the message says in what."""

    code = "peer-deviated"


class FrameError(PeerProtocolError):
    """A frame is truncated, over-long, of another version, or not a frame at all."""

    code = "bad-frame"


class ChannelClosed(SecureMedianError):
    """The other end is gone, with what it had sent, or this end was closed while waiting."""

    code = "closed"


class ChannelTimeout(SecureMedianError):
    """The other end did not answer within the limit."""

    code = "timeout"


# The errors of the service. They live here because servers raise them, and clients raise them again
# from the `code` on the wire.


class NotAllowed(SecureMedianError):
    """The caller's key has no role that may do this."""


class PolicyRefused(SecureMedianError):
    """A server takes no part in such a round: the message names the server and its limits."""


class UnknownRound(SecureMedianError):
    """The server knows no such round."""


class UnknownCohort(SecureMedianError):
    """The server knows no such training, or the caller takes no part in it."""


class RoundClosed(SecureMedianError):
    """The round no longer takes uploads, or is not in a state for this request."""


class RoundBusy(SecureMedianError):
    """Another round of the cohort is under way: a server runs one at a time per cohort."""


class DuplicateUpload(SecureMedianError):
    """The client's upload for this round is already stored; the first one counts."""


class ClientsDiffer(SecureMedianError):
    """An attempt that may have opened values can only be repeated with exactly the same clients."""


class BadUpload(SecureMedianError):
    """An upload's shape, dtype, length or form is not the round's; nothing of it was stored."""


class TooFewClients(SecureMedianError):
    """The round has fewer complete uploads than `min_clients`."""


class ParametersDiffer(SecureMedianError):
    """The two servers are configured differently: the message names the fields."""


class VersionsDiffer(SecureMedianError):
    """Two parties run releases that do not work together: the message names both."""


class PeerUnavailable(SecureMedianError):
    """The other server is not there, or stopped answering."""


class RoundFailed(SecureMedianError):
    """The round ended without a result; the message is the reason."""


class ReceiptInvalid(SecureMedianError):
    """A server says something else of a round than both servers have signed."""


class RoundAborted(RoundFailed):
    """The coordinator has ended the round; the message is the reason that it gave."""


class NotStored(SecureMedianError):
    """A server could not write to its disk: nothing of this counts, and it may be tried again."""


class NoSocket(SecureMedianError):
    """A socket cannot be opened here or at a server: there are too many connections."""


class NoWorker(SecureMedianError):
    """None of the workers of a server is there, or the cluster has no room for them."""


class DamagedUpload(SecureMedianError):
    """A server reads something else from its disk than a client has sent."""


class ServerUnreachable(SecureMedianError):
    """A server did not answer within the limit, or refused the key."""


def from_code(code: str, message: str) -> SecureMedianError:
    """Return the typed error that a server named on the wire, or the base class for a new code."""
    pending = [SecureMedianError]
    while pending:
        cls = pending.pop()
        if cls.__dict__.get("code") == code:
            return cls(message)
        pending += cls.__subclasses__()
    return SecureMedianError(f"{code}: {message}")
