"""What a server takes over from its changed configuration while it runs, and what it does not."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

from securemedian.servers.config import Caller, ServerConfig

# The lists and the limits that are read anew for every request, round, lane or stop. Everything
# else is part of sockets, files, the session with the other server or what both have agreed on.
CHANGEABLE = frozenset(
    {
        "clients",
        "coordinators",
        "cohorts",
        "min_clients",
        "policy",
        "channel_timeout_s",
        "round_limit_s",
        "max_attempts",
        "retry_wait_s",
        "resume_limit_s",
        "stop_limit_s",
    }
)


@dataclass(frozen=True)
class Reload:
    """A running server's next configuration, and what it says of the changes."""

    config: ServerConfig
    # the settings that have changed, and those that would have to
    changed: list[str]
    refused: list[str]
    # the names of callers whose keys were not on the lists, and are no longer
    added: list[str]
    removed: list[str]

    @classmethod
    def of(cls, current: ServerConfig, wanted: ServerConfig) -> Self:
        """Return what comes of the wish to go on with another configuration.

        Raises ConfigError if the parts that can be changed do not fit those that cannot.
        """
        differing = [
            each.name
            for each in fields(ServerConfig)
            if getattr(current, each.name) != getattr(wanted, each.name)
        ]
        changed = [name for name in differing if name in CHANGEABLE]
        before = current.clients + current.coordinators
        config = replace(current, **{name: getattr(wanted, name) for name in changed})
        after = config.clients + config.coordinators
        return cls(
            config,
            changed,
            [name for name in differing if name not in CHANGEABLE],
            _names_of_others(after, before),
            _names_of_others(before, after),
        )


def _names_of_others(callers: Iterable[Caller], known: Iterable[Caller]) -> list[str]:
    """Return the names of those whose keys are not among the known ones."""
    keys = {caller.public_key for caller in known}
    return [caller.name for caller in callers if caller.public_key not in keys]
