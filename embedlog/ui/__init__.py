"""A page for a log: what is in it, who reads it, what failed. Served by `embedlog ui` or by an application:

    app = FastAPI()
    app.mount("/log", embedlog.ui.application(log))

    browser -- guard.py -- application.py -- pages/*.py -- the log, and the directory's segments
                                |                |
                            sampler.py, lags.py       rendering.py, plots.py, templates/, static/

The page does not involve the log's writer: it reads a directory's files without a lock, in its own process,
or is a client of brokers. One sampler collects what changes over time (rates, lags) for all visitors.

Records are hostile: every value is escaped by its template, no script or style stands in a page, and the
Content-Security-Policy forbids them. Each request does a bounded amount of work.

Needs Starlette, Jinja and uvicorn (extra `ui`).
"""

from __future__ import annotations

from ..errors import EmbedlogError

try:
    from .application import application as application
except ImportError as error:
    if error.name not in ("jinja2", "starlette"):
        raise
    raise EmbedlogError("the page needs Starlette and Jinja: pip install 'embedlog[ui]'") from error
