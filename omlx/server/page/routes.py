"""The routes of the admin page: its files, signing in and out.

Knows nothing about what the page shows. Shapes of /admin/session:

    GET:     {"version": str, "is_open": bool, "is_signed_in": bool, "can_sign_in": bool}
    POST:    {"key": str}; the answer is {"proof": str} and the cookie
    DELETE:  {"is_signed_in": false}

"is_open" means that nobody is asked for a key. "proof" is the half of the session that the page
sends as a header; the other half is the cookie.
"""

from collections.abc import Mapping
from urllib.parse import unquote

import msgspec
from sanic.response import HTTPResponse, raw

from omlx import __version__
from omlx.server.auth import Guard
from omlx.server.body import decode
from omlx.server.errors import ApiError
from omlx.server.page.assets import INDEX, Asset
from omlx.server.signin import Sessions, WrongKeys
from omlx.server.web import Request, address_of, headers_of, json_response, read_body

_MAX_BYTES = 4096
_BODY_S = 10.0


class _SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    key: str


class PageRoutes:
    """The handlers of one server's admin page; for the loop's thread."""

    def __init__(
        self,
        assets: Mapping[str, Asset],
        guard: Guard,
        sessions: Sessions,
        wrong: WrongKeys,
    ) -> None:
        self._assets = assets
        self._guard = guard
        self._sessions = sessions
        self._wrong = wrong
        self._decoder = msgspec.json.Decoder(_SignIn)

    async def admin_page(self, request: Request) -> HTTPResponse:
        """GET /admin."""
        return self._sent(request, INDEX)

    async def page_asset(self, request: Request, name: str) -> HTTPResponse:
        """GET /admin/page/<name>."""
        return self._sent(request, unquote(name))

    async def show_session(self, request: Request) -> HTTPResponse:
        """GET /admin/session."""
        is_signed_in = self._sessions.key_of(request.headers) is not None
        return json_response(
            {
                "version": __version__,
                "is_open": self._guard.is_open,
                "is_signed_in": is_signed_in,
                "can_sign_in": self._guard.has_admin,
            }
        )

    async def sign_in(self, request: Request) -> HTTPResponse:
        """POST /admin/session; each wrong key counts against the address that it came from."""
        address = address_of(request)
        self._wrong.check(address)
        body = await read_body(request, max_bytes=_MAX_BYTES, timeout_s=_BODY_S)
        key = self._guard.admin_key(decode(self._decoder, body).key)
        if key is None:
            self._wrong.add(address)
            raise ApiError(401, "This is no API key of this server", code="wrong_key")
        begun = self._sessions.begin(key)
        answer = json_response({"proof": begun.proof})
        answer.headers["set-cookie"] = begun.set_cookie
        return answer

    async def sign_out(self, request: Request) -> HTTPResponse:
        """DELETE /admin/session."""
        answer = json_response({"is_signed_in": False})
        answer.headers["set-cookie"] = self._sessions.end(request.headers)
        return answer

    def _sent(self, request: Request, name: str) -> HTTPResponse:
        asset = self._assets.get(name)
        if asset is None:
            raise ApiError(404, "The admin page has no such file")
        headers = {"etag": asset.etag}
        if headers_of(request).get("if-none-match") == asset.etag:
            return raw(b"", status=304, headers=headers)
        return raw(asset.data, headers=headers, content_type=asset.content_type)
