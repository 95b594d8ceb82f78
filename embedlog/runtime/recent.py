"""A bounded map that keeps the values put last."""

from __future__ import annotations

from typing import Generic, TypeVar

from .locks import Lock

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Recent(Generic[_Key, _Value]):
    """At most `limit` keys with values: those put last. Thread-safe; `get` is dict.get, without a lock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._values: dict[_Key, _Value] = {}  # in the order of puts; _lock
        self.get = self._values.get

    def put(self, key: _Key, value: _Value) -> None:
        """Set a key's value, and drop the key put longest ago if there are too many."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > self._limit:
                del self._values[next(iter(self._values))]
