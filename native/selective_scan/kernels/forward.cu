// The forward scan: h_i = a_i h_{i−1} + g_i B_i x_i, y_i = Σ C_i h_i + D x_i, out = y·silu(z).
//
// One block walks one chunk of one batch row for CHANNELS channels. Where the sequence is cut in several chunks,
// `boundary_states` holds the state before each (prefix.cu). Where there are several passes (two directions, or more
// states than SLOTS), y gathers in `y_sum` and the last pass finishes it.
//
// SUMMARY: what prefix.cu wants to know of each chunk, instead of y: the state that it ends with if it begins with
// zero, and the product of its decays, or ΣΔ where DECAY_BY_SUM.
//
// What bounds the walk is the unit for exponentials, one of 16 a clock and multiprocessor; all else must hide behind
// it. So a tile is walked in quads of four frames, where PIPELINED unrolled, each stage ahead of the next: operands come
// from shared memory while the coefficients of the quad before are computed, which are ready when its states are due,
// and sums over lanes are taken one group later. Two tiles lie in shared memory, the one that is walked and the next, and that after
// is on its way in registers: one barrier a tile.

#define USE_X 1
#define USE_B 1
#define USE_C !SUMMARY
#define USE_DY 0
#define USE_Z !SUMMARY

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "rows.cuh"

// Frames whose outputs are summed over the lanes together.
#define GROUP (LANES > 4 ? LANES : 4)
#define QUADS (TILE / 4)
// Marks of a tile that a thread copies.
#define MARKS_EACH ((TILE + THREADS - 1) / THREADS)
static_assert(QUADS > 1, "there is a quad to look ahead to");
static_assert(TILE % GROUP == 0, "a tile is made of whole groups");

struct Tile {
  alignas(16) Real delta[CHANNELS][PITCH];
  alignas(16) Real x[CHANNELS][PITCH];  // scaled; after the walk, Σ C h
#if TILE_B
  alignas(16) Real b[SLOT_WIDTH][PITCH];
#endif
#if TILE_C
  alignas(16) Real c[SLOT_WIDTH][PITCH];
#endif
#if SEQ_IDX
  u8 marks[TILE];
#endif
};

struct Shared {
  Tile tiles[2];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// Tiles from that which is walked to that which `Incoming` points to.
#define AHEAD 3

// What is on its way to the next tile, and where the tile after that lies.
struct Incoming {
  Sequence::Cursor sequence;
  Sequence::Raw dt, x;
#if TILE_B
  RowsOfB::Cursor at_b;
  RowsOfB::Raw b;
#endif
#if TILE_C
  RowsOfC::Cursor at_c;
  RowsOfC::Raw c;
#endif
#if SEQ_IDX
  const u8* marks;
  u8 mark[MARKS_EACH];
#endif

