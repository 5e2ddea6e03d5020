"""Selection: the clients that a round checks, and those on whose uploads it computes."""

from securemedian.common.states import State
from securemedian.mpc.errors import ClientsDiffer, TooFewClients, cut
from securemedian.servers.machine.admission import RoundAdmission


class RoundSelection(RoundAdmission):
    """A round that chooses its clients, alike at both servers."""

    def judge(self) -> None:
        """Take over the verdicts of the check under way, at S0 once both servers have theirs."""
        if self.failed_here is None or (self.party == 0 and self.failed_there is None):
            return
        if self.party == 0 and self.failed_here != self.failed_there:
            self.discord = "the two servers' checks have different verdicts"
            return
        self.failed |= set(self.failed_here)
        self.passed |= set(self.under_check) - self.failed
        self.under_check, self.failed_here, self.failed_there = [], None, None
        if self.state is State.CHECKING:
            self.choose()
        else:
            self.left_out = {self.names[key]: self._why_left_out(key) for key in self.failed}

    def complete_clients(self) -> set[str]:
        """Return the clients that both servers hold alike, and that have not failed a check."""
        alike = {key for key in self.here if self.there.get(key) == self.told(self.here[key])}
        if self.dealt:
            alike &= self.dealt_here.keys() & self.dealt_there
        if self.repeats:
            alike &= self.repeats
        return alike - self.failed

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
        if key in self.failed:
            return (
                "its dealing failed the check"
                if self.dealt
                else "a value of its update is out of range"
            )
        dealt = key in self.dealt_here, key in self.dealt_there
        if self.dealt and not all(dealt):
            return f"its dealing reached {self._whom(*dealt)}"
        uploaded = key in self.here, key in self.there
        if not all(uploaded):
            return f"its upload reached {self._whom(*uploaded)}"
        if self.told(self.here[key]) != self.there[key]:
            return "it sent different uploads to the two servers"
        return f"its upload is complete, but max_clients is {self.params.max_clients}"

    def _whom(self, here: bool, there: bool) -> str:
        if here or there:
            return f"only s{self.party if here else 1 - self.party}"
        return "neither server"

    def unchecked(self) -> list[str]:
        """Return the clients to check now, at S0: none while a check is under way.

        They all have the same coin already, or none.
        """
        if self.under_check or self.adrift or not self.checks:
            return []
        if self.state is State.OPEN:
            # dealings can be checked as soon as they are whole, uploads once the round is closed
            whole = self.dealt_here.keys() & self.dealt_there
            unchecked = sorted(whole - self.passed - self.failed)
        else:
            unchecked = [key for key in self.included if key not in self.passed]
        return [key for key in unchecked if self.coins.get(key) == self.coins.get(unchecked[0])]

    def may_check(self, clients: list[str], coin: bytes) -> bool:
        """Return whether S1 can check these clients now, as S0 asks it to.

        SECURITY: a dealing is checked again only under the coin of its first check.
        """
        if self.dealt:
            held = set(self.dealt_here)
        else:
            held = set(self.here) if self.state is State.CHECKING else set()
        known = {self.coins[key] for key in clients if key in self.coins}
        return (
            not self.under_check
            and set(clients) <= held - self.passed - self.failed
            and known <= {coin}
        )

    def is_lost(self, key: str) -> bool:
        """Return whether nothing that this client may still send can bring it into the round."""
        both = key in self.here and key in self.there
        differ = both and self.told(self.here[key]) != self.there[key]
        weights = self.params.weights
        return differ or key in self.failed or (bool(weights) and key not in weights)

    def check_clients(self) -> None:
        """Check the chosen clients against this server's own rules.

        Raises ClientsDiffer, TooFewClients or ConfigError.
        """
        if self.repeats and set(self.included) != self.repeats:
            raise ClientsDiffer(f"{len(self.included)} complete uploads: {self.repeats_whom()}")
        if len(self.included) < self.needed:
            raise TooFewClients(
                f"{len(self.included)} complete uploads, "
                f"and s{self.party} asks for at least {self.needed}. {self._reasons()}"
            )
        # the method's own rules, for so many clients with these weights
        self.params.check_included(self.included)

    def _reasons(self) -> str:
        """Return who is left out and why, with the reasons of the fewest clients first."""
        names: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            names.setdefault(why, []).append(name)
        ordered = sorted(names.items(), key=lambda item: len(item[1]))
        return cut("; ".join(f"{', '.join(who)}: {why}" for why, who in ordered))
