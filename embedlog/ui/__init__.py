"""A page for a log: what is in it, who reads it, what failed. Served by `embedlog ui` or by an application:

    app = FastAPI()
    app.mount("/log", embedlog.ui.application(log))

    browser -- guard.py -- application.py -- pages/*.py -- the log, and the directory's segments
                                |                |
                            sampler.py       rendering.py, plots.py, templates/, static/

The page asks nothing of whoever writes the log: of a directory it reads the files, without a lock, in a
process of its own; of brokers it is a client. What changes over time (rates, lags) a sampler looks at, once
for all visitors.

Records are read for a page by reading.py, for one that stays open by streaming.py (a tail, a search in the
language of query.py); values.py shows their bytes.

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
