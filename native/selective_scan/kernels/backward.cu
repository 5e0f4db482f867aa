// The backward pass of one direction of the scan, over one chunk of frames.
//
// With λ_i = ∂L/∂h_i, w = 1 (2 where complex) and dy_i the gradient of y before the gate:
//   λ_i = w dy_i conj(C_i) + conj(a_{i+1}) λ_{i+1}
//   da = λ conj(h_{i−1}), dg = λ conj(B x)
//   dA = Σ da conj(∂a/∂A) + dg conj(∂g/∂A), dΔ = Re Σ da conj(∂a/∂Δ) + dg conj(∂g/∂Δ)
//   dB = λ conj(g) x, dC = w dy conj(h), dx = Re Σ λ conj(g B) + D dy, dD = Σ dy x
// The average over both directions is linear: each direction has its own backward pass with half the source.
//
// States are recomputed, never stored for the whole sequence. A first walk over the chunk, from the state at its
// boundary, keeps the state before each tile (`starts`); then the tiles are taken from the last to the first: a
// walk forward keeps the state before each frame (`history`), a walk back does the rest. Both lie in shared memory,
// each thread in its own place.
//
// dB and dC are summed over the channels of a warp by halving (reduce-scatter), over the warps through shared
// memory, over the blocks by reduce.cu: always in the same order, so the same call gives the same bits. A launch
// covers a piece of the {row blocks, chunks}, so that the sums of a piece, and no more, wait for reduce.cu.
//
// Shared memory is what limits how many blocks run at a time, so what a walk has consumed lends its place to what it
// makes: dx takes the place of dy, ∂L/∂dt that of Δ, and the sums of a warp that of its history of the same frame.

#define USE_X 1
#define USE_B 1
#define USE_C 1
#define USE_DY 1
#define USE_Z 1
#define USE_Y 1
#define USE_SLOPE 1

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "tiles.cuh"

#define WARPS (THREADS / 32)
// Reals of dB and dC that a thread has for a frame, and a warp after their sum over its channels.
#define PARTS ((TILE_B + TILE_C) * STATES * COMPONENTS)
#define PART_WIDTH (PARTS * LANES)

struct alignas(STATES * sizeof(State) < 16 ? STATES * sizeof(State) : 16) ThreadStates {
  State states[STATES];
};

struct Shared {
  Tiles tiles;
#if HAS_Z
  alignas(16) Real y[TILE][CHANNELS];
#endif
  alignas(16) ThreadStates history[TILE][THREADS];
#if TILES > 1
  alignas(16) ThreadStates starts[TILES - 1][THREADS];
#endif
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// The sums of a warp for a frame.
__device__ __forceinline__ Real* parts_of(Shared& shared, int warp, int r) {
  static_assert(PART_WIDTH * sizeof(Real) <= 32 * sizeof(ThreadStates), "the sums fit where the history was");
  return reinterpret_cast<Real*>(&shared.history[r][warp * 32]);
}

// What a thread keeps over its chunk.
struct Thread {
  int lane, channel_here, count;
  bool active;
  i64 channel;
  Real d;
  State a[STATES], h[STATES], adjoint[STATES], da[STATES];
#if B_CONSTANT
  State b[STATES], db[STATES];
#endif
#if C_CONSTANT
  State c[STATES], dc[STATES];
#endif
  Real dd, ddt_bias;
};

__device__ __forceinline__ u8 mark_at(const Arguments& args, const Place& place, i64 i) {
#if SEQ_IDX
  return args.marks[place.row * args.seq + i];
#else
  return 0;
#endif
}

// h ← a·h + g·(B·x) over the rows of a tile; KEEP: with the state before each in `history`.
template <bool KEEP>
__device__ __forceinline__ void walk_forward(Shared& shared, const Arguments& args, const Place& place, Thread& thread, i64 i0,
                                             int rows) {
#pragma unroll UNROLL
  for (int r = 0; r < rows; r++) {
    if constexpr (KEEP) {
      ThreadStates kept;
#pragma unroll
      for (int s = 0; s < STATES; s++) kept.states[s] = thread.h[s];
      shared.history[r][threadIdx.x] = kept;
    }
    const u8 mark = mark_at(args, place, i0 + r);
    if (mark & MARK_SKIP) continue;
    const Real delta = shared.tiles.delta[r][thread.channel_here], x = shared.tiles.x[r][thread.channel_here];
#if B_CONSTANT
    const State(&b)[STATES] = thread.b;
#else
    State b[STATES];
    load_slots(b, shared.tiles.b[r], thread.lane);
#endif
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const State previous = mark & MARK_RESET ? to_state(0) : thread.h[s];
#if GAIN_IS_DELTA
      thread.h[s] = decay(thread.a[s], delta) * previous + b[s] * (delta * x);
#else
      const Coefficients k = discretize(thread.a[s], delta);
      thread.h[s] = k.a * previous + k.g * (b[s] * x);
#endif
    }
  }
}

