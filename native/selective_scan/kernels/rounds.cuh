// The walk of the forward scan where there are more states than a thread's registers hold: a stretch of eight frames for one
// round after the other. Its x, its Δ and its outputs stay in registers, and are summed over the lanes once; the states and the
// rates of the rounds lie in shared memory.

// What a thread has of each round, in shared memory.
struct Parked {
  typedef Real Row[ROUNDS][THREADS][LANE_WIDTH];
  alignas(16) Row h, a;
#if SUMMARY && !DECAY_BY_SUM
  alignas(16) Row product;
#endif
#if B_CONSTANT
  alignas(16) Row b;
#endif
#if C_CONSTANT && !SUMMARY
  alignas(16) Row c;
#endif
};

#define STRETCH 8
#define STRETCH_QUADS (STRETCH / 4)
static_assert(TILE % STRETCH == 0 && STRETCH % GROUP == 0, "a tile is made of whole stretches, and these of whole groups");

__device__ __forceinline__ void take_rates(Thread& thread, int round) {
  State a[STATES];
  load_lane(a, thread.parked->a[round][threadIdx.x]);
#pragma unroll
  for (int s = 0; s < STATES; s++) thread.rate[s] = rate_of(a[s]);
}

// Takes up what a round has beside its rates and its inputs, or leaves what has changed of it.
__device__ __forceinline__ void take_states(Thread& thread, int round) {
  load_lane(thread.h, thread.parked->h[round][threadIdx.x]);
#if SUMMARY && !DECAY_BY_SUM
  load_lane(thread.product, thread.parked->product[round][threadIdx.x]);
#endif
#if C_CONSTANT && !SUMMARY
  load_lane(thread.c, thread.parked->c[round][threadIdx.x]);
#endif
}
__device__ __forceinline__ void leave_states(const Thread& thread, int round) {
  store_lane(thread.parked->h[round][threadIdx.x], thread.h);
#if SUMMARY && !DECAY_BY_SUM
  store_lane(thread.parked->product[round][threadIdx.x], thread.product);
#endif
}

// Walks the first `rows` frames of a tile, stretch by stretch. What is read beyond them is zero.
template <bool WHOLE>
__device__ __forceinline__ void walk_stretches(Tile& tile, Thread& thread, int rows) {
#pragma unroll 1
  for (int r = 0; r < rows; r += STRETCH) {
    Real delta[STRETCH_QUADS][4], x[STRETCH_QUADS][4], y[STRETCH];
#pragma unroll
    for (int q = 0; q < STRETCH_QUADS; q++) {
      fetch_deltas<WHOLE>(tile, thread, r / 4 + q, delta[q]);
      fetch_x(tile, thread, r / 4 + q, x[q]);
    }
#pragma unroll
    for (int f = 0; f < STRETCH; f++) y[f] = 0;
    // Rounds that are walked unrolled, so that each quad finds its operands and coefficients ready.
    constexpr int AT_ONCE = WHOLE && PIPELINED && !B_CONSTANT ? ROUNDS : 1;
#pragma unroll 1
    for (int first = 0; first < ROUNDS; first += AT_ONCE) {
      Quad operands;
      QuadCoefficients k;
      const auto fetch = [&](int round, int q, Quad& operands, QuadCoefficients& k) {
        if (q == 0) {
          take_rates(thread, round);
#if B_CONSTANT
          load_lane(thread.b, thread.parked->b[round][threadIdx.x]);
#endif
        }
#pragma unroll
        for (int g = 0; g < 4; g++) operands.x[g] = x[q][g];
        fetch_projections(tile, thread, round, r / 4 + q, operands);
        discretize_quad(thread, delta[q], operands, k);
      };
      fetch(first, 0, operands, k);
      take_states(thread, first);
#pragma unroll
      for (int step = 0; step < AT_ONCE * STRETCH_QUADS; step++) {
        const int round = first + step / STRETCH_QUADS, q = step % STRETCH_QUADS, next = step + 1;
        Quad next_operands;
        QuadCoefficients next_k;
        if (next < AT_ONCE * STRETCH_QUADS) {
          fetch(first + next / STRETCH_QUADS, next % STRETCH_QUADS, next_operands, next_k);
        }
        walk_quad<WHOLE>(thread, tile, operands, k, r + q * 4, rows, y + q * 4);
        if (q == STRETCH_QUADS - 1) {
          leave_states(thread, round);
          if (next < AT_ONCE * STRETCH_QUADS) take_states(thread, round + 1);
        }
        if (next < AT_ONCE * STRETCH_QUADS) {
          operands = next_operands;
#pragma unroll
          for (int s = 0; s < STATES; s++) {
#pragma unroll
            for (int g = 0; g < 4; g++) k[s][g] = next_k[s][g];
          }
        }
      }
    }
#pragma unroll
    for (int p = 0; p < STRETCH; p += GROUP) {
      Real group[GROUP];
#pragma unroll
      for (int g = 0; g < GROUP; g++) group[g] = y[p + g];
      sum_lanes(tile.x[thread.row] + r + p, thread.lane, group);
    }
  }
}
