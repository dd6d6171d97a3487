"""Kernels that draw tokens: one scans every tile of a row, the other draws the token of a row from the scans.

No vocabulary is sorted: filters are thresholds, found by bisection among the few groups of neighbouring tokens whose
largest logit is high enough. All sums of a row are made in an order that its vocabulary and its own logits decide;
compiled without fused multiply-adds, its numbers are the same in every kind of step.
"""

import triton
import triton.language as tl

from archerfish.ops.triton.elementwise import float_to_order, order_to_float
from archerfish.ops.triton.runtime import pdl_trigger, pdl_wait

_RECORD: tl.constexpr = tl.constexpr(8)  # 32-bit words: two of seed, two of position, then one of each field.
_GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B9)
_NEGLIGIBLE: tl.constexpr = tl.constexpr(32.0)  # So far below the peak no noise lifts a token above it.
_LARGEST: tl.constexpr = tl.constexpr(3.4028234663852886e38)
_ORDER_OF_NEG_INF: tl.constexpr = tl.constexpr(-2139095041)  # float_to_order(-inf).
_FEW: tl.constexpr = tl.constexpr(128)  # Groups that are not worth another bisection.
_MOST_BISECTIONS: tl.constexpr = tl.constexpr(
    24
)  # Bisections of the range of groups: more would separate nearly equal numbers.
_SLACK: tl.constexpr = tl.constexpr(1.0 + 1e-5)  # Sums of the same numbers in another order differ by less.


# -- parameters of a row ----------------------------------------------------------------------------------------------


@triton.jit
def _word(rows, row, FIELD: tl.constexpr):
    return tl.load(rows + row.to(tl.int64) * _RECORD + FIELD)


@triton.jit
def _number(rows, row, FIELD: tl.constexpr):
    return _word(rows, row, FIELD).to(tl.float32, bitcast=True)


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
    """Return top_k, and 0 where it includes every token."""
    top_k = _word(rows, row, 7)
    return tl.where((top_k > 0) & (top_k < VOCABULARY), top_k, 0)


@triton.jit
def _has_filters(rows, row, VOCABULARY: tl.constexpr):
    has = (_top_p(rows, row) < 1.0) | (_min_p(rows, row) > 0.0) | (_top_k(rows, row, VOCABULARY) > 0)
    return has & (_temperature(rows, row) != 0.0)


# -- noise ------------------------------------------------------------------------------------------------------------


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def noise_keys(rows, row):
    """Hash seed and position of a row."""
    low, high = _word(rows, row, 0).to(tl.uint32, bitcast=True), _word(rows, row, 1).to(tl.uint32, bitcast=True)
    offset = _word(rows, row, 2).to(tl.uint32, bitcast=True)
    first = _mix(_mix(low ^ _GOLDEN) + offset)
    return first, _mix(_mix(high + first) ^ offset)


