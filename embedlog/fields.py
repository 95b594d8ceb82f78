"""What dataclasses do not have of themselves: copies with changes, their fields as a dict, and secrets."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Final, Self


class Secret:
    """A text that no message shows: `repr` and `str` hide it, `reveal` returns it. Immutable."""

    __slots__ = ("_text",)

    _text: str

    def __init__(self, text: str = "") -> None:
        object.__setattr__(self, "_text", text)

    def reveal(self) -> str:
        """The text."""
        return self._text

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Secret cannot be changed")

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "[hidden]" if self._text else "''"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self._text,)


NO_SECRET: Final = Secret()
"""The default of a setting that is a secret."""


class Fields:
    """Methods for dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def replaced(self, **changes: Any) -> Self:
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Name -> value, in order of definition."""
        return {own.name: getattr(self, own.name) for own in dataclasses.fields(self)}
