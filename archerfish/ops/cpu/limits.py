"""The limits that a native call can exceed, as csrc/program.h numbers them, and their names in error messages."""

from enum import IntEnum


class NativeLimit(IntEnum):
    """A limit that a native call can exceed."""

    NONE = 0
    CHUNKS = 1
    ROWS = 2
    LOGITS = 3
    ROW = 4
    START = 5
    LENGTH = 6
    CHUNK_LOGITS = 7
    END = 8
    TOKEN = 9
    POSITION = 10
    KV_GROUPS = 11
    BLOCK_SIZE = 12
    BLOCK = 13
    SLOT = 14
    TREE_DEPTHS = 15
    DEPTH = 16
    TREE_PATH = 17
    DRAFT_TOKENS = 18


LIMIT_NAMES: dict[NativeLimit, str] = {
    NativeLimit.CHUNKS: "the number of chunks",
    NativeLimit.ROWS: "the number of tokens in a step",
    NativeLimit.LOGITS: "the number of tokens whose logits are computed",
    NativeLimit.ROW: "the row of a chunk",
    NativeLimit.START: "the first position of a chunk",
    NativeLimit.LENGTH: "the length of a chunk",
    NativeLimit.CHUNK_LOGITS: "the number of a chunk's tokens whose logits are computed",
    NativeLimit.END: "the position after a chunk",
    NativeLimit.TOKEN: "a token id",
    NativeLimit.POSITION: "a position",
    NativeLimit.KV_GROUPS: "the number of KV groups",
    NativeLimit.BLOCK_SIZE: "the block size",
    NativeLimit.BLOCK: "the id of a block",
    NativeLimit.SLOT: "a slot of the KV cache",
    NativeLimit.TREE_DEPTHS: "the number of tokens with a depth",
    NativeLimit.DEPTH: "the depth of a draft token",
    NativeLimit.TREE_PATH: "a token in the path of a draft token",
    NativeLimit.DRAFT_TOKENS: "the number of draft tokens",
}
"""The subject of the error message for each limit."""
