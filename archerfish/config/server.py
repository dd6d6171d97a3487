"""Refuses settings of the service that it could not work with. Reads nothing and fills nothing in."""

from archerfish.config.settings import ServerConfig, flag_name
from archerfish.errors import ConfigError

_LARGEST_COUNT = 2**53
_LONGEST_WAIT = 7 * 24 * 3600.0

_BOUNDS: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "max_queued_requests": (1, _LARGEST_COUNT),
    "max_queued_tokens": (1, _LARGEST_COUNT),
    "max_body_bytes": (1024, 2**40),
    "max_body_items": (16, _LARGEST_COUNT),
    "max_file_bytes": (1, _LARGEST_COUNT),
    "min_upload_rate": (1, _LARGEST_COUNT),
    "max_files": (1, _LARGEST_COUNT),
    "max_stored_bytes": (1, _LARGEST_COUNT),
    "max_open_batches": (1, _LARGEST_COUNT),
    "preprocessing_workers": (1, 256),
    "body_timeout": (0.01, _LONGEST_WAIT),
    "keep_alive_timeout": (0.01, _LONGEST_WAIT),
    "slo_ttft_ms": (0.001, 1e12),
    "slo_tpot_ms": (0.001, 1e12),
    "stall_timeout": (0.1, _LONGEST_WAIT),
    "shutdown_timeout": (0, _LONGEST_WAIT),
    "peak_flops": (1, 1e30),
    "peak_bandwidth": (1, 1e30),
}


def check_server(config: ServerConfig) -> None:
    """Raise a ConfigError that names the setting and the values it may have."""
    for name, (least, most) in _BOUNDS.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{flag_name(name)} {value:g}: it must be at least {least:g} and at most {most:g}")
