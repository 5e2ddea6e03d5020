"""A client's own policy: the rounds that it takes part in, whatever a coordinator asks for.

It is that of a server (`common.policy`), with what only a client can refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from typing import ClassVar

from securemedian.common.policy import COST, Policy, Security, check_security, forbidden, refuse
from securemedian.common.status import RoundStatus
from securemedian.mpc.errors import ConfigError, cut, quoted
from securemedian.mpc.rounds.params import RoundParams


@dataclass(frozen=True)
class ClientPolicy(Policy):
    """The rounds that a client takes part in. Raises ConfigError as `Policy`."""

    # the rounds of its cohort for which it has shared an update within the last day, the one in
    # question included
    RATE: ClassVar[str] = "rounds_per_day"
    FILES: ClassVar[str] = "Its client.toml allows"

    # the names, at both servers, of clients that must be able to take part, and of those that must
    # not be able to
    with_clients: list[str] = field(default_factory=list)
    without_clients: list[str] = field(default_factory=list)
    # a word of `Security`: "bounded" takes part only where both servers have it or "malicious".
    # "malicious" looks at the round alone, whose parameters bind the servers
    security: str = Security.SEMI_HONEST

    def __post_init__(self) -> None:
        super().__post_init__()
        check_security(self.security)
        for table in ("with_clients", "without_clients"):
            if not all(getattr(self, table)):
                raise ConfigError(f"invalid {table}: an empty name; give the clients' names")
        if both := sorted({*self.with_clients} & {*self.without_clients}):
            raise ConfigError(
                "a client in both with_clients and without_clients, so that no round fits: "
                f"{quoted(both[0])}; remove it from one"
            )

    @property
    def bounded(self) -> bool:
        """Return whether it asks for servers that limit what one of them learns."""
        return self.security == Security.BOUNDED

    @property
    def needs_statuses(self) -> bool:
        """Return whether it depends on what both servers say of a round beside its parameters."""
        named = self.with_clients or self.without_clients
        return bool(named) or self.bounded or self.max_epsilon is not None

    def check_round(
        self,
        params: RoundParams,
        begun: int,
        who: str,
        statuses: Sequence[RoundStatus] = (),
        weight: int = 0,
        key: str = "",
        released: bool = False,
    ) -> None:
        """Raise PolicyRefused, with every reason, if the client `who` takes no part in a round.

        `statuses` are what each server says of the round, if `needs_statuses`. `weight` is what the
        client states for itself, and `key` its public key. `released` is `release` of `refusals`.
        """
        each = [inf if status.epsilon is None else status.epsilon for status in statuses]
        # NaN would hide the other server's
        told = [inf if isnan(epsilon) else epsilon for epsilon in each]
        # those that count, once they are fixed
        listed = [status.included or status.clients for status in statuses]
        reasons = self.refusals(params, begun, max(told, default=inf), released)
        given = params.weights.get(key, 0)
        if params.weights and given != weight:
            reasons.append(
                f"the weight {given} in a round: its client.toml states "
                + (f"weight = {weight}" if weight else "none (weight = N)")
            )
        missing = [name for name in self.with_clients if not all(name in one for one in listed)]
        unwanted = [name for name in self.without_clients if any(name in one for one in listed)]
        for found, word, table in (
            (missing, "without", "with_clients"),
            (unwanted, "with", "without_clients"),
        ):
            if found:
                names = cut(", ".join(found))
                reasons.append(f"a round {word} {names}: its [policy] names them in {table}")
        reasons += forbidden(self.security, params, self.zoom)
        if self.bounded:
            says = [status.one_malicious_server for status in statuses]
            without = [f"s{party}" for party, one in enumerate(says) if not one]
            if without or not says:
                line, other = Security(self.security).line, Security.SEMI_HONEST.line
                reasons.append(
                    f"a round without {line} at {' and '.join(without) or 'both'}: its [policy] "
                    f"has that line. Write it into s0.toml and s1.toml, or {other} into [policy] "
                    f"of its client.toml: {COST}"
                )
        refuse(who, reasons)
