// The backward pass of one direction of the scan.
//
// With λ_i = ∂L/∂h_i, w = 1 (2 where complex) and dy_i the gradient of y before the gate:
//   λ_i = w dy_i conj(C_i) + conj(a_{i+1}) λ_{i+1}
//   da = λ conj(h_{i−1}), dg = λ conj(B x)
//   dA = Σ da conj(∂a/∂A) + dg conj(∂g/∂A), dΔ = Re Σ da conj(∂a/∂Δ) + dg conj(∂g/∂Δ)
//   dB = λ conj(g) x, dC = w dy conj(h), dx = Re Σ λ conj(g B) + D dy, dD = Σ dy x
// The average over both directions is linear: each direction has its own backward pass with half the source.
//
// A warp takes a tile of one channel at once: LANES lanes of STATES states (thread bits 0 to 2) × TIME_LANES lanes of
// SPAN frames (bits 3 and 4). Each lane scans its frames from zero, states forward and adjoints back; both are joined
// by a scan of (decay, value) over the time lanes (Blelloch 1990, "Prefix sums and their applications"). So decays and
// states of a tile stay in registers: there is one exponential a state and frame, and no history in memory. B and C of
// the tile, and the sums of dB and dC, stay in registers too while the warp goes through its channels: nothing is
// exchanged between channels before the end of the tile. What a channel carries from tile to tile (λ, and dA of each
// time lane) waits in shared memory; only the channel's own warp touches it.
//
// A block walks a piece of one segment of the sequence, of one batch row after another, from the last tile to the
// first. States lie in `boundary_states` every `chunk` frames; where a chunk has several tiles, the block first scans
// its states alone and keeps each tile's first in `starts`. Every sum is taken in a fixed order: the same call gives
// the same bits. Sums over the blocks, rows and segments are left to reduce.cu.
//
// SUMMARY: scan_summary, which finds what each segment adds to the gradient of the state before it if that after it
// is zero; prefix.cu makes of these the gradients after each segment.

#define THREADS (WARPS * 32)
#define USE_X !SUMMARY
#define USE_B !SUMMARY
#define USE_C 1
#define USE_DY 1
#define USE_Z 1

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "rows.cuh"

#define TIME_LANES (32 / LANES)
// Frames of a time lane.
#define SPAN (TILE / TIME_LANES)
// Channels of a warp; those whose sums over the states are taken together.
#define CHANNELS_EACH (CHANNELS / WARPS)
#define PAIR (CHANNELS_EACH > 1 ? 2 : 1)
// Sums over the states: dx, dΔ and, where there is a gate, y.
#define VALUES (2 + HAS_Z)
#define SUM_ROWS (PAIR * VALUES * LANES)
#define PROJECTION_ROWS ((TILE_B + TILE_C) * SLOT_WIDTH)
#define SCRATCH_ROWS (SUM_ROWS > PROJECTION_ROWS ? SUM_ROWS : PROJECTION_ROWS)

static_assert(SPAN * TIME_LANES == TILE && SPAN % PER_16_BYTES == 0 && TILE <= 32, "a tile is a warp's, its marks are a word");
static_assert(CHANNELS_EACH * WARPS == CHANNELS && CHANNELS_EACH % PAIR == 0, "warps have equally many channels");
static_assert(THREADS % Sequence::PER_FRAME == 0, "a thread owns elements of the same channels in every unit");

typedef State Slots[SLOTS];

// Rows are in the order of rows.cuh. Between barriers, the rows of a channel belong to its warp; else an element
// belongs to the thread that stages and finishes it.
struct Shared {
  alignas(16) Real delta[CHANNELS][PITCH];
  alignas(16) Real dy[CHANNELS][PITCH];  // w · scale · dy · silu(z); after the walk, what dΔ is made of
#if !SUMMARY
  alignas(16) Real x[CHANNELS][PITCH];  // Δx where the gain is Δ; after the walk, what dx is made of
#if HAS_Z
  alignas(16) Real y[CHANNELS][PITCH];  // after the walk, Σ C h
#endif
#endif
#if TILE_B
  alignas(16) Real b[SLOT_WIDTH][PITCH];
#endif
#if TILE_C
  alignas(16) Real c[SLOT_WIDTH][PITCH];
#endif
  alignas(16) Slots a[CHANNELS];
  alignas(16) Slots adjoint[CHANNELS];  // the gradient of the state after the tile
#if C_CONSTANT
  alignas(16) Slots c_constant[CHANNELS];
#endif
#if SUMMARY
#if DECAY_BY_SUM
  alignas(16) Real delta_sum[CHANNELS][TIME_LANES];
#else
  alignas(16) Slots product[CHANNELS][TIME_LANES];
#endif
#else
#if B_CONSTANT
  alignas(16) Slots b_constant[CHANNELS];
  alignas(16) Slots db_constant[CHANNELS][TIME_LANES];
#endif
#if C_CONSTANT
  alignas(16) Slots dc_constant[CHANNELS][TIME_LANES];
#endif
  alignas(16) Slots da[CHANNELS][TIME_LANES];
  alignas(16) Slots starts[TILES][CHANNELS];  // the state before each tile of the chunk
#if HAS_D
  alignas(16) Real dd[VECTOR][THREADS];
#endif
#if HAS_DT_BIAS
  alignas(16) Real ddt_bias[VECTOR][THREADS];
#endif
  // A warp's values of each state lane, [channel of the pair][value][lane]; at the end of a tile its dB and dC.
  alignas(16) Real scratch[WARPS][SCRATCH_ROWS][PITCH];
#endif
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// Marks of a tile's frames, a bit each, the same in all threads of a block. Frames that are none are skipped.
struct Marks {
  u32 resets, skips;

