"""The API against requests that nobody has thought of: what it answers is what OpenAPI says, never a 500."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from backfill.engine import gate
from tests.component.living_daemon import living, parked
from tests.component.web_service import ADA, DI, Names, served, with_roles

# `make search` tries more of them.
_EXAMPLES = 300 if os.environ.get("BACKFILL_SEARCH") else 10


def _rejected(ctx: Any, response: Any, case: Any) -> Any:
    """What breaks the schema is refused; too large is a reason of its own."""
    return None if response.status_code == 413 else negative_data_rejection(ctx, response, case)


def _no_error_of_ours(ctx: Any, response: Any, case: Any) -> Any:
    """Only a daemon that has too much to do may say so: by a sentence, and when to come again."""
    if response.status_code == 503 and "retry-after" in response.headers:
        return None
    return not_a_server_error(ctx, response, case)


_CHECKS = [
    _no_error_of_ours,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    _rejected,
]


@pytest.mark.parametrize("user", [ADA, DI])
def test_requests_are_answered_as_documented(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation that OpenAPI tells of, with good parameters and bad ones.

    Whatever somebody without a role sends, nothing has changed by it.
    """
    monkeypatch.setattr(gate, "ACTS_PER_MIN", 1_000_000)  # otherwise nearly all of them were refused for that
    with living(tmp_path, with_roles(), tokens=Names()) as daemon:
        parked(daemon)
        with served(daemon.socket) as port:
            schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
            operations = [cast(Any, found).ok() for found in schema.get_all_operations()]
            assert len(operations) > 20
            for operation in operations:
                if operation.path != "/api/v1/stream":  # it has no end
                    _try(operation, user)
        orders = [entry["what"] for entry in daemon.audit.entries if entry["result"] == "begun"]
        assert bool(orders) is (user == ADA)
        world = daemon.daemon.world
        assert user == ADA or not (world.closed or world.kept or world.fleets)


def _try(operation: Any, user: str) -> None:
    # A bad parameter and somebody who may not: either answer is right.
    checks = _CHECKS if user == ADA else _CHECKS[:-1]

    @given(case=operation.as_strategy() | operation.as_strategy(GenerationMode.NEGATIVE))
    @settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    def answered(case: Any) -> None:
        case.call_and_validate(checks=checks, headers={"Authorization": f"Bearer {user}"})

    answered()
