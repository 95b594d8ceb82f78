"""The libraries of the extra `security`, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import InvalidArgument


def scramp() -> Any:
    """Raises InvalidArgument if it is not installed."""
    return _imported("scramp", "scramp.core", "scramp.utils")


def jwt() -> Any:
    """PyJWT, with cryptography. Raises InvalidArgument."""
    _imported("cryptography")
    return _imported("jwt")


def _imported(*names: str) -> Any:
    try:
        modules = [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise InvalidArgument(
            f"authentication needs {names[0]} ({error}): pip install 'embedlog[security]'"
        ) from None
    return modules[0]
