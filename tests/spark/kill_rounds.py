"""How often each of the kill tests kills: EMBEDLOG_KILLS (2; `make test-kills` says 10).

Each killed driver is a JVM that starts anew, and on two cores that is what takes the time.
"""

from __future__ import annotations

import os
from typing import Final

KILLS: Final = int(os.environ.get("EMBEDLOG_KILLS", "2"))
