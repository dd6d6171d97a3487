"""How many uploads are read at a time: few of each tenant, and a number of all."""

from contextlib import ExitStack

import pytest

from archerfish.server.errors import ApiError
from archerfish.server.uploads import Uploads


def test_uploads_at_a_time_are_limited() -> None:
    uploads = Uploads(10**9, 30.0, 1000)
    with ExitStack() as going_on:
        for number in range(16):
            going_on.enter_context(uploads._slot(f"tenant {number // 4}"))
        for tenant in ("tenant 0", "another"):
            with pytest.raises(ApiError, match="try again later") as refusal, uploads._slot(tenant):
                pass
            assert (refusal.value.status_code, refusal.value.code) == (429, "too_many_uploads")
    with uploads._slot("tenant 0"):
        assert dict(uploads._open) == {"tenant 0": 1}
    assert dict(uploads._open) == {}, "tenants that are gone are not remembered"
