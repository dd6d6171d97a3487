"""What a device can do at most."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a device can do."""

    flops: float
    """Floating-point operations per second, in the model's number format."""
    bandwidth: float
    """Bytes read from memory per second."""