  __device__ __forceinline__ Incoming(const Arguments& args, const Place& place, i64 i0)
      : sequence(sequence_at(args, place, i0))
#if TILE_B
        , at_b(projection_at<RowsOfB>(args, place, args.groups_b, place.group_b, i0))
#endif
#if TILE_C
        , at_c(projection_at<RowsOfC>(args, place, args.groups_c, place.group_c, i0))
#endif
#if SEQ_IDX
        , marks(args.marks + place.row * args.seq + i0)
#endif
  {
  }
};

// What the owner of an element needs to finish it.
struct Finishing {
#if SEQ_IDX
  bool skip[Sequence::EACH][Sequence::FRAMES];
#endif
#if HAS_D
  Sequence::Raw x;
#endif
#if HAS_Z
  Sequence::Raw z;
#endif
};

// What a thread keeps over its chunk.
struct Thread {
  int lane, row, count;
  bool active;
  bool finite;  // all a of the warp are: frames of zero Δ leave its states as they are
  i64 channel;
  Rate rate[STATES];
  State h[STATES];
#if B_CONSTANT
  State b[STATES];
#endif
#if SUMMARY && DECAY_BY_SUM
  Real delta_sum;
#elif SUMMARY
  State product[STATES];
#elif C_CONSTANT
  State c[STATES];
#endif
};

// The operands of four frames.
struct Quad {
  Real x[4];
#if TILE_B
  State b[STATES][4];
#endif
#if TILE_C
  State c[STATES][4];
#endif
};

typedef Coefficients QuadCoefficients[STATES][4];

__device__ __forceinline__ void load_tile(Incoming& in, const Arguments& args, int rows) {
  in.sequence.load(in.dt, args.dt, rows);
  in.sequence.load(in.x, args.x, rows);
  in.sequence.advance();
#if TILE_B
  in.at_b.load(in.b, args.b, rows);
  in.at_b.advance();
#endif
#if TILE_C
  in.at_c.load(in.c, args.c, rows);
  in.at_c.advance();
#endif
#if SEQ_IDX
#pragma unroll
  for (int k = 0; k < MARKS_EACH; k++) {
    const int r = k * THREADS + (int)threadIdx.x;
    in.mark[k] = r < rows ? in.marks[r] : MARK_SKIP;
  }
  in.marks += TILE;
#endif
}

__device__ __forceinline__ void store_tile(Tile& tile, const Incoming& in, const Arguments& args, const Place& place, int rows) {
  Sequence::each([&](int k, int r, int column) {
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
      [[maybe_unused]] Real bias = 0, slope;
#if HAS_DT_BIAS
      if (column < place.channels) bias = args.dt_bias[place.channel0 + column + e];
#endif
      Real delta[Sequence::FRAMES], x[Sequence::FRAMES];
#pragma unroll
      for (int f = 0; f < Sequence::FRAMES; f++) {
        const bool here = r + f < rows && column < place.channels;
        delta[f] = here ? step_size(args, to_real(in.dt[k][f].elements[e]), bias, slope) : (Real)0;
        x[f] = scale_input(to_real(in.x[k][f].elements[e]), delta[f]);
      }
      const int row = e * ROW_STEP + column / VECTOR;
      Sequence::put(tile.delta, row, r, delta);
      Sequence::put(tile.x, row, r, x);
    }
  });
#if TILE_B
  store_projection<RowsOfB, VECTOR_B>(tile.b, in.b);
#endif
#if TILE_C
  store_projection<RowsOfC, VECTOR_C>(tile.c, in.c);
#endif
#if SEQ_IDX
#pragma unroll
  for (int k = 0; k < MARKS_EACH; k++) {
    const int r = k * THREADS + (int)threadIdx.x;
    if (r < TILE) tile.marks[r] = in.mark[k];
  }
#endif
}

__device__ __forceinline__ void load_finishing(Finishing& finishing, [[maybe_unused]] const Tile& tile,
                                               [[maybe_unused]] const Incoming& in, [[maybe_unused]] const Arguments& args,
                                               [[maybe_unused]] int rows) {
#if SEQ_IDX
  // Now, because the tile's next marks are written by another thread than this.
  Sequence::each([&](int k, int r, int) {
#pragma unroll
    for (int f = 0; f < Sequence::FRAMES; f++) finishing.skip[k][f] = tile.marks[r + f] & MARK_SKIP;
  });
#endif
#if HAS_D
  in.sequence.load<AHEAD>(finishing.x, args.x, rows);
#endif
#if HAS_Z
  in.sequence.load<AHEAD>(finishing.z, args.z, rows);
#endif
}

// The owner of an element of a tile finishes it.
__device__ __forceinline__ void finish_tile(const Tile& tile, [[maybe_unused]] const Finishing& finishing, const Incoming& in,
                                            const Arguments& args, const Place& place, int rows) {
  Sequence::each([&](int k, int r, int column) {
    Real sums[VECTOR][Sequence::FRAMES];
#pragma unroll
    for (int e = 0; e < VECTOR; e++) load_reals(sums[e], &tile.x[e * ROW_STEP + column / VECTOR][r]);
#pragma unroll
    for (int f = 0; f < Sequence::FRAMES; f++) {
      if (r + f >= rows || column >= place.channels) continue;
      const i64 at = in.sequence.at[k] + (f - AHEAD * TILE) * in.sequence.stride;
      Real y[VECTOR];
#pragma unroll
      for (int e = 0; e < VECTOR; e++) y[e] = OUTPUT_WEIGHT * sums[e][f];
#if SEVERAL_PASSES
      if (!args.first_pass) {
#pragma unroll
        for (int e = 0; e < VECTOR; e++) y[e] += args.y_sum[at + e];
      }
      if (!args.last_pass) {
#pragma unroll
        for (int e = 0; e < VECTOR; e++) args.y_sum[at + e] = y[e];
        continue;
      }
#pragma unroll
      for (int e = 0; e < VECTOR; e++) y[e] *= (Real)args.scale;
#endif
#pragma unroll
      for (int e = 0; e < VECTOR; e++) {
#if HAS_D
        y[e] += args.d[place.channel0 + column + e] * to_real(finishing.x[k][f].elements[e]);
#endif
#if HAS_Z
        const Real z = to_real(finishing.z[k][f].elements[e]);
        y[e] *= z * sigmoid(z);
#endif
#if SEQ_IDX
        if (finishing.skip[k][f]) y[e] = (Real)0;
#endif
      }
      store_elements(args.y + at, y);
    }
  });
}

