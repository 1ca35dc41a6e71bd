"""All paths of the admin page and of its API, with their handlers.

Knows nothing about what the handlers do, or who may ask.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from omlx.server.admincache import CacheRoutes
from omlx.server.adminkeys import KeyRoutes
from omlx.server.adminmodels import ModelRoutes
from omlx.server.adminpage import ShownRoutes
from omlx.server.adminpulls import PullRoutes
from omlx.server.adminroutes import AdminRoutes
from omlx.server.adminsettings import SettingRoutes
from omlx.server.auth import ASSET_PATH, PAGE_PATH, SESSION_PATH, Guard
from omlx.server.page.assets import read_assets
from omlx.server.page.routes import PageRoutes
from omlx.server.service import Service
from omlx.server.signin import Sessions, WrongKeys
from omlx.server.web import Handler

_API = "/admin/api"
_READ = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its methods and its handler."""

    path: str
    methods: tuple[str, ...]
    handler: Handler


def admin_routes(service: Service, guard: Guard, sessions: Sessions) -> Iterator[Route]:
    """Every route, in no order that matters."""
    wrong = WrongKeys(service.context.clock)
    yield from _page(PageRoutes(read_assets(), guard, sessions, wrong))
    yield from _shown(service, guard)
    yield from _changing(service)


def _page(page: PageRoutes) -> Iterator[Route]:
    yield Route(PAGE_PATH, _READ, page.admin_page)
    yield Route(f"{ASSET_PATH}<name:path>", _READ, page.page_asset)
    yield Route(SESSION_PATH, _READ, page.show_session)
    yield Route(SESSION_PATH, ("POST",), page.sign_in)
    yield Route(SESSION_PATH, ("DELETE",), page.sign_out)


def _shown(service: Service, guard: Guard) -> Iterator[Route]:
    shown = ShownRoutes(service, guard).handlers()
    for name, handler in {**AdminRoutes(service).handlers(), **shown}.items():
        yield Route(f"{_API}/{name}", _READ, handler)


def _changing(service: Service) -> Iterator[Route]:
    context = service.context
    keys, settings = KeyRoutes(context.keys_path), SettingRoutes(service)
    yield Route(f"{_API}/keys", _READ, keys.show_keys)
    yield Route(f"{_API}/keys", ("POST",), keys.add_key)
    yield Route(f"{_API}/keys/<name:str>", ("DELETE",), keys.remove_key)
    yield Route(f"{_API}/settings", _READ, settings.settings)
    yield Route(f"{_API}/settings/<path:str>", ("POST",), settings.set_setting)
    yield Route(f"{_API}/settings/<path:str>", ("DELETE",), settings.unset_setting)
    cache, pulls = CacheRoutes(context), PullRoutes(context, service.pulls)
    yield Route(f"{_API}/cache/prune", ("POST",), cache.prune_cache)
    yield Route(f"{_API}/requests/<request_id:str>/miss", _READ, cache.explain_miss)
    yield Route(f"{_API}/pulls", _READ, pulls.show_pulls)
    yield Route(f"{_API}/pulls", ("POST",), pulls.add_pull)
    yield Route(f"{_API}/pulls/<number:str>", ("DELETE",), pulls.cancel_pull)
    for name, handler in ModelRoutes(service).handlers().items():
        yield Route(f"{_API}/models/{name}", ("POST",), handler)
