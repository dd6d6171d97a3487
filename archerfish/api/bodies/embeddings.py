"""/v1/embeddings."""

from typing import Annotated, Literal

from pydantic import Field

from archerfish.api.bodies.common import Body, Prompts


class EmbeddingBody(Body):
    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    user: Annotated[str, Field(max_length=256)] | None = None