__device__ __forceinline__ void fetch_deltas(const Tile& tile, Thread& thread, int quad, Real (&delta)[4]) {
  load_reals(delta, &tile.delta[thread.row][quad * 4]);
#if SUMMARY && DECAY_BY_SUM
#pragma unroll
  for (int g = 0; g < 4; g++) {
#if SEQ_IDX
    if (tile.marks[quad * 4 + g] & MARK_SKIP) continue;
#endif
    thread.delta_sum += delta[g];
  }
#endif
}

// Four frames of a state of a projection.
__device__ __forceinline__ void fetch_projection(const Real (*rows)[PITCH], int slot, int quad, State (&values)[4]) {
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

__device__ __forceinline__ void fetch_quad(const Tile& tile, const Thread& thread, int quad, Quad& operands) {
  load_reals(operands.x, &tile.x[thread.row][quad * 4]);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    [[maybe_unused]] const int slot = slot_of(thread.lane, s);
#if TILE_B
    fetch_projection(tile.b, slot, quad, operands.b[s]);
#endif
#if TILE_C
    fetch_projection(tile.c, slot, quad, operands.c[s]);
#endif
  }
}

__device__ __forceinline__ State b_of(const Thread& thread, [[maybe_unused]] const Quad& operands, int s, [[maybe_unused]] int g) {
#if B_CONSTANT
  return thread.b[s];
#else
  return operands.b[s][g];
#endif
}

// Where gains are known, inputs are taken in at once: neither b nor gains wait for the walk in registers.
__device__ __forceinline__ void discretize_quad(const Thread& thread, const Real (&delta)[4], const Quad& operands,
                                                QuadCoefficients& k) {
#pragma unroll
  for (int g = 0; g < 4; g++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      k[s][g] = discretize(thread.rate[s], delta[g]);
#if HAS_GAIN
      k[s][g].g = k[s][g].g * (b_of(thread, operands, s, g) * operands.x[g]);
#endif
    }
  }
}

// Four frames from frame r on; `y` gets the thread's parts of Σ C h. PARTIAL: frames from `rows` on are none.
template <bool PARTIAL>
__device__ __forceinline__ void walk_quad(Thread& thread, [[maybe_unused]] const Tile& tile, const Quad& operands,
                                          const QuadCoefficients& k, int r, int rows, Real* y) {
#pragma unroll
  for (int g = 0; g < 4; g++) {
#if SEQ_IDX
    const u8 mark = tile.marks[r + g];
    if (mark & MARK_RESET) {
#pragma unroll
      for (int s = 0; s < STATES; s++) thread.h[s] = to_state(0);
    }
    const bool here = !(mark & MARK_SKIP) && (!PARTIAL || r + g < rows);
#else
    const bool here = !PARTIAL || r + g < rows;
#endif
    [[maybe_unused]] State sum = to_state(0);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
#if HAS_GAIN
      const State input = k[s][g].g;
#else
      const State input = b_of(thread, operands, s, g) * operands.x[g];
#endif
      const State next = advance(k[s][g], thread.h[s], input);
      thread.h[s] = here ? next : thread.h[s];
#if SUMMARY && !DECAY_BY_SUM
      thread.product[s] = here ? decay_of(k[s][g]) * thread.product[s] : thread.product[s];
#elif !SUMMARY
#if C_CONSTANT
      const State c = thread.c[s];
#else
      const State c = operands.c[s][g];
#endif
      sum = s == 0 ? c * thread.h[s] : c * thread.h[s] + sum;
#endif
    }
    y[g] = real_part(sum);
  }
}

