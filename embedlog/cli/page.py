"""`embedlog ui`: serves the page of a log to browsers, until it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import secrets
import signal
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..clients.serializers import Serializer
from ..cluster.network.server import bind, listen
from ..errors import EmbedlogError
from ..log import Log
from ..sql.sandbox import Limits
from .arguments import LOG, Command, arg, defaults, is_over_wire, positive
from .long_running import Stop, Stopped, log_messages, port
from .opening import reader, writer
from .page_security import SECURITY_OPTIONS, Security, address, hosts, security
from .serializers import SERIALIZER, serializers
from .ui import UI

_DESCRIPTION: Final = """\
Serve a page that shows a log: its topics, records, groups and queues. Of a directory it reads the files,
without a lock; of brokers it is a client. Only this machine can open it, and only with the token in the
address that is printed.

With --secure the page of a directory is for other machines, too, by --host: visitors log in as users of the
log (embedlog users), over HTTPS, and each may see and change what ACLs allow (embedlog acls).

With --writable the page can reset groups and redrive dead letters; each change is confirmed, and logged on
standard error. A directory then needs its writer's lock, or a writer that shares it."""
_LOCK: Final = "Takes no lock, unless --writable is given."
_PORT: Final = 9480
_BACKLOG: Final = 100
_MOST_CONNECTIONS: Final = 500
_PATIENCE_MS: Final = 5_000  # for brokers that are down: the page says so
_MEGABYTE: Final = 1_000_000


def commands() -> Iterator[Command]:
    limits = Limits()
    yield Command("ui", "show a log in the browser", _LOCK, run, _DESCRIPTION).takes(
        LOG,
        arg("--port N", f"the port to listen on; 0: a free one ({_PORT})", type=port, default=_PORT),
        arg("--writable", "let the page change what it shows"),
        *SECURITY_OPTIONS,
        SERIALIZER,
        arg(
            "--table TABLE...",
            "a table that `embedlog load` loads from this log, to show how far it is; repeatable",
        ),
        arg(
            "--query-timeout SECONDS",
            f"end a query in SQL that takes longer ({limits.timeout_s})",
            type=positive,
            default=limits.timeout_s,
        ),
        arg(
            "--query-memory MB",
            f"what a query in SQL may use, in megabytes ({limits.memory_bytes // _MEGABYTE:,})",
            type=positive,
            default=limits.memory_bytes // _MEGABYTE,
        ),
        arg("--open", "open the page in the browser"),
        arg("--json", "print a JSON object with the address"),
        defaults(refused="Without --writable the page needs no lock."),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    try:
        importlib.import_module("uvicorn")
    except ModuleNotFoundError as error:
        if error.name != "uvicorn":
            raise
        raise EmbedlogError("the page needs uvicorn: pip install 'embedlog[ui]'") from error
    from ..ui.guard import say_who

    of_topics = serializers(args.serializer)
    with Stop() as stop, contextlib.ExitStack() as ends:
        try:
            secured = security(args)
            if secured is not None:
                ends.enter_context(secured)
            log_messages("text", "info" if args.writable or secured else "warning")
            for handler in logging.getLogger("embedlog").handlers:
                handler.addFilter(say_who)
            patience: dict[str, Any] = (
                {"default_api_timeout_ms": _PATIENCE_MS} if is_over_wire(args.directory) else {}
            )
            opened = writer(args, ui, **patience) if args.writable else reader(args, **patience)
            with opened as log:
                _serve(args, ui, log, secured, of_topics, stop)
        except Stopped:
            pass
    return 0


def _serve(
    args: argparse.Namespace,
    ui: UI,
    log: Log,
    secured: Security | None,
    of_topics: Mapping[str, Serializer[Any]],
    stop: Stop,
) -> None:
    """Serve the page until a signal comes."""
    import uvicorn

    from ..ui import application

    listening = bind(args.host, args.port)
    listen(listening, _BACKLOG)  # before the address is printed
    number = listening.getsockname()[1]
    token = None if secured else secrets.token_urlsafe(18)
    limits = Limits(args.query_timeout, args.query_memory * _MEGABYTE)
    app = application(
        log,
        writable=args.writable,
        hosts=hosts(args, number),
        token=token,
        users=secured.users if secured else None,
        access=secured.access if secured else None,
        serializers=of_topics,
        tables=args.table,
        query_limits=limits,
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=1,
        server_header=False,
        proxy_headers=False,  # else a visitor could claim another address
        limit_concurrency=_MOST_CONNECTIONS,
        ws="none",
    )
    config.load()
    if secured is not None:
        config.ssl = secured.context()
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="embedlog-ui")
    serving.start()
    scheme, token_query = "https" if secured else "http", f"?token={token}" if token else ""
    url = f"{scheme}://{address(args, number)}/{token_query}"
    _announce(args, ui, url, secured)
    if args.open:
        webbrowser.open(url)
    stop.is_awaited = True
    number = stop.wait()
    app.state.site.stop()
    server.should_exit = True
    serving.join()
    if number == signal.SIGINT and ui.out.isatty():
        ui.line()  # the terminal has written ^C


def _announce(args: argparse.Namespace, ui: UI, url: str, secured: Security | None) -> None:
    if args.json:
        of_users = {} if secured is None else {"client_properties": secured.client_file or None}
        ui.json({"address": url} | of_users)
    else:
        ui.line(f"the page is at  {url}")
        if secured is None:
            ui.line("                (this machine only; Ctrl-C stops it)")
        else:
            ui.line("                (users of the log can log in; Ctrl-C stops it)")
            if secured.client_file:
                ui.line(f"administrator   admin, whose password is in {secured.client_file}")
    ui.flush()
