"""The page as an ASGI application: its routes, and what they share.

Site     the log, its directory, the sampler: what every page looks at
pages/   a module for each page: `routes()`

Where visitors log in, each user has an application of his own, of the same pages, which looks at the log as
he may see it (seen.py). What guests see is another one: the form.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from ..errors import EmbedlogError
from ..errors.public import public_message
from ..open import client_settings_of
from ..open import open as open_log
from ..security.acls import Operation
from ..security.principal import Principal
from ..sql.sandbox import Limits, Sandbox
from ..store.read_only_store import ReadOnlyStore
from .guard import Guard, Refused
from .login import Login
from .pages import activity, groups, overview, queues, record, records, sql, topic, transactions
from .rendering import page
from .sampler import Sampler
from .streaming import Streams

if TYPE_CHECKING:
    from ..clients.serializers import Serializer
    from ..cluster.broker.access.access import Access, AccessControl
    from ..log import Log
    from ..security.users import UserStore

_STATIC = os.path.join(os.path.dirname(__file__), "static")


class Site:
    """What the pages look at.

    store: the directory's segments; None of brokers. serializers: of topics' values. tables: directories.
    message_of: what the visitor may read of an error.
    """

    def __init__(
        self,
        log: Log,
        writable: bool,
        serializers: Mapping[str, Serializer[Any]],
        tables: Sequence[str],
        query_limits: Limits,
    ) -> None:
        self.log = log
        self.writable = writable
        self.serializers = serializers
        self.tables = tables
        self.streams = Streams()
        self.downloads = sql.Notes()
        self.store = ReadOnlyStore(log.path) if os.path.isdir(log.path) else None
        self.sampler = Sampler(log, self.store)
        open_settings = {"mode": "r"} if self.store is not None else client_settings_of(log)
        self.message_of: Callable[[BaseException], str] = str
        self.sandbox = Sandbox(functools.partial(open_log, log.path, **open_settings), query_limits)

    def stop(self) -> None:
        """End streams and queries, soon: a server that stops waits for its responses. From any thread."""
        self.streams.stop()
        self.sandbox.stop()

    def seen_with(self, access: Access) -> Self:
        """What somebody may see of it. It is not closed: this one is."""
        from .seen import SeenSampler, log_for

        site = copy.copy(self)
        if not access.sees(Operation.DESCRIBE):
            site.tables, site.message_of = (), public_message
        site.log, site.sampler = log_for(self.log, access), cast(Sampler, SeenSampler(self.sampler, access))
        return site

    def close(self) -> None:
        self.stop()
        self.sampler.stop()
        if self.store is not None:
            self.store.close()


def application(
    log: Log,
    *,
    writable: bool = False,
    hosts: Collection[str] = (),
    token: str | None = None,
    users: UserStore | None = None,
    access: AccessControl | None = None,
    serializers: Mapping[str, Serializer[Any]] | None = None,
    tables: Sequence[str] = (),
    query_limits: Limits | None = None,
) -> Starlette:
    """Make the page of a log, an ASGI application to mount in another one or to serve by itself.

    Args:
        log: any open log; it stays open. The page never writes to a log that is open with mode="r".
        writable: whether visitors may make changes: reset groups, redrive dead letters.
        hosts: the values of the Host header to accept, each with its port; empty to accept any, if the
            application around the page checks them.
        token: what a visitor must show once, as `?token=...`; None if the application around the page
            authenticates visitors. Not used with `users`.
        users: the users that may log in, with their passwords; None: no login. Needs TLS: without it,
            browsers reject the session's cookie.
        access: what each of the `users` may see and do; None allows everything.
        serializers: for topics by name, the objects whose method `loads` decodes values to be shown.
        tables: directories of tables to show that are loaded from this log (`embedlog load`).
        query_limits: limits for the time, memory and results of a query in SQL.

    Raises DirectoryError, CorruptCheckpoint, InvalidSetting.
    """
    site = Site(log, writable, serializers or {}, tables, query_limits or Limits())

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        site.close()

    routes, handlers, login = _routes(), _HANDLERS, None
    if users is not None:

        def pages_of(user: str, host: str) -> Starlette:
            user_access = None if access is None else access.of(Principal("User", user), host, "ui")
            return _pages(site if user_access is None else site.seen_with(user_access), _routes(), _HANDLERS)

        login = Login(users, pages_of)
        routes, handlers = [*login.routes(), _static()], _HANDLERS_FOR_GUESTS
    guard = Middleware(Guard, hosts=hosts, token=token, authenticator=login)
    return _pages(site, routes, handlers, middleware=[guard], lifespan=lifespan)


def _pages(site: Site, routes: list[BaseRoute], handlers: Mapping[Any, Any], **options: Any) -> Starlette:
    app = Starlette(routes=routes, exception_handlers=handlers, **options)
    app.state.site = site
    return app


def _routes() -> list[BaseRoute]:
    return [
        *overview.routes(),
        *topic.routes(),
        *groups.routes(),
        *queues.routes(),
        *transactions.routes(),
        *activity.routes(),
        *record.routes(),
        *records.routes(),
        *sql.routes(),
        _static(),
    ]


def _static() -> BaseRoute:
    return Mount("/static", StaticFiles(directory=_STATIC), name="static")


async def _failed(request: Request, error: Exception) -> Response:
    return _problem(request, request.app.state.site.message_of(error))


async def _refused(request: Request, error: Exception) -> Response:
    return _problem(request, str(error))


def _problem(request: Request, problem: str) -> Response:
    return page(request, "problem.html", status=409, title="That did not work", problem=problem)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return page(request, "problem.html", status=error.status_code, title=error.detail, problem="")


async def _failed_for_a_guest(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 409)


_HANDLERS: Final[Mapping[Any, Any]] = {EmbedlogError: _failed, Refused: _refused, HTTPException: _not_found}
_HANDLERS_FOR_GUESTS: Final[Mapping[Any, Any]] = {Refused: _failed_for_a_guest}