// Sums a group over the lanes of a channel and puts the sums where x was. Each exchange halves what a thread holds.
__device__ __forceinline__ void sum_group([[maybe_unused]] Tile& tile, [[maybe_unused]] const Thread& thread,
                                          [[maybe_unused]] int r, [[maybe_unused]] Real (&y)[GROUP]) {
#if !SUMMARY
  int held = GROUP, first = 0;
#pragma unroll
  for (int bit = LANES / 2; bit > 0; bit /= 2) {
    const bool upper = thread.lane & bit;
    held /= 2;
#pragma unroll
    for (int g = 0; g < held; g++) {
      const Real give = upper ? y[g] : y[g + held], keep = upper ? y[g + held] : y[g];
      y[g] = keep + __shfl_xor_sync(ALL_LANES, give, thread_bit(bit));
    }
    if (upper) first += held;
  }
  Real sums[GROUP / LANES];
#pragma unroll
  for (int g = 0; g < GROUP / LANES; g++) sums[g] = y[g];
  __syncwarp();  // the lanes of the channel have read the x that goes
  store_reals(&tile.x[thread.row][r + first], sums);
#endif
}

// Walks the first `rows` frames of a tile, group by group. What is read beyond them is zero.
template <bool PARTIAL>
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
      fetch_deltas(tile, thread, quad, delta);
      fetch_quad(tile, thread, quad, operands);
      discretize_quad(thread, delta, operands, k);
      walk_quad<PARTIAL>(thread, tile, operands, k, r + p, rows, y + p);
    }
    sum_group(tile, thread, r, y);
  }
}

#if PIPELINED
// Walks a whole tile, unrolled, so that each quad finds its operands and coefficients ready.
__device__ __forceinline__ void walk_tile(Tile& tile, Thread& thread) {
  Quad operands;
  QuadCoefficients k;
  Real ahead[4], last[GROUP];
  fetch_deltas(tile, thread, 0, ahead);
  fetch_quad(tile, thread, 0, operands);
  discretize_quad(thread, ahead, operands, k);
  fetch_deltas(tile, thread, 1, ahead);
#pragma unroll
  for (int r = 0; r < TILE; r += GROUP) {
    Real y[GROUP];
#pragma unroll
    for (int p = 0; p < GROUP; p += 4) {
      const int quad = (r + p) / 4;
      Quad next_operands;
      QuadCoefficients next_k;
      if (quad + 1 < QUADS) {
        fetch_quad(tile, thread, quad + 1, next_operands);
        discretize_quad(thread, ahead, next_operands, next_k);
        if (quad + 2 < QUADS) fetch_deltas(tile, thread, quad + 2, ahead);
      }
      walk_quad<false>(thread, tile, operands, k, r + p, TILE, y + p);
      if (quad + 1 < QUADS) {
        operands = next_operands;
#pragma unroll
        for (int s = 0; s < STATES; s++) {
#pragma unroll
          for (int g = 0; g < 4; g++) k[s][g] = next_k[s][g];
        }
      }
      if (p == 0 && r > 0) sum_group(tile, thread, r - GROUP, last);
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) last[g] = y[g];
  }
  sum_group(tile, thread, TILE - GROUP, last);
}
#else
__device__ __forceinline__ void walk_tile(Tile& tile, Thread& thread) { walk_groups<false>(tile, thread, TILE); }
#endif

// Takes a value from memory through an operation whose result the compiler cannot know. Else its first use in the loop
// waits, in every turn, for the loads of the turn: they share a scoreboard (12% of the time, on an H200).
__device__ __forceinline__ void settle(float& value, const Arguments& args) {
  value = __uint_as_float(__float_as_uint(value) ^ (u32)(args.reverse & 2));  // `reverse` is 0 or 1
}
__device__ __forceinline__ void settle(double& value, const Arguments& args) {
  value = __longlong_as_double(__double_as_longlong(value) ^ (i64)(args.reverse & 2));
}
__device__ __forceinline__ void settle(Complex& value, const Arguments& args) {
  settle(value.re, args);
  settle(value.im, args);
}

