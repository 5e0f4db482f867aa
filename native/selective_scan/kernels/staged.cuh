// The walk of tiles that lie in rows (rows.cuh), span by span. Where PIPELINED, a tile is unrolled, each stage ahead of the next:
// operands come from shared memory while the coefficients of the span before are computed, which are ready when its states
// are due, and sums over lanes are taken one group later.

// Frames whose outputs are summed over the lanes together.
#define GROUP (LANES > SPAN ? LANES : SPAN)
static_assert(SPANS > 1, "there is a span to look ahead to");
static_assert(TILE % GROUP == 0, "a tile is made of whole groups");

// Marks of a span, a byte each.
static_assert(SPAN == sizeof(u32), "they are a word");
__device__ __forceinline__ u32 marks_of([[maybe_unused]] const Tile& tile, [[maybe_unused]] int span) {
#if SEQ_IDX
  return *reinterpret_cast<const u32*>(&tile.marks[span * SPAN]);
#else
  return 0;
#endif
}

// WHOLE, here and below: every frame takes part, and none begins a sequence.
template <bool WHOLE>
__device__ __forceinline__ void fetch_deltas(const Tile& tile, Thread& thread, int span, Real (&delta)[SPAN]) {
  load_reals(delta, &tile.delta[thread.row][span * SPAN]);
#if SUMMARY && DECAY_BY_SUM
  const u32 marks = WHOLE ? 0 : marks_of(tile, span);
#pragma unroll
  for (int g = 0; g < SPAN; g++) {
    if (!(marks >> 8 * g & MARK_SKIP)) thread.delta_sum += delta[g];
  }
#endif
}

// A span of a state of a projection.
__device__ __forceinline__ void fetch_projection(const Projection& rows, int slot, int span, State (&values)[SPAN]) {
#if COMPLEX
  Real re[SPAN], im[SPAN];
  load_reals(re, &rows[2 * slot][span * SPAN]);
  load_reals(im, &rows[2 * slot + 1][span * SPAN]);
#pragma unroll
  for (int g = 0; g < SPAN; g++) values[g] = {re[g], im[g]};
#else
  load_reals(values, &rows[slot][span * SPAN]);
#endif
}

__device__ __forceinline__ void fetch_x(const Tile& tile, const Thread& thread, int span, Real (&x)[SPAN]) {
  load_reals(x, &tile.x[thread.row][span * SPAN]);
}

__device__ __forceinline__ void fetch_projections([[maybe_unused]] const Tile& tile, [[maybe_unused]] const Thread& thread,
                                                  [[maybe_unused]] int round, [[maybe_unused]] int span,
                                                  [[maybe_unused]] Operands& operands) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    [[maybe_unused]] const int slot = round * SLOTS + slot_of(thread.lane, s);
#if TILE_B
    fetch_projection(tile.b, slot, span, operands.b[s]);
#endif
#if TILE_C
    fetch_projection(tile.c, slot, span, operands.c[s]);
#endif
  }
}

#if ROUNDS > 1
#include "stretches.cuh"
#else
// Walks the first `rows` frames of a tile, group by group. What is read beyond them is zero.
template <bool WHOLE>
__device__ __forceinline__ void walk_groups(Tile& tile, Thread& thread, int rows) {
#pragma unroll 1
  for (int r = 0; r < rows; r += GROUP) {
    Real y[GROUP];
#pragma unroll
    for (int p = 0; p < GROUP; p += SPAN) {
      const int span = (r + p) / SPAN;
      Real delta[SPAN];
      Operands operands;
      SpanCoefficients k;
      fetch_deltas<WHOLE>(tile, thread, span, delta);
      fetch_x(tile, thread, span, operands.x);
      fetch_projections(tile, thread, 0, span, operands);
      discretize_span(thread, delta, operands, k);
      walk_span<WHOLE>(thread, operands, k, WHOLE ? 0 : marks_of(tile, span), rows - r - p, y + p);
    }
    store_sums(tile.x[thread.row] + r, thread.lane, y);
  }
}

#if PIPELINED
// Walks a whole tile, unrolled, so that each span finds its operands and coefficients ready; where ENDS_EARLY, without the last group
// if it has none of the `rows`.
__device__ __forceinline__ void walk_tile(Tile& tile, Thread& thread, int rows) {
  Operands operands;
  SpanCoefficients k;
  Real ahead[SPAN], last[GROUP];
  fetch_deltas<true>(tile, thread, 0, ahead);
  fetch_x(tile, thread, 0, operands.x);
  fetch_projections(tile, thread, 0, 0, operands);
  discretize_span(thread, ahead, operands, k);
  fetch_deltas<true>(tile, thread, 1, ahead);
  int end = TILE;
#pragma unroll
  for (int r = 0; r < TILE; r += GROUP) {
    if (ENDS_EARLY && r == TILE - GROUP && rows <= r) {
      end = r;
      break;
    }
    Real y[GROUP];
#pragma unroll
    for (int p = 0; p < GROUP; p += SPAN) {
      const int span = (r + p) / SPAN;
      Operands next_operands;
      SpanCoefficients next_k;
      if (span + 1 < SPANS) {
        fetch_x(tile, thread, span + 1, next_operands.x);
        fetch_projections(tile, thread, 0, span + 1, next_operands);
        discretize_span(thread, ahead, next_operands, next_k);
        if (span + 2 < SPANS) fetch_deltas<true>(tile, thread, span + 2, ahead);
      }
      walk_span<true>(thread, operands, k, 0, SPAN, y + p);
      if (span + 1 < SPANS) {
        operands = next_operands;
        k = next_k;
      }
      if (p == 0 && r > 0) store_sums(tile.x[thread.row] + r - GROUP, thread.lane, last);
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) last[g] = y[g];
  }
  store_sums(tile.x[thread.row] + end - GROUP, thread.lane, last);
}
#else
__device__ __forceinline__ void walk_tile(Tile& tile, Thread& thread, int rows) { walk_groups<true>(tile, thread, rows); }
#endif
#endif

// Walks a tile, which begins with frame i of the chunk.
__device__ __forceinline__ void walk(Tile& tile, Thread& thread, const Arguments& args, const Place& place, Kept& kept, int i,
                                     int rows, [[maybe_unused]] bool marked) {
  if (!SUMMARY && i == kept.at) keep(thread, args, place, kept);
#if SEQ_IDX
  const bool whole = !marked;
#else
  const bool whole = rows == TILE || (rows >= WHOLE_FROM && thread.finite);
#endif
#if ROUNDS > 1
  if (whole) {
    walk_stretches<true>(tile, thread, TILE);
  } else {
    walk_stretches<false>(tile, thread, rows);
  }
#else
  if (whole) {
    walk_tile(tile, thread, rows);
  } else {
    walk_groups<false>(tile, thread, rows);
  }
#endif
}
