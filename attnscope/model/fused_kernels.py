"""Kernels of a recorded layer, in Triton: output, strongest keys and row statistics, without a matrix in memory.

`layer_kernel` walks over the keys once, as flash attention does, with p = exp(s − m) for the largest score m so far.
Beside l = Σp and Σp·v it adds up Σp·(s − m) for the entropy, Σp·|i − j| for the distance, and p over kinds of keys and
near the diagonal; all are rescaled as m grows. Of every row it keeps the five chunks of keys with the largest scores,
in which the five strongest keys are. `ranking_kernel` scores the keys of these chunks again, and takes the five.
"""

import triton
import triton.language as tl

CHUNKS: tl.constexpr = tl.constexpr(5)  # that a row keeps: as many as keys are ranked
SLOTS: tl.constexpr = tl.constexpr(8)  # a row's places in memory: the next power of two
STATISTICS = (
    "log_sum", "entropy", "distance", "first", "self", "within_16", "within_64", "within_256", "within_1024", "special",
    "punctuation", "content", "sink", "max_score",
)  # fmt: skip


@triton.jit
def _keep(new, place, v0, v1, v2, v3, v4, p0, p1, p2, p3, p4):
    """Insert a value and its place into five sorted ones of each row; among equals the first comes first."""
    a0, a1, a2, a3, a4 = new > v0, new > v1, new > v2, new > v3, new > v4
    v4, p4 = tl.where(a3, v3, tl.where(a4, new, v4)), tl.where(a3, p3, tl.where(a4, place, p4))
    v3, p3 = tl.where(a2, v2, tl.where(a3, new, v3)), tl.where(a2, p2, tl.where(a3, place, p3))
    v2, p2 = tl.where(a1, v1, tl.where(a2, new, v2)), tl.where(a1, p1, tl.where(a2, place, p2))
    v1, p1 = tl.where(a0, v0, tl.where(a1, new, v1)), tl.where(a0, p0, tl.where(a1, place, p1))
    v0, p0 = tl.where(a0, new, v0), tl.where(a0, place, p0)
    return v0, v1, v2, v3, v4, p0, p1, p2, p3, p4