  // Whether a frame from `first` on, one of `count`, resets the state.
  __device__ __forceinline__ bool cut(int first, int count) const {
    return SEQ_IDX && (resets >> first & (u32)((1ull << count) - 1)) != 0;
  }
  __device__ __forceinline__ bool skip(int r) const { return SEQ_IDX && (skips >> r & 1) != 0; }
};

__device__ __forceinline__ Marks marks_of([[maybe_unused]] const Arguments& args, [[maybe_unused]] const Place& place,
                                          [[maybe_unused]] i64 i0, [[maybe_unused]] int rows) {
#if SEQ_IDX
  const int r = threadIdx.x % 32;
  const int mark = r < rows ? args.marks[place.row * args.seq + i0 + r] : MARK_SKIP;
  return {__ballot_sync(ALL_LANES, mark & MARK_RESET), __ballot_sync(ALL_LANES, mark & MARK_SKIP)};
#else
  return {0, 0};
#endif
}

// What a thread is in its warp.
struct Thread {
  int warp, lane, time_lane, first;  // the first of its frames

  __device__ __forceinline__ Thread()
      : warp(threadIdx.x / 32), lane(threadIdx.x % LANES), time_lane(threadIdx.x % 32 / LANES), first(time_lane * SPAN) {}

  // Neighbouring lanes have neighbouring states: without conflicts over the banks.
  __device__ __forceinline__ int slot(int s) const { return lane + LANES * s; }
};

// --- From memory to rows --------------------------------------------------------------------------------------

// A tile on its way. The same thread takes the same units in and out, so rows need a barrier for the walk alone.
struct Incoming {
  Sequence::Raw dt;
#if USE_X
  Sequence::Raw x;
#endif
  Sequence::Raw dy;
#if TILE_Z
  Sequence::Raw z;
#endif
#if TILE_B
  RowsOfB::Raw b;
#endif
#if TILE_C
  RowsOfC::Raw c;
#endif
};

// What of a tile is wanted: for the states alone, x, dt and b.
enum Extent { STATES_ALONE, WHOLE };

// Cursors are made anew for each tile: a walk is long, and has better use for their registers.
template <Extent EXTENT>
__device__ __forceinline__ void load_tile(Incoming& in, const Arguments& args, const Place& place, i64 i0, int rows) {
  const Sequence::Cursor sequence = sequence_at(args, place, i0);
  sequence.load(in.dt, args.dt, rows);
#if USE_X
  sequence.load(in.x, args.x, rows);
#endif
#if TILE_B
  projection_at<RowsOfB>(args, place, args.groups_b, place.group_b, i0).load(in.b, args.b, rows);
#endif
  if constexpr (EXTENT == WHOLE) {
    sequence.load(in.dy, args.dy, rows);
#if TILE_Z
    sequence.load(in.z, args.z, rows);
#endif
#if TILE_C
    projection_at<RowsOfC>(args, place, args.groups_c, place.group_c, i0).load(in.c, args.c, rows);
#endif
  }
}

// Frames that are skipped get no input and no gradient; nor do their b and c, which may be anything, reach a sum.
template <typename U>
__device__ __forceinline__ void clear_skipped([[maybe_unused]] typename U::Raw& raw, [[maybe_unused]] const Marks& marks) {
#if SEQ_IDX
  U::each([&](int k, int r, int) {
#pragma unroll
    for (int f = 0; f < U::FRAMES; f++) {
      if (marks.skip(r + f)) raw[k][f] = {};
    }
  });
#endif
}

template <Extent EXTENT>
__device__ __forceinline__ void store_tile(Shared& shared, Incoming& in, const Arguments& args, const Place& place,
                                           const Marks& marks, int rows) {
  Sequence::each([&](int k, int r, int column) {
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
      const int row = e * ROW_STEP + column / VECTOR;
      Real bias = 0;
      [[maybe_unused]] Real slope;
#if HAS_DT_BIAS
      if (column < place.channels) bias = args.dt_bias[place.channel0 + column + e];
#endif
      Real delta[Sequence::FRAMES], values[Sequence::FRAMES];
#pragma unroll
      for (int f = 0; f < Sequence::FRAMES; f++) {
        const bool here = r + f < rows && column < place.channels && !marks.skip(r + f);
        delta[f] = here ? step_size(args, to_real(in.dt[k][f].elements[e]), bias, slope) : (Real)0;
      }
      Sequence::put(shared.delta, row, r, delta);
#if USE_X
#pragma unroll
      for (int f = 0; f < Sequence::FRAMES; f++) {
        values[f] = marks.skip(r + f) ? (Real)0 : to_real(in.x[k][f].elements[e]);
#if GAIN_IS_DELTA
        values[f] *= delta[f];
#endif
      }
      Sequence::put(shared.x, row, r, values);
#endif
      if constexpr (EXTENT == WHOLE) {
#pragma unroll
        for (int f = 0; f < Sequence::FRAMES; f++) {
          values[f] = marks.skip(r + f) ? (Real)0 : to_real(in.dy[k][f].elements[e]) * (OUTPUT_WEIGHT * (Real)args.scale);
#if TILE_Z
          const Real z = to_real(in.z[k][f].elements[e]);
          values[f] *= marks.skip(r + f) ? (Real)0 : z * sigmoid(z);
#endif
        }
        Sequence::put(shared.dy, row, r, values);
      }
    }
  });
#if TILE_B
  clear_skipped<RowsOfB>(in.b, marks);
  store_projection<RowsOfB, VECTOR_B>(shared.b, in.b);
#endif
#if TILE_C
  if constexpr (EXTENT == WHOLE) {
    clear_skipped<RowsOfC>(in.c, marks);
    store_projection<RowsOfC, VECTOR_C>(shared.c, in.c);
  }
#endif
}

// Brings the sequences of a whole tile nearer while another is walked.
__device__ __forceinline__ void prefetch_tile(const Arguments& args, const Place& place, i64 i0) {
  constexpr int PER_LINE = 128 / sizeof(Element), LINES = (CHANNELS + PER_LINE - 1) / PER_LINE;
  const Element* tensors[] = {args.dt, args.dy,
#if USE_X
                              args.x,
#endif
#if TILE_Z
                              args.z,
#endif
  };
  constexpr int TENSORS = sizeof(tensors) / sizeof(tensors[0]);
  const i64 first = (place.row * args.seq + frame(args, i0)) * args.dim + place.channel0;
  const i64 stride = args.reverse ? -args.dim : args.dim;
#pragma unroll 1
  for (int q = threadIdx.x; q < TILE * LINES; q += THREADS) {
    const int r = q / LINES, column = q % LINES * PER_LINE;
    if (column >= place.channels) continue;
#pragma unroll
    for (int t = 0; t < TENSORS; t++) asm volatile("prefetch.global.L2 [%0];" ::"l"(tensors[t] + first + r * stride + column));
  }
}

