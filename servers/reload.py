"""The settings that a running server takes over from its changed configuration."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

from securemedian.servers.config import Caller, ServerConfig

# The lists and limits that are read for every request, round, lane or stop. Everything else is part
# of sockets, files, the session with the other server or what both have agreed on.
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
    """The next configuration of a running server, and the changes for its log."""

    config: ServerConfig
    # the settings that change, and those whose change needs a restart
    changed: list[str]
    refused: list[str]
    # the names of callers whose keys are new on the lists, and of those taken off
    added: list[str]
    removed: list[str]

    @classmethod
    def of(cls, current: ServerConfig, wanted: ServerConfig) -> Self:
        """Return the change from the current configuration to the wanted one.

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
