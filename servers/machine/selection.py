"""Selection: what a round takes of clients and the coordinator, and on whom it computes."""

from securemedian.common.receipts import DIFFERENT
from securemedian.common.states import State
from securemedian.common.status import DECLINED, by_reason
from securemedian.mpc.errors import (
    MAX_QUOTE,
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
from securemedian.servers.machine.facts import RoundFacts

# why a client of an audited round is left out once it has uploaded
SILENT = "its fold for the audit did not reach both servers in time"
MISFOLDED = "its fold for the audit is not that of its upload"


class RoundSelection(RoundFacts):
    """A round that refuses what it cannot take, and chooses its clients alike at both servers."""

    # What is refused, each with the reason

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

    def check_asked(self, client: str) -> None:
        """Check that the verdict on this client's dealing is known, or may still come.

        Raises BadUpload if there is no whole dealing of it here, and RoundClosed if it is of no use
        any more.
        """
        if client not in self.dealt_here:
            raise BadUpload(f"no whole dealing of yours for round {self.round_id} is stored here")
        if self.state is not State.OPEN and client not in self.failed:
            raise RoundClosed(f"round {self.round_id} is {self.state} and takes no uploads")

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
        if client in self.declined:
            raise NotAllowed(
                f"you have declined round {self.round_id} "
                f"({DECLINED[self.declined[client]]}): wait for the next one"
            )
        if client in self.failed:
            raise NotAllowed(
                f"your dealing for round {self.round_id} failed the check: "
                "you are left out of this round"
            )

    def check_decline(self, client: str) -> None:
        """Check that this client may decline to take part now.

        Raises NotAllowed if it is not one of the round's, and RoundClosed if its upload is stored
        or the round takes none.
        """
        if client not in self.names:
            raise NotAllowed(self.why_not_for_you)
        if self.state is not State.OPEN or client in self.here:
            raise RoundClosed(
                f"round {self.round_id} is {self.state}, and it is too late to decline: "
                f"your upload is {'stored' if client in self.here else 'not expected any more'}"
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

    # Who is checked, and who takes part

    def judge(self) -> None:
        """Take over the verdicts of the check under way, at S0 once both servers have theirs."""
        if self.failed_here is None or (self.party == 0 and self.failed_there is None):
            return
        if self.party == 0 and self.failed_here != self.failed_there:
            self.discord = "the two servers' checks have different verdicts"
            return
        if not self.folding:
            self.failed |= set(self.failed_here)
            self.passed = (self.passed | set(self.under_check)) - self.failed
        elif self.failed_here:
            self.unfolded |= {
                key: SILENT if key in self.silent else MISFOLDED for key in self.failed_here
            }
        else:
            self.folded = self.under_check
        self.under_check, self.failed_here, self.failed_there = [], None, None
        if self.state is not State.CHECKING:
            self.leave_out_early()
        elif not self.ran:
            self.choose()

    def leave_out_early(self) -> None:
        """Note who is left out of a round that is still open: who has failed, or declined."""
        early = [*sorted(self.failed), *filter(self._has_declined, self.declined)]
        self.left_out = {self.names[key]: self._why_left_out(key) for key in early}

    def complete_clients(self) -> set[str]:
        """Return the clients that both servers hold alike, and that have not failed a check."""
        alike = {key for key in self.here if self.there.get(key) == self.told(self.here[key])}
        if self.dealt:
            alike &= self.dealt_here.keys() & self.dealt_there
        if self.repeats:
            alike &= self.repeats
        return alike - self.failed - self.unfolded.keys()

    def choose(self) -> None:
        """Choose whom to compute on: complete clients, in the same order at both servers.

        The verdicts may yet change the choice.
        """
        self.included = sorted(self.complete_clients())[: self.params.max_clients]
        self.left_out = {
            name: self._why_left_out(key)
            for key, name in self.names.items()
            if key not in self.included
        }
        excluded = {
            key: self._why_left_out(key)
            for key in self.here.keys() | self.there.keys() | self.failed
            if key not in self.included
        }
        # clients that only the other server lists: in the words that it uses, too
        what = "dealing" if self.dealt else "upload"
        excluded |= dict.fromkeys(self.unlisted, f"its {what} reached only s{1 - self.party}")
        self.excluded = {
            reason: sorted(key for key, why in excluded.items() if why == reason)
            for reason in sorted(set(excluded.values()))
        }

    def _why_left_out(self, key: str) -> str:
        if key in self.unfolded:
            return self.unfolded[key]
        if key in self.failed:
            return "its dealing failed the check" if self.dealt else self.params.method.fault
        if self._has_declined(key):
            return DECLINED[self.declined[key]]
        dealt = key in self.dealt_here, key in self.dealt_there
        if self.dealt and not all(dealt):
            return f"its dealing reached {self._whom(*dealt)}"
        uploaded = key in self.here, key in self.there
        if not all(uploaded):
            return f"its upload reached {self._whom(*uploaded)}"
        if self.told(self.here[key]) != self.there[key]:
            return DIFFERENT
        return f"its upload is complete, but max_clients is {self.params.max_clients}"

    def _has_declined(self, key: str) -> bool:
        """Return whether a client takes no part, as it has said, and no server has its upload.

        Of clients with an upload both servers must give the same reason.
        """
        return key in self.declined and not (key in self.here or key in self.there)

    def _whom(self, here: bool, there: bool) -> str:
        if here or there:
            return f"only s{self.party if here else 1 - self.party}"
        return "neither server"

    def unchecked(self) -> list[str]:
        """Return the clients to check now, at S0: none while a check is under way.

        They all have the same coin already, or none. In an audited round the folds of all chosen
        clients are checked together, in the session in which the protocol then runs.
        """
        if self.under_check or self.adrift or not self.checks:
            return []
        if self.state is State.OPEN:
            # dealings can be checked as soon as they are whole, uploads once the round is closed
            whole = self.dealt_here.keys() & self.dealt_there
            unchecked = sorted(whole - self.passed - self.failed)
        else:
            unchecked = [key for key in self.included if key not in self.passed]
            if not unchecked and self.audited and self.folded != self.included:
                return self.included
        return [key for key in unchecked if self.coins.get(key) == self.coins.get(unchecked[0])]

    @property
    def values_checked(self) -> bool:
        """Whether a check has opened verdicts on uploads, or is about to."""
        return not self.dealt and bool(self.under_check or self.passed or self.failed)

    def may_check(self, clients: list[str], coin: bytes) -> bool:
        """Return whether S1 can check these clients now, as S0 asks it to.

        SECURITY: a dealing is checked again only under the coin of its first check, which this
        server has stored; no other coin is S0's to name. Values are checked as often as `runs`
        allows, because each check opens verdicts, which a server that deviates asks of something
        else each time.
        """
        if not self.dealt and self.setbacks >= self.runs:
            return False
        if self.may_fold(clients):
            return not self.under_check and clients == self.included != self.folded
        if self.dealt:
            held = set(self.dealt_here)
        else:
            held = set(self.here) if self.state is State.CHECKING else set()
        return (
            not self.under_check
            and set(clients) <= held - self.passed - self.failed
            and all(self.coins.get(key, b"") == coin for key in clients)
        )

    def is_lost(self, key: str) -> bool:
        """Return whether nothing that this client may still send can bring it into the round."""
        both = key in self.here and key in self.there
        differ = both and self.told(self.here[key]) != self.there[key]
        weights = self.params.weights
        gone = key in self.failed or self._has_declined(key)
        return differ or gone or (bool(weights) and key not in weights)

    def check_clients(self) -> None:
        """Check the chosen clients against this server's own rules.

        Raises ClientsDiffer, TooFewClients or ConfigError.
        """
        if lost := [self.names[key] for key in self.included if key in self.unfolded]:
            raise ClientsDiffer(
                f"an earlier run may have opened values, and cannot be repeated: no fold of "
                f"{cut(', '.join(lost), MAX_QUOTE)} came that fits"
            )
        if self.repeats and set(self.included) != self.repeats:
            raise ClientsDiffer(f"{len(self.included)} complete uploads: {self.repeats_whom()}")
        if len(self.included) < self.needed:
            count = len(self.included)
            raise TooFewClients(
                f"{count} complete upload{'' if count == 1 else 's'}, "
                f"and s{self.party} asks for at least {self.needed}: "
                + cut("; ".join(by_reason(self.left_out)))
            )
        validator = getattr(self.params.method, "validator", "")
        if validator and validator not in self.included:
            raise ConfigError(
                f"the validator {quoted(self.names[validator])} is left out "
                f"({self._why_left_out(validator)}), and nobody can be judged without it: open a "
                "round with another validator"
            )
        # the method's own rules, for so many clients with these weights
        self.computed.check_included(self.included, self.needed)
