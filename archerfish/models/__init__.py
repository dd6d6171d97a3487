"""One textbook decoder (decoder.py) driven by an Arch; families/ reads checkpoints' configs and names into it."""

from archerfish.models.decoder import Attention, Decoder

__all__ = ["Attention", "Decoder"]