// --- The scan of a channel's tile ----------------------------------------------------------------------------

__device__ __forceinline__ Real shuffle_up(Real value, int by) { return __shfl_up_sync(ALL_LANES, value, by); }
__device__ __forceinline__ Real shuffle_down(Real value, int by) { return __shfl_down_sync(ALL_LANES, value, by); }
__device__ __forceinline__ Complex shuffle_up(Complex value, int by) {
  return {shuffle_up(value.re, by), shuffle_up(value.im, by)};
}
__device__ __forceinline__ Complex shuffle_down(Complex value, int by) {
  return {shuffle_down(value.re, by), shuffle_down(value.im, by)};
}

// A thread's frames of its states of a projection.
typedef State Frames[STATES][SPAN];

__device__ __forceinline__ void load_projection(Frames& values, const Real (*rows)[PITCH], const Thread& thread) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if COMPLEX
    Real re[SPAN], im[SPAN];
    load_reals(re, &rows[2 * thread.slot(s)][thread.first]);
    load_reals(im, &rows[2 * thread.slot(s) + 1][thread.first]);
#pragma unroll
    for (int f = 0; f < SPAN; f++) values[s][f] = {re[f], im[f]};
#else
    load_reals(values[s], &rows[thread.slot(s)][thread.first]);
#endif
  }
}

__device__ __forceinline__ void store_projection_sums(Real (*rows)[PITCH], const Frames& values, const Thread& thread) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if COMPLEX
    Real re[SPAN], im[SPAN];
#pragma unroll
    for (int f = 0; f < SPAN; f++) {
      re[f] = values[s][f].re;
      im[f] = values[s][f].im;
    }
    store_reals(&rows[2 * thread.slot(s)][thread.first], re);
    store_reals(&rows[2 * thread.slot(s) + 1][thread.first], im);
#else
    store_reals(&rows[thread.slot(s)][thread.first], values[s]);
#endif
  }
}

// B and C of a thread's frames: of a tile, or the same in all frames of a channel.
struct Projections {
#if USE_B
  Frames b;
#endif
  Frames c;
};

__device__ __forceinline__ void set_constant([[maybe_unused]] Frames& values, [[maybe_unused]] const Slots& slots,
                                             [[maybe_unused]] const Thread& thread) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#pragma unroll
    for (int f = 0; f < SPAN; f++) values[s][f] = slots[thread.slot(s)];
  }
}

__device__ __forceinline__ void clear(Frames& values) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#pragma unroll
    for (int f = 0; f < SPAN; f++) values[s][f] = to_state(0);
  }
}

// The decays of a thread's frames, and their product.
struct Decays {
  State a[STATES], each[STATES][SPAN], product[STATES];
};

__device__ __forceinline__ void load_decays(Decays& decays, const Slots& a, const Real (&delta)[SPAN], const Thread& thread,
                                            const Marks& marks) {
#if DECAY_BY_SUM
  Real sum = delta[0];
#pragma unroll
  for (int f = 1; f < SPAN; f++) sum += delta[f];
#endif
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    decays.a[s] = a[thread.slot(s)];
#pragma unroll
    for (int f = 0; f < SPAN; f++) {
      decays.each[s][f] = marks.skip(thread.first + f) ? to_state(1) : decay(decays.a[s], delta[f]);
    }
#if DECAY_BY_SUM
    decays.product[s] = exp_product(decays.a[s], sum);
#else
    decays.product[s] = decays.each[s][0];
#pragma unroll
    for (int f = 1; f < SPAN; f++) decays.product[s] = decays.each[s][f] * decays.product[s];
#endif
  }
}

#if !SUMMARY
// g·(B·x) of a thread's frames.
__device__ __forceinline__ void load_inputs(Frames& inputs, const Decays& decays, const Frames& b, const Real (&delta)[SPAN],
                                            const Real (&x)[SPAN]) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#pragma unroll
    for (int f = 0; f < SPAN; f++) {
#if GAIN_IS_DELTA
      inputs[s][f] = b[s][f] * x[f];
#else
      inputs[s][f] = gain(decays.a[s], delta[f], decays.each[s][f]) * (b[s][f] * x[f]);
#endif
    }
  }
}

// The state after a thread's frames, if it is zero before them.
__device__ __forceinline__ State scan_states(const State (&decays)[SPAN], const State (&inputs)[SPAN], const Thread& thread,
                                             const Marks& marks) {
  State h = inputs[0];
#pragma unroll
  for (int f = 1; f < SPAN; f++) h = marks.cut(thread.first + f, 1) ? inputs[f] : decays[f] * h + inputs[f];
  return h;
}

// From the state before the tile: that before the thread's frames. `end` is that after them, from zero; then from what
// is before the tile.
__device__ __forceinline__ State join_states(State before, State product, State& end, const Thread& thread, const Marks& marks) {
  if (thread.time_lane == 0 && !marks.cut(0, SPAN)) end = product * before + end;
#pragma unroll
  for (int step = 1; step < TIME_LANES; step *= 2) {
    const State earlier = shuffle_up(end, step * LANES), decay = shuffle_up(product, step * LANES);
    if (thread.time_lane >= step && !marks.cut((thread.time_lane - step + 1) * SPAN, step * SPAN)) {
      end = product * earlier + end;
    }
    product = product * decay;
  }
  const State earlier = shuffle_up(end, LANES);
  return thread.time_lane == 0 ? before : earlier;
}
#endif

