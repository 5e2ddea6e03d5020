"""The dashboard's web server: one page, and what it shows as JSON. It changes nothing.

Nothing the page needs comes from elsewhere, and the browser is told to load nothing else: the
`Content-Security-Policy` allows the page's own script and style by their hashes. It answers only
requests to an address, or to a name that it was given. Another page, under a name that leads here,
cannot read the answers.
"""

import base64
import hashlib
import re
import signal
import sys
from collections.abc import Callable, Collection
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import connect
from securemedian.common.addresses import bracketed, host_and_port, is_loopback
from securemedian.common.http import listening, server_of
from securemedian.common.keys import load_keys
from securemedian.coordinator.dashboard.watch import ANSWER_S, Watch
from securemedian.mpc.errors import ConfigError, InputError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

# the requests that are answered at a time
MOST_REQUESTS = 32


def page() -> tuple[bytes, dict[str, str]]:
    """Return the page and the headers of everything that is answered."""
    text = files("securemedian.coordinator.dashboard").joinpath("page.html").read_text("utf-8")
    script, style = (
        f"'sha256-{_digest(part)}'"
        for tag in ("script", "style")
        for part in re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    )
    policy = {
        "default-src": "'none'",
        "script-src": script,
        "style-src": style,
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return text.encode(), {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


def _digest(part: str) -> str:
    return base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()


def make_app(view: Callable[[], bytes], local: bool, names: Collection[str] = ()) -> "Starlette":
    """Return the application for JSON from `view`, at `names` and addresses, or loopback alone."""
    try:
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise _missing() from error
    html, headers = page()

    def guarded(make: "Callable[[], Response]") -> "Callable[[Request], Response]":
        def answer(request: "Request") -> "Response":
            asked = _name_in(request.headers.get("host", ""))
            # nobody else's page can have an address as its own
            if not (asked in names or is_loopback(asked) or not local and _is_address(asked)):
                text = "not a name of this dashboard: ask for its address, or give it --host\n"
                return PlainTextResponse(text, 421, headers)
            return make()

        return answer

    return Starlette(
        routes=[
            Route("/", guarded(lambda: Response(html, 200, headers, "text/html"))),
            Route("/state", guarded(lambda: Response(view(), 200, headers, "application/json"))),
        ]
    )


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, without the port."""
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).strip("[]")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _missing() -> ConfigError:
    return ConfigError(
        "starlette or uvicorn is missing: the dashboard needs both; run pip install "
        "'.[dashboard]' in a clone"
    )


def serve(
    config: ClientConfig,
    listen: str,
    names: Collection[str],
    output: Path | None,
    report: Callable[[str], Any],
) -> None:
    """Serve the dashboard, also under `names`, until Ctrl-C; `report` is told where it is.

    Raises ConfigError if it cannot listen there, and InputError if `output` is not a folder.
    """
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise _missing() from error
    if output and output.exists() and not output.is_dir():
        raise InputError(f"not a folder: {output}; name the `output` of a run")
    host, _ = host_and_port(listen)
    watch = Watch(
        connect(config, load_keys(config.key_file), ANSWER_S),
        [config.s0.signing_key, config.s1.signing_key],
        output,
    )
    app = make_app(watch.view, is_loopback(host), {host, *names})
    bound = listening(listen)
    server = server_of(app, log_level="warning", limit_concurrency=MOST_REQUESTS)
    # uvicorn ends in order, and then raises the signal again
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    shown = bracketed(host)
    if not is_loopback(host):
        report(
            f"securemedian: warning: everybody who reaches {shown} sees the dashboard, names of "
            "clients included: it asks for no password"
        )
    if output and not output.exists():
        report(f"{output} is not there yet: its rounds are shown once `coordinate` has made it")
    with bound, watch:
        report(f"the dashboard is at http://{shown}:{bound.getsockname()[1]}/ (Ctrl-C ends it)")
        server.run(sockets=[bound])
