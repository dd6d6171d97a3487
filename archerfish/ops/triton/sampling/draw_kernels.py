"""Kernels of the draw: a survey of every tile of a row, then a program for each row that settles its token.

They know records and logits by pointers; draw.py knows the tensors. No vocabulary is sorted: filters are thresholds,
found by halving, in the few groups of neighbouring tokens whose largest logit says that they matter. All sums of a row
are made in an order that its vocabulary and its own logits decide; compiled without fused multiply-adds, its numbers
are the same in every kind of step.
"""

import triton
import triton.language as tl

from archerfish.ops.triton.elementwise import number_of, order_of
from archerfish.ops.triton.runtime import await_inputs, let_next_start

_RECORD: tl.constexpr = tl.constexpr(8)  # 32-bit words: two of seed, two of position, then one of each field.
_GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B9)
_NEGLIGIBLE: tl.constexpr = tl.constexpr(32.0)  # So far below the peak no noise lifts a token over it.
_LARGEST: tl.constexpr = tl.constexpr(3.4028234663852886e38)
_NOWHERE: tl.constexpr = tl.constexpr(-2139095041)  # The order of -inf.
_FEW: tl.constexpr = tl.constexpr(128)  # Groups that are not worth another halving.
_MOST_HALVINGS: tl.constexpr = tl.constexpr(24)  # Of the range of groups: more would tell apart what is nearly equal.
_CAUTION: tl.constexpr = tl.constexpr(1.0 + 1e-5)  # Sums of the same numbers in another order differ by less.


# -- what a row asks for ----------------------------------------------------------------------------------------------


@triton.jit
def _word(rows, row, PLACE: tl.constexpr):
    return tl.load(rows + row.to(tl.int64) * _RECORD + PLACE)


@triton.jit
def _number(rows, row, PLACE: tl.constexpr):
    return _word(rows, row, PLACE).to(tl.float32, bitcast=True)


@triton.jit
def _temperature(rows, row):
    return _number(rows, row, 4)


@triton.jit
def _top_p(rows, row):
    return _number(rows, row, 5)


@triton.jit
def _min_p(rows, row):
    return _number(rows, row, 6)


@triton.jit
def _top_k(rows, row, VOCABULARY: tl.constexpr):
    """0 where every token is among them."""
    top_k = _word(rows, row, 7)
    return tl.where((top_k > 0) & (top_k < VOCABULARY), top_k, 0)


@triton.jit
def _asks_filters(rows, row, VOCABULARY: tl.constexpr):
    asks = (_top_p(rows, row) < 1.0) | (_min_p(rows, row) > 0.0) | (_top_k(rows, row, VOCABULARY) > 0)
    return asks & (_temperature(rows, row) != 0.0)


# -- noise ------------------------------------------------------------------------------------------------------------


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def noise_keys(rows, row):
    """What seed and position come to."""
    low, high = _word(rows, row, 0).to(tl.uint32, bitcast=True), _word(rows, row, 1).to(tl.uint32, bitcast=True)
    place = _word(rows, row, 2).to(tl.uint32, bitcast=True)
    first = _mixed(_mixed(low ^ _GOLDEN) + place)
    return first, _mixed(_mixed(high + first) ^ place)