#if PARTS
__device__ __forceinline__ void set_part(Real (&parts)[PARTS], int at, Real value) { parts[at] = value; }
__device__ __forceinline__ void set_part(Real (&parts)[PARTS], int at, Complex value) {
  parts[2 * at] = value.re;
  parts[2 * at + 1] = value.im;
}

// Sums `parts` over the channels of the warp. Each exchange halves what a thread holds, until it is one value.
// Value v of lane l comes to row[v · LANES + l].
__device__ __forceinline__ void sum_over_channels(Real (&parts)[PARTS], Real* row, int lane) {
  const int place = threadIdx.x % 32;
  int held = PARTS, index = 0, copies = 0;
#pragma unroll
  for (int bit = 16; bit >= LANES; bit /= 2) {
    if (held > 1) {
      const bool upper = place & bit;
      held /= 2;
#pragma unroll
      for (int k = 0; k < held; k++) {
        const Real give = upper ? parts[k] : parts[k + held], keep = upper ? parts[k + held] : parts[k];
        parts[k] = keep + __shfl_xor_sync(ALL_LANES, give, bit);
      }
      index = 2 * index + upper;
    } else {
      parts[0] += __shfl_xor_sync(ALL_LANES, parts[0], bit);
      copies |= bit;
    }
  }
  if ((place & copies) == 0) {
#pragma unroll
    for (int k = 0; k < held; k++) row[(index * held + k) * LANES + lane] = parts[k];
  }
}
#endif

