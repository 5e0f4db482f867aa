// The walk of the forward scan where there are more states than a thread's registers hold: a stretch of eight frames for one
// round after the other. Its x, its Δ and its outputs stay in registers, and are summed over the lanes once; the states and the
// rates of the rounds lie in shared memory (rounds.cuh).

#define STRETCH 8
#define STRETCH_SPANS (STRETCH / SPAN)
static_assert(TILE % STRETCH == 0 && STRETCH % GROUP == 0, "a tile is made of whole stretches, and these of whole groups");

// Walks the first `rows` frames of a tile, stretch by stretch. What is read beyond them is zero.
template <bool WHOLE>
__device__ __forceinline__ void walk_stretches(Tile& tile, Thread& thread, int rows) {
#pragma unroll 1
  for (int r = 0; r < rows; r += STRETCH) {
    Real delta[STRETCH_SPANS][SPAN], x[STRETCH_SPANS][SPAN], y[STRETCH];
#pragma unroll
    for (int q = 0; q < STRETCH_SPANS; q++) {
      fetch_deltas<WHOLE>(tile, thread, r / SPAN + q, delta[q]);
      fetch_x(tile, thread, r / SPAN + q, x[q]);
    }
#pragma unroll
    for (int f = 0; f < STRETCH; f++) y[f] = 0;
    // Rounds that are walked unrolled, so that each span finds its operands and coefficients ready.
    constexpr int AT_ONCE = WHOLE && PIPELINED && !B_CONSTANT ? ROUNDS : 1;
#pragma unroll 1
    for (int first = 0; first < ROUNDS; first += AT_ONCE) {
      Operands operands;
      SpanCoefficients k;
      const auto fetch = [&](int round, int q, Operands& operands, SpanCoefficients& k) {
        if (q == 0) {
          take_rates(thread, round);
#if B_CONSTANT
          load_lane(thread.b, thread.parked->b[round][threadIdx.x]);
#endif
        }
#pragma unroll
        for (int g = 0; g < SPAN; g++) operands.x[g] = x[q][g];
        fetch_projections(tile, thread, round, r / SPAN + q, operands);
        discretize_span(thread, delta[q], operands, k);
      };
      fetch(first, 0, operands, k);
      take_states(thread, first);
#pragma unroll
      for (int step = 0; step < AT_ONCE * STRETCH_SPANS; step++) {
        const int round = first + step / STRETCH_SPANS, q = step % STRETCH_SPANS, next = step + 1;
        Operands next_operands;
        SpanCoefficients next_k;
        if (next < AT_ONCE * STRETCH_SPANS) {
          fetch(first + next / STRETCH_SPANS, next % STRETCH_SPANS, next_operands, next_k);
        }
        const u32 marks = WHOLE ? 0 : marks_of(tile, r / SPAN + q);
        walk_span<WHOLE>(thread, operands, k, marks, rows - r - q * SPAN, y + q * SPAN);
        if (q == STRETCH_SPANS - 1) {
          leave_states(thread, round);
          if (next < AT_ONCE * STRETCH_SPANS) take_states(thread, round + 1);
        }
        if (next < AT_ONCE * STRETCH_SPANS) {
          operands = next_operands;
          k = next_k;
        }
      }
    }
#pragma unroll
    for (int p = 0; p < STRETCH; p += GROUP) {
      Real group[GROUP];
#pragma unroll
      for (int g = 0; g < GROUP; g++) group[g] = y[p + g];
      store_sums(tile.x[thread.row] + r + p, thread.lane, group);
    }
  }
}
