"""The hooks of mkdocs: pages from the root of the repository, and pages that code writes."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from securemedian import cli
from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.common.policy import Policy, risks_of
from securemedian.common.receipts import Record
from securemedian.common.states import State
from securemedian.common.status import RoundStatus
from securemedian.coordinator.unattended import RunPlan
from securemedian.mpc.canonical import hints_of
from securemedian.mpc.options import options_of
from securemedian.mpc.rounds.exchange import EXCHANGES
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import ROUND_FIELDS, RoundParams
from securemedian.servers.computing import shards
from securemedian.servers.config import EngineConfig, ProtocolParams, ServerConfig
from securemedian.servers.machine.events import Effect
from securemedian.servers.machine.table import LATE, TABLE, Transition, always
from securemedian.servers.metrics import METRICS
from securemedian.servers.network import control
from securemedian.servers.network.control import RoundMessage
from securemedian.servers.rounds.requests import OPS

ROOT = Path(__file__).parent.parent
# pages in the root of the repository, where people look first
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "EXPERIMENTS.md", "SECURITY.md")
SAMPLES = Path(__file__).parent / "samples"
FIGURES = Path(__file__).parent / "figures"
# of this release, and of 1.0's audit, which 1.1 does not have
ROGUE_SERVERS = "rogue-servers.json", "rogue-servers-1.0.json"
# the classes that read each file and its tables
DEFAULTS: dict[str, dict[str, type]] = {
    "client.toml": {
        "client.toml and coordinator.toml": ClientConfig,
        "[policy] of client.toml": ClientPolicy,
    },
    "s0.toml": {
        "s0.toml and s1.toml": ServerConfig,
        "[protocol]": ProtocolParams,
        "[engine]": EngineConfig,
    },
    "run.toml": {"run.toml": RunPlan},
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root and the generated ones."""
    for name in PAGES:
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    for name, write in (("commands", commands), ("settings", settings), ("states", states)):
        files.append(File.generated(config, f"{name}.md", content=write()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to the root's pages at their places in the site, and write tables."""
    markdown = re.sub(r"<!-- table: (\w+) -->", lambda found: TABLES[found[1]](), markdown)
    return re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, PAGES))})", r"](\1", markdown)


def commands() -> str:
    """Return the help of every verb as a page."""
    parts = [f"## {title}\n\n```text\n{text}\n```" for title, text in cli.helps().items()]
    return "\n\n".join(["# Commands", *parts])


def settings() -> str:
    """Return a page of all commented sample files, and the defaults."""
    parts = ["# Configuration files", _SETTINGS]
    for path in sorted(SAMPLES.glob("*.toml")):
        parts += [f"## {path.name}", f"```toml\n{path.read_text('utf-8').rstrip()}\n```"]
        parts += [_defaults(title, kind) for title, kind in DEFAULTS.get(path.name, {}).items()]
        parts += [_policy()] if path.name == "s0.toml" else []
    return "\n\n".join(parts)


def states() -> str:
    """Return the state table of each server as a page."""
    parts = ["# The states of a round", _STATES, _actions()]
    for party in (0, 1):
        parts += [f"## S{party}", _transitions(party), f"### Late at S{party}", _late(party)]
    return "\n\n".join(parts)


def requests() -> str:
    """Return every request of clients and the coordinator, with its answer, as a table."""
    rows = []
    for name, op in OPS.items():
        callers = "any" if len(op.roles) > 1 else op.roles[0]
        takes = [told_fields(op.fields), *(f"array `{array}`" for array in sorted(op.arrays))]
        answer = " ".join((op.handler.__doc__ or "").split())
        asked = f"{callers}, S0 only" if op.leader_only else callers
        rows.append((f"`{name}`", asked, "; ".join(takes), answer))
    return _table(("request", "from", "takes", "does and answers"), rows)


def messages(kinds: Mapping[str, type]) -> str:
    """Return messages between servers as a table: the first line of each docstring, and fields."""
    rows = [
        (f"`{name}`", (kind.__doc__ or "").strip().splitlines()[0], told_fields(kind, RoundMessage))
        for name, kind in kinds.items()
    ]
    return _table(("message", "says", "has"), rows)


def params() -> str:
    """Return the parameters of a round, by the methods that have them, as a table."""
    owners: dict[str, list[str]] = {}
    found = {}
    for name, owner in [*METHODS.items(), *EXCHANGES.items()]:
        for option in options_of(owner).values():
            owners.setdefault(option.name, []).append(f"`{name}`")
            found.setdefault(option.name, option)
    rows = [
        (f"`{'`, `'.join(names)}`", "all", "", about)
        for names, about in described(RoundParams)
        if set(names) <= set(ROUND_FIELDS)
    ]
    for name, option in found.items():
        by = "all methods" if len(owners[name]) == len(METHODS) else ", ".join(owners[name])
        rows.append((f"`{name}`", by, f"`{json.dumps(option.default)}`", option.text))
    return _table(("parameter", "of", "default", "meaning"), rows)


def described(kind: type) -> list[tuple[list[str], str]]:
    """Return the fields of a dataclass, and what the comment above them says.

    Fields without a comment of their own belong to the one before them.
    """
    found: list[tuple[list[str], str]] = []
    for base in reversed(kind.__mro__):
        names = vars(base).get("__annotations__", {})
        source = inspect.getsource(base) if names else ""
        for comment, name in re.findall(r"^((?:    # .*\n)*)    (\w+): ", source, re.MULTILINE):
            if name in names and not any(name in others for others, _ in found):
                if comment or not found:
                    found.append(([], " ".join(comment.replace("    # ", " ").split())))
                found[-1][0].append(name)
    return found


def told_rows(kind: type, without: type = object) -> list[tuple[str, str]]:
    """Return the fields of a dataclass, `without` those of another, and what is said of them."""
    types = hints_of(kind)
    return [
        (", ".join(f"`{name}` {_type(types[name])}" for name in names), about)
        for names, about in described(kind)
        if not set(names) & set(vars(without).get("__annotations__", {}))
    ]


def told_fields(kind: type, without: type = object) -> str:
    """Return the fields as `told_rows` does, as the cell of a table."""
    return "; ".join(f"{names}: {about}" for names, about in told_rows(kind, without))


def metrics() -> str:
    """Return the metrics of a server, with their labels, as a table."""
    rows = [
        (f"`securemedian_{name}`", ", ".join(f"`{label}`" for label in labels), about)
        for name, (about, *labels) in METRICS.items()
    ]
    return _table(("metric", "labels", "meaning"), rows)


def rogue_servers() -> str:
    """Return the measured leaks to rogue servers as a table: `scripts/rogue --json` made the files.

    Bits per coordinate stand as "about one client / about the sum of all".
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in (row for name in ROGUE_SERVERS for row in json.loads((FIGURES / name).read_text())):
        at, security = (row["attack"], row["method"]), row["security"]
        first = {"rogue": f"`{at[0]}`", "does": row["about"], "method": f"`{at[1]}`"}
        # a deviation from the authenticated bisect has no other column
        first |= dict.fromkeys(_SECURITIES, "-" if security == "malicious" else "refused")
        cells = rows.setdefault(at, first | {"noticed by": row["when"].partition(": ")[0]})
        found = row["noticed"] and cells["noticed by"] == "never"
        bits = f"{row['client_bits']:.3g} / {row['sum_bits']:.3g}"
        cells[security] = f"{bits}, found" if found else bits
    head = ("rogue", "does", "method", *_SECURITIES, "noticed by")
    return _table(head, [tuple(cells[name] for name in head) for cells in rows.values()])


_SECURITIES = "semi-honest", "bounded", "1.0's audit", "malicious"


def _type(hint: Any) -> str:
    name = str(hint.__name__ if isinstance(hint, type) else hint)
    # a bar would end the cell
    return name.replace("typing.", "").replace(" | ", " or ")


# by name, what stands for `<!-- table: NAME -->` on a page
TABLES: dict[str, Callable[[], str]] = {
    "requests": requests,
    "servers": lambda: messages(control.KINDS),
    "shards": lambda: messages(shards.KINDS),
    "params": params,
    "status": lambda: _table(("field", "says"), told_rows(RoundStatus)),
    "record": lambda: _table(("field", "says"), told_rows(Record)),
    "metrics": metrics,
    "rogue_servers": rogue_servers,
}

_SETTINGS = """Every key of every file, with its meaning. Values are examples; the defaults follow
each file. A number or text without a default is required. An unknown key is an error.
`securemedian keygen` writes the files of two servers, a coordinator and clients. See also
[deploying](deploying.md) and the [commands](commands.md)."""

_STATES = """This page is generated from the table that the servers run, `servers/machine/table.py`.
At an event a server takes the first line whose condition holds, and does its actions in order. If
*next* is empty, the round stays in its state. [On the wire](wire.md#the-states-of-a-round) explains
the messages, and events without a line."""


def _actions() -> str:
    """Return a list of the actions, from the comments above the members of `Effect`."""
    source = inspect.getsource(Effect)
    members = re.findall(r"((?:    # .*\n)+)    [A-Z_]+ = \"(.*)\"", source)
    return "\n".join(
        f"- *{name}*: {' '.join(comment.replace('#', '').split())}" for comment, name in members
    )


def _defaults(title: str, kind: Any) -> str:
    rows = [
        (f"`{one.name}`", f"`{json.dumps(one.default)}`")
        for one in fields(kind)
        if isinstance(one.default, str | bool | int | float)
    ]
    return _table((f"key of {title}", "default"), rows)


def _policy() -> str:
    """Return a table of [policy]: lines with a default, and the values they refuse."""
    policy = Policy()
    lines = {"methods": policy.methods, **policy.allowed, **policy.at_most}
    rows = [
        (
            f"`{key}`",
            f"`{json.dumps(value)}`",
            "; ".join(
                f"`{risk}`: {why}"
                for risk, why in risks_of("method" if key == "methods" else key).items()
            ),
        )
        for key, value in lines.items()
    ]
    return _table(("line of [policy]", "default", "refused by default"), rows)


def _transitions(party: int) -> str:
    order = list(State)
    table = sorted(TABLE[party].items(), key=lambda item: order.index(item[0][0]))
    return _table(
        ("in state", "at", "if", "next", "does"),
        [_row(state, event, line) for (state, event), lines in table for line in lines],
    )


def _row(state: State, event: type, line: Transition) -> tuple[str, ...]:
    actions = (
        action.value if isinstance(action, Effect) else f"send {_event(action)}"
        for action in line.actions
    )
    return (
        state.value,
        _event(event),
        "" if line.when is always else _sentence(line.when).removeprefix("return whether "),
        "" if line.to is state else f"**{line.to}**",
        "; ".join(actions),
    )


def _late(party: int) -> str:
    rows = [(state.value, _event(kind), why) for (state, kind), why in LATE[party].items()]
    return _table(("in state", "may come late", "because"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _event(kind: type) -> str:
    return f"`{kind.__name__.lower()}`" if issubclass(kind, RoundMessage) else _sentence(kind)


def _sentence(what: Any) -> str:
    """Return the first line of a docstring, as part of a sentence."""
    sentence = (what.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return sentence[0].lower() + sentence[1:]