@triton.jit
def noise(first, second, tokens):
    """Return the Gumbel noise of some tokens."""
    bits = _mix(_mix(tokens.to(tl.uint32) * _GOLDEN + first) ^ second)
    # Uniform between 0 and 1, finest near 0: that end becomes the largest noise.
    whole = bits.to(tl.int32, bitcast=True).to(tl.float32)
    whole += tl.where(whole < 0.0, 4294967296.0, 0.0)
    uniform = tl.minimum((whole + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    # -log(1 - u), exact where u is small: what 1 - u lost to rounding is restored.
    rest = 1.0 - uniform
    lost = tl.where(rest < 1.0, 1.0 - rest, 1.0)
    exponent = tl.where(rest < 1.0, -tl.log(rest) * (uniform / lost), uniform)
    return -tl.log(exponent)


# -- scanning tiles ---------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["stride"])
def topk_scan_kernel(
    peaks, scores, tokens, totals, maxima, logits, rows, stride,
    VOCABULARY: tl.constexpr, NUM_TILES: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
    GROUP: tl.constexpr, DRAWS: tl.constexpr, FILTERS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Scan one tile of a row: the largest logit, the best token, and what filters need.

    DRAWS is set in steps in which some row has a temperature, FILTERS where some row has a filter.
    """
    pdl_trigger(PDL)
    row, tile = tl.program_id(0), tl.program_id(1)
    offset = row.to(tl.int64) * NUM_TILES + tile
    columns = tile * TILE + tl.arange(0, TILE)
    pdl_wait(PDL)
    source = logits + row.to(tl.int64) * stride * VECTOR + columns
    x = tl.load(source, mask=columns < VOCABULARY, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, 0)
    is_broken = tl.max((x != x).to(tl.int32), 0) > 0
    tl.store(peaks + offset, tl.where(is_broken, float("nan"), peak))
    score = x
    if DRAWS:
        temperature = _temperature(rows, row)
        if (temperature != 0.0) & (_has_filters(rows, row, VOCABULARY) == 0):
            first, second = noise_keys(rows, row)
            score = tl.div_rn(x, temperature) + noise(first, second, columns)
    best = tl.max(score, 0)
    tl.store(scores + offset, best)
    tl.store(tokens + offset, tl.min(tl.where(score == best, columns, VOCABULARY), 0))
    if FILTERS and _has_filters(rows, row, VOCABULARY):
        least = tl.where(peak == float("-inf"), 0.0, peak)
        tl.store(totals + offset, tl.sum(tl.exp((x - least) / _temperature(rows, row)), 0))
        groups = tl.arange(0, TILE // GROUP)
        tl.store(maxima + offset * (TILE // GROUP) + groups, tl.max(tl.reshape(x, (TILE // GROUP, GROUP)), 1))


# -- drawing tokens ---------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["stride"])
def sample_kernel(
    drawn, highest, peaks, scores, tokens, totals, maxima, chosen, logits, rows, stride,
    VOCABULARY: tl.constexpr, NUM_TILES: tl.constexpr, TILES: tl.constexpr, NUM_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, VECTOR: tl.constexpr, FILTERS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Draw the token of a row, and store its largest logit. The token is 0 where that is not finite."""
    pdl_trigger(PDL)
    row = tl.program_id(0)
    tiles = tl.arange(0, TILES)
    offsets = row.to(tl.int64) * NUM_TILES + tiles
    is_tile = tiles < NUM_TILES
    pdl_wait(PDL)
    tile_peaks = tl.load(peaks + offsets, mask=is_tile, other=float("-inf"))
    is_broken = tl.max((tile_peaks != tile_peaks).to(tl.int32), 0) > 0
    peak = tl.where(is_broken, float("nan"), tl.max(tile_peaks, 0))
    is_finite = tl.abs(peak) <= _LARGEST
    tl.store(highest + row, peak)
    tile_scores = tl.load(scores + offsets, mask=is_tile, other=float("-inf"))
    best = tl.max(tile_scores, 0)
    tile_tokens = tl.load(tokens + offsets, mask=is_tile, other=VOCABULARY)
    token = tl.min(tl.where(tile_scores == best, tile_tokens, VOCABULARY), 0)
    if FILTERS and _has_filters(rows, row, VOCABULARY) & is_finite:
        apart = (tile_peaks - peak) / _temperature(rows, row)
        tile_totals = tl.load(totals + offsets, mask=is_tile, other=0.0)
        token = _draw_filtered(
            logits + row.to(tl.int64) * stride * VECTOR,
            maxima + row.to(tl.int64) * NUM_GROUPS,
            chosen + row.to(tl.int64) * NUM_GROUPS,
            rows, row, peak, tl.sum(tile_totals * tl.exp(apart), 0), VOCABULARY, NUM_GROUPS, GROUPS, GROUP,
            CHUNK,
        )  # fmt: skip
    is_drawn = is_finite & (token >= 0) & (token < VOCABULARY)  # Senseless parameters may leave no token.
    tl.store(drawn + row, tl.where(is_drawn, token, 0).to(tl.int64))


@triton.jit
def _draw_filtered(
    logits, maxima, chosen, rows, row, peak, total,
    VOCABULARY: tl.constexpr, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Draw a token after min_p, top_k and top_p, each of which raises the lowest score (logit / temperature)
    allowed."""
    temperature, top_p, min_p = _temperature(rows, row), _top_p(rows, row), _min_p(rows, row)
    top_k = _top_k(rows, row, VOCABULARY)
    top_score = tl.div_rn(peak, temperature)
    lowest = tl.maximum(top_score - _NEGLIGIBLE, top_score + tl.log(min_p))
    wanted = tl.where(top_k > 0, top_k.to(tl.float32), float("inf"))
    if (top_k == 0) & (min_p <= 0.0) & (top_p < 1.0):
        wanted = top_p * total * _SLACK
    low, count = _select_groups(maxima, chosen, lowest, wanted, peak, temperature, top_k > 0, NUM_GROUPS, GROUPS)
    if top_k > 0:
        last = _filter_threshold(logits, chosen, count, wanted, low, peak, temperature, True, VOCABULARY, GROUP, CHUNK)
        lowest = tl.maximum(lowest, tl.div_rn(last, temperature))
    if top_p < 1.0:
        if (top_k > 0) | (min_p > 0.0):
            total, low = _total_above(logits, chosen, count, lowest, peak, temperature, VOCABULARY, GROUP, CHUNK)
        last = _filter_threshold(
            logits, chosen, count, top_p * total, low, peak, temperature, False, VOCABULARY, GROUP, CHUNK
        )
        lowest = tl.maximum(lowest, tl.div_rn(last, temperature))
    return _gumbel_argmax(logits, chosen, count, lowest, rows, row, temperature, VOCABULARY, GROUP, CHUNK)


@triton.jit
def _select_groups(
    maxima, chosen, lowest, wanted, peak, temperature, counts, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr
):
    """Select the groups that matter, in ascending order. Return a lower bound of the threshold, as an order, and how
    many groups were selected.

    Largest logits of groups are logits: where those above a bound weigh as much as is wanted, the tokens above it do.
    """
    groups = tl.arange(0, GROUPS)
    x = tl.load(maxima + groups, mask=groups < NUM_GROUPS, other=float("-inf"))
    is_chosen = (tl.div_rn(x, temperature) >= lowest) & (x > float("-inf"))
    weight = tl.where(counts, 1.0, tl.exp((x - peak) / temperature))
    count = tl.sum(is_chosen.to(tl.int32), 0)
    enough = _FEW + tl.where(counts, wanted, 0.0).to(tl.int32)
    low, high, bound = tl.min(tl.where(is_chosen, x, peak), 0), peak, _ORDER_OF_NEG_INF
    left = tl.where(tl.sum(tl.where(is_chosen, weight, 0.0), 0) >= wanted, _MOST_BISECTIONS, 0)
    while (count > enough) & (left > 0):
        middle = 0.5 * low + 0.5 * high
        is_above = is_chosen & (x > middle)
        if tl.sum(tl.where(is_above, weight, 0.0), 0) >= wanted:
            low, bound = middle, float_to_order(middle)
            count = tl.sum(is_above.to(tl.int32), 0)
        else:
            high = middle
        left -= 1
    is_chosen = is_chosen & (float_to_order(x) > bound)
    offsets = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(chosen + offsets, groups, mask=is_chosen)
    tl.debug_barrier()  # Other threads read what this one wrote.
    return bound, count


@triton.jit
def _tokens_of(chosen, start, count, GROUP: tl.constexpr, CHUNK: tl.constexpr):
    """Return tokens of some of the selected groups [CHUNK, GROUP]; those past the last group are negative."""
    offsets = start + tl.arange(0, CHUNK)
    group = tl.load(chosen + offsets, mask=offsets < count, other=-1)
    return group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def _logits_of(logits, tokens, VOCABULARY: tl.constexpr):
    is_token = (tokens >= 0) & (tokens < VOCABULARY)
    return tl.load(logits + tokens, mask=is_token, other=float("-inf")).to(tl.float32)


@triton.jit
def _filter_threshold(
    logits, chosen, count, wanted, low, peak, temperature,
    COUNTS: tl.constexpr, VOCABULARY: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return the last logit within a filter: those before it, largest first, weigh less than is wanted.

    Each weighs 1, or its probability. The result's order is above low; if all logits above low together weigh less than
    is wanted, it is the number whose order is low. Every bisection ends at existing logits, so that equal ones need no
    further bisections.
    """
    high = float_to_order(peak)
    middle = low
    while high > low + 1:
        weight = tl.zeros([CHUNK, GROUP], tl.float32)
        above = tl.full([CHUNK, GROUP], 0x7FFFFFFF, tl.int32)
        below = tl.full([CHUNK, GROUP], _ORDER_OF_NEG_INF, tl.int32)
        for start in range(0, count, CHUNK):
            x = _logits_of(logits, _tokens_of(chosen, start, count, GROUP, CHUNK), VOCABULARY)
            order = float_to_order(x)
            is_above = order > middle
            share = tl.full([CHUNK, GROUP], 1.0, tl.float32) if COUNTS else tl.exp((x - peak) / temperature)
            weight += tl.where(is_above, share, 0.0)
            above = tl.where(is_above, tl.minimum(above, order), above)
            below = tl.where(is_above, below, tl.maximum(below, order))
        if tl.sum(weight) >= wanted:
            low = tl.min(above) - 1
        else:
            high = tl.maximum(tl.max(below), low)
        # In the middle of the numbers, not of their orders: half of those are between 0 and 1.
        half = float_to_order(0.5 * order_to_float(low) + 0.5 * order_to_float(high))
        middle = tl.minimum(tl.maximum(half, low + 1), high - 1)
    return order_to_float(high)


@triton.jit
def _total_above(
    logits, chosen, count, lowest, peak, temperature,
    VOCABULARY: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return the total weight of tokens with scores at or above the lowest, and the order just below theirs."""
    weight = tl.zeros([CHUNK, GROUP], tl.float32)
    above = tl.full([CHUNK, GROUP], 0x7FFFFFFF, tl.int32)
    for start in range(0, count, CHUNK):
        x = _logits_of(logits, _tokens_of(chosen, start, count, GROUP, CHUNK), VOCABULARY)
        is_above = tl.div_rn(x, temperature) >= lowest
        weight += tl.where(is_above, tl.exp((x - peak) / temperature), 0.0)
        above = tl.where(is_above, tl.minimum(above, float_to_order(x)), above)
    return tl.sum(weight), tl.min(above) - 1


@triton.jit
def _gumbel_argmax(
    logits, chosen, count, lowest, rows, row, temperature,
    VOCABULARY: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return the best token, with noise, among those whose score without noise is at or above the lowest."""
    first, second = noise_keys(rows, row)
    best = tl.full([CHUNK, GROUP], float("-inf"), tl.float32)
    best_tokens = tl.full([CHUNK, GROUP], VOCABULARY, tl.int32)
    for start in range(0, count, CHUNK):
        tokens = _tokens_of(chosen, start, count, GROUP, CHUNK)
        score = tl.div_rn(_logits_of(logits, tokens, VOCABULARY), temperature)
        score = tl.where(score >= lowest, score + noise(first, second, tokens), float("-inf"))
        is_better = score > best  # Among equals the first stays, whose id is lower.
        best_tokens = tl.where(is_better, tokens, best_tokens)
        best = tl.where(is_better, score, best)
    return tl.min(tl.where(best == tl.max(best), best_tokens, VOCABULARY))
