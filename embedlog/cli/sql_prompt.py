"""The prompt of `embedlog sql`: statements until `;`, with history and completion.

The history is a file that only its user can read, $XDG_STATE_HOME/embedlog/sql_history. Ctrl-C ends a query,
or takes back what was typed; Ctrl-D leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..backends.port import Backend
from ..errors import EmbedlogError, InvalidArgument, TopicNotFound
from ..sql import empty
from .problems import explain
from .ui import UI, Column

if TYPE_CHECKING:
    from prompt_toolkit.history import History

Ask: TypeAlias = Callable[[Backend, str, Mapping[str, str], argparse.Namespace, UI], None]

MODES: Final = ("table", "csv", "json", "jsonl")
_FEW: Final = 8
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_HELP: Final = (
    ("SELECT ... ;", "ask; a statement may have several lines and ends with ;"),
    (".tables", "the topics, which are tables"),
    (".schema TOPIC", "the columns of a topic, and their types"),
    (f".mode {'|'.join(MODES)}", "how results are shown"),
    (".help", "this list"),
    (".quit", "leave, as Ctrl-D does"),
)


def prompt(backend: Backend, schemas: Mapping[str, str], args: argparse.Namespace, ui: UI, ask: Ask) -> None:
    """Ask for statements and answer them until the user leaves. Errors are printed."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import ThreadedCompleter
    except ImportError as error:
        raise EmbedlogError("the prompt needs prompt_toolkit: pip install 'embedlog[sql]'") from error
    shell = _Shell(backend, schemas, args, ui, ask)
    session: Any = PromptSession(
        "sql> ",
        history=_history(),
        completer=ThreadedCompleter(_completer(shell)),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation=lambda width, number, wrapped: "...> ".rjust(width),
        key_bindings=_keys(),
    )
    ui.note(f"{args.directory}: end a statement with ;   .help tells more")
    while True:
        try:
            text = session.prompt().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if shell.leaves(text):
                return
        except KeyboardInterrupt:
            ui.note("interrupted")
        except EmbedlogError as error:
            ui.flush()
            ui.error(explain(error, args))
        ui.flush()


class _Shell:
    """What the prompt knows: the topics, their columns, how results are shown."""

    def __init__(
        self, backend: Backend, schemas: Mapping[str, str], args: argparse.Namespace, ui: UI, ask: Ask
    ) -> None:
        self._backend = backend
        self._schemas = schemas
        self._args = args
        self._ui = ui
        self._ask = ask
        self._columns: dict[str, list[tuple[str, str]]] = {}

    def leaves(self, text: str) -> bool:
        """Do what was typed. True: leave. Raises EmbedlogError, KeyboardInterrupt."""
        if text.rstrip(";").strip().lower() in (".quit", ".exit", "quit", "exit"):
            return True
        if text.startswith("."):
            self._command(text)
        elif text.rstrip(";").strip():
            self._ask(self._backend, text, self._schemas, self._args, self._ui)
        return False

    def topics(self) -> list[str]:
        names = sorted(self._backend.topics())
        return [name for name in names if not self._backend.describe_topic(name).internal]

    def columns(self, topic: str) -> list[tuple[str, str]]:
        """Names and types. Raises TopicNotFound."""
        from ..sql import connect
        from ..sql.fields import identifier

        self._backend.describe_topic(topic)
        columns = self._columns.get(topic)
        if columns is None:
            name = identifier(topic)
            schemas = {topic: self._schemas[topic]} if topic in self._schemas else None
            with connect(self._backend, name, schemas=schemas) as connection:
                described = connection.execute(f"DESCRIBE {name}").fetchall()
            columns = self._columns[topic] = [(row[0], row[1]) for row in described]
        return columns

    def _command(self, text: str) -> None:
        command, *words = text.rstrip(";").split()
        if command == ".help":
            self._ui.table([Column("input"), Column("what it does")], _HELP)
        elif command == ".tables":
            self._ui.table([Column("topic")], [[name] for name in self.topics()])
        elif command == ".schema" and len(words) == 1:
            topic = words[0].strip('"')
            self._columns.pop(topic, None)  # it may have new fields
            self._ui.table([Column("column"), Column("type", cuts=True)], self.columns(topic))
        elif command == ".mode" and words[:1] and words[0] in MODES:
            self._args.format = words[0]
        else:
            usages = [usage for usage, _ in _HELP if usage.split()[0] == command] or ["see .help"]
            raise InvalidArgument(f"{text}: {usages[0]}")


def _keys() -> Any:
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @Condition
    def is_whole() -> bool:
        from prompt_toolkit.application import get_app

        text = get_app().current_buffer.text.strip()
        return not text or text.startswith(".") or text.endswith(";") or text.lower() in ("quit", "exit")

    @keys.add("enter", filter=is_whole)
    def accept(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    return keys


def _completer(shell: _Shell) -> Any:
    """Keywords, topics, and columns: of the topics that the statement names, or of a few if it names none."""
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    class SqlCompleter(Completer):
        def get_completions(self, document: Document, event: object) -> Iterable[Completion]:
            word = re.split(r"[\s(),;=<>+*/]", document.text_before_cursor)[-1]
            for text, kind in _candidates(shell, document.text, word):
                yield Completion(text, start_position=-len(word), display_meta=kind)

    return SqlCompleter()


def _candidates(shell: _Shell, statement: str, word: str) -> list[tuple[str, str]]:
    """What may stand for a word that has begun, and what each is."""
    if statement.lstrip().startswith("."):
        command = statement.split()[0]
        if command == word:
            offered = [(usage.split()[0], "") for usage, _ in _HELP if usage.startswith(".")]
        elif command == ".schema":
            offered = [(name, "topic") for name in shell.topics()]
        else:
            offered = [(mode, "") for mode in MODES] if command == ".mode" else []
    else:
        topics = shell.topics()
        named = [topic for topic in topics if topic.lower() in statement.lower()]
        offered = []
        for topic in named or topics[:_FEW]:  # SELECT comes before FROM
            with contextlib.suppress(TopicNotFound):  # it was deleted
                offered += [(_quoted(name), kind) for name, kind in shell.columns(topic)]
        offered += [(_quoted(topic), "topic") for topic in topics]
        offered += [(name if word.islower() else name.upper(), "") for name in _keywords()]
    begun = word.lstrip('"').lower()
    fitting = [name for name in offered if begun and name[0].lstrip('"').lower().startswith(begun)]
    return list(dict.fromkeys(fitting))


def _quoted(name: str) -> str:
    """A name as a statement needs it."""
    from ..sql.fields import identifier

    return name if _PLAIN.fullmatch(name) and name.lower() not in _reserved() else identifier(name)


@functools.cache
def _keywords() -> list[str]:
    with empty() as connection:
        return [row[0] for row in connection.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()]


@functools.cache
def _reserved() -> frozenset[str]:
    with empty() as connection:
        query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
        return frozenset(row[0] for row in connection.execute(query).fetchall())


def _history() -> History:
    """Statements of earlier prompts; only of this one if there is no file to be had."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    file = Path(state) / "embedlog" / "sql_history"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(file)