// What a thread's frames add to the gradient of the state before them.
__device__ __forceinline__ State scan_adjoints(const State (&decays)[SPAN], const State (&c)[SPAN], const Real (&dy)[SPAN],
                                               const Thread& thread, const Marks& marks) {
  State carried = to_state(0);
#pragma unroll
  for (int f = SPAN - 1; f >= 0; f--) {
    const State source = conjugate(c[f]) * dy[f];
    const State adjoint = f < SPAN - 1 ? source + carried : source;
    carried = marks.cut(thread.first + f, 1) ? to_state(0) : conjugate(decays[f]) * adjoint;
  }
  return carried;
}

// From the gradient of the state after the tile: that after the thread's frames. `carried` is what they add to the
// gradient before them; then the whole of that.
__device__ __forceinline__ State join_adjoints(State after, State product, State& carried, const Thread& thread,
                                               const Marks& marks) {
  product = conjugate(product);
  if (thread.time_lane == TIME_LANES - 1 && !marks.cut(thread.first, SPAN)) carried = product * after + carried;
#pragma unroll
  for (int step = 1; step < TIME_LANES; step *= 2) {
    const State later = shuffle_down(carried, step * LANES), decay = shuffle_down(product, step * LANES);
    if (thread.time_lane < TIME_LANES - step && !marks.cut(thread.first, step * SPAN)) carried = product * later + carried;
    product = product * decay;
  }
  const State later = shuffle_down(carried, LANES);
  return thread.time_lane == TIME_LANES - 1 ? after : later;
}

#if SUMMARY
// Walks the adjoints alone of a tile of the warp's channels.
__device__ __forceinline__ void walk_adjoints(Shared& shared, const Thread& thread, const Marks& marks) {
  Projections projections;
#if TILE_C
  load_projection(projections.c, shared.c, thread);
#endif
#pragma unroll 1
  for (int m = 0; m < CHANNELS_EACH; m++) {
    const int row = thread.warp * CHANNELS_EACH + m;
#if C_CONSTANT
    set_constant(projections.c, shared.c_constant[row], thread);
#endif
    Real delta[SPAN], dy[SPAN];
    load_reals(delta, &shared.delta[row][thread.first]);
    load_reals(dy, &shared.dy[row][thread.first]);
    Decays decays;
    load_decays(decays, shared.a[row], delta, thread, marks);
#if DECAY_BY_SUM
    if (thread.lane == 0) {
#pragma unroll
      for (int f = 0; f < SPAN; f++) shared.delta_sum[row][thread.time_lane] += delta[f];
    }
#endif
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const int slot = thread.slot(s);
#if !DECAY_BY_SUM
      State& product = shared.product[row][thread.time_lane][slot];
      product = product * decays.product[s];
#endif
      State carried = scan_adjoints(decays.each[s], projections.c[s], dy, thread, marks);
      join_adjoints(shared.adjoint[row][slot], decays.product[s], carried, thread, marks);
      __syncwarp();  // the last time lane has read what the first writes
      if (thread.time_lane == 0) shared.adjoint[row][slot] = carried;
    }
  }
}
#else

// Walks the states alone of a tile of the warp's channels.
__device__ __forceinline__ void walk_states(Shared& shared, const Thread& thread, const Marks& marks, int tile) {
  Frames b;
#if TILE_B
  load_projection(b, shared.b, thread);
#endif
#pragma unroll 1
  for (int m = 0; m < CHANNELS_EACH; m++) {
    const int row = thread.warp * CHANNELS_EACH + m;
#if B_CONSTANT
    set_constant(b, shared.b_constant[row], thread);
#endif
    Real delta[SPAN], x[SPAN];
    load_reals(delta, &shared.delta[row][thread.first]);
    load_reals(x, &shared.x[row][thread.first]);
    Decays decays;
    Frames inputs;
    load_decays(decays, shared.a[row], delta, thread, marks);
    load_inputs(inputs, decays, b, delta, x);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const int slot = thread.slot(s);
      State end = scan_states(decays.each[s], inputs[s], thread, marks);
      join_states(shared.starts[tile][row][slot], decays.product[s], end, thread, marks);
      if (thread.time_lane == TIME_LANES - 1) shared.starts[tile + 1][row][slot] = end;
    }
  }
}

// Sums over a channel's states of what becomes dx, dΔ and dz, a frame each.
struct Sums {
  Real x[SPAN], delta[SPAN];
#if HAS_Z
  Real y[SPAN];
#endif
};

// One state of a channel, walked back. `h` is the state after each frame, `before` that before the first; `adjoint`
// the gradient of the state after the last.
__device__ __forceinline__ void walk_back(Sums& sums, State& da, State (&db)[SPAN], State (&dc)[SPAN], const State (&b)[SPAN],
                                          const State (&c)[SPAN], State a, const State (&decays)[SPAN], const State (&h)[SPAN],
                                          State before, State adjoint, const Real (&delta)[SPAN], const Real (&x)[SPAN],
                                          const Real (&dy)[SPAN], bool first_state, const Thread& thread, const Marks& marks) {
  da = to_state(0);
#pragma unroll
  for (int f = SPAN - 1; f >= 0; f--) {
    const bool cut = marks.cut(thread.first + f, 1);
    const State lambda = conjugate(c[f]) * dy[f] + adjoint;
    const State previous = cut ? to_state(0) : f > 0 ? h[f - 1] : before;
    dc[f] = conjugate(h[f]) * dy[f] + dc[f];
#if GAIN_IS_DELTA
    // ∂a/∂A = Δa and ∂a/∂Δ = Aa share λ conj(a h_{i−1}); dx and the gain's part of dΔ share Re Σ λ conj(B).
    const State carried = conjugate(decays[f]) * lambda;
    const State shared_part = carried * conjugate(previous);
    db[f] = lambda * x[f] + db[f];
    da = shared_part * delta[f] + da;
    const Real to_delta = real_part(shared_part * conjugate(a)), to_x = real_part(lambda * conjugate(b[f]));
#else
    // Coefficients are had anew here: their derivatives would not find room in registers.
    Partials partials;
    const Coefficients k = discretize(a, delta[f], partials);
    const State d_a = lambda * conjugate(previous), d_g = lambda * conjugate(b[f] * x[f]);
    const State carried = conjugate(decays[f]) * lambda, through_gain = lambda * conjugate(k.g);
    db[f] = through_gain * x[f] + db[f];
    da = d_a * conjugate(partials.a_by_a) + (d_g * conjugate(partials.g_by_a) + da);
    const Real to_delta = real_part(d_a * conjugate(partials.a_by_delta) + d_g * conjugate(partials.g_by_delta));
    const Real to_x = real_part(through_gain * conjugate(b[f]));
#endif
    sums.x[f] = first_state ? to_x : sums.x[f] + to_x;
    sums.delta[f] = first_state ? to_delta : sums.delta[f] + to_delta;
#if HAS_Z
    const Real y = real_part(c[f] * h[f]);
    sums.y[f] = first_state ? y : sums.y[f] + y;
#endif
    adjoint = cut ? to_state(0) : carried;
  }
}

