"""What a native call can exceed, as csrc/program.h numbers it, and what each is called in an error message."""

from enum import IntEnum


class Limit(IntEnum):
    """What a call can exceed."""

    NONE = 0
    CHUNKS = 1
    ROWS = 2
    PICKED = 3
    ROW = 4
    START = 5
    LENGTH = 6
    CHUNK_PICKED = 7
    END = 8
    TOKEN = 9
    POSITION = 10
    GROUPS = 11
    BLOCK_SIZE = 12
    BLOCK = 13
    SLOT = 14
    TREE = 15
    DEPTH = 16
    LINE = 17
    COUNT = 18


LIMITS: dict[Limit, str] = {
    Limit.CHUNKS: "the number of chunks",
    Limit.ROWS: "the number of tokens in a step",
    Limit.PICKED: "the number of tokens whose logits are computed",
    Limit.ROW: "the row of a chunk",
    Limit.START: "the first position of a chunk",
    Limit.LENGTH: "the length of a chunk",
    Limit.CHUNK_PICKED: "the number of a chunk's tokens whose logits are computed",
    Limit.END: "the position after a chunk",
    Limit.TOKEN: "a token id",
    Limit.POSITION: "a position",
    Limit.GROUPS: "the number of KV groups",
    Limit.BLOCK_SIZE: "the block size",
    Limit.BLOCK: "the id of a block",
    Limit.SLOT: "a slot of the KV cache",
    Limit.TREE: "the number of tokens with a depth",
    Limit.DEPTH: "the depth of a draft token",
    Limit.LINE: "a token in the line of a draft token",
    Limit.COUNT: "the number of draft tokens",
}
"""What each is called in an error message."""