@triton.jit
def noise(first, second, tokens):
    """Gumbel noise of some tokens."""
    bits = _mixed(_mixed(tokens.to(tl.uint32) * _GOLDEN + first) ^ second)
    # Uniform between 0 and 1, finest near 0: that end becomes the largest noise.
    whole = bits.to(tl.int32, bitcast=True).to(tl.float32)
    whole += tl.where(whole < 0.0, 4294967296.0, 0.0)
    uniform = tl.minimum((whole + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    # -log(1 - u), exact where u is small: what 1 - u lost to rounding is put back.
    rest = 1.0 - uniform
    lost = tl.where(rest < 1.0, 1.0 - rest, 1.0)
    exponent = tl.where(rest < 1.0, -tl.log(rest) * (uniform / lost), uniform)
    return -tl.log(exponent)


# -- the survey -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["stride"])
def survey_kernel(
    peaks, scores, tokens, totals, maxima, logits, rows, stride,
    VOCABULARY: tl.constexpr, NUM_TILES: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
    GROUP: tl.constexpr, DRAWS: tl.constexpr, FILTERS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Of one tile of a row: the largest logit, the best token, and what filters must know.

    In a step that draws, some row has a temperature; in one that filters, some row a filter.
    """
    let_next_start(EARLY)
    row, tile = tl.program_id(0), tl.program_id(1)
    place = row.to(tl.int64) * NUM_TILES + tile
    columns = tile * TILE + tl.arange(0, TILE)
    await_inputs(EARLY)
    source = logits + row.to(tl.int64) * stride * VECTOR + columns
    x = tl.load(source, mask=columns < VOCABULARY, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, 0)
    is_broken = tl.max((x != x).to(tl.int32), 0) > 0
    tl.store(peaks + place, tl.where(is_broken, float("nan"), peak))
    score = x
    if DRAWS:
        temperature = _temperature(rows, row)
        if (temperature != 0.0) & (_asks_filters(rows, row, VOCABULARY) == 0):
            first, second = noise_keys(rows, row)
            score = tl.div_rn(x, temperature) + noise(first, second, columns)
    best = tl.max(score, 0)
    tl.store(scores + place, best)
    tl.store(tokens + place, tl.min(tl.where(score == best, columns, VOCABULARY), 0))
    if FILTERS and _asks_filters(rows, row, VOCABULARY):
        least = tl.where(peak == float("-inf"), 0.0, peak)
        tl.store(totals + place, tl.sum(tl.exp((x - least) / _temperature(rows, row)), 0))
        groups = tl.arange(0, TILE // GROUP)
        tl.store(maxima + place * (TILE // GROUP) + groups, tl.max(tl.reshape(x, (TILE // GROUP, GROUP)), 1))


# -- the settlement ---------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["stride"])
def settle_kernel(
    drawn, highest, peaks, scores, tokens, totals, maxima, chosen, logits, rows, stride,
    VOCABULARY: tl.constexpr, NUM_TILES: tl.constexpr, TILES: tl.constexpr, NUM_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, VECTOR: tl.constexpr, FILTERS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The token of a row and its largest logit. Where that is not finite, token 0."""
    let_next_start(EARLY)
    row = tl.program_id(0)
    tiles = tl.arange(0, TILES)
    places = row.to(tl.int64) * NUM_TILES + tiles
    is_tile = tiles < NUM_TILES
    await_inputs(EARLY)
    tile_peaks = tl.load(peaks + places, mask=is_tile, other=float("-inf"))
    is_broken = tl.max((tile_peaks != tile_peaks).to(tl.int32), 0) > 0
    peak = tl.where(is_broken, float("nan"), tl.max(tile_peaks, 0))
    is_finite = tl.abs(peak) <= _LARGEST
    tl.store(highest + row, peak)
    tile_scores = tl.load(scores + places, mask=is_tile, other=float("-inf"))
    best = tl.max(tile_scores, 0)
    tile_tokens = tl.load(tokens + places, mask=is_tile, other=VOCABULARY)
    token = tl.min(tl.where(tile_scores == best, tile_tokens, VOCABULARY), 0)
    if FILTERS and _asks_filters(rows, row, VOCABULARY) & is_finite:
        apart = (tile_peaks - peak) / _temperature(rows, row)
        tile_totals = tl.load(totals + places, mask=is_tile, other=0.0)
        token = _draw_filtered(
            logits + row.to(tl.int64) * stride * VECTOR,
            maxima + row.to(tl.int64) * NUM_GROUPS,
            chosen + row.to(tl.int64) * NUM_GROUPS,
            rows, row, peak, tl.sum(tile_totals * tl.exp(apart), 0), VOCABULARY, NUM_GROUPS, GROUPS, GROUP,
            CHUNK,
        )  # fmt: skip
    is_drawn = is_finite & (token >= 0) & (token < VOCABULARY)  # Senseless parameters may leave none.
    tl.store(drawn + row, tl.where(is_drawn, token, 0).to(tl.int64))


@triton.jit
def _draw_filtered(
    logits, maxima, chosen, rows, row, peak, total,
    VOCABULARY: tl.constexpr, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """min_p, top_k and top_p each raise the lowest score, a logit over the temperature, that may be drawn."""
    temperature, top_p, min_p = _temperature(rows, row), _top_p(rows, row), _min_p(rows, row)
    top_k = _top_k(rows, row, VOCABULARY)
    top_score = tl.div_rn(peak, temperature)
    lowest = tl.maximum(top_score - _NEGLIGIBLE, top_score + tl.log(min_p))
    wanted = tl.where(top_k > 0, top_k.to(tl.float32), float("inf"))
    if (top_k == 0) & (min_p <= 0.0) & (top_p < 1.0):
        wanted = top_p * total * _CAUTION
    low, count = _choose_groups(maxima, chosen, lowest, wanted, peak, temperature, top_k > 0, NUM_GROUPS, GROUPS)
    if top_k > 0:
        last = _last_inside(logits, chosen, count, wanted, low, peak, temperature, True, VOCABULARY, GROUP, CHUNK)
        lowest = tl.maximum(lowest, tl.div_rn(last, temperature))
    if top_p < 1.0:
        if (top_k > 0) | (min_p > 0.0):
            total, low = _weigh_kept(logits, chosen, count, lowest, peak, temperature, VOCABULARY, GROUP, CHUNK)
        last = _last_inside(
            logits, chosen, count, top_p * total, low, peak, temperature, False, VOCABULARY, GROUP, CHUNK
        )
        lowest = tl.maximum(lowest, tl.div_rn(last, temperature))
    return _noisiest(logits, chosen, count, lowest, rows, row, temperature, VOCABULARY, GROUP, CHUNK)


@triton.jit
def _choose_groups(
    maxima, chosen, lowest, wanted, peak, temperature, counts, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr
):
    """Writes down which groups matter, by rising number; gives the order of a bound that the threshold is above, and
    how many they are.

    Largest logits of groups are logits: where those above a bound weigh as much as is wanted, the tokens above it do.
    """
    groups = tl.arange(0, GROUPS)
    x = tl.load(maxima + groups, mask=groups < NUM_GROUPS, other=float("-inf"))
    is_chosen = (tl.div_rn(x, temperature) >= lowest) & (x > float("-inf"))
    weight = tl.where(counts, 1.0, tl.exp((x - peak) / temperature))
    count = tl.sum(is_chosen.to(tl.int32), 0)
    enough = _FEW + tl.where(counts, wanted, 0.0).to(tl.int32)
    low, high, bound = tl.min(tl.where(is_chosen, x, peak), 0), peak, _NOWHERE
    left = tl.where(tl.sum(tl.where(is_chosen, weight, 0.0), 0) >= wanted, _MOST_HALVINGS, 0)
    while (count > enough) & (left > 0):
        middle = 0.5 * low + 0.5 * high
        is_above = is_chosen & (x > middle)
        if tl.sum(tl.where(is_above, weight, 0.0), 0) >= wanted:
            low, bound = middle, order_of(middle)
            count = tl.sum(is_above.to(tl.int32), 0)
        else:
            high = middle
        left -= 1
    is_chosen = is_chosen & (order_of(x) > bound)
    places = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(chosen + places, groups, mask=is_chosen)
    tl.debug_barrier()  # Other threads read what this one wrote.
    return bound, count


@triton.jit
def _tokens_of(chosen, start, count, GROUP: tl.constexpr, CHUNK: tl.constexpr):
    """Tokens of some of the chosen groups [CHUNK, GROUP]; those past the last are negative."""
    places = start + tl.arange(0, CHUNK)
    group = tl.load(chosen + places, mask=places < count, other=-1)
    return group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def _logits_of(logits, tokens, VOCABULARY: tl.constexpr):
    is_token = (tokens >= 0) & (tokens < VOCABULARY)
    return tl.load(logits + tokens, mask=is_token, other=float("-inf")).to(tl.float32)


@triton.jit
def _last_inside(
    logits, chosen, count, wanted, low, peak, temperature,
    COUNTS: tl.constexpr, VOCABULARY: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The last logit inside: those before it, largest first, do not yet weigh what is wanted.

    Each counts 1, or its share. Its order is above low; if all above that together weigh less than is wanted, it is
    what low is the order of. Every halving ends at logits that there are, so that equal ones need no more of them.
    """
    high = order_of(peak)
    middle = low
    while high > low + 1:
        weight = tl.zeros([CHUNK, GROUP], tl.float32)
        above = tl.full([CHUNK, GROUP], 0x7FFFFFFF, tl.int32)
        below = tl.full([CHUNK, GROUP], _NOWHERE, tl.int32)
        for start in range(0, count, CHUNK):
            x = _logits_of(logits, _tokens_of(chosen, start, count, GROUP, CHUNK), VOCABULARY)
            order = order_of(x)
            is_above = order > middle
            share = tl.full([CHUNK, GROUP], 1.0, tl.float32) if COUNTS else tl.exp((x - peak) / temperature)
            weight += tl.where(is_above, share, 0.0)
            above = tl.where(is_above, tl.minimum(above, order), above)
            below = tl.where(is_above, below, tl.maximum(below, order))
        if tl.sum(weight) >= wanted:
            low = tl.min(above) - 1
        else:
            high = tl.maximum(tl.max(below), low)
        # Between the numbers, not their orders: half of those lie between 0 and 1.
        half = order_of(0.5 * number_of(low) + 0.5 * number_of(high))
        middle = tl.minimum(tl.maximum(half, low + 1), high - 1)
    return number_of(high)


@triton.jit
def _weigh_kept(
    logits, chosen, count, lowest, peak, temperature,
    VOCABULARY: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """What the tokens whose scores are not below the lowest weigh together, and the order just below theirs."""
    weight = tl.zeros([CHUNK, GROUP], tl.float32)
    above = tl.full([CHUNK, GROUP], 0x7FFFFFFF, tl.int32)
    for start in range(0, count, CHUNK):
        x = _logits_of(logits, _tokens_of(chosen, start, count, GROUP, CHUNK), VOCABULARY)
        is_kept = tl.div_rn(x, temperature) >= lowest
        weight += tl.where(is_kept, tl.exp((x - peak) / temperature), 0.0)
        above = tl.where(is_kept, tl.minimum(above, order_of(x)), above)
    return tl.sum(weight), tl.min(above) - 1


@triton.jit
def _noisiest(
    logits, chosen, count, lowest, rows, row, temperature,
    VOCABULARY: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The best token whose score without noise is not below the lowest."""
    first, second = noise_keys(rows, row)
    best = tl.full([CHUNK, GROUP], float("-inf"), tl.float32)
    best_tokens = tl.full([CHUNK, GROUP], VOCABULARY, tl.int32)
    for start in range(0, count, CHUNK):
        tokens = _tokens_of(chosen, start, count, GROUP, CHUNK)
        score = tl.div_rn(_logits_of(logits, tokens, VOCABULARY), temperature)
        score = tl.where(score >= lowest, score + noise(first, second, tokens), float("-inf"))
        is_better = score > best  # Of equals the first stays, whose number is lower.
        best_tokens = tl.where(is_better, tokens, best_tokens)
        best = tl.where(is_better, score, best)
    return tl.min(tl.where(best == tl.max(best), best_tokens, VOCABULARY))