__device__ __forceinline__ void walk_channel(Shared& shared, Sums& sums, Projections& projections, Frames& db, Frames& dc,
                                             const Thread& thread, const Marks& marks, int tile, int row) {
#if B_CONSTANT
  set_constant(projections.b, shared.b_constant[row], thread);
  clear(db);
#endif
#if C_CONSTANT
  set_constant(projections.c, shared.c_constant[row], thread);
  clear(dc);
#endif
  Real delta[SPAN], x[SPAN], dy[SPAN];
  load_reals(delta, &shared.delta[row][thread.first]);
  load_reals(x, &shared.x[row][thread.first]);
  load_reals(dy, &shared.dy[row][thread.first]);
  Decays decays;
  Frames h;
  load_decays(decays, shared.a[row], delta, thread, marks);
  load_inputs(h, decays, projections.b, delta, x);

  State before[STATES], after[STATES];
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    const int slot = thread.slot(s);
    State end = scan_states(decays.each[s], h[s], thread, marks);
    State carried = scan_adjoints(decays.each[s], projections.c[s], dy, thread, marks);
    before[s] = join_states(shared.starts[tile][row][slot], decays.product[s], end, thread, marks);
    after[s] = join_adjoints(shared.adjoint[row][slot], decays.product[s], carried, thread, marks);
    __syncwarp();  // the last time lane has read what the first writes
    if (thread.time_lane == 0) shared.adjoint[row][slot] = carried;
  }

#pragma unroll
  for (int s = 0; s < STATES; s++) {
#pragma unroll
    for (int f = 0; f < SPAN; f++) {
      const State previous = f > 0 ? h[s][f - 1] : before[s];
      if (!marks.cut(thread.first + f, 1)) h[s][f] = decays.each[s][f] * previous + h[s][f];
    }
    State da;
    walk_back(sums, da, db[s], dc[s], projections.b[s], projections.c[s], decays.a[s], decays.each[s], h[s], before[s], after[s],
              delta, x, dy, s == 0, thread, marks);
    const int slot = thread.slot(s);
    shared.da[row][thread.time_lane][slot] = shared.da[row][thread.time_lane][slot] + da;
#if B_CONSTANT
#pragma unroll
    for (int f = 1; f < SPAN; f++) db[s][0] += db[s][f];
    shared.db_constant[row][thread.time_lane][slot] = shared.db_constant[row][thread.time_lane][slot] + db[s][0];
#endif
#if C_CONSTANT
#pragma unroll
    for (int f = 1; f < SPAN; f++) dc[s][0] += dc[s][f];
    shared.dc_constant[row][thread.time_lane][slot] = shared.dc_constant[row][thread.time_lane][slot] + dc[s][0];
#endif
  }
}

// Sums over the state lanes what the warp has of PAIR channels, into the rows that were consumed.
__device__ __forceinline__ void sum_states(Shared& shared, const Thread& thread, int row0) {
  constexpr int PER_ROW = TILE / PER_16_BYTES;
  __syncwarp();
#pragma unroll
  for (int o = threadIdx.x % 32; o < PAIR * VALUES * PER_ROW; o += 32) {
    const int at = o % PER_ROW * PER_16_BYTES, value = o / PER_ROW % VALUES, channel = o / PER_ROW / VALUES;
    const Real(*rows)[PITCH] = shared.scratch[thread.warp] + (channel * VALUES + value) * LANES;
    Real sum[PER_16_BYTES];
    load_reals(sum, &rows[0][at]);
#pragma unroll
    for (int lane = 1; lane < LANES; lane++) {
      Real more[PER_16_BYTES];
      load_reals(more, &rows[lane][at]);
#pragma unroll
      for (int k = 0; k < PER_16_BYTES; k++) sum[k] += more[k];
    }
    Real(*target)[PITCH] = value == 0 ? shared.x : shared.dy;
#if HAS_Z
    if (value == 2) target = shared.y;
#endif
    store_reals(&target[row0 + channel][at], sum);
  }
  __syncwarp();
}

// Walks a tile of the warp's channels; leaves its dB and dC in its scratch.
__device__ __forceinline__ void walk_tile(Shared& shared, const Thread& thread, const Marks& marks, int tile, int columns) {
  Projections projections;
  Frames db, dc;
#if TILE_B
  load_projection(projections.b, shared.b, thread);
  clear(db);
#endif
#if TILE_C
  load_projection(projections.c, shared.c, thread);
  clear(dc);
#endif
  Real(*scratch)[PITCH] = shared.scratch[thread.warp];
#pragma unroll 1
  for (int m = 0; m < CHANNELS_EACH; m += PAIR) {
    const int row0 = thread.warp * CHANNELS_EACH + m;
    if (column_of(row0) >= columns && column_of(row0 + PAIR - 1) >= columns) continue;
#pragma unroll 1
    for (int channel = 0; channel < PAIR; channel++) {
      Sums sums;
      walk_channel(shared, sums, projections, db, dc, thread, marks, tile, row0 + channel);
      Real(*rows)[PITCH] = scratch + channel * VALUES * LANES + thread.lane;
      store_reals(&rows[0][thread.first], sums.x);
      store_reals(&rows[LANES][thread.first], sums.delta);
#if HAS_Z
      store_reals(&rows[2 * LANES][thread.first], sums.y);
#endif
    }
    sum_states(shared, thread, row0);
  }
#if TILE_B
  store_projection_sums(scratch, db, thread);
#endif
#if TILE_C
  store_projection_sums(scratch + TILE_B * SLOT_WIDTH, dc, thread);
#endif
}

