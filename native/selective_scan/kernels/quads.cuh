// The walk of the forward scan, quad by quad.
//
// What bounds the walk is the unit for exponentials, one of 16 a clock and multiprocessor; all else must hide behind
// it. So a tile is walked in quads of four frames, where PIPELINED unrolled, each stage ahead of the next: operands come
// from shared memory while the coefficients of the quad before are computed, which are ready when its states are due,
// and sums over lanes are taken one group later.

// Frames whose outputs are summed over the lanes together.
#define GROUP (LANES > 4 ? LANES : 4)
static_assert(QUADS > 1, "there is a quad to look ahead to");
static_assert(TILE % GROUP == 0, "a tile is made of whole groups");

// What a thread keeps over its chunk; where there are several rounds, from `rate` on what it has of the one that is walked.
struct Thread {
  int lane, row;
  bool active;
  bool finite;  // all a of the warp are: frames of zero Δ leave its states as they are
  i64 channel;
#if ROUNDS > 1
  struct Parked* parked;
#endif
#if SUMMARY && DECAY_BY_SUM
  Real delta_sum;
#endif
  Rate rate[STATES];
  State h[STATES];
#if SUMMARY && !DECAY_BY_SUM
  State product[STATES];
#endif
#if B_CONSTANT
  State b[STATES];
#endif
#if C_CONSTANT && !SUMMARY
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

__device__ __forceinline__ State b_of(const Thread& thread, [[maybe_unused]] const Quad& operands, int s,
                                       [[maybe_unused]] int g) {
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

// Four frames from frame r on; `y` gets the thread's parts of Σ C h, and keeps those of the rounds before. Frames from `rows` on
// are none: they are marked where there are marks.
template <bool WHOLE>
__device__ __forceinline__ void walk_quad(Thread& thread, [[maybe_unused]] const Tile& tile, const Quad& operands,
                                          const QuadCoefficients& k, int r, [[maybe_unused]] int rows, Real* y) {
  [[maybe_unused]] const u32 marks = WHOLE ? 0 : marks_of(tile, r / 4);
#pragma unroll
  for (int g = 0; g < 4; g++) {
#if SEQ_IDX
    if (marks >> 8 * g & MARK_RESET) {
#pragma unroll
      for (int s = 0; s < STATES; s++) thread.h[s] = to_state(0);
    }
    const bool here = WHOLE || !(marks >> 8 * g & MARK_SKIP);
#else
    const bool here = WHOLE || r + g < rows;
#endif
    [[maybe_unused]] State sum = to_state(ROUNDS > 1 ? y[g] : 0);
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
      sum = s == 0 && ROUNDS == 1 ? c * thread.h[s] : c * thread.h[s] + sum;
#endif
    }
    y[g] = real_part(sum);
  }
}

#if ROUNDS > 1
#include "rounds.cuh"
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
      walk_quad<WHOLE>(thread, tile, operands, k, r + p, rows, y + p);
    }
    sum_lanes(tile.x[thread.row] + r, thread.lane, y);
  }
}

#if PIPELINED
// Walks a whole tile, unrolled, so that each quad finds its operands and coefficients ready.
__device__ __forceinline__ void walk_tile(Tile& tile, Thread& thread) {
  Quad operands;
  QuadCoefficients k;
  Real ahead[4], last[GROUP];
  fetch_deltas<true>(tile, thread, 0, ahead);
  fetch_x(tile, thread, 0, operands.x);
  fetch_projections(tile, thread, 0, 0, operands);
  discretize_quad(thread, ahead, operands, k);
  fetch_deltas<true>(tile, thread, 1, ahead);
#pragma unroll
  for (int r = 0; r < TILE; r += GROUP) {
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
      walk_quad<true>(thread, tile, operands, k, r + p, TILE, y + p);
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
  sum_lanes(tile.x[thread.row] + TILE - GROUP, thread.lane, last);
}
#else
__device__ __forceinline__ void walk_tile(Tile& tile, Thread& thread) { walk_groups<true>(tile, thread, TILE); }
#endif
#endif

// Finds what a thread is: at the beginning, and anew where its states are stored.
__device__ __forceinline__ void find_thread(Thread& thread, const Place& place) {
  const int index = thread_anew();
  thread.lane = lane_of(index % 32);
  thread.row = row_of(index);
  const int column = column_of(thread.row);
  thread.active = column < place.channels;
  thread.channel = place.channel0 + (thread.active ? column : 0);
}

// Of a channel's states, how many there are from those of a round on; none in threads without a channel.
__device__ __forceinline__ int states_of_round(const Thread& thread, const Arguments& args, int round) {
  const int left = states_here(args) - round * SLOTS;
  return !thread.active || left < 0 ? 0 : left < SLOTS ? left : SLOTS;
}

// Takes up a round's parameters; whether all of its rates are finite.
__device__ __forceinline__ bool take_parameters(Thread& thread, const Arguments& args, int round) {
  const int count = states_of_round(thread, args, round);
  const i64 parameters = thread.channel * args.state + args.first_state + round * SLOTS;
  State a[STATES];
  load_states(a, args.a + parameters, count, thread.lane);
#if B_CONSTANT
  load_constant(thread.b, args.b + parameters * COMPONENTS, count, thread.lane);
#endif
#if C_CONSTANT && !SUMMARY
  load_constant(thread.c, args.c + parameters * COMPONENTS, count, thread.lane);
#endif
  bool finite = true;
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    settle(a[s], args);
    thread.rate[s] = rate_of(a[s]);
#if B_CONSTANT
    settle(thread.b[s], args);
#endif
#if C_CONSTANT && !SUMMARY
    settle(thread.c[s], args);
#endif
    finite = finite && is_finite(a[s]);
  }
#if ROUNDS > 1
  store_lane(thread.parked->a[round][threadIdx.x], a);
#if B_CONSTANT
  store_lane(thread.parked->b[round][threadIdx.x], thread.b);
#endif
#if C_CONSTANT && !SUMMARY
  store_lane(thread.parked->c[round][threadIdx.x], thread.c);
#endif
#endif
  return finite;
}

