"""Who sends a request, as Kafka names it: `User:alice`.

Source: Kafka's `KafkaPrincipal`; KIP-50 (authorization by principal).
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """An authenticated identity."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""The principal of every connection while there is no authentication."""
