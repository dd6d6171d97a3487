"""Settings of the service that could not work are refused by name."""

from dataclasses import replace

import pytest

from archerfish.config import server as server_module
from archerfish.config.server import check_server
from archerfish.config.settings import ServerConfig
from archerfish.errors import ConfigError


def test_the_defaults_are_in_order() -> None:
    check_server(ServerConfig())


@pytest.mark.parametrize("name", sorted(server_module._BOUNDS))
def test_every_number_has_bounds(name: str) -> None:
    least, most = server_module._BOUNDS[name]
    for value in (least, most):
        check_server(replace(ServerConfig(), **{name: value}))
    for value in (least - 1, most * 2 + 1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} .*: it must be at least"):
            check_server(replace(ServerConfig(), **{name: value}))


def test_every_number_is_checked() -> None:
    annotations = ServerConfig.__annotations__
    numbers = {name for name, kind in annotations.items() if "int" in str(kind) or "float" in str(kind)}
    assert numbers == set(server_module._BOUNDS)
