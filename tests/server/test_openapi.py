"""The served description of the API, played against the service: whatever fits it gets no 5xx."""

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error

from tests.server.running import RunningService

_NOT_PLAYED = ("/live",)
"""It never ends."""
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_TRIES = settings(
    max_examples=15,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_nothing_that_fits_the_description_breaks_the_service(service: RunningService) -> None:
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    operations = [one.ok() for one in schema.get_all_operations() if one.ok().path not in _NOT_PLAYED]
    assert len(operations) > 15
    for operation in operations:

        @_TRIES
        @given(operation.as_strategy())
        def play(case: schemathesis.Case) -> None:
            for name in _LENGTHS:  # Long answers are for other tests.
                if isinstance(case.body, dict) and isinstance(case.body.get(name), int):
                    case.body[name] = min(case.body[name], 8)
            case.call_and_validate(checks=[not_a_server_error], timeout=60)

        play()
