"""The configuration of a client or of the coordinator: one TOML file (docs/samples/)."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import float_info
from typing import Self

from securemedian.clients.policy import ClientPolicy
from securemedian.common.addresses import check_endpoint, host_and_port
from securemedian.common.keys import check_key_places, check_public_key, fingerprint
from securemedian.common.policy import without_switch
from securemedian.common.status import DEFAULT_COHORT, check_cohort
from securemedian.common.toml import read_toml
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_number, check_whole
from securemedian.mpc.rounds.methods.base import MOST_WEIGHT


@dataclass(frozen=True)
class ServerAddress:
    """The address at which a server listens, and the key that it must prove to have."""

    # tcp://HOST:PORT
    address: str
    # the line `public-key` of the server's .key file
    public_key: str
    # the line `signing-key` there, with which the server signs what it vouches for
    signing_key: str

    def __post_init__(self) -> None:
        check_endpoint(self.address)
        check_public_key(self.public_key)
        check_public_key(self.signing_key, "signing")

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the server's keys, to compare with who runs it."""
        return fingerprint(self.public_key, self.signing_key)


@dataclass(frozen=True)
class ClientConfig:
    """The settings of a client or of the coordinator."""

    # for messages on this side only: servers know their callers by key
    name: str
    # NAME.key_secret, mode 0600; relative to the folder of the configuration
    key_file: str
    s0: ServerAddress
    s1: ServerAddress
    # the cohort in which it takes part, as the servers call it
    cohort: str = DEFAULT_COHORT
    # NAME-state, for one process at a time; relative to the folder of the configuration. Without it
    # a client forgets what it has made for rounds, and what it keeps, when it ends (`journal`)
    state_dir: str = ""
    # how much it counts in rounds with weights, such as its number of examples: it takes part in
    # none that gives it another. 0: it states none, and takes part in no round with weights
    weight: int = 0
    # HOST:PORT of a SOCKS5 proxy without a password, through which both servers are reached
    socks_proxy: str = ""
    # the rounds that a client takes part in
    policy: ClientPolicy = field(default_factory=ClientPolicy)
    # the limit for the answer to a request, from when the server has taken the last of it
    reply_timeout_s: float = 60.0
    # how long a request that got no answer is sent again
    retry_limit_s: float = 3600.0
    # how long to wait for a round to open, or for its result
    wait_timeout_s: float = 86400.0
    # the time between two requests while waiting
    poll_interval_s: float = 0.5
    # whether values beyond the range of a round's method are cut, with a warning, and no error
    saturate: bool = False

    def __post_init__(self) -> None:
        check_cohort(self.cohort)
        check_whole("weight", self.weight, 0, MOST_WEIGHT)
        if self.socks_proxy:
            host_and_port(self.socks_proxy)
        for name in ("reply_timeout_s", "retry_limit_s", "wait_timeout_s", "poll_interval_s"):
            what = "more than 0 seconds and finite"
            check_number(name, getattr(self, name), 0, float_info.max, what)
        for what in ("address", "public_key", "signing_key"):
            if getattr(self.s0, what) == getattr(self.s1, what):
                raise ConfigError(
                    "[s0] and [s1] must name two servers, because a server that gets both "
                    f"shares of an update knows the update: both have the same {what}; correct "
                    "one"
                )

        if self.policy.RATE in self.policy.at_most and not self.state_dir:
            raise ConfigError(
                "[policy] limits something that a client without a state_dir forgets when it "
                f"ends: {self.policy.RATE}; set state_dir"
            )

    @property
    def state_folder(self) -> Path | None:
        """The folder for what is kept, one per cohort; None if nothing is kept."""
        if not self.state_dir:
            return None
        named = self.cohort != DEFAULT_COHORT
        return Path(f"{self.state_dir}-{self.cohort}" if named else self.state_dir)

    @classmethod
    def load(cls, path: str | Path, cohort: str = "") -> Self:
        """Read and check a configuration; a `cohort` replaces its own. Raises ConfigError."""
        path = Path(path)
        values = read_toml(path)
        check_key_places(values, str(path))
        if "policy" in values:
            values["policy"] = without_switch(values["policy"], f"{path}: [policy]")
        config = build(cls, values, str(path))
        if cohort:
            config = replace(config, cohort=cohort)
        return replace(
            config,
            key_file=str(path.parent / config.key_file),
            state_dir=str(path.parent / config.state_dir) if config.state_dir else "",
        )