// From the last row of a tile to the first. thread.h is the state after the row at hand.
__device__ __forceinline__ void walk_back(Shared& shared, const Arguments& args, const Place& place, Thread& thread, i64 i0,
                                          int rows) {
  const int column = thread.channel_here;
  __syncwarp();  // the warp has written its history, parts of which are replaced
#pragma unroll UNROLL_BACK
  for (int r = rows - 1; r >= 0; r--) {
    const u8 mark = mark_at(args, place, i0 + r);
    if (mark & MARK_SKIP) {
      if (thread.lane == 0) {
        shared.tiles.dy[r][column] = 0;
        shared.tiles.delta[r][column] = 0;
#if HAS_Z
        shared.y[r][column] = 0;
#endif
      }
#if PARTS
      for (int p = threadIdx.x % 32; p < PART_WIDTH; p += 32) parts_of(shared, threadIdx.x / 32, r)[p] = 0;
#endif
      continue;
    }
    const ThreadStates before = shared.history[r][threadIdx.x];
    const Real delta = shared.tiles.delta[r][column], x = shared.tiles.x[r][column];
    const Real dy = shared.tiles.dy[r][column], weighted_dy = OUTPUT_WEIGHT * dy;
#if B_CONSTANT
    const State(&b)[STATES] = thread.b;
#else
    State b[STATES];
    load_slots(b, shared.tiles.b[r], thread.lane);
#endif
#if C_CONSTANT
    const State(&c)[STATES] = thread.c;
#else
    State c[STATES];
    load_slots(c, shared.tiles.c[r], thread.lane);
#endif
#if HAS_SLOPE
    const Real slope = shared.tiles.slope[r][column];
#endif
    __syncwarp();  // the warp has read what the results of this row replace
#if PARTS
    Real parts[PARTS];
#endif
    Real dx = 0, ddelta = 0, y = 0;
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      thread.adjoint[s] += conjugate(c[s]) * weighted_dy;
      const State adjoint = thread.adjoint[s];
      const State dc = conjugate(thread.h[s]) * weighted_dy;
#if HAS_Z
      y += real_part(c[s] * thread.h[s]);
#endif
      const State previous = mark & MARK_RESET ? to_state(0) : before.states[s];
#if GAIN_IS_DELTA
      // ∂a/∂A = Δa and ∂a/∂Δ = Aa share λ conj(a h_{i−1}); dx and the gain's part of dΔ share Re Σ λ conj(B).
      const State carried = conjugate(decay(thread.a[s], delta)) * adjoint;
      const State shared_part = carried * conjugate(previous);
      thread.da[s] += shared_part * delta;
      ddelta += real_part(shared_part * conjugate(thread.a[s]));
      dx += real_part(adjoint * conjugate(b[s]));
      const State db = adjoint * (delta * x);
#else
      Partials partials;
      const Coefficients k = discretize(thread.a[s], delta, partials);
      const State da = adjoint * conjugate(previous), dg = adjoint * conjugate(b[s] * x);
      thread.da[s] += da * conjugate(partials.a_by_a) + dg * conjugate(partials.g_by_a);
      ddelta += real_part(da * conjugate(partials.a_by_delta) + dg * conjugate(partials.g_by_delta));
      const State through_gain = adjoint * conjugate(k.g);
      dx += real_part(through_gain * conjugate(b[s]));
      const State db = through_gain * x;
      const State carried = conjugate(k.a) * adjoint;
#endif
      thread.adjoint[s] = mark & MARK_RESET ? to_state(0) : carried;
      thread.h[s] = before.states[s];
#if B_CONSTANT
      thread.db[s] += db;
#elif PARTS
      set_part(parts, s, db);
#endif
#if C_CONSTANT
      thread.dc[s] += dc;
#elif PARTS
      set_part(parts, TILE_B * STATES + s, dc);
#endif
    }
#if GAIN_IS_DELTA
    ddelta += x * dx;
    dx *= delta;
#endif
#if PARTS
    sum_over_channels(parts, parts_of(shared, threadIdx.x / 32, r), thread.lane);
#endif
    dx = sum_over_lanes(dx);
    ddelta = sum_over_lanes(ddelta);
#if HAS_SLOPE
    ddelta *= slope;
#endif
    thread.ddt_bias += ddelta;
#if HAS_D
    if (args.first_pass) {
      const Real whole_dy = dy / (Real)args.scale;
      dx += thread.d * whole_dy;
      thread.dd += whole_dy * x;
    }
#endif
#if HAS_Z
    y = OUTPUT_WEIGHT * sum_over_lanes(y);
#endif
    if (thread.lane == 0) {
      shared.tiles.dy[r][column] = dx;
      shared.tiles.delta[r][column] = ddelta;
#if HAS_Z
      shared.y[r][column] = y;
#endif
    }
  }
}

// Adds a pass to a sequence's gradient, and rounds it where it is the last.
__device__ __forceinline__ void add_pass(const Arguments& args, Real* sums, Element* target, i64 at, Real (&values)[VECTOR]) {
  if (!args.first_pass) {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) values[k] += sums[at + k];
  }
  if (args.last_pass) {
    store_elements(target + at, values);
  } else {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sums[at + k] = values[k];
  }
}

__device__ __forceinline__ void finish_sequences(Shared& shared, const Arguments& args, const Place& place, i64 i0, int rows) {
  for_owned<CHANNELS, VECTOR>([&](int r, int column) {
    if (r >= rows || column >= place.channels) return;
    const i64 at = (place.row * args.seq + frame(args, i0 + r)) * args.dim + place.channel0 + column;
    Real values[VECTOR];
    load_reals(values, &shared.tiles.dy[r][column]);
    add_pass(args, args.dx_sum, args.dx, at, values);
    load_reals(values, &shared.tiles.delta[r][column]);
    add_pass(args, args.ddt_sum, args.ddt, at, values);
#if HAS_Z
    const bool skip = mark_at(args, place, i0 + r) & MARK_SKIP;
    Real gate[VECTOR], x[VECTOR];
    load_reals(values, &shared.y[r][column]);
    load_reals(gate, &shared.tiles.gate[r][column]);
    load_reals(x, &shared.tiles.x[r][column]);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      Real y = values[k] * (Real)args.scale;
#if HAS_D
      if (args.first_pass) y += args.d[place.channel0 + column + k] * x[k];
#endif
      values[k] = skip ? (Real)0 : gate[k] * y;
    }
    add_pass(args, args.dz_sum, args.dz, at, values);
#endif
  });
}