// --- From rows to memory --------------------------------------------------------------------------------------

// Adds a pass to a sequence's gradient, and rounds it where it is the last.
__device__ __forceinline__ void add_pass([[maybe_unused]] const Arguments& args, [[maybe_unused]] Real* sums, Element* target,
                                         i64 at, Real (&values)[VECTOR]) {
#if SEVERAL_PASSES
  if (!args.first_pass) {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) values[k] += sums[at + k];
  }
  if (!args.last_pass) {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sums[at + k] = values[k];
    return;
  }
#endif
  store_elements(target + at, values);
}

// The owner of an element finishes it. What it needs of the inputs, it reads again: they lie in a cache.
__device__ __forceinline__ void finish_sequences(Shared& shared, const Arguments& args, const Place& place, const Marks& marks,
                                                 i64 i0, int rows) {
  const Sequence::Cursor cursor = sequence_at(args, place, i0);
#if GAIN_IS_DELTA || HAS_D
  Sequence::Raw raw_x;
  cursor.load(raw_x, args.x, rows);
#endif
#if HAS_SLOPE
  Sequence::Raw raw_dt;
  cursor.load(raw_dt, args.dt, rows);
#endif
#if HAS_D || HAS_Z
  Sequence::Raw raw_dy;
  cursor.load(raw_dy, args.dy, rows);
#endif
#if HAS_Z
  Sequence::Raw raw_z;
  cursor.load(raw_z, args.z, rows);
#endif
#if HAS_D
#if SEVERAL_PASSES
  const bool with_d = args.first_pass;
#else
  const bool with_d = true;
#endif
#endif
  Sequence::each([&](int k, int r, int column) {
    if (column >= place.channels) return;
    constexpr int COUNT = Sequence::FRAMES;
    Real dx[COUNT][VECTOR], ddt[COUNT][VECTOR];
#if HAS_Z
    Real dz[COUNT][VECTOR];
#endif
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
      const int row = e * ROW_STEP + column / VECTOR;
      [[maybe_unused]] const i64 channel = place.channel0 + column + e;
      Real to_x[COUNT], to_delta[COUNT];
      load_reals(to_x, &shared.x[row][r]);
      load_reals(to_delta, &shared.dy[row][r]);
#if GAIN_IS_DELTA
      Real delta[COUNT];
      load_reals(delta, &shared.delta[row][r]);
#endif
#if HAS_Z
      Real y[COUNT];
      load_reals(y, &shared.y[row][r]);
#endif
      [[maybe_unused]] Real bias = 0, dd = 0, ddt_bias = 0;
#if HAS_SLOPE && HAS_DT_BIAS
      bias = args.dt_bias[channel];
#endif
#pragma unroll
      for (int f = 0; f < COUNT; f++) {
        const bool here = r + f < rows && !marks.skip(r + f);
#if GAIN_IS_DELTA || HAS_D
        const Real x = to_real(raw_x[k][f].elements[e]);
#endif
#if GAIN_IS_DELTA
        to_delta[f] += x * to_x[f];
        to_x[f] *= delta[f];
#endif
#if HAS_SLOPE
        Real slope;
        step_size(args, to_real(raw_dt[k][f].elements[e]), bias, slope);
        to_delta[f] *= slope;
#endif
#if HAS_D || HAS_Z
        Real dy = to_real(raw_dy[k][f].elements[e]);
#endif
#if HAS_Z
        const Real z = to_real(raw_z[k][f].elements[e]), s = sigmoid(z);
        Real whole_y = y[f] * (OUTPUT_WEIGHT * (Real)args.scale);
#if HAS_D
        if (with_d) whole_y += args.d[channel] * x;
#endif
        dz[f][e] = here ? dy * (s * ((Real)1 + z * ((Real)1 - s))) * whole_y : (Real)0;
        dy *= z * s;
#endif
#if HAS_D
        if (with_d) {
          to_x[f] += args.d[channel] * dy;
          dd += here ? dy * x : (Real)0;
        }
#endif
        dx[f][e] = here ? to_x[f] : (Real)0;
        ddt[f][e] = here ? to_delta[f] : (Real)0;
        ddt_bias += ddt[f][e];
      }
#if HAS_D
      shared.dd[e][threadIdx.x] += dd;
#endif
#if HAS_DT_BIAS
      shared.ddt_bias[e][threadIdx.x] += ddt_bias;
#endif
    }
#pragma unroll
    for (int f = 0; f < COUNT; f++) {
      if (r + f >= rows) continue;
      const i64 at = cursor.at[k] + f * cursor.stride;
      add_pass(args, args.dx_sum, args.dx, at, dx[f]);
      add_pass(args, args.ddt_sum, args.ddt, at, ddt[f]);
#if HAS_Z
      add_pass(args, args.dz_sum, args.dz, at, dz[f]);
#endif
    }
  });
}

// Sums dB and dC of a tile over the warps, and leaves them to reduce.cu. `first_row`: that of the tile in the parts.
__device__ __forceinline__ void finish_projections([[maybe_unused]] const Shared& shared, [[maybe_unused]] const Arguments& args,
                                                   [[maybe_unused]] i64 first_row, [[maybe_unused]] i64 contribution,
                                                   [[maybe_unused]] i64 contributions, [[maybe_unused]] int rows) {
#if TILE_B || TILE_C
#pragma unroll 1
  for (int o = threadIdx.x; o < PROJECTION_ROWS * TILE / PER_16_BYTES; o += THREADS) {
    const int n = o % PROJECTION_ROWS, at = o / PROJECTION_ROWS * PER_16_BYTES;
    Real sum[PER_16_BYTES];
    load_reals(sum, &shared.scratch[0][n][at]);
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) {
      Real more[PER_16_BYTES];
      load_reals(more, &shared.scratch[warp][n][at]);
#pragma unroll
      for (int k = 0; k < PER_16_BYTES; k++) sum[k] += more[k];
    }
    Real* parts = TILE_B && n < SLOT_WIDTH ? args.db_parts : args.dc_parts;
    parts += ((first_row + at) * contributions + contribution) * SLOT_WIDTH + n % SLOT_WIDTH;
#pragma unroll
    for (int k = 0; k < PER_16_BYTES; k++) {
      if (at + k < rows) parts[k * contributions * SLOT_WIDTH] = sum[k];
    }
  }
