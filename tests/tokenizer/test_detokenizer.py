"""Text grows by whole characters up to a stop string and never shrinks, however the tokenizer splits it."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models

from archerfish.tokenizer import Detokenizer, Piece, Tokenizer
from archerfish.tokenizer.chat import ChatTemplate
from archerfish.tokenizer.detokenizer import StopMatch, StopStrings
from tests.lanes import examples

REPLACEMENT = "\ufffd"
ChunkTokens = Callable[[Sequence[bytes]], tuple[Tokenizer, list[int]]]

# Everything but surrogates, which are no characters, and U+FFFD, which stands for bytes that are none.
valid_text = st.text(
    alphabet=st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT),
        st.sampled_from("aé好👍🏽\u200d👨👩❤️धा े\u0301ب"),
    ),
    max_size=30,
)

texts = st.text(alphabet="ab", max_size=12)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def stream(detokenizer: Detokenizer, token_ids: Sequence[int]) -> Iterator[str]:
    """The pieces as they come, token by token, and the rest."""
    for token_id in token_ids:
        piece = detokenizer.add([token_id])
        assert piece.num_tokens == 1
        yield piece.text
        if piece.stopped is not None:
            return
    yield detokenizer.finish()


def cut(data: bytes, ends: Sequence[int]) -> list[bytes]:
    """The data in chunks, whose lengths are taken from `ends` in turn."""
    chunks: list[bytes] = []
    while data:
        length = ends[len(chunks) % len(ends)]
        chunks.append(data[:length])
        data = data[length:]
    return chunks


chunk_lengths = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def test_equals_full_decoding(any_tokenizer: Tokenizer, sentences: tuple[str, ...]) -> None:
    for text in sentences:
        ids = any_tokenizer.encode(text, add_special_tokens=False)
        pieces = list(stream(Detokenizer(any_tokenizer, []), ids))
        assert "".join(pieces) == any_tokenizer.decode(ids)
        assert REPLACEMENT not in "".join(pieces)
        assert sum(piece != "" for piece in pieces) > 3


def test_continues_the_prompt(any_tokenizer: Tokenizer, sentences: tuple[str, ...]) -> None:
    for text in sentences:
        ids = any_tokenizer.encode(text)
        whole = any_tokenizer.decode(ids)
        for split in range(len(ids) + 1):
            # Step back, as byte fallback prints U+FFFD for the characters before an incomplete one, too.
            prompts = [
                any_tokenizer.decode(ids[:end]).rstrip(REPLACEMENT) for end in range(max(0, split - 3), split + 1)
            ]
            answer = "".join(stream(Detokenizer(any_tokenizer, ids[:split]), ids[split:]))
            assert max(prompts, key=len) + answer == whole


def test_first_token_keeps_its_space(byte_fallback: Tokenizer) -> None:
    prompt, answer = byte_fallback.encode("The archerfish"), byte_fallback.encode("hunts", False)
    assert byte_fallback.decode(answer) == "hunts"
    assert "".join(stream(Detokenizer(byte_fallback, prompt), answer)) == " hunts"
    assert "".join(stream(Detokenizer(byte_fallback, tuple(prompt)), answer)) == " hunts"


@examples(300)
@given(text=valid_text, lengths=chunk_lengths, batch=st.integers(1, 5))
@example(text="好你好你好你好你好你好你", lengths=[1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3], batch=1)
@example(text="𐀀𐀀", lengths=[1, 1, 3], batch=1)
@example(text="👍👍👍👍👍👍👍👍👍👍", lengths=[3, 4, 4, 4, 4, 4, 4], batch=1)
def test_any_cut_into_tokens(chunk_tokens: ChunkTokens, text: str, lengths: list[int], batch: int) -> None:
    tokenizer, ids = chunk_tokens(cut(text.encode(), lengths))
    detokenizer = Detokenizer(tokenizer, [])
    written = ""
    for start in range(0, len(ids), batch):
        written += detokenizer.add(ids[start : start + batch]).text
        assert text.startswith(written)
        assert detokenizer.text == written
        # No more is withheld than the character that is not complete.
        num_bytes = sum(lengths[index % len(lengths)] for index in range(min(start + batch, len(ids))))
        assert written == text.encode()[:num_bytes].decode(errors="ignore")
    assert written + detokenizer.finish() == text == detokenizer.text


@examples(300)
@given(text=valid_text, lengths=chunk_lengths, share=st.floats(0, 1))
@example(text="0\x80\x80𐀀", lengths=[1, 1, 4, 1], share=0.5)
@example(text="👍👍👍👍👍👍", lengths=[1, 1, 1, 1, 2, 1, 1], share=0.8)
@example(text="好你" * 9, lengths=[1, *[3] * 30], share=0.7)
def test_any_cut_between_prompt_and_answer(
    chunk_tokens: ChunkTokens, text: str, lengths: list[int], share: float
) -> None:
    tokenizer, ids = chunk_tokens(cut(text.encode(), lengths))
    split = round(share * len(ids))
    prompt = tokenizer.decode(ids[:split]).rstrip(REPLACEMENT)
    assert prompt + "".join(stream(Detokenizer(tokenizer, ids[:split]), ids[split:])) == text


@examples(300)
@given(
    data=st.lists(st.sampled_from([0xFF, 0x80, 0xE5, 0xA5, 0xBD, 0xF0, 0x9F, 0x41]), max_size=40).map(bytes),
    lengths=chunk_lengths,
)
def test_wrong_bytes_become_replacement_characters(chunk_tokens: ChunkTokens, data: bytes, lengths: list[int]) -> None:
    tokenizer, ids = chunk_tokens(cut(data, lengths))
    assert "".join(stream(Detokenizer(tokenizer, []), ids)) == data.decode(errors="replace") == tokenizer.decode(ids)


@examples(200)
@given(before=st.binary(max_size=6), text=st.text("aé好👍 ", min_size=1, max_size=6))
def test_byte_fallback_recovers_after_wrong_bytes(byte_fallback: Tokenizer, before: bytes, text: str) -> None:
    byte_ids = [byte_token(byte_fallback, byte) for byte in b"\xff" + before + b"\xff\xff\xff"]
    prompt = byte_fallback.encode("The", False)
    answer = "".join(stream(Detokenizer(byte_fallback, prompt), byte_ids + spelled(byte_fallback, text)))
    assert answer.startswith(REPLACEMENT)
    assert answer.endswith(text)


def byte_token(tokenizer: Tokenizer, byte: int) -> int:
    name = f"<0x{byte:02X}>"
    vocabulary = tokenizer._vocabulary
    token_id = vocabulary.token_to_id(name)
    assert token_id is not None
    return token_id


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    return [byte_token(tokenizer, byte) for byte in text.encode()]


@examples(200)
@given(text=valid_text, share=st.floats(0, 1))
@example(text=" 👍 👍", share=0.0)
@example(text="éé好👍", share=0.9)
def test_byte_fallback_spelled_in_bytes(byte_fallback: Tokenizer, text: str, share: float) -> None:
    """Long runs of byte tokens, which the decoder takes for wrong as a whole when one character is incomplete."""
    prompt, ids = byte_fallback.encode("The", False), spelled(byte_fallback, text)
    split = round(share * len(ids))
    detokenizer = Detokenizer(byte_fallback, prompt + ids[:split])
    assert text.encode()[:split].decode(errors="ignore") + "".join(stream(detokenizer, ids[split:])) == text


def test_byte_fallback_spelled_in_bytes_without_a_prompt(byte_fallback: Tokenizer) -> None:
    for text in (" 👍", "  👍 ", "👍", " a"):
        ids = spelled(byte_fallback, text)
        assert (
            "".join(stream(Detokenizer(byte_fallback, []), ids)) == byte_fallback.decode(ids) == text[text[0] == " " :]
        )


class Watched(Tokenizer):
    """Remembers how much it was asked to decode."""

    def watch(self) -> "Watched":
        self.lengths: list[int] = []
        return self

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.lengths.append(len(token_ids))
        return super().decode(token_ids, skip_special_tokens)


def watched(tokenizer: Tokenizer) -> Watched:
    return Watched(tokenizer._vocabulary, {}, ChatTemplate({}, {})).watch()


@pytest.mark.parametrize(
    "chunks",
    [
        [b"\xff"],
        [b"\x80"],
        [b"\xe5"],
        [b"\xe5", b"\xa5"],
        [b"\xe5", b"\xa5\xbd\xe4", b"\xbd\xa0\xe5", b"\xa5\xbd\xe4", b"\xbd\xa0\xe5"],
        ["\ufffd".encode()],
        ["\ufffd\ufffd".encode(), b"\xff"],
        [b" fish"],
        [b""],
    ],
    ids=repr,
)
def test_cost_per_token_is_constant(chunk_tokens: ChunkTokens, chunks: list[bytes]) -> None:
    first, *rest = chunks
    plain, ids = chunk_tokens([first, *(rest or [first]) * 500])
    tokenizer = watched(plain)
    written = "".join(stream(Detokenizer(tokenizer, []), ids))
    assert written == plain.decode(ids)
    assert max(tokenizer.lengths) <= 12
    assert len(tokenizer.lengths) <= 6 * len(ids) + 20


def test_cost_per_token_is_constant_with_byte_fallback(byte_fallback: Tokenizer) -> None:
    tokenizer = watched(byte_fallback)
    ids = [byte_token(tokenizer, 0xFF)] * 500
    detokenizer = Detokenizer(tokenizer, tokenizer.encode("The archerfish " * 50))
    written = "".join(detokenizer.add([token_id]).text for token_id in ids)
    assert written == REPLACEMENT * 497
    assert max(tokenizer.lengths) <= 12
    assert len(tokenizer.lengths) <= 6 * len(ids) + 20
    assert detokenizer.add(spelled(tokenizer, "好")).text + detokenizer.finish() == REPLACEMENT * 3 + "好"


def test_replacement_characters_that_are_meant(chunk_tokens: ChunkTokens) -> None:
    for text in ("\ufffd", "a\ufffd\ufffdb", "\ufffd" * 9, "好\ufffd好"):
        tokenizer, ids = chunk_tokens([character.encode() for character in text])
        for split in range(len(ids)):
            assert "".join(stream(Detokenizer(tokenizer, ids[:split]), ids[split:])) == text[split:]


def test_prompt_that_stays_incomplete_adds_nothing(chunk_tokens: ChunkTokens, byte_fallback: Tokenizer) -> None:
    tokenizer, ids = chunk_tokens([b"ab\xe5", b"\xa5", b"x"])
    assert "".join(stream(Detokenizer(tokenizer, ids[:1]), ids[2:])) == "x"
    assert Detokenizer(tokenizer, ids[:2]).finish() == ""
    prompt = byte_fallback.encode("fish", False) + spelled(byte_fallback, "好")[:2]
    answer = byte_fallback.encode("hunts", False)
    assert "".join(stream(Detokenizer(byte_fallback, prompt), answer)) == " hunts"


def test_character_cut_off_by_the_end(chunk_tokens: ChunkTokens) -> None:
    tokenizer, ids = chunk_tokens([b"fish \xf0", b"\x9f", b"\x91"])
    detokenizer = Detokenizer(tokenizer, [])
    assert detokenizer.add(ids) == Piece("fish ", None, 3)
    assert detokenizer.finish() == REPLACEMENT
    assert detokenizer.finish() == ""
    assert detokenizer.text == "fish " + REPLACEMENT


def test_special_tokens_are_skipped_or_shown(byte_fallback: Tokenizer) -> None:
    eos = byte_fallback.eos_token_id
    assert eos is not None
    ids = byte_fallback.encode("The fish", False)
    ids = [*ids, eos, *ids, eos]
    assert "".join(stream(Detokenizer(byte_fallback, []), ids)) == "The fish The fish"
    shown = "".join(stream(Detokenizer(byte_fallback, [], skip_special_tokens=False), ids))
    assert shown == "The fish</s> The fish</s>"
    many = [*byte_fallback.encode("The", False), *[eos] * 12]
    assert "".join(stream(Detokenizer(byte_fallback, many), ids)) == " The fish The fish"


def test_special_token_inside_a_character(byte_level: Tokenizer) -> None:
    """Skipped tokens are skipped before bytes are put together, as when decoding at once."""
    first, second, *rest = byte_level.encode("\u0800", False)
    ids = [first, byte_level.eos_token_id or 0, second, *rest]
    assert "".join(stream(Detokenizer(byte_level, []), ids)) == byte_level.decode(ids) == "\u0800"


@pytest.mark.parametrize("unknown", [-1, 10**6, 2**40])
def test_unknown_tokens_give_no_text(any_tokenizer: Tokenizer, unknown: int) -> None:
    ids = any_tokenizer.encode("The archerfish hunts insects by shooting water", False)
    mixed = [other for token_id in ids for other in (token_id, unknown, unknown)]
    assert "".join(stream(Detokenizer(any_tokenizer, [unknown]), mixed)) == any_tokenizer.decode(ids)


def test_old_bpe_decoder() -> None:
    """Words end with a mark here, and the last one's is dropped."""
    vocabulary = tokenizers.Tokenizer(models.BPE(vocab={"ar": 0, "cher</w>": 1, "fish</w>": 2}, merges=[]))
    vocabulary.decoder = decoders.BPEDecoder()
    tokenizer = Tokenizer(vocabulary, {}, ChatTemplate({}, {}))
    assert "".join(stream(Detokenizer(tokenizer, []), [0, 1, 2, 0, 1])) == "archer fish archer"


