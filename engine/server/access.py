"""Who may call a route: what a key opens, and what browsers say of the page that asks.

A server on loopback without keys would answer to every page that its user's browser shows. Two things keep them out:
the Host header, which names another site when a page made its own name point here, and the Origin header, which
names the page's site.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from engine.keys import KeyDigest, digest, is_one_of, name_of
from engine.server.errors import ApiError
from engine.server.origins import is_loopback, normal_origin, split_host
from engine.server.settings import Access

if TYPE_CHECKING:  # handlers ask for a client's name
    from engine.server.routes import Handler, Route, Who

_NAME = web.RequestKey("client_name", str)
_PAGE = web.RequestKey("allowed_origin", str)  # of the page that asks, if it may
_STRICTEST: tuple[Who, ...] = ("anyone", "client", "admin")
_EXPOSED, _TAKEN = "X-Request-Id, Retry-After", "Authorization, Content-Type, X-Request-Id"
_PREFLIGHT_SECONDS = 600


def client_name(request: web.Request) -> str:
    """Whose request it is: a digest of its key, or its address. Never the key itself."""
    return request.get(_NAME) or request.remote or "unknown"


def is_stranger(request: web.Request, access: Access) -> bool:
    """Whether a request shows no key that is known, where there are keys."""
    return bool(access.api_keys or access.admin_keys) and _NAME not in request


class Gate:
    """Decides who may pass."""

    def __init__(self, access: Access, routes: Sequence[Route]) -> None:
        self._access = access
        self._who = {(route.method, _canonical(route.path)): route.who for route in routes}
        self._paths = [(_pattern(route.path), route.who) for route in routes]
        self._methods = ", ".join(sorted({route.method for route in routes}))

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        name = _host(request)
        who = self._who_may(request)
        page = self._allowed_page(request)
        if page is not None:
            request[_PAGE] = page
        if who != "anyone":
            self._check_host(name)
            _check_page(request, page)
        if page is not None and request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return self._preflight()
        self._check_key(request, who)
        return await handler(request)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Tell browsers which page may read an answer: a handler of `on_response_prepare`, for errors need it too."""
        if self._access.allowed_origins:
            vary = response.headers.get(hdrs.VARY)
            response.headers[hdrs.VARY] = f"{vary}, {hdrs.ORIGIN}" if vary else hdrs.ORIGIN
        page = request.get(_PAGE)
        if page is not None:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = page
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED

    def _who_may(self, request: web.Request) -> Who:
        """By the table; for another method the strictest of the path's routes, and a client's key for other paths."""
        resource = request.match_info.route.resource
        if resource is not None:
            method = "GET" if request.method == "HEAD" else request.method
            return self._who[method, resource.canonical]
        found = [who for pattern, who in self._paths if pattern.fullmatch(request.path)]
        return max(found, key=_STRICTEST.index, default="client")

    def _check_host(self, name: str | None) -> None:
        access = self._access
        if not access.on_loopback or name is None or is_loopback(name) or name in access.allowed_hosts:
            return
        raise _forbidden(
            f"the Host header names {name}, which is no name of this server; --allowed-host at its start adds one"
        )

    def _allowed_page(self, request: web.Request) -> str | None:
        given = request.headers.getall(hdrs.ORIGIN, [])
        page = given[0] if len(given) == 1 else ""
        return page if normal_origin(page) in self._access.allowed_origins else None

    def _preflight(self) -> web.Response:
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: self._methods,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: _TAKEN,
            hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_SECONDS),
        }
        return web.Response(status=204, headers=headers)

    def _check_key(self, request: web.Request, who: Who) -> None:
        api, admin = self._access.api_keys, self._access.admin_keys
        if not api and not admin:
            return
        shown = _shown(request)
        is_admin = shown is not None and is_one_of(shown, admin)
        is_client = shown is not None and is_one_of(shown, api)
        if shown is not None and (is_admin or is_client):
            request[_NAME] = name_of(shown)
        if who == "anyone" or is_admin or (who == "client" and (is_client or not api)):
            return
        if is_client:
            raise _forbidden(
                "this route needs an admin key, and an API key came"
                if admin
                else "this route needs an admin key, and the server has none: --admin-key at its start sets one"
            )
        kind = "an admin key" if who == "admin" else "an API key"
        problem = "none came" if hdrs.AUTHORIZATION not in request.headers else "the one that came is not known"
        raise ApiError(
            f"this route needs {kind} (Authorization: Bearer KEY), and {problem}",
            status=401,
            code="invalid_api_key",
            headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
        )


def _forbidden(message: str) -> ApiError:
    return ApiError(message, status=403, code="forbidden")


def _host(request: web.Request) -> str | None:
    """What the Host header names; None if there is none, as with HTTP/1.0. Raises ApiError for a malformed one."""
    given = request.headers.getall(hdrs.HOST, [])
    if not given and request.version < (1, 1):
        return None
    if len(given) != 1:
        raise ApiError(f"there must be one Host header, got {len(given)}")
    try:
        return split_host(given[0])[0]
    except ValueError:
        raise ApiError("the Host header must be a name or an address, and perhaps a port") from None


def _check_page(request: web.Request, page: str | None) -> None:
    """Raises ApiError for a request that a page of another site made. Programs that are no browsers say nothing."""
    if page is not None:
        return
    given = request.headers.getall(hdrs.ORIGIN, [])
    own = normal_origin(f"{request.scheme}://{request.headers.get(hdrs.HOST, '')}")
    site = request.headers.get("Sec-Fetch-Site", "").strip().lower()
    if (given and (len(given) > 1 or own is None or normal_origin(given[0]) != own)) or site == "cross-site":
        raise _forbidden("a web page of another site asked; --allowed-origin at the server's start lets one in")


def _shown(request: web.Request) -> KeyDigest | None:
    """The digest of the key that a request shows; None: it shows none."""
    given = request.headers.getall(hdrs.AUTHORIZATION, [])
    scheme, _, shown = (given[0] if len(given) == 1 else "").partition(" ")
    return digest(shown.strip()) if scheme.lower() == "bearer" and shown.strip() else None


def _canonical(path: str) -> str:
    """As aiohttp calls the route's resource: without the places' own patterns."""
    return re.sub(r"\{(\w+):[^}]+\}", r"{\1}", path)


def _pattern(path: str) -> re.Pattern[str]:
    """A route's path, as `/engine/requests/{id}` or `/v1/models/{name:.+}`."""
    parts = re.split(r"\{\w+(?::([^}]+))?\}", path)  # fixed, the place's own pattern or None, fixed, ...
    fixed, places = parts[::2], [place or "[^{}/]+" for place in parts[1::2]]
    return re.compile("".join(re.escape(a) + b for a, b in zip(fixed, [*places, ""], strict=True)))
