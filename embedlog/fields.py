"""Classes of annotated fields: what `dataclasses` offers, without code generated at import.

    class StoredTopic(Fields, frozen=True):
        name: str                                must be given
        partitions: int = 1                      a default, shared by all instances
        tags: list = field(default_factory=list) a new one for each instance

A dataclass compiles up to six methods when its module is imported: a third to one millisecond each, which a
small program would pay before its first record. Here the methods are shared and loop over the fields, so an
instance takes a microsecond longer to make: for what is made by the million there are named tuples.

Invariants: a frozen instance changes only in `__post_init__`, through `__dict__`. Equality is that of the
class and all fields; only frozen instances can be hashed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Self, TypeVar, dataclass_transform

_T = TypeVar("_T")
_REQUIRED: Final = object()


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


class _Made:
    """A default that is made for each instance."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


def field(*, default_factory: Callable[[], _T]) -> _T:
    """The default of a field that each instance has to itself."""
    return _Made(default_factory)  # type: ignore[return-value]


@dataclass_transform(field_specifiers=(field,))
class Fields:
    """The base: fields are given to the constructor in the order of their definition, or by name."""

    fields: ClassVar[dict[str, Any]] = {}  # name -> default, as defined

    def __init_subclass__(cls, *, frozen: bool = False) -> None:
        own_fields = {
            name: vars(cls).get(name, _REQUIRED)
            for name, annotation in cls.__annotations__.items()
            if not str(annotation).startswith("ClassVar")
        }
        cls.fields = {**cls.fields, **own_fields}
        if frozen:
            cls.__setattr__ = _refuse  # type: ignore[assignment,method-assign]
            cls.__hash__ = _hash  # type: ignore[assignment,method-assign]

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self.fields
        positional = dict(zip(fields, values, strict=False))
        if len(positional) < len(values) or named.keys() - fields.keys() or named.keys() & positional.keys():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(fields)}, each given once")
        complete = {**fields, **positional, **named}
        for name, value in complete.items():
            if value is _REQUIRED:
                raise TypeError(f"{type(self).__name__} needs {name}")
            if type(value) is _Made:
                complete[name] = value.make()
        self.__dict__.update(complete)
        self.__post_init__()

    def __post_init__(self) -> None:
        """For subclasses: derive attributes from the fields."""

    def replaced(self, **changes: Any) -> Self:
        """A copy with some fields replaced."""
        return type(self)(**{**self.as_dict(), **changes})

    def as_dict(self) -> dict[str, Any]:
        """Name -> value, in order of definition."""
        return {name: getattr(self, name) for name in self.fields}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__qualname__}({shown})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.as_dict() == other.as_dict()


def _refuse(self: Fields, name: str, value: object) -> None:
    raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")


def _hash(self: Fields) -> int:
    return hash(tuple(self.as_dict().values()))
