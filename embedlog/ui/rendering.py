"""Templates to HTML. Everything that is put into one is escaped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..model import NO_TIMESTAMP
from ..units import counted, duration, iso, moment, record_time, size
from ..wording import visible, visible_in_a_line

_THEMES: Final = ("light", "dark")


def _number(value: float) -> str:
    """1,234,567; a rate below ten has a decimal."""
    return f"{value:,.1f}" if 0 < value < 9.95 and value != int(value) else f"{value:,.0f}"


def _field(timestamp_ms: int) -> str:
    """A time as a form's field has it, to the second; empty if there is none."""
    return moment(timestamp_ms).replace(" ", "T") if timestamp_ms != NO_TIMESTAMP else ""


def _finalized(value: object) -> object:
    """Texts as a page shows them, wherever they come from: hostile names cannot turn it around."""
    return visible(value) if type(value) is str else value


def _exact(value: object) -> Markup:
    """As it is, for a form's field, which is sent back."""
    return escape(value)


def _name(text: str, most: int = 80) -> str:
    """A name chosen by a client, for one line: shortened, with control and direction characters escaped."""
    shown = visible_in_a_line(text[: most + 1])
    return shown if len(text) <= most else f"{shown[:most]}…"


_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("embedlog.ui"),
    autoescape=True,
    finalize=_finalized,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: Final[dict[str, Callable[..., str]]] = {
    "counted": counted,
    "duration": duration,
    "exact": _exact,
    "field": _field,
    "iso": iso,
    "moment": moment,
    "name": _name,
    "number": _number,
    "record_time": record_time,
    "size": size,
}
_ENVIRONMENT.filters.update(_FILTERS)


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page of a template.

    The template also knows: `base`, before the path of each link; `csrf`, for each form; `writable`; `path`,
    the log's; `theme`, if the visitor chose one; `here`, the request's own path; `user`, who has logged in.
    """
    base = request.scope.get("root_path", "")
    theme = request.cookies.get("embedlog_theme", "")
    return HTMLResponse(
        _ENVIRONMENT.get_template(template).render(
            base=base,
            csrf=request.state.csrf,
            here=request.url.path.removeprefix(base),
            site=request.app.state.site,
            theme=theme if theme in _THEMES else "",
            user=request.state.user,
            **values,
        ),
        status,
    )


def see_other(request: Request, where: str, **query: str) -> Response:
    """Leads to a page after a change."""
    base = request.scope.get("root_path", "")
    return RedirectResponse(f"{base}{where}{'?' if query else ''}{urlencode(query)}", 303)


def part(template: str, **values: Any) -> str:
    """A part of a page, as it is sent to one that is open already."""
    return _ENVIRONMENT.get_template(template).render(**values)