// Sums dB and dC of a tile over the warps, and leaves them to reduce.cu. `first_row`: the tile's first row of
// sums in the piece.
__device__ __forceinline__ void finish_projections(Shared& shared, const Arguments& args, i64 first_row, i64 contribution,
                                                   i64 contributions, int rows) {
#if PARTS
  constexpr int PROJECTIONS = TILE_B + TILE_C;
  for (int p = threadIdx.x; p < rows * PROJECTIONS * SLOT_WIDTH; p += THREADS) {
    const int column = p % SLOT_WIDTH, which = p / SLOT_WIDTH % PROJECTIONS, r = p / (SLOT_WIDTH * PROJECTIONS);
    const int slot = column / COMPONENTS;
    const int value = (which * STATES + state_of(slot)) * COMPONENTS + column % COMPONENTS;
    Real sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += parts_of(shared, warp, r)[value * LANES + lane_of(slot)];
    Real* sums = TILE_B && which == 0 ? args.db_parts : args.dc_parts;
    sums[((first_row + r) * contributions + contribution) * SLOT_WIDTH + column] = sum;
  }
#endif
}

__device__ __forceinline__ void add_states(const State (&values)[STATES], State* row, int count, int lane, bool accumulate) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    const int slot = slot_of(lane, s);
    if (slot < count) row[slot] = accumulate ? row[slot] + values[s] : values[s];
  }
}

__device__ __forceinline__ void begin_thread(Thread& thread, const Arguments& args, const Place& place) {
  thread.lane = threadIdx.x % LANES;
  thread.channel_here = threadIdx.x / LANES;
  thread.active = thread.channel_here < place.channels;
  thread.channel = place.channel0 + (thread.active ? thread.channel_here : 0);
  thread.count = thread.active ? states_here(args) : 0;
  load_states(thread.a, args.a + thread.channel * args.state + args.first_state, thread.count, thread.lane);
#if B_CONSTANT
  load_constant(thread.b, args.b + (thread.channel * args.state + args.first_state) * COMPONENTS, thread.count, thread.lane);
#endif
#if C_CONSTANT
  load_constant(thread.c, args.c + (thread.channel * args.state + args.first_state) * COMPONENTS, thread.count, thread.lane);
#endif
  const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + thread.channel;
  const i64 end = (place.row * args.dim + thread.channel) * args.state + args.first_state;
  const State *before = nullptr, *after = nullptr;
  if (place.chunk > 0) {
    before = args.boundary_states + boundary * args.boundary_width + args.boundary_first;
  } else if (args.write_final && args.initial_state) {
    before = args.initial_state + end;
  }
  if (place.chunk < args.chunks - 1) {
    after = args.boundary_adjoints + boundary * SLOTS;
  } else if (args.write_final && args.dfinal_state) {
    after = args.dfinal_state + end;
  }
  load_states(thread.h, before, thread.count, thread.lane);
  load_states(thread.adjoint, after, thread.count, thread.lane);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    thread.da[s] = to_state(0);
#if B_CONSTANT
    thread.db[s] = to_state(0);
#endif
#if C_CONSTANT
    thread.dc[s] = to_state(0);
#endif
  }
#if HAS_D
  thread.d = args.d[thread.channel];
#endif
  thread.dd = 0;
  thread.ddt_bias = 0;
}