def test_nothing_to_write(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level, [], stop=("x",))
    assert detokenizer.add([]) == Piece("", None, 0)
    assert detokenizer.finish() == detokenizer.text == ""


# Stop strings


def expected_stop(token_texts: list[str], stops: Sequence[str], min_tokens: int) -> tuple[str, str | None, int]:
    """The plain way, from the whole text: what is kept, the stop string and the number of tokens."""
    text = "".join(token_texts)
    first_end = len("".join(token_texts[:min_tokens])) + 1
    for end in range(first_end, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            lengths = [len("".join(token_texts[:count])) for count in range(len(token_texts) + 1)]
            return text[: end - len(stop)], stop, next(count for count, length in enumerate(lengths) if length >= end)
    return text, None, len(token_texts)


@examples(500)
@given(
    token_texts=st.lists(st.text("ab好", min_size=1, max_size=4), max_size=8),
    stops=st.lists(st.text("ab好", min_size=1, max_size=4), max_size=3).map(tuple),
    min_tokens=st.integers(0, 5),
    include=st.booleans(),
    batch=st.integers(1, 4),
)
def test_stop_strings(
    chunk_tokens: ChunkTokens,
    token_texts: list[str],
    stops: tuple[str, ...],
    min_tokens: int,
    include: bool,
    batch: int,
) -> None:
    tokenizer, ids = chunk_tokens([text.encode() for text in token_texts])
    kept, stop, num_tokens = expected_stop(token_texts, stops, min_tokens)
    final = kept + (stop or "") if include else kept
    detokenizer = Detokenizer(tokenizer, [], stop=stops, min_tokens=min_tokens, include_stop_str_in_output=include)
    num_kept = 0
    for start in range(0, len(ids), batch):
        piece = detokenizer.add(ids[start : start + batch])
        num_kept += piece.num_tokens
        assert final.startswith(detokenizer.text)
        if piece.stopped is not None:
            break
        # Exactly what may become a stop string is withheld.
        read = "".join(token_texts[: start + batch])
        beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
        withheld = max((len(text) for text in beginnings if read.endswith(text)), default=0)
        assert detokenizer.text == read[: len(read) - withheld]
    else:
        piece = Piece("", None, 0)
    assert piece.stopped == stop
    assert num_kept == num_tokens
    rest = detokenizer.finish()
    assert detokenizer.text == final
    assert rest == "" or stop is None


@pytest.mark.parametrize("stop", ["</s>", "\n\n", "終わり", "👨‍👩‍👧", "é!"])
@pytest.mark.parametrize("include", [False, True])
def test_stop_string_cut_at_every_place(chunk_tokens: ChunkTokens, stop: str, include: bool) -> None:
    text = f"vor {stop[:-1]}x {stop} nach"
    data, end = text.encode(), len(f"vor {stop[:-1]}x {stop}".encode())
    for first in range(1, len(data)):
        for second in range(first + 1, len(data) + 1):
            tokenizer, ids = chunk_tokens(
                [chunk for chunk in (data[:first], data[first:second], data[second:]) if chunk]
            )
            detokenizer = Detokenizer(tokenizer, [], stop=(stop,), include_stop_str_in_output=include)
            pieces = [detokenizer.add([token_id]) for token_id in ids]
            ends = [first, second, len(data)]
            assert [piece.stopped for piece in pieces] == [stop if limit >= end else None for limit in ends[: len(ids)]]
            assert sum(piece.num_tokens for piece in pieces) == 1 + sum(limit < end for limit in ends)
            assert detokenizer.text == f"vor {stop[:-1]}x " + (stop if include else "")
            assert detokenizer.finish() == ""


@pytest.mark.parametrize("stop", ["shooting water", "r at", "ts in"])
def test_stop_string_over_real_tokens(any_tokenizer: Tokenizer, sentences: tuple[str, ...], stop: str) -> None:
    ids = any_tokenizer.encode(sentences[0], False)
    detokenizer = Detokenizer(any_tokenizer, [], stop=(stop,))
    piece = detokenizer.add(ids)
    text = any_tokenizer.decode(ids)
    assert piece.stopped == stop
    assert detokenizer.text == piece.text == text[: text.index(stop)]
    assert stop in any_tokenizer.decode(ids[: piece.num_tokens])
    assert stop not in any_tokenizer.decode(ids[: piece.num_tokens - 1])


def test_tokens_after_the_stop_change_nothing(chunk_tokens: ChunkTokens) -> None:
    tokenizer, ids = chunk_tokens([b"one. ", b"two"])
    detokenizer = Detokenizer(tokenizer, [], stop=(".",))
    assert detokenizer.add(ids) == Piece("one", ".", 1)
    assert detokenizer.finish() == ""
    assert detokenizer.add(ids) == Piece("", ".", 0)
    assert detokenizer.text == "one"


def test_text_of_the_prompt_is_no_part_of_a_stop_string(chunk_tokens: ChunkTokens) -> None:
    tokenizer, ids = chunk_tokens([b"EN", b"D", b" END"])
    detokenizer = Detokenizer(tokenizer, ids[:1], stop=("END",))
    assert detokenizer.add(ids[1:]) == Piece("D ", "END", 2)


def test_stop_string_may_begin_but_not_end_in_the_first_min_tokens(chunk_tokens: ChunkTokens) -> None:
    tokenizer, ids = chunk_tokens([b"END", b" E", b"ND", b"!"])
    assert Detokenizer(tokenizer, [], stop=("END",), min_tokens=1).add(ids) == Piece("END ", "END", 3)
    assert Detokenizer(tokenizer, [], stop=("END",), min_tokens=2).add(ids) == Piece("END ", "END", 3)
    assert Detokenizer(tokenizer, [], stop=("END",), min_tokens=3).add(ids) == Piece("END END!", None, 4)


def test_special_tokens_count_towards_min_tokens(byte_level: Tokenizer) -> None:
    ids = [byte_level.eos_token_id or 0, *byte_level.encode("a", False)]
    assert Detokenizer(byte_level, [], stop=("a",), min_tokens=1).add(ids) == Piece("", "a", 2)
    assert Detokenizer(byte_level, [], stop=("a",), min_tokens=2).add(ids) == Piece("a", None, 2)


def test_beginning_of_a_stop_string_is_released_at_the_end(chunk_tokens: ChunkTokens) -> None:
    tokenizer, ids = chunk_tokens([b"The E", b"N"])
    detokenizer = Detokenizer(tokenizer, [], stop=("END",))
    assert detokenizer.add(ids) == Piece("The ", None, 2)
    assert detokenizer.finish() == "EN"
    assert detokenizer.text == "The EN"


@pytest.fixture(scope="module")
def spaced() -> Tokenizer:
    """Without a decoder: a space is written between any two tokens."""
    vocabulary = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    vocabulary.add_special_tokens(["<x>", "<y>"])
    return Tokenizer(vocabulary, {}, ChatTemplate({}, {}))


@pytest.mark.parametrize(
    ("token_ids", "with_spaces", "without"),
    [
        ([0, 2, 3, 1], "a <x> <y> b", "a <x><y> b"),
        ([2, 2, 0, 3, 2, 3], "<x> <x> a <y> <x> <y>", "<x><x> a <y><x><y>"),
        ([0, 1], "a b", "a b"),
    ],
)
def test_special_tokens_follow_one_another_without_a_space_where_that_is_asked_for(
    spaced: Tokenizer, token_ids: list[int], with_spaces: str, without: str
) -> None:
    for spaces, wanted in ((True, with_spaces), (False, without)):
        options = {"skip_special_tokens": False, "spaces_between_special_tokens": spaces}
        assert "".join(stream(Detokenizer(spaced, [], **options), token_ids)) == wanted
    # Special tokens that are left out have nothing between them.
    hidden = Detokenizer(spaced, [], skip_special_tokens=True, spaces_between_special_tokens=False)
    assert "".join(stream(hidden, token_ids)) == " ".join({0: "a", 1: "b"}[one] for one in token_ids if one < 2)


def expected_match(text: str, stops: list[str], first_end: int = 1) -> StopMatch | None:
    """The plain way: the first end at which any stop string stands, and the longest that does."""
    for end in range(first_end, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return StopMatch(max(found, key=len), end)
    return None


def expected_open(text: str, stops: list[str]) -> int:
    beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
    return max((len(start) for start in beginnings if text.endswith(start)), default=0)


@examples(500)
@given(pieces=st.lists(texts, max_size=4), stops=stops)
def test_finds_what_is_complete_first(pieces: list[str], stops: list[str]) -> None:
    search, read = StopStrings(stops), ""
    for piece in pieces:
        expected = expected_match(read + piece, stops)
        match = search.find(piece)
        if expected is None:
            assert match is None
        else:
            assert match == StopMatch(expected.stop, expected.end - len(read))
            return
        read += piece
        assert search.num_open == expected_open(read, stops)


@examples(500)
@given(before=texts, after=texts, stops=stops)
def test_reads_on_where_it_may_not_stop(before: str, after: str, stops: list[str]) -> None:
    search = StopStrings(stops)
    assert search.find(before, may_stop=False) is None
    assert search.num_open == expected_open(before, stops)
    expected = expected_match(before + after, stops, first_end=len(before) + 1)
    match = search.find(after)
    assert match == (None if expected is None else StopMatch(expected.stop, expected.end - len(before)))


def test_characters_beyond_the_first_plane() -> None:
    search = StopStrings(["🇳🇴", "好"])
    assert search.find("🇯🇳🇳") is None
    assert search.num_open == 1
    assert search.find("🇴好") == StopMatch("🇳🇴", 1)


def test_long_stop_string_does_not_slow_a_character_down() -> None:
    class Counting(str):
        num_comparisons = 0

        def __getitem__(self, key: object) -> str:
            Counting.num_comparisons += 1
            return super().__getitem__(key)  # type: ignore[index]

    search = StopStrings([Counting("a" * 5000 + "b")])
    Counting.num_comparisons = 0
    for _ in range(3000):
        search.find("aaaa")
    assert Counting.num_comparisons < 12_000 * 4
    assert search.num_open == 5000
