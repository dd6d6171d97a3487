"""/v1/embeddings."""

from typing import Annotated, Literal

from pydantic import Field

from archerfish.api.bodies.common import Body, Label, Prompts


class EmbeddingBody(Body):
    model: Label | None = None
    input: Prompts
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Numbers in an embedding: fewer than the model makes only where it was trained for that (Matryoshka)."""
    encoding_format: Literal["float", "base64"] = "float"
    user: Annotated[str, Field(max_length=256)] | None = None