#endif
}
#endif

// --- What a block keeps ---------------------------------------------------------------------------------------

// Calls f(row, slot, channel) for the states of the block's channels, each in a thread; `here` where there is one.
template <typename F>
__device__ __forceinline__ void each_slot(const Arguments& args, const Place& place, F f) {
  const int count = states_here(args);
#pragma unroll 1
  for (int k = threadIdx.x; k < CHANNELS * SLOTS; k += THREADS) {
    const int row = k / SLOTS, slot = k % SLOTS, column = column_of(row);
    f(row, slot, place.channel0 + column, column < place.channels && slot < count);
  }
}

__device__ __forceinline__ void begin_block(Shared& shared, const Arguments& args, const Place& place) {
  each_slot(args, place, [&](int row, int slot, i64 channel, bool here) {
    const i64 parameter = channel * args.state + args.first_state + slot;
    shared.a[row][slot] = here ? args.a[parameter] : to_state(0);
#if C_CONSTANT
    shared.c_constant[row][slot] = here ? constant_at(args.c, parameter) : to_state(0);
#endif
#if !SUMMARY && B_CONSTANT
    shared.b_constant[row][slot] = here ? constant_at(args.b, parameter) : to_state(0);
#endif
#pragma unroll
    for (int t = 0; t < TIME_LANES; t++) {
#if SUMMARY
#if DECAY_BY_SUM
      if (slot == 0) shared.delta_sum[row][t] = (Real)0;
#else
      shared.product[row][t][slot] = to_state(1);
#endif
#else
      shared.da[row][t][slot] = to_state(0);
#if B_CONSTANT
      shared.db_constant[row][t][slot] = to_state(0);
#endif
#if C_CONSTANT
      shared.dc_constant[row][t][slot] = to_state(0);
#endif
#endif
    }
  });
#if !SUMMARY
#pragma unroll
  for (int e = 0; e < VECTOR; e++) {
#if HAS_D
    shared.dd[e][threadIdx.x] = (Real)0;
#endif
#if HAS_DT_BIAS
    shared.ddt_bias[e][threadIdx.x] = (Real)0;
#endif
  }
#endif
}

// A segment of a row: its frames, and its number among those of all rows.
struct Segment {
  i64 number, begin, frames;
};

#if SUMMARY
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_summary(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  const i64 index = block_index();
  if (index >= args.batch * args.chunks * args.units * args.blocks_per_unit) return;
  const Place place = find_place(args, index);
  if (place.chunk == 0) return;  // nothing comes before it
  const i64 begin = chunk_begin(args, place), frames = chunk_end(args, place) - begin;
  const Thread thread;

  begin_block(shared, args, place);
  each_slot(args, place, [&](int row, int slot, i64, bool) { shared.adjoint[row][slot] = to_state(0); });
  for (i64 i = (frames - 1) / TILE * TILE; i >= 0; i -= TILE) {
    const int rows = (int)(frames - i < TILE ? frames - i : TILE);
    Incoming incoming;
    load_tile<WHOLE>(incoming, args, place, begin + i, rows);
    const Marks marks = marks_of(args, place, begin + i, rows);
    __syncthreads();  // the tile after this has been walked by all
    store_tile<WHOLE>(shared, incoming, args, place, marks, rows);
    if (i > 0) prefetch_tile(args, place, begin + i - TILE);
    __syncthreads();
    walk_adjoints(shared, thread, marks);
  }
  __syncthreads();
  each_slot(args, place, [&](int row, int slot, i64 channel, bool here) {
    if (!here) return;
    const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + channel;
    args.boundary_adjoints[boundary * SLOTS + slot] = shared.adjoint[row][slot];
#if DECAY_BY_SUM
    if (slot > 0) return;
    Real sum = shared.delta_sum[row][0];
#pragma unroll
    for (int t = 1; t < TIME_LANES; t++) sum += shared.delta_sum[row][t];
    args.delta_sums[boundary] = sum;
#else
    State product = shared.product[row][0][slot];
#pragma unroll
    for (int t = 1; t < TIME_LANES; t++) product = product * shared.product[row][t][slot];
    args.decays[boundary * SLOTS + slot] = product;
#endif
  });
}
#else

// The gradient of the state after the piece: after the segment, or what a later piece has left.
__device__ __forceinline__ void load_adjoints(Shared& shared, const Arguments& args, const Place& place, const Segment& segment,
                                              bool at_end) {
  const bool after_all = at_end && segment.begin + segment.frames == args.seq;
  each_slot(args, place, [&](int row, int slot, i64 channel, bool here) {
    const State* from = args.boundary_adjoints + (segment.number * args.dim + channel) * SLOTS;
    if (after_all) from = args.dfinal_state + (place.row * args.dim + channel) * args.state + args.first_state;
    here = here && (!after_all || (args.write_final && args.dfinal_state));
    shared.adjoint[row][slot] = here ? from[slot] : to_state(0);
  });
}

// Hands the gradient of the state before the piece on.
__device__ __forceinline__ void store_adjoints(const Shared& shared, const Arguments& args, const Place& place,
                                               const Segment& segment) {
  const bool before_all = args.piece_first == 0 && segment.begin == 0;
  if (before_all ? !(args.write_final && args.dinitial_state) : args.piece_first == 0) return;
  each_slot(args, place, [&](int row, int slot, i64 channel, bool here) {
    State* to = args.boundary_adjoints + (segment.number * args.dim + channel) * SLOTS;
    if (before_all) to = args.dinitial_state + (place.row * args.dim + channel) * args.state + args.first_state;
    if (here) to[slot] = shared.adjoint[row][slot];
  });
}

