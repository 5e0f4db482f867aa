// The walk of tiles that lie in rows (rows.cuh), quad by quad. Where PIPELINED, a tile is unrolled, each stage ahead of the next:
// operands come from shared memory while the coefficients of the quad before are computed, which are ready when its states
// are due, and sums over lanes are taken one group later.

// Frames whose outputs are summed over the lanes together.
#define GROUP (LANES > 4 ? LANES : 4)
static_assert(QUADS > 1, "there is a quad to look ahead to");
static_assert(TILE % GROUP == 0, "a tile is made of whole groups");

// Marks of four frames, a byte each.
__device__ __forceinline__ u32 marks_of([[maybe_unused]] const Tile& tile, [[maybe_unused]] int quad) {
#if SEQ_IDX
  return *reinterpret_cast<const u32*>(&tile.marks[quad * 4]);
#else
  return 0;
#endif
}

// WHOLE, here and below: every frame takes part, and none begins a sequence.
template <bool WHOLE>
__device__ __forceinline__ void fetch_deltas(const Tile& tile, Thread& thread, int quad, Real (&delta)[4]) {
  load_reals(delta, &tile.delta[thread.row][quad * 4]);
#if SUMMARY && DECAY_BY_SUM
  const u32 marks = WHOLE ? 0 : marks_of(tile, quad);
#pragma unroll
  for (int g = 0; g < 4; g++) {
    if (!(marks >> 8 * g & MARK_SKIP)) thread.delta_sum += delta[g];
  }
#endif
}

// Four frames of a state of a projection.
__device__ __forceinline__ void fetch_projection(const Projection& rows, int slot, int quad, State (&values)[4]) {
#if COMPLEX
  Real re[4], im[4];
  load_reals(re, &rows[2 * slot][quad * 4]);
  load_reals(im, &rows[2 * slot + 1][quad * 4]);
#pragma unroll
  for (int g = 0; g < 4; g++) values[g] = {re[g], im[g]};
#else
  load_reals(values, &rows[slot][quad * 4]);
#endif
}

__device__ __forceinline__ void fetch_x(const Tile& tile, const Thread& thread, int quad, Real (&x)[4]) {
  load_reals(x, &tile.x[thread.row][quad * 4]);
}

__device__ __forceinline__ void fetch_projections([[maybe_unused]] const Tile& tile, [[maybe_unused]] const Thread& thread,
                                                  [[maybe_unused]] int round, [[maybe_unused]] int quad,
                                                  [[maybe_unused]] Quad& operands) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    [[maybe_unused]] const int slot = round * SLOTS + slot_of(thread.lane, s);
#if TILE_B
    fetch_projection(tile.b, slot, quad, operands.b[s]);
#endif
#if TILE_C
    fetch_projection(tile.c, slot, quad, operands.c[s]);
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
    for (int p = 0; p < GROUP; p += 4) {
      const int quad = (r + p) / 4;
      Real delta[4];
      Quad operands;
      QuadCoefficients k;
      fetch_deltas<WHOLE>(tile, thread, quad, delta);
      fetch_x(tile, thread, quad, operands.x);
      fetch_projections(tile, thread, 0, quad, operands);
      discretize_quad(thread, delta, operands, k);
      walk_quad<WHOLE>(thread, operands, k, WHOLE ? 0 : marks_of(tile, quad), rows - r - p, y + p);
    }
    sum_lanes(tile.x[thread.row] + r, thread.lane, y);
  }
}

#if PIPELINED
// Walks a whole tile, unrolled, so that each quad finds its operands and coefficients ready; where ENDS_EARLY, without the last group
// if it has none of the `rows`.
__device__ __forceinline__ void walk_tile(Tile& tile, Thread& thread, int rows) {
  Quad operands;
  QuadCoefficients k;
  Real ahead[4], last[GROUP];
  fetch_deltas<true>(tile, thread, 0, ahead);
  fetch_x(tile, thread, 0, operands.x);
  fetch_projections(tile, thread, 0, 0, operands);
  discretize_quad(thread, ahead, operands, k);
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
    for (int p = 0; p < GROUP; p += 4) {
      const int quad = (r + p) / 4;
      Quad next_operands;
      QuadCoefficients next_k;
      if (quad + 1 < QUADS) {
        fetch_x(tile, thread, quad + 1, next_operands.x);
        fetch_projections(tile, thread, 0, quad + 1, next_operands);
        discretize_quad(thread, ahead, next_operands, next_k);
        if (quad + 2 < QUADS) fetch_deltas<true>(tile, thread, quad + 2, ahead);
      }
      walk_quad<true>(thread, operands, k, 0, 4, y + p);
      if (quad + 1 < QUADS) {
        operands = next_operands;
#pragma unroll
        for (int s = 0; s < STATES; s++) {
#pragma unroll
          for (int g = 0; g < 4; g++) k[s][g] = next_k[s][g];
        }
      }
      if (p == 0 && r > 0) sum_lanes(tile.x[thread.row] + r - GROUP, thread.lane, last);
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) last[g] = y[g];
  }
  sum_lanes(tile.x[thread.row] + end - GROUP, thread.lane, last);
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
  const bool whole = rows == TILE || (rows * 4 >= TILE * 3 && thread.finite);
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