@triton.jit
def _tanh(x):
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def _visible(rows, keys, length, window, prefix, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Tell which keys rows may see; both broadcast to the result."""
    allowed = keys < length
    if CAUSAL:
        allowed = allowed & ((keys <= rows) | (keys < prefix))
    if WINDOWED:
        allowed = allowed & (tl.abs(rows - keys) < window)
    return allowed


@triton.jit
def layer_kernel(
    Q, K, V, KINDS, NORMS, LENGTHS, SINKS, OUT, STATS, KEPT, scale, softcap, n, heads, window, prefix,
    SHARE: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr, BY_VALUE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SUB: tl.constexpr,
):  # fmt: skip
    """Compute a block of BM rows of one head of one text.

    Q, OUT (B, H, n, E); K, V (B, H / SHARE, n, E); KINDS (B, 3, n) float32; NORMS (B, H / SHARE, n), logarithms, read
    if BY_VALUE; LENGTHS (B) int32; SINKS (H) float32; STATS (14, B, H, n) float32; KEPT (B, H, n, SLOTS) int32.
    """
    # the last blocks, which are the longest under a causal mask, first
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    head, text = tl.program_id(1), tl.program_id(2)
    line, group = (text * heads + head).to(tl.int64) * n, (text * (heads // SHARE) + head // SHARE).to(tl.int64) * n
    rows, e = start + tl.arange(0, BM), tl.arange(0, E)
    inside, length = rows < n, tl.load(LENGTHS + text)
    q = tl.load(Q + (line + rows)[:, None] * E + e[None], mask=inside[:, None], other=0.0)
    low = tl.full([BM], float("-inf"), tl.float32)
    m, v0, v1, v2, v3, v4 = low, low, low, low, low, low
    zero = tl.zeros([BM], tl.float32)
    total, spread, distance, first, own = zero, zero, zero, zero, zero
    special, punctuation, content = zero, zero, zero
    near16, near64, near256, near1024 = zero, zero, zero, zero
    none = tl.full([BM], -1, tl.int32)
    p0, p1, p2, p3, p4 = none, none, none, none, none
    output = tl.zeros([BM, E], tl.float32)
    begin, end = 0, tl.minimum(length, n)
    if WINDOWED:
        begin = tl.maximum(0, start - window + 1) // BN * BN
        end = tl.minimum(end, start + BM + window - 1)
    if CAUSAL:
        end = tl.minimum(end, tl.maximum(start + BM, prefix))
    for k0 in range(begin, end, BN):
        keys = k0 + tl.arange(0, BN)
        there = keys < n
        k = tl.load(K + (group + keys)[:, None] * E + e[None], mask=there[:, None], other=0.0)
        # Triton's own choice for float32 would be TF32
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if CAPPED:
            s = softcap * _tanh(s / softcap)
        s = tl.where(_visible(rows[:, None], keys[None], length, window, prefix, CAUSAL, WINDOWED), s, float("-inf"))
        gap = tl.abs(rows[:, None] - keys[None])
        ranked = s
        if BY_VALUE:
            ranked = s + tl.load(NORMS + group + keys, mask=there, other=0.0)[None]
        peaks = tl.max(tl.reshape(ranked, [BM, BN // SUB, SUB]), 2)  # (BM, chunks)
        chunk = tl.arange(0, BN // SUB)
        for i in tl.static_range(BN // SUB):
            peak = tl.max(tl.where(chunk[None] == i, peaks, float("-inf")), 1)
            v0, v1, v2, v3, v4, p0, p1, p2, p3, p4 = _keep(peak, k0 // SUB + i, v0, v1, v2, v3, v4, p0, p1, p2, p3, p4)
        higher = tl.maximum(m, tl.max(s, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing visible so far
        factor = tl.exp(m - base)
        p = tl.exp(s - base[:, None])
        # Σp(s − m) refers to the m of now: that of before is above it by m − base, for every p
        moved = tl.where(total > 0, (m - base) * total, 0.0)
        spread = factor * (spread + moved) + tl.sum(tl.where(p > 0, p * (s - base[:, None]), 0.0), 1)
        total = total * factor + tl.sum(p, 1)
        distance = distance * factor + tl.sum(p * gap.to(tl.float32), 1)
        kinds = KINDS + text.to(tl.int64) * 3 * n + keys
        special = special * factor + tl.sum(p * tl.load(kinds, mask=there, other=0.0)[None], 1)
        punctuation = punctuation * factor + tl.sum(p * tl.load(kinds + n, mask=there, other=0.0)[None], 1)
        content = content * factor + tl.sum(p * tl.load(kinds + 2 * n, mask=there, other=0.0)[None], 1)
        near16, near64, near256, near1024 = near16 * factor, near64 * factor, near256 * factor, near1024 * factor
        first, own = first * factor, own * factor
        if k0 == 0:
            first += tl.sum(tl.where(keys[None] == 0, p, 0.0), 1)
        # most blocks of a long text are far from the diagonal
        if (k0 + BN + 1024 > start) & (k0 < start + BM + 1024):
            near16 += tl.sum(tl.where(gap <= 16, p, 0.0), 1)
            near64 += tl.sum(tl.where(gap <= 64, p, 0.0), 1)
            near256 += tl.sum(tl.where(gap <= 256, p, 0.0), 1)
            near1024 += tl.sum(tl.where(gap <= 1024, p, 0.0), 1)
            own += tl.sum(tl.where(gap == 0, p, 0.0), 1)
        v = tl.load(V + (group + keys)[:, None] * E + e[None], mask=there[:, None], other=0.0)
        output = output * factor[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = higher
    base, denominator, sink = tl.where(m == float("-inf"), 0.0, m), total, zero
    if HAS_SINKS:
        # the sink's logit may be far above every score: both are taken relative to the larger one
        logit = tl.load(SINKS + head).to(tl.float32)
        top = tl.maximum(m, logit)
        down = tl.exp(m - top)
        spread = (spread + tl.where(total > 0, (m - top) * total, 0.0)) * down
        total, distance, first, own = total * down, distance * down, first * down, own * down
        special, punctuation, content = special * down, punctuation * down, content * down
        near16, near64, near256, near1024 = near16 * down, near64 * down, near256 * down, near1024 * down
        output = output * down[:, None]
        sink = tl.exp(logit - top)
        base, denominator = top, total + sink
    share = 1.0 / tl.where(denominator > 0, denominator, 1.0)
    log_denominator = tl.log(tl.where(denominator > 0, denominator, 1.0))
    blended = (output * share[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + (line + rows)[:, None] * E + e[None], blended, mask=inside[:, None])
    step, at = tl.num_programs(2).to(tl.int64) * heads * n, line + rows
    seen = tl.where(v0 > float("-inf"), 0.0, float("nan"))  # a row that sees nothing has no statistics
    tl.store(STATS + at, base + log_denominator, mask=inside)
    bits = (log_denominator * total - spread) * share * 1.4426950408889634
    tl.store(STATS + step + at, tl.maximum(bits, 0.0) + seen, mask=inside)
    tl.store(STATS + 2 * step + at, distance * share + seen, mask=inside)
    tl.store(STATS + 3 * step + at, first * share + seen, mask=inside)
    tl.store(STATS + 4 * step + at, own * share + seen, mask=inside)
    tl.store(STATS + 5 * step + at, near16 * share + seen, mask=inside)
    tl.store(STATS + 6 * step + at, near64 * share + seen, mask=inside)
    tl.store(STATS + 7 * step + at, near256 * share + seen, mask=inside)
    tl.store(STATS + 8 * step + at, near1024 * share + seen, mask=inside)
    tl.store(STATS + 9 * step + at, special * share + seen, mask=inside)
    tl.store(STATS + 10 * step + at, punctuation * share + seen, mask=inside)
    tl.store(STATS + 11 * step + at, content * share + seen, mask=inside)
    tl.store(STATS + 12 * step + at, sink * share + seen, mask=inside)
    tl.store(STATS + 13 * step + at, tl.where(m == float("-inf"), float("nan"), m), mask=inside)
    kept = KEPT + at * SLOTS
    tl.store(kept, p0, mask=inside)
    tl.store(kept + 1, p1, mask=inside)
    tl.store(kept + 2, p2, mask=inside)
    tl.store(kept + 3, p3, mask=inside)
    tl.store(kept + 4, p4, mask=inside)


@triton.jit
def ranking_kernel(
    Q, K, NORMS, LENGTHS, STATS, KEPT, KEYS, WEIGHTS, scale, softcap, n, heads, window, prefix,
    SHARE: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    BY_VALUE: tl.constexpr, SUB: tl.constexpr, ROWS: tl.constexpr, PIECE: tl.constexpr = 16,
):  # fmt: skip
    """Rank the keys of ROWS rows; KEYS int32 and WEIGHTS float32, (B, H, n, SLOTS), −1 and NaN if there are fewer."""
    head, text = tl.program_id(1), tl.program_id(2)
    line, group = (text * heads + head).to(tl.int64) * n, (text * (heads // SHARE) + head // SHARE).to(tl.int64) * n
    rows, lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SLOTS * SUB)
    inside, at, length = rows < n, line + rows, tl.load(LENGTHS + text)
    chunk = tl.load(
        KEPT + at[:, None] * SLOTS + (lane // SUB)[None],
        mask=inside[:, None] & (lane < CHUNKS * SUB)[None],
        other=-1,
    )
    keys = chunk * SUB + (lane % SUB)[None]  # (ROWS, SLOTS · SUB)
    there = (chunk >= 0) & (keys < n) & inside[:, None]
    there = there & _visible(rows[:, None], keys, length, window, prefix, CAUSAL, WINDOWED)
    s = tl.zeros([ROWS, SLOTS * SUB], tl.float32)
    for piece in tl.static_range(0, E, PIECE):
        # The keys' whole vectors would not fit into registers.
        e = piece + tl.arange(0, PIECE)
        q = tl.load(Q + at[:, None] * E + e[None], mask=inside[:, None], other=0.0).to(tl.float32)
        k = tl.load(K + (group + keys)[:, :, None] * E + e[None, None], mask=there[:, :, None], other=0.0)
        s += tl.sum(k.to(tl.float32) * q[:, None], 2)
    s *= scale
    if CAPPED:
        s = softcap * _tanh(s / softcap)
    ranked = s
    if BY_VALUE:
        ranked = s + tl.load(NORMS + group + keys, mask=there, other=0.0)
    ranked = tl.where(there, ranked, float("-inf"))
    log_sum = tl.load(STATS + at, mask=inside, other=0.0)
    beyond = 2147483647
    for i in tl.static_range(CHUNKS):
        best = tl.max(ranked, 1)
        key = tl.min(tl.where((ranked == best[:, None]) & there, keys, beyond), 1)  # the first of equals
        chosen = keys == key[:, None]
        weight = tl.exp(tl.max(tl.where(chosen & there, s, float("-inf")), 1) - log_sum)
        exists = best > float("-inf")
        tl.store(KEYS + at * SLOTS + i, tl.where(exists, key, -1), mask=inside)
        tl.store(WEIGHTS + at * SLOTS + i, tl.where(exists, weight, float("nan")), mask=inside)
        ranked = tl.where(chosen, float("-inf"), ranked)