// The state before the chunk that begins with scan index i0.
__device__ __forceinline__ void load_start(Shared& shared, const Arguments& args, const Place& place, i64 i0) {
  const i64 chunk = place.row * args.chunks + i0 / args.chunk;
  each_slot(args, place, [&](int row, int slot, i64 channel, bool here) {
    const State* from = args.boundary_states + (chunk * args.dim + channel) * args.boundary_width + args.boundary_first;
    if (i0 == 0) from = args.initial_state + (place.row * args.dim + channel) * args.state + args.first_state;
    here = here && (i0 > 0 || (args.write_final && args.initial_state));
    shared.starts[0][row][slot] = here ? from[slot] : to_state(0);
  });
}

// What is summed over time, and later over rows and segments by reduce.cu. `accumulate`: a later piece has been there.
__device__ __forceinline__ void end_block(const Shared& shared, const Arguments& args, const Place& place, i64 part,
                                          bool accumulate) {
  const auto add = [&](State* parts, const Slots(&sums)[TIME_LANES], i64 at, int slot) {
    State sum = sums[0][slot];
#pragma unroll
    for (int t = 1; t < TIME_LANES; t++) sum += sums[t][slot];
    parts[at] = accumulate ? parts[at] + sum : sum;
  };
  each_slot(args, place, [&](int row, int slot, i64 channel, bool here) {
    if (!here) return;
    const i64 at = (part * args.dim + channel) * SLOTS + slot;
    add(args.da_parts, shared.da[row], at, slot);
#if B_CONSTANT
    add(args.db_constant_parts, shared.db_constant[row], at, slot);
#endif
#if C_CONSTANT
    add(args.dc_constant_parts, shared.dc_constant[row], at, slot);
#endif
  });
#if HAS_D || HAS_DT_BIAS
  // The owners of a column are PER_FRAME threads apart.
  const auto add_column = [&](Real* parts, const Real(&sums)[VECTOR][THREADS], int column) {
    Real sum = 0;
#pragma unroll 1
    for (int t = column / VECTOR; t < THREADS; t += Sequence::PER_FRAME) sum += sums[column % VECTOR][t];
    const i64 at = part * args.dim + place.channel0 + column;
    parts[at] = accumulate ? parts[at] + sum : sum;
  };
  for (int column = threadIdx.x; column < place.channels; column += THREADS) {
#if HAS_D
    if (args.first_pass) add_column(args.dd_parts, shared.dd, column);
#endif
#if HAS_DT_BIAS
    add_column(args.ddt_bias_parts, shared.ddt_bias, column);
#endif
  }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_backward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  i64 index = block_index();
  const i64 contributions = args.units * args.blocks_per_unit;
  const i64 contribution = take(index, contributions), segment_of_row = take(index, args.segments);
  const i64 row0 = index * args.rows_per_block;
  if (row0 >= args.batch) return;
  const i64 row_end = row0 + args.rows_per_block < args.batch ? row0 + args.rows_per_block : args.batch;
  Segment segment;
  segment.begin = segment_of_row * args.segment;
  segment.frames = args.seq - segment.begin < args.segment ? args.seq - segment.begin : args.segment;
  const i64 piece_end = args.piece_first + args.piece_frames;
  const i64 first = segment.begin + args.piece_first;
  const i64 end = segment.begin + (piece_end < segment.frames ? piece_end : segment.frames);
  if (first >= end) return;  // the last segment may be shorter than the others
  const bool at_end = piece_end >= segment.frames;

  Place place;
  place.unit = contribution / args.blocks_per_unit;
  set_channels(place, args, contribution % args.blocks_per_unit);
  const Thread thread;
  begin_block(shared, args, place);

  for (place.row = row0; place.row < row_end; place.row++) {
    segment.number = place.row * args.segments + segment_of_row;
    load_adjoints(shared, args, place, segment, at_end);
    for (i64 begin = (end - 1) / args.chunk * args.chunk; begin >= first; begin -= args.chunk) {
      const i64 chunk_end = begin + args.chunk < end ? begin + args.chunk : end;
      const int last = (int)((chunk_end - begin - 1) / TILE);
      const auto rows_of = [&](int tile) {
        const i64 left = chunk_end - begin - tile * TILE;
        return left < TILE ? (int)left : TILE;
      };
      Incoming incoming;
      Marks marks;
      load_start(shared, args, place, begin);
#if TILES > 1
#pragma unroll 1
      for (int tile = 0; tile < last; tile++) {
        load_tile<STATES_ALONE>(incoming, args, place, begin + tile * TILE, TILE);
        marks = marks_of(args, place, begin + tile * TILE, TILE);
        store_tile<STATES_ALONE>(shared, incoming, args, place, marks, TILE);
        __syncthreads();
        walk_states(shared, thread, marks, tile);
        __syncthreads();
      }
#endif
      load_tile<WHOLE>(incoming, args, place, begin + last * TILE, rows_of(last));
#pragma unroll 1
      for (int tile = last; tile >= 0; tile--) {
        const i64 i0 = begin + tile * TILE;
        const int rows = rows_of(tile);
        marks = marks_of(args, place, i0, rows);
        store_tile<WHOLE>(shared, incoming, args, place, marks, rows);
        if (i0 > first) prefetch_tile(args, place, i0 - TILE);
        __syncthreads();
#if SEQ_IDX
        // Selections at every frame are half as much again as all else: most tiles do without.
        if ((marks.resets | marks.skips) == 0) {
          walk_tile(shared, thread, Marks{0, 0}, tile, place.channels);
        } else
#endif
        {
          walk_tile(shared, thread, marks, tile, place.channels);
        }
        __syncthreads();
        const i64 first_row = segment.number * args.piece_frames + (i0 - first);
        finish_projections(shared, args, first_row, contribution, contributions, rows);
        if (tile > 0) load_tile<WHOLE>(incoming, args, place, i0 - TILE, TILE);
        finish_sequences(shared, args, place, marks, i0, rows);
      }
    }
    store_adjoints(shared, args, place, segment);
  }
  __syncthreads();  // all have finished their elements
  end_block(shared, args, place, row0 / args.rows_per_block * args.segments + segment_of_row, !at_end);
}
#endif