#if JOINS
// Leads the round's states, those before the first chunk, over the chunks before this, from what each of them comes to. So
// does prefix.cu for all chunks; where there are few, each block does it for its own in less time than a launch takes.
__device__ __forceinline__ void join_chunks(Thread& thread, const Arguments& args, const Place& place, int round) {
  constexpr int AT_ONCE = 8;  // chunks that are read before they are used
  const i64 first = place.row * args.chunks;
#pragma unroll 1
  for (i64 chunk = 0; chunk < place.chunk; chunk += AT_ONCE) {
    State ends[AT_ONCE][STATES];
#if DECAY_BY_SUM
    Real delta_sums[AT_ONCE];
#else
    State decays[AT_ONCE][STATES];
#endif
    bool resets[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (chunk + k >= place.chunk) break;
      const i64 boundary = (first + chunk + k) * args.dim + thread.channel, row = boundary * PASS_SLOTS + round * SLOTS;
      load_states<PACK>(ends[k], args.boundary_states + row, SLOTS, thread.lane);
#if DECAY_BY_SUM
      delta_sums[k] = args.delta_sums[boundary];
#else
      load_states<PACK>(decays[k], args.decays + row, SLOTS, thread.lane);
#endif
      resets[k] = SEQ_IDX && args.chunk_resets[first + chunk + k] != 0;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (chunk + k >= place.chunk) break;
#pragma unroll
      for (int s = 0; s < STATES; s++) {
#if DECAY_BY_SUM
        const State decay = exp_product(finite_rate(a_of(thread.rate[s])), delta_sums[k]);
#else
        const State decay = decays[k][s];
#endif
        thread.h[s] = over_chunk(thread.h[s], decay, ends[k][s], resets[k]);
      }
    }
  }
}
#endif

__device__ __forceinline__ void begin_thread(Thread& thread, const Arguments& args, const Place& place) {
  find_thread(thread, place);
  const State* before = nullptr;
#if SUMMARY && DECAY_BY_SUM
  thread.delta_sum = 0;
#elif SUMMARY
#pragma unroll
  for (int s = 0; s < STATES; s++) thread.product[s] = to_state(1);
#else
  if (!JOINS && place.chunk > 0) {
    const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + thread.channel;
    before = args.boundary_states + boundary * args.boundary_width + args.boundary_first;
  } else if (args.write_final && args.initial_state) {
    before = args.initial_state + (place.row * args.dim + thread.channel) * args.state + args.first_state;
  }
#endif
  bool finite = true;
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round++) {
    finite = take_parameters(thread, args, round) && finite;
    load_states(thread.h, before ? before + round * SLOTS : before, states_of_round(thread, args, round), thread.lane);
#pragma unroll
    for (int s = 0; s < STATES; s++) settle(thread.h[s], args);
#if JOINS
    join_chunks(thread, args, place, round);
#endif
#if ROUNDS > 1
    leave_states(thread, round);
#endif
  }
  thread.finite = __all_sync(ALL_LANES, finite);
}

// The states that are kept for the backward pass.
struct Kept {
  int number;
  int at;  // the frame of the chunk before which the next is

  __device__ __forceinline__ Kept(const Arguments& args, i64 begin, int frames)
      : number(args.checkpoints ? (int)((begin + args.checkpoint_interval - 1) / args.checkpoint_interval) : 0),
        at(args.checkpoints ? (int)(number * args.checkpoint_interval - begin) : frames) {}
};

// Keeps the states before a tile for the backward pass.
__device__ __forceinline__ void keep(Thread& thread, const Arguments& args, const Place& place, Kept& kept) {
  find_thread(thread, place);
  const i64 number = place.row * args.checkpoint_count + kept.number;
  const i64 first = (number * args.dim + thread.channel) * args.state + args.first_state;
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round++) {
#if ROUNDS > 1
    take_states(thread, round);
#endif
    store_states(thread.h, args.checkpoints + first + round * SLOTS, states_of_round(thread, args, round), thread.lane);
  }
  kept.number++;
  kept.at += (int)args.checkpoint_interval;
}

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
    walk_tile(tile, thread);
  } else {
    walk_groups<false>(tile, thread, rows);
  }
#endif
}

// What a whole chunk has come to.
__device__ __forceinline__ void end_thread(Thread& thread, const Arguments& args, const Place& place) {
  find_thread(thread, place);
  if (!thread.active) return;
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round++) {
#if ROUNDS > 1
    take_states(thread, round);
#endif
    const int first = round * SLOTS;
#if SUMMARY
    const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + thread.channel;
    State* end = args.boundary_states + boundary * args.boundary_width + args.boundary_first;
    store_states<PACK>(thread.h, end + first, SLOTS, thread.lane);  // zero beyond the last
#if DECAY_BY_SUM
    if (thread.lane == 0) args.delta_sums[boundary] = thread.delta_sum;
#else
    store_states<PACK>(thread.product, args.decays + boundary * PASS_SLOTS + first, SLOTS, thread.lane);
#endif
#else
    if (args.write_final && args.final_state && place.chunk == args.chunks - 1) {
      State* after = args.final_state + (place.row * args.dim + thread.channel) * args.state + args.first_state;
      store_states(thread.h, after + first, states_of_round(thread, args, round), thread.lane);
    }
#endif
  }
}
