"""Admission: whether a round takes now what clients and the coordinator ask of it."""

from securemedian.common.states import State
from securemedian.mpc.errors import BadUpload, DuplicateUpload, NotAllowed, RoundClosed, quoted
from securemedian.servers.machine.facts import RoundFacts


class RoundAdmission(RoundFacts):
    """A round that refuses requests which it cannot take, each with the reason."""

    def check_group(self, group: int) -> bool:
        """Return whether an upload for this group names it, because groups are visible.

        Raises BadUpload if there is no such group, or none is visible and it is not 0.
        """
        visible = self.params.method.visible
        groups = self.params.method.groups if visible else 1
        if not 0 <= group < groups:
            raise BadUpload(
                f"an upload for round {self.round_id} names a group from 0 to {groups - 1}, "
                f"not {quoted(group)}"
            )
        return visible

    def check_dealing(self, client: str) -> None:
        """Check that a dealing of this client may be stored now.

        Raises BadUpload, RoundClosed or NotAllowed if it may not.
        """
        if not self.dealt:
            raise BadUpload(f"nobody deals for round {self.round_id}: upload shares of your update")
        self._check_sender(client, "dealings")

    def repeats_upload(self, client: str, digest: bytes) -> bool:
        """Return whether this client has uploaded exactly this before, in any state of the round.

        Raises DuplicateUpload if it has uploaded something else.
        """
        return self._is_repeated(self.here.get(client), digest, "upload")

    def repeats_dealing(self, client: str, digest: bytes) -> bool:
        """Return whether this client has dealt exactly this before, in any state of the round.

        Raises DuplicateUpload if it has dealt something else.
        """
        return self._is_repeated(self.dealt_here.get(client), digest, "dealing")

    def _is_repeated(self, stored: bytes | None, digest: bytes, what: str) -> bool:
        if stored not in (None, digest):
            raise DuplicateUpload(
                f"another {what} of yours for round {self.round_id} is stored already; "
                "the first one counts"
            )
        return stored == digest

    def check_upload(self, client: str) -> None:
        """Check that an upload of this client may be stored now.

        Raises RoundClosed, NotAllowed or BadUpload if it may not.
        """
        self._check_sender(client, "uploads")
        if self.dealt and client not in self.dealt_here:
            raise BadUpload(
                f"no whole dealing of yours for round {self.round_id} is stored here: "
                "deal before you upload"
            )

    def _check_sender(self, client: str, what: str) -> None:
        """Check that this client may send `what` now. Raises RoundClosed or NotAllowed."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.round_id} is {self.state} and takes no {what}")
        if client not in self.names:
            raise NotAllowed(self.why_not_for_you)
        if self.params.weights and client not in self.params.weights:
            raise NotAllowed(
                f"round {self.round_id} is weighted, and its coordinator gave you no weight"
            )
        if self.repeats and client not in self.repeats:
            raise NotAllowed(
                f"round {self.round_id} takes no upload of yours: {self.repeats_whom()}"
            )
        if client in self.failed:
            raise NotAllowed(
                f"your dealing for round {self.round_id} failed the check: "
                "you are left out of this round"
            )

    @property
    def why_not_for_you(self) -> str:
        """The refusal of a client that is not one of the round's."""
        if self.asked.participants:
            why = "is for participants whom its coordinator has named, and you are not among them"
        else:
            why = "was opened before you were on the list of clients"
        return f"round {self.round_id} {why}: wait for the next one"

    def check_close(self) -> None:
        """Raise RoundClosed unless the coordinator may close the round now."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.round_id} is {self.state} and cannot be closed")

    def check_abort(self) -> None:
        """Raise RoundClosed unless the coordinator may abort the round now.

        Once the round may have opened values, it may not.
        """
        if not self.live:
            raise RoundClosed(f"round {self.round_id} is {self.state} already")
        if self.state in (State.STARTING, State.RUNNING) or self.ran:
            raise RoundClosed(
                f"round {self.round_id} is {self.state} and may have opened values: "
                "wait for its end"
            )
