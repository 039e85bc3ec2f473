"""Kernels of a recorded layer, in Triton: output, strongest keys and row statistics, without a matrix in memory.

`layer_kernel` walks over the keys once, as flash attention does, with p = 2^(s − m) for the largest score m so far, in
bits. Beside l = Σp and Σp·v it adds up Σp·(s − m) for the entropy, Σp·|i − j| for the distance, and p over kinds of
keys and near the diagonal; all are rescaled as m grows. At the end it scores the keys that averages of heads name. Where
keys are ranked, it keeps the five chunks of keys of every row with the largest scores, in which the five strongest keys
are. `ranking_kernel` scores the keys of these chunks again and takes the five. `column_kernel` walks over the rows and
adds up the weight that keys receive: it is known once the sum of every row is.

A step takes BN keys, in chunks of SUB. Threads of a GPU hold the scores of a row in turns, RUN adjacent columns each.
Keys are put into such columns that a thread holds one chunk: it adds up and ranks without asking other threads. Only
the end joins the sums and the five chunks of each thread.
"""

import triton
import triton.language as tl

CHUNKS: tl.constexpr = tl.constexpr(5)  # that a row keeps: as many as keys are ranked
SLOTS: tl.constexpr = tl.constexpr(8)  # a row's places in memory: the next power of two
# Three products of TF32, whose sum has 22 bits: an output's largest error is 1.7e-6 (1.3e-6 by float32's own products,
# which take three times as long on an H200). Triton's own choice would be one, with 11 bits.
FLOAT32: tl.constexpr = tl.constexpr("tf32x3")
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
ALWAYS: tl.constexpr = tl.constexpr(15)  # statistics of every run; those behind them need targets


@triton.jit
def _keep(new, index, v0, v1, v2, v3, v4, p0, p1, p2, p3, p4):
    """Insert a value and its place into five sorted ones of each row; among equals the first comes first."""
    a0 = new > v0
    a1 = new > v1
    a2 = new > v2
    a3 = new > v3
    a4 = new > v4
    v4 = tl.where(a3, v3, tl.where(a4, new, v4))
    p4 = tl.where(a3, p3, tl.where(a4, index, p4))
    v3 = tl.where(a2, v2, tl.where(a3, new, v3))
    p3 = tl.where(a2, p2, tl.where(a3, index, p3))
    v2 = tl.where(a1, v1, tl.where(a2, new, v2))
    p2 = tl.where(a1, p1, tl.where(a2, index, p2))
    v1 = tl.where(a0, v0, tl.where(a1, new, v1))
    p1 = tl.where(a0, p0, tl.where(a1, index, p1))
    v0 = tl.where(a0, new, v0)
    p0 = tl.where(a0, index, p0)
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
def _sum(x):
    """Sum over the keys of every chunk: (BM, turns, chunks, RUN) to (BM, chunks)."""
    return tl.sum(tl.sum(x, 3), 1)


@triton.jit
def _max(x):
    return tl.max(tl.max(x, 3), 1)


