"""The base of a client and the coordinator."""

import json
import logging
from pathlib import Path
from typing import Any, Self

from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection, Service
from securemedian.clients.outcomes import Outcomes, Trained, untrained
from securemedian.common.receipts import Receipt
from securemedian.common.status import RoundStatus, check_public_metrics
from securemedian.common.terminal import Report
from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams

_log = logging.getLogger("securemedian")


class Member:
    """The requests about a round that a client and the coordinator have in common.

    `report` gets a line when a server is away and waited for, and one when it is back. `trained`
    returns what a receipt must fit, where this side trains.

    Every call has a limit, `timeout_s`: how long a server that is away is asked again (default:
    `retry_limit_s` of the configuration). In calls that wait for a round it is how long they wait
    (default: `wait_timeout_s`). A server that has never been reached is not asked again.
    """

    def __init__(
        self, config: ClientConfig, report: Report = _log.warning, trained: Trained = untrained
    ) -> None:
        self.config = config
        self.service = Service(config, report)
        self.outcomes = Outcomes(self.service, trained)

    @property
    def servers(self) -> tuple[Connection, ...]:
        """The connections to S0 and S1."""
        return self.service.servers

    @classmethod
    def from_config(cls, path: str | Path, cohort: str = "", **options: Any) -> Self:
        """Return a member that connects as a TOML configuration says.

        A `cohort` replaces the one that the configuration names. `options` are those of the
        constructor. Raises ConfigError if there is a mistake in the configuration or the key file.
        """
        return cls(ClientConfig.load(path, cohort), **options)

    def __reduce__(self) -> Any:
        """Refuse to be sent to another process, which could not use the connections."""
        raise TypeError(
            f"a {type(self).__name__} has connections, which stay in their process: make one in "
            "the process that uses it, with from_config()"
        )

    def close(self) -> None:
        """Close both connections."""
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def name(self, timeout_s: float | None = None) -> str:
        """Return the name that this side's key has at S0."""
        return str(self.service.ask("info", timeout_s=timeout_s).fields["name"])

    def status(self, round_id: str = "", timeout_s: float | None = None) -> RoundStatus:
        """Return what S0 says about a round, by default the latest."""
        return self.service.status(round_id, timeout_s)

    def model(self, round_id: str, timeout_s: float | None = None) -> Published:
        """Return what S0 published for a round: the global model, and how the buckets lie.

        Only rounds on buckets have a scale and a policy; other rounds may have no model either.
        """
        status = self.status(round_id, timeout_s)
        state = self.outcomes.run_before(round_id, bytes.fromhex(status.start), timeout_s)
        return state.published_for(RoundParams.from_dict(status.params))

    def receipt(self, round_id: str, timeout_s: float | None = None) -> Receipt:
        """Wait for a round's result and return its receipt, which both servers have signed."""
        return self.outcomes.receipt(round_id, self.service.limit(timeout_s))

    def public_metrics(
        self, round_id: str, timeout_s: float | None = None
    ) -> dict[str, dict[str, float]]:
        """Return by client its public metrics of a round, for which nobody vouches."""
        answer = self.service.ask("metrics", {"round": round_id}, timeout_s=timeout_s)
        try:
            said = json.loads(answer.arrays["metrics"].tobytes())
            return {name: check_public_metrics(metrics) for name, metrics in said.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PeerProtocolError(
                f"S0 sent no public metrics of round {round_id}: {error!r:.200}"
            ) from error

    def unchanged_groups(self, round_id: str, timeout_s: float | None = None) -> list[int]:
        """Wait for a round, and return the groups, 0-based, whose model stays: too few chose it."""
        return self.outcomes.unchanged_groups(round_id, self.service.limit(timeout_s))

    def left_out(self, round_id: str, timeout_s: float | None = None) -> dict[str, str]:
        """Return by name who is left out of a round, or has failed a check so far, and why."""
        return dict(self.status(round_id, timeout_s).left_out)
