"""Authorization of requests: one place before all handlers, driven by a table (api_permissions.py).

    dispatch -> the API's row -> guard -> handler -> guard -> response
                                 takes out what is denied    adds its errors, leaves out what may not be seen

A row names what a request needs as a whole, for which it is refused, and what each of its entries needs.
Entries that are denied never reach the handler: the answer about them is made from the request and the rules
alone, so that it tells nothing of what there is. A few APIs have a guard of their own (log_guards.py,
group_guards.py). Those that continue a session, Fetch and ShareFetch, also ask for each of the session's
partitions, in their handlers.

Source: Kafka's KafkaApis and its page "Authorization and ACLs".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from ....security.acls import CLUSTER_NAME, Operation, ResourceType
from ....wire.error_codes import ErrorCode
from ....wire.messages import Response
from ..access.access import REFUSED, Access, AccessControl
from ..broker_context import BrokerContext, Handler, RequestContext
from ..futures import completed, map_future


class Need(NamedTuple):
    """What a request needs as a whole. `name` finds the resource in it; None: it needs nothing then."""

    operation: Operation
    type: ResourceType
    name: Callable[[Any], str | None] = lambda _: CLUSTER_NAME


class Entries(NamedTuple):
    """What each entry of a request needs.

    `of` is the request's list, `name` the field with an entry's name ("": the entry is its name), `into` the
    response's list, `answer` an entry of it with an error. With `by_id` versions from this one on have ids
    of topics.
    """

    operation: Operation
    type: ResourceType
    of: str
    name: str
    into: str
    answer: Callable[[Any, ErrorCode], Any]
    by_id: int = 1 << 15


Refuse: TypeAlias = Callable[[RequestContext, Any, ErrorCode], Response]
"""The response to a request that is refused as a whole."""
Guard: TypeAlias = "Callable[[GuardedCall, Any], Any]"
"""Calls the handler with what is left of the request; returns the handler's result with the rest."""


class GuardedCall(NamedTuple):
    """A call of a handler by a guard, with what its client may do."""

    broker: BrokerContext
    access: Access
    handler: Handler
    context: RequestContext

    def handle(self, request: Any) -> Any:
        """The handler's result."""
        return self.handler(self.context, request)

    def split(
        self, requested: Sequence[Any], entries: Entries, *, by_id: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """The entries that are left, and the answers about the others."""
        kept, refused = [], []
        for entry in requested:
            if entries.type is ResourceType.TOPIC:
                if by_id:
                    name = self.broker.topic_name(entry.topic_id)
                else:
                    name = getattr(entry, entries.name) if entries.name else entry
                code = self.access.topic_code(entries.operation, name, by_id=by_id)
            else:
                name = getattr(entry, entries.name) if entries.name else entry
                may = self.access.may(entries.operation, entries.type, name)
                code = ErrorCode.NONE if may else REFUSED[entries.type]
            if code is ErrorCode.NONE:
                kept.append(entry)
            else:
                refused.append(entries.answer(entry, code))
        return kept, refused


class Permissions(NamedTuple):
    """An API's row.

    Attributes:
        needs: what the whole request needs, in this order.
        refuse: the response if it lacks one of them.
        entries: what its entries need.
        guard: what else is done, after `needs` and in the place of `entries`.
        response: of a request of which every entry is denied.
    """

    needs: Sequence[Need] = ()
    refuse: Refuse | None = None
    entries: Entries | None = None
    guard: Guard | None = None
    response: type[Response] | None = None


OPEN_TO_ALL = Permissions()


def guarded(
    broker: BrokerContext,
    control: AccessControl,
    handlers: Mapping[str, Handler],
    table: Mapping[str, Permissions],
) -> dict[str, Handler]:
    """The handlers, each behind its guard. KeyError for an API without a row."""
    return {name: _guarded(broker, control, name, handler, table[name]) for name, handler in handlers.items()}


def _guarded(
    broker: BrokerContext, control: AccessControl, api: str, handler: Handler, row: Permissions
) -> Handler:
    if row == OPEN_TO_ALL:
        return handler
    needs, refuse, entries, guard = row.needs, row.refuse, row.entries, row.guard

    def handle(context: RequestContext, request: Any) -> Any:
        access = control.of(context.principal, context.connection.host, api)
        for operation, type, name_of in needs:
            name = name_of(request)
            if name is not None and not access.may(operation, type, name):
                assert refuse is not None
                return refuse(context, request, REFUSED[type])
        if guard is not None:
            return guard(GuardedCall(broker, access, handler, context), request)
        if entries is not None:
            return _by_entry(GuardedCall(broker, access, handler, context), request, row)
        return handler(context, request)

    return handle


def _by_entry(call: GuardedCall, request: Any, row: Permissions) -> Any:
    entries = row.entries
    assert entries is not None
    kept, refused = call.split(
        getattr(request, entries.of), entries, by_id=call.context.version >= entries.by_id
    )
    if not refused:
        return call.handle(request)
    setattr(request, entries.of, kept)
    if not kept:
        assert row.response is not None
        response = row.response()
        setattr(response, entries.into, refused)
        return response
    return then(call.handle(request), lambda response: getattr(response, entries.into).extend(refused))


def then(result: Any, change: Callable[[Any], object]) -> Any:
    """A handler's result, once `change` has been applied to the response; None stays None."""

    def changed(response: Any) -> Any:
        if response is not None:
            change(response)
        return response

    if isinstance(result, Future):
        return map_future(result, changed)
    return changed(result)


def later(response: Response) -> Future[Response]:
    """A response that `Dispatcher` does not take as a pattern of the next ones."""
    return completed(response)