// What is summed over time by the thread, and later over the rows and chunks by reduce.cu.
__device__ __forceinline__ void end_thread(const Thread& thread, const Arguments& args, const Place& place, bool accumulate) {
  if (!thread.active) return;
  const int count = thread.count, lane = thread.lane;
  const i64 block = (place.row / args.rows_per_block * args.chunks + place.chunk) * args.dim + thread.channel;
  add_states(thread.da, args.da_parts + block * SLOTS, count, lane, accumulate);
#if B_CONSTANT
  add_states(thread.db, args.db_constant_parts + block * SLOTS, count, lane, accumulate);
#endif
#if C_CONSTANT
  add_states(thread.dc, args.dc_constant_parts + block * SLOTS, count, lane, accumulate);
#endif
  if (lane == 0) {
#if HAS_D
    if (args.first_pass) args.dd_parts[block] = accumulate ? args.dd_parts[block] + thread.dd : thread.dd;
#endif
#if HAS_DT_BIAS
    args.ddt_bias_parts[block] = accumulate ? args.ddt_bias_parts[block] + thread.ddt_bias : thread.ddt_bias;
#endif
  }
  if (place.chunk == 0 && args.write_final && args.dinitial_state) {
    store_states(thread.adjoint, args.dinitial_state + (place.row * args.dim + thread.channel) * args.state + args.first_state,
                 count, lane);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_backward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  i64 index = block_index();
  const i64 units = args.units, contributions = units * args.blocks_per_unit;
  if (index >= args.piece_count * contributions) return;
  const i64 contribution = index % contributions, in_piece = index / contributions;
  Place place;
  place.unit = contribution / args.blocks_per_unit;
  set_channels(place, args, contribution % args.blocks_per_unit);
  place.chunk = (args.piece_first + in_piece) % args.chunks;
  const i64 row0 = (args.piece_first + in_piece) / args.chunks * args.rows_per_block;
  const i64 row_end = row0 + args.rows_per_block < args.batch ? row0 + args.rows_per_block : args.batch;
  const i64 begin = chunk_begin(args, place), end = chunk_end(args, place);
  const int tiles = (int)((end - begin + TILE - 1) / TILE);

  for (place.row = row0; place.row < row_end; place.row++) {
    Thread thread;
    begin_thread(thread, args, place);

#if TILES > 1
    if (tiles > 1) copy_tiles<STATES_ALONE>(shared.tiles, args, place, begin, end);
    for (int tile = 0; tile < tiles - 1; tile++) {
      const i64 i0 = begin + (i64)tile * TILE;
      convert_tiles<STATES_ALONE>(shared.tiles, args, place, TILE);
      __syncthreads();
      if (tile < tiles - 2) copy_tiles<STATES_ALONE>(shared.tiles, args, place, i0 + TILE, end);
      ThreadStates start;
#pragma unroll
      for (int s = 0; s < STATES; s++) start.states[s] = thread.h[s];
      shared.starts[tile][threadIdx.x] = start;
      walk_forward<false>(shared, args, place, thread, i0, TILE);
      __syncthreads();
    }
#endif

    copy_tiles<WHOLE>(shared.tiles, args, place, begin + (i64)(tiles - 1) * TILE, end);
    for (int tile = tiles - 1; tile >= 0; tile--) {
      const i64 i0 = begin + (i64)tile * TILE;
      const int rows = (int)(end - i0 < TILE ? end - i0 : TILE);
      convert_tiles<WHOLE>(shared.tiles, args, place, rows);
      __syncthreads();
      if (tile > 0) copy_tiles<WHOLE>(shared.tiles, args, place, i0 - TILE, end);
#if TILES > 1
      if (tile < tiles - 1) {
        const ThreadStates start = shared.starts[tile][threadIdx.x];
#pragma unroll
        for (int s = 0; s < STATES; s++) thread.h[s] = start.states[s];
      }
#endif
      walk_forward<true>(shared, args, place, thread, i0, rows);
      walk_back(shared, args, place, thread, i0, rows);
      __syncthreads();
      finish_sequences(shared, args, place, i0, rows);
      const i64 first_row = (in_piece * args.rows_per_block + place.row - row0) * args.chunk + (i64)tile * TILE;
      finish_projections(shared, args, first_row, contribution, contributions, rows);
    }
    end_thread(thread, args, place, place.row > row0);
  }
}
