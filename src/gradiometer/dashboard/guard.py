"""Who may ask, and for what: the door in front of every route.

Only GET (and, with `write`, POST to one address), only under a name we serve (a page elsewhere
whose name was rebound to this machine gets nothing), not from within another site's page (it could
not read the answer, but make us work), with the token where there is one; and every answer tells
the browser to run no script but ours and to show us in nobody's frame.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradiometer.dashboard.answer import encode
from gradiometer.dashboard.shape import Problem

__all__ = ["LOOPBACK", "MANAGE", "OUR_HEADER", "Guard", "problem"]

MANAGE = "/manage.json"
"""The one address that takes a POST."""
OUR_HEADER = "x-gradiometer"
"""No form of another site can send it, and no script without asking first, which is refused."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
COOKIE = "gradiometer"
MOST_TRIES, TRY_SECONDS = 10, 60.0
"""Wrong tokens that a client may give in so many seconds."""
MOST_CLIENTS = 10_000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
    " blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class WrongTokens:
    """Wrong tokens by client: after some in a minute, that client has to wait."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def note(self, client: str) -> None:
        """One more from this client."""
        times = self._recent(client)
        self._times.pop(client, None)
        self._times[client] = [*times, time.monotonic()][-MOST_TRIES:]
        while len(self._times) > MOST_CLIENTS:
            self._times.pop(next(iter(self._times)))

    def too_many(self, client: str) -> bool:
        """Whether this client has tried often enough."""
        return len(self._recent(client)) >= MOST_TRIES

    def _recent(self, client: str) -> list[float]:
        since = time.monotonic() - TRY_SECONDS
        return [when for when in self._times.get(client, ()) if when > since]


class Guard:
    """Middleware. `hosts` are the names we answer to; None, which needs a token, is any."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] | None,
        token: str = "",
        write: bool = False,
    ) -> None:
        if hosts is None and not token:
            raise ValueError("who answers to every name needs a token")
        self._app = app
        self._hosts = None if hosts is None else frozenset(name.lower() for name in hosts)
        self._token = token
        self._write = write
        self._session = secrets.token_urlsafe(32)
        self._tries = WrongTokens()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: there are none, and the server says 403
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = _host(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            names = " or ".join(sorted(self._hosts))
            why = f"not served under the name {host!r}: open it as {names}"
            return problem(403, "forbidden", why)
        if scope["method"] not in ("GET", "HEAD"):
            refusal = self._not_writing(scope, headers)
            if refusal is not None:
                return refusal
        if "websocket" in headers.get("upgrade", "").lower():
            return problem(400, "bad-request", "there are no websockets here: /live is a stream")
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if site == "cross-site" and mode != "navigate":
            return problem(
                403, "forbidden", "not served to pages of other sites: open it in a tab of its own"
            )
        return self._without_token(scope, headers) if self._token else None

    def _not_writing(self, scope: Scope, headers: Headers) -> Response | None:
        """None for a change that our own page, or a program, asks for."""
        method = scope["method"]
        if not self._write or method != "POST" or scope["path"] != MANAGE:
            how = "" if self._write else " (gradiometer serve --write allows notes and the bin)"
            said = f"{method} is not allowed: nothing here can be changed{how}"
            return problem(405, "bad-request", said)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if headers.get(OUR_HEADER) != "1" or kind != "application/json":
            return problem(403, "forbidden", f"a change needs JSON and the header {OUR_HEADER}: 1")
        origin = headers.get("origin")  # every browser sends it with a POST; programs send none
        if origin is not None and not _is_own(origin, headers.get("host", "")):
            return problem(403, "forbidden", "not changed for pages of other sites")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return problem(403, "forbidden", "not changed for pages of other sites")
        return None

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token", "")
        client = str((scope.get("client") or ("", 0))[0])
        if self._tries.too_many(client) and not _same(_cookie(headers), self._session):
            return problem(
                429, "forbidden", f"too many wrong tokens: try again in {TRY_SECONDS:.0f} seconds"
            )
        if given and _same(given, self._token):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            clean = _own_path(scope["path"]) + (f"?{rest}" if rest else "")
            answer = RedirectResponse(clean, status_code=303)
            answer.set_cookie(COOKIE, self._session, httponly=True, samesite="strict", path="/")
            return answer
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if _same(bearer, self._token) or _same(_cookie(headers), self._session):
            return None
        if given or bearer:
            self._tries.note(client)
        return problem(
            401, "forbidden", "a token is needed: open the address that `gradiometer serve` printed"
        )


def problem(status: int, error: str, message: str) -> Response:
    """The one shape of every error."""
    body = encode(Problem(error=error, message=message))
    return Response(body, status, media_type="application/json")


def _host(given: str) -> str:
    """The name without its port, `[::1]:80` being `::1`."""
    given = given.strip().lower()
    if given.startswith("["):
        return given[1:].partition("]")[0]
    return given.rpartition(":")[0] if given.count(":") == 1 else given


def _is_own(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.strip().lower()


def _own_path(path: str) -> str:
    """So that `//evil.example` stays a path of ours."""
    return "/" + path.lstrip("/\\")


def _same(given: str, wanted: str) -> bool:
    return bool(given) and hmac.compare_digest(given.encode(), wanted.encode())


def _cookie(headers: Headers) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return ""
    found = jar.get(COOKIE)
    return found.value if found else ""
