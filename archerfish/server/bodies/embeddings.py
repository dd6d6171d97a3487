"""/v1/embeddings."""

from typing import Annotated, Literal

from pydantic import Field

from archerfish.server.bodies.common import Body, Text, TokenIds

MOST_INPUTS = 2048


class EmbeddingBody(Body):
    model: str | None = None
    input: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    user: Annotated[str, Field(max_length=256)] | None = None

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [self.input]
        return self.input
