"""Model families: config.json to Arch, checkpoint names to ours. One small file each; this one finds the right file."""

from collections.abc import Mapping
from typing import Any

from archerfish.errors import UnsupportedModel
from archerfish.models.families import falcon, gemma, gpt2, granite, llama, olmo, phi, qwen, smollm, starcoder
from archerfish.models.families.family import Family
from archerfish.models.families.fields import Fields

_FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **qwen.FAMILIES,
    **gemma.FAMILIES,
    **phi.FAMILIES,
    **olmo.FAMILIES,
    **smollm.FAMILIES,
    **granite.FAMILIES,
    **gpt2.FAMILIES,
    **falcon.FAMILIES,
    **starcoder.FAMILIES,
}


def supported() -> list[str]:
    """Return the supported model types."""
    return sorted(_FAMILIES)


def find_family(config: Mapping[str, Any]) -> Family:
    """Return the family that config.json names, or raise an UnsupportedModel that lists the supported ones."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedModel("config.json has no model_type; is it a Hugging Face model config?")
    if model_type not in _FAMILIES:
        raise UnsupportedModel(f"model type {model_type!r} is not supported; supported are {', '.join(supported())}")
    return _FAMILIES[model_type]


__all__ = ["Family", "Fields", "find_family", "supported"]
