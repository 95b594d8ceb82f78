"""DescribeClientQuotas, AlterClientQuotas: the quotas of users, client ids and addresses (KIP-546).

Both may wait for a disk or for ZooKeeper, and run in another thread. The entries of a request succeed or fail
one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, InvalidArgument
from ....security.quota_rules import TYPES, Entity, check_key, checked_value, entity
from ....security.quotas import Quotas
from ....wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    RequestEntryData,
    ResponseEntityData,
    ResponseEntryData,
)
from ....wire.apis.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from ....wire.error_codes import ErrorCode
from ..api_errors import ApiError, error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext

_EXACT, _DEFAULT, _ANY = 0, 1, 2  # how a component matches a name
_MATCHES: Final = frozenset({_EXACT, _DEFAULT, _ANY})


class QuotaHandlers:
    """Handles the APIs of quotas."""

    def __init__(self, broker: BrokerContext, quotas: Quotas) -> None:
        self._broker = broker
        self._quotas = quotas

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "DescribeClientQuotas": self.describe_client_quotas,
            "AlterClientQuotas": self.alter_client_quotas,
        }

    def describe_client_quotas(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> Future[DescribeClientQuotasResponse]:
        return self._broker.run_blocking(self._describe, request)

    def alter_client_quotas(
        self, context: RequestContext, request: AlterClientQuotasRequest
    ) -> Future[AlterClientQuotasResponse]:
        return self._broker.run_blocking(self._alter, request)

    def _describe(self, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        try:
            _check_components(request.components)
            quotas = self._quotas.store.read()
        except EmbedlogError as error:
            return DescribeClientQuotasResponse(
                error_code=error_code_for(error), error_message=message_for(error), entries=None
            )
        return DescribeClientQuotasResponse(
            error_message=None,
            entries=[
                EntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in quota_entity],
                    values=[ValueData(key=key, value=float(value)) for key, value in values.items()],
                )
                for quota_entity, values in quotas.items()
                if values and _matches(quota_entity, request.components, strict=request.strict)
            ],
        )

    def _alter(self, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        response = AlterClientQuotasResponse()
        entities = [_names(entry) for entry in request.entries]
        for entry, names in zip(request.entries, entities, strict=True):
            result = ResponseEntryData(
                error_message=None,
                entity=[ResponseEntityData(entity_type=kind, entity_name=name) for kind, name in names],
            )
            try:
                if entities.count(names) > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "the request has the entity more than once")
                self._alter_one(entry, names, validate_only=request.validate_only)
            except EmbedlogError as error:
                invalid = isinstance(error, InvalidArgument)
                result.error_code = ErrorCode.INVALID_REQUEST if invalid else error_code_for(error)
                result.error_message = message_for(error)
            response.entries.append(result)
        if not request.validate_only:
            self._quotas.refresh()
        return response

    def _alter_one(
        self, entry: RequestEntryData, names: Iterable[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Raises EmbedlogError."""
        quota_entity = entity(names)
        changes: dict[str, float | None] = {}
        for op in entry.ops:
            if op.key in changes:
                raise InvalidArgument(f"the request changes {op.key} of an entity more than once")
            if op.remove:
                check_key(quota_entity, op.key)
            changes[op.key] = None if op.remove else checked_value(quota_entity, op.key, op.value)
        if not validate_only:
            self._quotas.store.alter(quota_entity, changes)


def _names(entry: RequestEntryData) -> list[tuple[str, str | None]]:
    return [(component.entity_type, component.entity_name) for component in entry.entity]


def _check_components(components: Sequence[ComponentData]) -> None:
    """Raises ApiError."""
    kinds = [component.entity_type for component in components]
    for component in components:
        if component.entity_type not in TYPES:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION, f"{component.entity_type!r} is not one of {', '.join(TYPES)}"
            )
        if component.match_type not in _MATCHES or (
            component.match_type == _EXACT and component.match is None
        ):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"a {component.entity_type} matches by a name, 0, 1 or 2"
            )
    if len(set(kinds)) < len(kinds):
        raise ApiError(ErrorCode.INVALID_REQUEST, "the request has a component more than once")
    if TYPES[2] in kinds and len(kinds) > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "an address (ip) goes with no user and no client id")


def _matches(quota_entity: Entity, components: Sequence[ComponentData], *, strict: bool) -> bool:
    """Whether an entity has what all components ask for, and nothing else if `strict`."""
    names = dict(quota_entity)
    if strict and len(names) != len(components):
        return False
    return all(
        component.entity_type in names
        and (
            component.match_type == _ANY
            or names[component.entity_type] == (component.match if component.match_type == _EXACT else None)
        )
        for component in components
    )
