"""Bodies of /v1/embeddings."""

from typing import Annotated, Literal

from pydantic import Field

from archerfish.api.bodies.common import CacheSalt, Label, Priority, Prompts, RequestBody, RequestId, Truncation, User


class EmbeddingBody(RequestBody):
    model: Label | None = None
    input: Prompts
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Numbers in an embedding: fewer than the model makes only where it was trained for that (Matryoshka)."""
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    """Scale embeddings to length 1. By default only those with fewer dimensions are scaled."""
    add_special_tokens: bool = True
    """Put the tokens around a text that the tokenizer puts there, such as a first one."""
    truncate_prompt_tokens: Truncation | None = None
    priority: Priority = 0
    """Lower goes first."""
    cache_salt: CacheSalt = ""
    """Prefixes are shared only with requests of the same salt."""
    request_id: RequestId | None = None
    user: User | None = None