# Triton would otherwise compile a second kernel for texts whose length is a multiple of 16.
@triton.jit(do_not_specialize=["n", "heads", "window", "prefix"])
def layer_kernel(
    Q, K, V, KINDS, NORMS, LENGTHS, SINKS, TARGETS, OUT, STATS, KEPT, scale, softcap, n, heads, window, prefix,
    SHARE: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr, RANKS: tl.constexpr, BY_VALUE: tl.constexpr, N_TARGETS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, SUB: tl.constexpr, RUN: tl.constexpr, PIECE: tl.constexpr = 16,
):  # fmt: skip
    """Compute a block of BM rows of one head of one text.

    Q, OUT (B, H, n, E); K, V (B, H / SHARE, n, E); KINDS (B, 3, n) float32, of content, special tokens and punctuation,
    n rounded up to BN; NORMS (B, H / SHARE, n), logarithms, read if BY_VALUE; LENGTHS (B) int64; SINKS (H) float32;
    TARGETS (B, n, N_TARGETS) int64, the first of which is the row itself, −1 for none; STATS (17, B, H, n) float32, see
    fused_rows.STATISTICS;
    KEPT (B, H, n, SLOTS) int32, written if RANKS.
    """
    # the last blocks, which are the longest under a causal mask, first
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    head = tl.program_id(1)
    text = tl.program_id(2)
    line = (text * heads + head).to(tl.int64) * n
    group = (text * (heads // SHARE) + head // SHARE).to(tl.int64) * n
    rows = start + tl.arange(0, BM)
    e = tl.arange(0, E)
    inside = rows < n
    length = tl.load(LENGTHS + text).to(tl.int32)
    q = tl.load(Q + line * E + (rows[:, None] * E + e[None]), mask=inside[:, None], other=0.0)
    CHUNKED: tl.constexpr = (1, SUB // RUN, BN // SUB, RUN)  # of the columns: turns, chunks, RUN
    column = tl.arange(0, BN)
    chunk = tl.arange(0, BN // SUB)[None]
    within = column // (RUN * (BN // SUB)) * RUN + column % RUN  # the chunk
    order = tl.max_contiguous(tl.multiple_of(column // RUN % (BN // SUB) * SUB + within, RUN), RUN)
    within = tl.reshape(within, CHUNKED)
    padded = (n + BN - 1) // BN * BN
    m = tl.full([BM], float("-inf"), tl.float32)
    low = tl.full([BM, BN // SUB], float("-inf"), tl.float32)
    v0 = low
    v1 = low
    v2 = low
    v3 = low
    v4 = low
    zero = tl.zeros([BM, BN // SUB], tl.float32)
    total = zero
    spread = zero
    distance = zero
    first_weight = zero
    own = zero
    special = zero
    punctuation = zero
    content = zero
    near16 = zero
    near64 = zero
    near256 = zero
    near1024 = zero
    none = tl.full([BM, BN // SUB], -1, tl.int32)
    p0 = none
    p1 = none
    p2 = none
    p3 = none
    p4 = none
    output = tl.zeros([BM, E], tl.float32)
    begin = 0
    end = tl.minimum(length, n)
    if WINDOWED:
        begin = tl.maximum(0, start - window + 1) // BN * BN
        end = tl.minimum(end, start + BM + window - 1)
    if CAUSAL:
        end = tl.minimum(end, tl.maximum(start + BM, prefix))
    for k0 in range(begin, end, BN):
        keys = k0 + order
        there = keys < n
        k = tl.load(K + group * E + (keys[:, None] * E + e[None]), mask=there[:, None], other=0.0)
        s = tl.reshape(
            tl.dot(q, tl.trans(k), input_precision=FLOAT32), [BM, SUB // RUN, BN // SUB, RUN]
        )
        first_key = k0 + chunk * SUB
        ahead = (rows[:, None] - first_key)[:, None, :, None]
        skipped = first_key[:, None, :, None]
        s = LOG2E * softcap * _tanh(s * (scale / softcap)) if CAPPED else s * (scale * LOG2E)
        # Places are counted from the first key of a chunk: so the code holds `within` as constants, not in registers.
        visible = _visible(
            ahead, within, length - skipped, window, prefix - skipped, CAUSAL, WINDOWED
        )
        s = tl.where(visible, s, float("-inf"))
        ranked = s
        if BY_VALUE:
            ranked = s + LOG2E * tl.reshape(
                tl.load(NORMS + group + keys, mask=there, other=0.0), CHUNKED
            )
        peaks = _max(ranked)
        if RANKS:
            chunk_index = tl.broadcast_to(k0 // SUB + chunk, [BM, BN // SUB])
            v0, v1, v2, v3, v4, p0, p1, p2, p3, p4 = _keep(
                peaks, chunk_index, v0, v1, v2, v3, v4, p0, p1, p2, p3, p4
            )
        higher = tl.maximum(m, tl.max(_max(s) if BY_VALUE else peaks, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing visible so far
        factor = tl.exp2(m - base)
        down = factor[:, None]
        # finite for a hidden key, so that p times it is 0; a NaN stays
        below = tl.maximum(
            s - base[:, None, None, None], -1000.0, propagate_nan=tl.PropagateNan.ALL
        )
        p = tl.exp2(below)
        moved = tl.where(total > 0, (m - base)[:, None] * total, 0.0)
        spread = down * (spread + moved) + _sum(p * below)
        added = _sum(p)
        total = total * down + added
        # Σp(i − j), or Σp(j − i) to the right of the block's first row; what is on the other side is corrected below
        apart = (rows[:, None] - first_key).to(tl.float32) * added - _sum(p * within.to(tl.float32))
        distance = distance * down + tl.where(k0 > start, -apart, apart)
        kinds = KINDS + (text.to(tl.int64) * 3 * padded + k0) + order
        content = content * down + _sum(p * tl.reshape(tl.load(kinds), CHUNKED))
        special = special * down + _sum(p * tl.reshape(tl.load(kinds + padded), CHUNKED))
        punctuation = punctuation * down + _sum(
            p * tl.reshape(tl.load(kinds + 2 * padded), CHUNKED)
        )
        near16 = near16 * down
        near64 = near64 * down
        near256 = near256 * down
        near1024 = near1024 * down
        first_weight = first_weight * down
        own = own * down
        if k0 == 0:
            first_weight += _sum(tl.where(within + skipped == 0, p, 0.0))
        if (k0 + BN + 1024 > start) & (k0 < start + BM + 1024):
            behind = ahead - within
            gap = tl.abs(behind)
            distance += _sum(
                p * tl.where((behind < 0) != (k0 > start), 2.0 * gap.to(tl.float32), 0.0)
            )
            near16 += _sum(tl.where(gap <= 16, p, 0.0))
            near64 += _sum(tl.where(gap <= 64, p, 0.0))
            near256 += _sum(tl.where(gap <= 256, p, 0.0))
            near1024 += _sum(tl.where(gap <= 1024, p, 0.0))
            own += _sum(tl.where(gap == 0, p, 0.0))
        v = tl.load(V + group * E + (keys[:, None] * E + e[None]), mask=there[:, None], other=0.0)
        output = output * factor[:, None] + tl.dot(
            tl.reshape(p.to(v.dtype), [BM, BN]), v, input_precision=FLOAT32
        )
        m = higher
    total = tl.sum(total, 1)
    spread = tl.sum(spread, 1)
    distance = tl.sum(distance, 1)
    first_weight = tl.sum(first_weight, 1)
    own = tl.sum(own, 1)
    special = tl.sum(special, 1)
    punctuation = tl.sum(punctuation, 1)
    content = tl.sum(content, 1)
    near16 = tl.sum(near16, 1)
    near64 = tl.sum(near64, 1)
    near256 = tl.sum(near256, 1)
    near1024 = tl.sum(near1024, 1)
    base = tl.where(m == float("-inf"), 0.0, m)
    denominator = total
    sink = tl.zeros([BM], tl.float32)
    if HAS_SINKS:
        # the sink's logit may be far above every score: both are taken relative to the larger one
        logit = LOG2E * tl.load(SINKS + head).to(tl.float32)
        top = tl.maximum(m, logit)
        down = tl.exp2(m - top)
        spread = (spread + tl.where(total > 0, (m - top) * total, 0.0)) * down
        total = total * down
        distance = distance * down
        first_weight = first_weight * down
        own = own * down
        special = special * down
        punctuation = punctuation * down
        content = content * down
        near16 = near16 * down
        near64 = near64 * down
        near256 = near256 * down
        near1024 = near1024 * down
        output = output * down[:, None]
        sink = tl.exp2(logit - top)
        base = top
        denominator = total + sink
    share = 1.0 / tl.where(denominator > 0, denominator, 1.0)
    log_denominator = tl.log2(tl.where(denominator > 0, denominator, 1.0))
    blended = (output * share[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + line * E + (rows[:, None] * E + e[None]), blended, mask=inside[:, None])
    step = tl.num_programs(2).to(tl.int64) * heads * n
    # a row that sees nothing has no statistics
    seen = tl.where(m > float("-inf"), 0.0, float("nan"))
    tl.store(STATS + line + rows, (base + log_denominator) / LOG2E, mask=inside)
    bits = (log_denominator * total - spread) * share
    tl.store(STATS + (step + line) + rows, tl.maximum(bits, 0.0) + seen, mask=inside)
    tl.store(STATS + (2 * step + line) + rows, distance * share + seen, mask=inside)
    tl.store(STATS + (3 * step + line) + rows, first_weight * share + seen, mask=inside)
    tl.store(STATS + (4 * step + line) + rows, own * share + seen, mask=inside)
    tl.store(STATS + (5 * step + line) + rows, near16 * share + seen, mask=inside)
    tl.store(STATS + (6 * step + line) + rows, near64 * share + seen, mask=inside)
    tl.store(STATS + (7 * step + line) + rows, near256 * share + seen, mask=inside)
    tl.store(STATS + (8 * step + line) + rows, near1024 * share + seen, mask=inside)
    tl.store(STATS + (9 * step + line) + rows, special * share + seen, mask=inside)
    tl.store(STATS + (10 * step + line) + rows, punctuation * share + seen, mask=inside)
    own_kind = tl.load(KINDS + text.to(tl.int64) * 3 * padded + rows, mask=inside, other=0.0)
    other = tl.maximum(content - own * own_kind, 0.0)
    tl.store(STATS + (11 * step + line) + rows, other * share + seen, mask=inside)
    tl.store(STATS + (12 * step + line) + rows, sink * share + seen, mask=inside)
    tl.store(
        STATS + (13 * step + line) + rows,
        tl.where(m == float("-inf"), float("nan"), m / LOG2E),
        mask=inside,
    )
    tl.store(STATS + (14 * step + line) + rows, tl.exp2(m - base) * share + seen, mask=inside)
    for i in tl.static_range(1, N_TARGETS):
        target = tl.load(TARGETS + (text * n + rows) * N_TARGETS + i, mask=inside, other=-1)
        there = target >= 0
        s = tl.zeros([BM], tl.float32)
        for piece in tl.static_range(0, E, PIECE):
            part = piece + tl.arange(0, PIECE)
            q = tl.load(Q + line * E + (rows[:, None] * E + part[None]), mask=there[:, None])
            k = tl.load(K + group * E + (target[:, None] * E + part[None]), mask=there[:, None])
            s += tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)
        s = LOG2E * softcap * _tanh(s * (scale / softcap)) if CAPPED else s * (scale * LOG2E)
        visible = _visible(rows, target, length, window, prefix, CAUSAL, WINDOWED)
        weight = tl.where(visible, tl.exp2(s - base), 0.0) * share + seen
        tl.store(
            STATS + ((ALWAYS + i - 1) * step + line) + rows,
            tl.where(there, weight, float("nan")),
            mask=inside,
        )
    if RANKS:
        for i in tl.static_range(CHUNKS):
            best = tl.max(v0, 1)[:, None]
            chunk_index = tl.min(tl.where(v0 == best, p0, 2147483647), 1)  # the first of equals
            tl.store(KEPT + line * SLOTS + (rows * SLOTS + i), chunk_index, mask=inside)
            is_best = p0 == chunk_index[:, None]
            v0 = tl.where(is_best, v1, v0)
            v1 = tl.where(is_best, v2, v1)
            v2 = tl.where(is_best, v3, v2)
            p0 = tl.where(is_best, p1, p0)
            p1 = tl.where(is_best, p2, p1)
            p2 = tl.where(is_best, p3, p2)
            v3 = tl.where(is_best, v4, v3)
            p3 = tl.where(is_best, p4, p3)


@triton.jit(do_not_specialize=["n", "heads", "window", "prefix"])
def ranking_kernel(
    Q, K, NORMS, LENGTHS, STATS, KEPT, KEYS, WEIGHTS, scale, softcap, n, heads, window, prefix,
    SHARE: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    BY_VALUE: tl.constexpr, SUB: tl.constexpr, ROWS: tl.constexpr, PIECE: tl.constexpr = 16,
):  # fmt: skip
    """Rank the keys of ROWS rows; KEYS int32 and WEIGHTS float32, (B, H, n, SLOTS), −1 and NaN if there are fewer."""
    head = tl.program_id(1)
    text = tl.program_id(2)
    line = (text * heads + head).to(tl.int64) * n
    group = (text * (heads // SHARE) + head // SHARE).to(tl.int64) * n
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, SLOTS * SUB)
    inside = rows < n
    at = line + rows
    length = tl.load(LENGTHS + text).to(tl.int32)
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
        k = tl.load(
            K + (group + keys)[:, :, None] * E + e[None, None], mask=there[:, :, None], other=0.0
        )
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
        # the first of equals
        key = tl.min(tl.where((ranked == best[:, None]) & there, keys, beyond), 1)
        is_chosen = keys == key[:, None]
        weight = tl.exp(tl.max(tl.where(is_chosen & there, s, float("-inf")), 1) - log_sum)
        exists = best > float("-inf")
        tl.store(KEYS + at * SLOTS + i, tl.where(exists, key, -1), mask=inside)
        tl.store(WEIGHTS + at * SLOTS + i, tl.where(exists, weight, float("nan")), mask=inside)
        ranked = tl.where(is_chosen, float("-inf"), ranked)


@triton.jit(do_not_specialize=["n", "heads", "window", "prefix"])
def column_kernel(
    Q, K, LENGTHS, COUNTED, STATS, RECEIVED, scale, softcap, n, heads, window, prefix,
    SHARE: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add up what BN keys of one head of one text receive from the rows that count, BM at a time.

    One program adds the rows in their order, so that a sum has the same bits in every run. COUNTED (B, n) bool;
    RECEIVED (B, H, n) float32.
    """
    start = tl.program_id(0) * BN
    head = tl.program_id(1)
    text = tl.program_id(2)
    line = (text * heads + head).to(tl.int64) * n
    group = (text * (heads // SHARE) + head // SHARE).to(tl.int64) * n
    keys = start + tl.arange(0, BN)
    e = tl.arange(0, E)
    there = keys < n
    length = tl.load(LENGTHS + text).to(tl.int32)
    k = tl.load(K + group * E + (keys[:, None] * E + e[None]), mask=there[:, None], other=0.0)
    begin = 0
    end = tl.where(start < length, n, 0)
    if CAUSAL:
        begin = tl.where(start < prefix, 0, start)
    if WINDOWED:
        begin = tl.maximum(begin, start - window + 1)
        end = tl.minimum(end, start + BN + window - 1)
    received = tl.zeros([BM, BN], tl.float32)
    for q0 in range(begin, end, BM):
        rows = q0 + tl.arange(0, BM)
        inside = rows < n
        counted = tl.load(COUNTED + text * n + rows, mask=inside, other=0) != 0
        log_sum = tl.load(STATS + line + rows, mask=inside, other=0.0)
        q = tl.load(Q + line * E + (rows[:, None] * E + e[None]), mask=inside[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=FLOAT32) * scale
        if CAPPED:
            s = softcap * _tanh(s / softcap)
        visible = _visible(rows[:, None], keys[None], length, window, prefix, CAUSAL, WINDOWED)
        received += tl.where(visible & counted[:, None], tl.exp(s - log_sum[:, None]), 0.0)
    tl.store(RECEIVED + line + keys, tl.sum(received, 0), mask=there)
