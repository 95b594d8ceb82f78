"""A connection of DuckDB in which the topics that a query names are views.

    CREATE VIEW "orders" AS SELECT key, value, ..., TRY_CAST(scanned."/price" AS DOUBLE) AS "price"
        FROM a TopicDataset AS scanned, of which DuckDB reads the columns that the query needs

Only topics whose names occur in the query's text are looked at, so many topics cost nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..backends.port import Backend
from ..clients.reader import checked_isolation
from ..errors import EmbedlogError, InvalidArgument, InvalidType, shown
from ..validation import check_topic
from .scanned import Scanned

if TYPE_CHECKING:
    import duckdb

    from .bounds import Bounds
    from .dataset import Tell
    from .fields import Field

_SETTINGS: Final = {"python_enable_replacements": "false"}  # a query sees topics, not a program's variables


def connect(
    backend: Backend,
    query: str,
    *,
    schemas: Mapping[str, str | Mapping[str, str]] | None = None,
    isolation_level: str = "read_committed",
    settings: Mapping[str, Any] | None = None,
    stop: threading.Event | None = None,
    scanned: Scanned | None = None,
    topics: Collection[str] | None = None,
    tell: Tell | None = None,
) -> duckdb.DuckDBPyConnection:
    """A connection in memory that has the topics of a query, each up to its end as it is now.

    Args:
        schemas: for a topic the fields of its JSON values and their types in SQL, as "a INT, b VARCHAR" or a
            dict; by default they are inferred from its first and last records.
        settings: of DuckDB, e.g. {"memory_limit": "1GB"}.
        stop: once it is set, no scan reads on, and the query fails.
        scanned: hears how far the query's scans are.
        topics: those that the query may name; by default all that there are.
        tell: as for TopicDataset.

    Raises InvalidArgument, TopicNotFound for a schema's topic; EmbedlogError if duckdb is not installed.
    """
    try:
        import duckdb  # noqa: F401

        from . import fields
    except ImportError as error:
        raise EmbedlogError("SQL needs duckdb and pyarrow: pip install 'embedlog[sql]'") from error
    checked_isolation(isolation_level)
    _check(query)
    check_schemas(schemas)
    of_topics = {topic: fields.declared(schema) for topic, schema in (schemas or {}).items()}
    for topic in of_topics:
        backend.describe_topic(topic)
    connection = empty(settings)
    for topic in named_in(query, backend.topics() if topics is None else topics):
        columns = of_topics.get(topic)
        if columns is None:
            columns = fields.inferred(backend, topic, isolation_level)
        create_view(connection, backend, topic, columns, isolation_level, stop, scanned=scanned, tell=tell)
    return connection


def empty(settings: Mapping[str, Any] | None = None) -> duckdb.DuckDBPyConnection:
    """A connection without topics. Raises InvalidArgument for settings that DuckDB does not have."""
    import duckdb

    try:
        connection = duckdb.connect(config={**_SETTINGS, **(settings or {})})
    except duckdb.Error as error:
        raise InvalidArgument(f"DuckDB refuses its settings: {error}") from None
    connection.execute("SET enable_progress_bar = false")  # it comes between the rows on standard output
    return connection


def create_view(
    connection: duckdb.DuckDBPyConnection,
    backend: Backend,
    topic: str,
    fields: Sequence[Field],
    isolation_level: str,
    stop: threading.Event | None = None,
    within: Bounds | None = None,
    scanned: Scanned | None = None,
    tell: Tell | None = None,
) -> None:
    """Make a topic with its fields a view of its name. stop, within, scanned, tell: as for TopicDataset."""
    from .dataset import TopicDataset
    from .fields import FIXED, identifier

    columns = [identifier(name) for name in FIXED]
    columns += [f"{field.expression} AS {identifier(field.column)}" for field in fields]
    dataset = TopicDataset(backend, topic, isolation_level, stop, fields, within, scanned, tell)
    name = f"embedlog: {topic}"
    connection.register(name, dataset)
    connection.execute(
        f"CREATE VIEW {identifier(topic)} AS SELECT {', '.join(columns)} FROM {identifier(name)} AS scanned"
    )


def ask(
    backend: Backend, query: str, parameters: Mapping[str, object], **options: Any
) -> duckdb.DuckDBPyRelation:
    """The relation of a query with a result. Options and errors as `connect`; InvalidArgument, too, for what
    DuckDB refuses."""
    connection = connect(backend, query, **options)
    import duckdb

    try:
        statement(connection, query)
        relation = connection.sql(query, params=dict(parameters) or None)
    except (duckdb.Error, ValueError) as error:
        raise InvalidArgument(f"DuckDB refuses the query: {error}") from error
    if relation is None:
        raise InvalidArgument(f"a query must have a result: {shown(query)} has none")
    return relation


def statement(connection: duckdb.DuckDBPyConnection, query: str) -> duckdb.Statement:
    """The one statement of a query. Raises InvalidArgument; duckdb.Error."""
    statements = connection.extract_statements(query)
    if not statements:
        raise InvalidArgument("the query is empty")
    if len(statements) > 1:
        raise InvalidArgument(f"a query is one statement, and here are {len(statements)}")
    return statements[0]


def _check(query: object) -> None:
    """Raises InvalidType, InvalidArgument."""
    if not isinstance(query, str):
        raise InvalidType(f"query must be a str, not {type(query).__name__}")
    try:
        query.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"query cannot be written as UTF-8: {shown(query)}") from None


def check_schemas(schemas: object) -> None:
    """Raises InvalidType, InvalidArgument."""
    if schemas is not None and not isinstance(schemas, Mapping):
        raise InvalidType(f"schemas must be a dict, not {type(schemas).__name__}")
    for topic, schema in (schemas or {}).items():
        check_topic(topic)
        names = schema.items() if isinstance(schema, Mapping) else [("", schema)]
        if not all(isinstance(part, str) for pair in names for part in pair):
            raise InvalidType(
                f"the schema of {topic} must be 'a INT, b VARCHAR' or a dict, not {shown(schema)}"
            )


def named_in(query: str, topics: Collection[str]) -> list[str]:
    """The topics whose names occur in a query, in any case; its own spelling decides between two.

    Raises InvalidArgument.
    """
    lowered = query.lower()
    by_lower_name: dict[str, str] = {}
    for topic in topics:
        if topic.lower() not in lowered:
            continue
        earlier = by_lower_name.get(topic.lower())
        if earlier is None or earlier not in query:
            by_lower_name[topic.lower()] = topic
        elif topic in query:
            raise InvalidArgument(
                f"a query cannot name both {earlier} and {topic}: in SQL they are the same name"
            )
    return list(by_lower_name.values())