__device__ __forceinline__ void begin_thread(Thread& thread, const Arguments& args, const Place& place) {
  thread.lane = lane_of(threadIdx.x % 32);
  thread.row = row_here();
  const int column = column_of(thread.row);
  thread.active = column < place.channels;
  thread.channel = place.channel0 + (thread.active ? column : 0);
  thread.count = thread.active ? states_here(args) : 0;
  const i64 parameters = thread.channel * args.state + args.first_state;
  State a[STATES];
  load_states(a, args.a + parameters, thread.count, thread.lane);
#if B_CONSTANT
  load_constant(thread.b, args.b + parameters * COMPONENTS, thread.count, thread.lane);
#endif
#if C_CONSTANT && !SUMMARY
  load_constant(thread.c, args.c + parameters * COMPONENTS, thread.count, thread.lane);
#endif
  const State* before = nullptr;
#if SUMMARY && DECAY_BY_SUM
  thread.delta_sum = 0;
#elif SUMMARY
#pragma unroll
  for (int s = 0; s < STATES; s++) thread.product[s] = to_state(1);
#else
  if (place.chunk > 0) {
    const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + thread.channel;
    before = args.boundary_states + boundary * args.boundary_width + args.boundary_first;
  } else if (args.write_final && args.initial_state) {
    before = args.initial_state + (place.row * args.dim + thread.channel) * args.state + args.first_state;
  }
#endif
  load_states(thread.h, before, thread.count, thread.lane);
  bool finite = true;
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    settle(a[s], args);
    thread.rate[s] = rate_of(a[s]);
    settle(thread.h[s], args);
#if B_CONSTANT
    settle(thread.b[s], args);
#endif
#if C_CONSTANT && !SUMMARY
    settle(thread.c[s], args);
#endif
    finite = finite && is_finite(a[s]);
  }
  thread.finite = __all_sync(ALL_LANES, finite);
}

// What a whole chunk has come to.
__device__ __forceinline__ void end_thread(const Thread& thread, const Arguments& args, const Place& place) {
#if SUMMARY
  if (!thread.active) return;
  const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + thread.channel;
  store_states(thread.h, args.boundary_states + boundary * args.boundary_width + args.boundary_first, thread.count, thread.lane);
#if DECAY_BY_SUM
  if (thread.lane == 0) args.delta_sums[boundary] = thread.delta_sum;
#else
  store_states(thread.product, args.decays + boundary * SLOTS, thread.count, thread.lane);
#endif
#else
  if (args.write_final && args.final_state && place.chunk == args.chunks - 1) {
    State* after = args.final_state + (place.row * args.dim + thread.channel) * args.state + args.first_state;
    store_states(thread.h, after, thread.count, thread.lane);
  }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_forward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  const i64 index = block_index();
  if (index >= args.batch * args.chunks * args.units * args.blocks_per_unit) return;
  const Place place = find_place(args, index);
#if SUMMARY
  if (place.chunk == args.chunks - 1) return;  // nothing comes after it
#endif
  const i64 begin = chunk_begin(args, place);
  const int frames = (int)(chunk_end(args, place) - begin);
  const auto rows_at = [&](int i) { return frames - i < TILE ? frames - i : TILE; };

  Incoming incoming(args, place, begin);
  load_tile(incoming, args, rows_at(0));
  Thread thread;
  begin_thread(thread, args, place);
  store_tile(shared.tiles[0], incoming, args, place, rows_at(0));
  load_tile(incoming, args, rows_at(TILE));

  // The next state to be kept for the backward pass.
  i64 kept = args.checkpoints ? (begin + args.checkpoint_interval - 1) / args.checkpoint_interval : 0;
  int keep_at = !SUMMARY && args.checkpoints ? (int)(kept * args.checkpoint_interval - begin) : frames;
  Finishing finishing;
  int walked = 0;
  for (int i = 0; i < frames; i += TILE, walked ^= 1) {
    Tile &tile = shared.tiles[walked], &other = shared.tiles[walked ^ 1];
    const int next = i + TILE, rows = rows_at(i);
    __syncthreads();  // the tile is whole; the one before it has been walked by all
    if (!SUMMARY && i > 0) finish_tile(other, finishing, incoming, args, place, TILE);
    if (next < frames) store_tile(other, incoming, args, place, rows_at(next));
    load_tile(incoming, args, rows_at(next + TILE));
    load_finishing(finishing, tile, incoming, args, rows);

    if (i == keep_at) {
      const i64 number = place.row * args.checkpoint_count + kept++;
      State* checkpoint = args.checkpoints + (number * args.dim + thread.channel) * args.state + args.first_state;
      store_states(thread.h, checkpoint, thread.count, thread.lane);
      keep_at += (int)args.checkpoint_interval;
    }
    if (rows == TILE || (rows * 4 >= TILE * 3 && (thread.finite || SEQ_IDX))) {
      walk_tile(tile, thread);
    } else {
      walk_groups<true>(tile, thread, rows);
    }
  }
  __syncthreads();
  if (!SUMMARY) finish_tile(shared.tiles[walked ^ 1], finishing, incoming, args, place, rows_at((frames - 1) / TILE * TILE));
  end_thread(thread, args, place);
}
