// The backward pass of one direction of the scan.
//
// With λ_i = ∂L/∂h_i, w = 1 (2 where complex) and dy_i the gradient of y before the gate:
//   λ_i = w dy_i conj(C_i) + conj(a_{i+1}) λ_{i+1}
//   da = λ conj(h_{i−1}), dg = λ conj(B x)
//   dA = Σ da conj(∂a/∂A) + dg conj(∂g/∂A), dΔ = Re Σ da conj(∂a/∂Δ) + dg conj(∂g/∂Δ)
//   dB = λ conj(g) x, dC = w dy conj(h), dx = Re Σ λ conj(g B) + D dy, dD = Σ dy x
// The average over both directions is linear: each direction has its own backward pass with half the source.
//
// A warp has PAIR neighbouring channels of each of its CHANNELS_PER_WARP places, LANES lanes of STATES states each, and
// is on its own but for B, C and their gradients, which its block shares. It walks a tile forward, span by span of SPAN
// frames, and keeps the state before each span; then back, span by span: forward again from what was kept, so that
// decays and states of the span stay in registers, and back through them. Sums over the states of a frame end in the lane
// of that number, which owns the frame: it reads what came with it and writes its gradients. dB and dC are summed over
// the pair in registers, over the warp through its scratch, over the block at the end of the tile.
//
// A block walks a piece of one segment of the sequence, of one batch row after another, from the last tile to the
// first. States lie in `boundary_states` every `chunk` frames; where a chunk has several tiles, each warp first walks
// its states alone and keeps each tile's first. Every sum is taken in a fixed order: the same call gives the same bits.
// Sums over the blocks, rows and segments are left to reduce.cu.
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
#include "block.cuh"

// Frames that a thread has in registers, and channels.
#define SPAN 4
#define PAIR 2
#define SPANS (TILE / SPAN)
#define CHANNELS_EACH (CHANNELS_PER_WARP * PAIR)
// Reals of the states of a lane, and units of so many in a frame of a span's dB or dC.
#define LANE_WIDTH (STATES * COMPONENTS)
#define UNITS (SPAN * LANES)
// Where threads outnumber the units, each sums over a part of the channels alone.
#define CHANNEL_PARTS (UNITS < 32 ? 32 / UNITS : 1)
#define UNITS_EACH (UNITS > 32 ? UNITS / 32 : 1)
// A thread's place in a row of the scratch: threads whose units are read at once lie on different banks.
#define SCRATCH_PLACES 36
#define START_REALS (PAIR * 32 * LANE_WIDTH)
#define SUM_REALS (2 * SPAN * SLOT_WIDTH)

static_assert(CHANNELS == WARPS * CHANNELS_EACH, "warps have equally many channels");
static_assert(TILE % SPAN == 0 && TILE <= 32, "marks of a tile are a word");
static_assert(LANES >= SPAN, "every frame of a span has an owner");

// Two frames of the channels of a warp: in one access, a thread has two frames of its pair.
typedef Real Frames[CHANNELS_PER_WARP][2][PAIR];

// What belongs to a warp. Where lanes write what others read, __syncwarp lies between.
struct Warp {
  alignas(16) Frames delta[TILE / 2];
#if !SUMMARY
  alignas(16) Frames x[TILE / 2];  // Δx where the gain is Δ
  // The states before each span, [pair][thread]; when it has been walked back, its dB and dC, [b, c][frame][slot].
  alignas(16) Real spans[SPANS][START_REALS > SUM_REALS ? START_REALS : SUM_REALS];
  alignas(16) Real scratch[SPAN][SCRATCH_PLACES * LANE_WIDTH];
#if TILES > 1
  alignas(16) Real tiles[TILES - 1][START_REALS];  // the states before the tiles of a chunk but the last
#endif
#endif
  alignas(16) Frames dy[SUMMARY ? TILE / 2 : SPAN / 2];  // w · scale · dy · silu(z)
};

struct Shared {
  Warp warps[WARPS];
#if TILE_B
  alignas(16) Real b[TILE][SLOT_WIDTH];
#endif
#if TILE_C
  alignas(16) Real c[TILE][SLOT_WIDTH];
#endif
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// Marks of a tile's frames, a bit each, the same in all threads of a block. Frames that are none are skipped.
struct Marks {
  u32 resets, skips;

  __device__ __forceinline__ bool reset(int r) const { return SEQ_IDX && (resets >> r & 1) != 0; }
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

typedef ElementPack<PAIR> Pair;
typedef State PairStates[PAIR][STATES];

// What a thread is, and what it keeps over its block.
struct Thread {
  int place, lane, pair, column;
  int here;   // channels of the pair that there are
  int count;  // states of the pass
  i64 channel;
  PairStates a, adjoint;
#if HAS_DT_BIAS
  Real bias[PAIR];
#endif
#if SUMMARY
#if DECAY_BY_SUM
  Real delta_sum[PAIR];  // of the frames that the lane owns
#else
  PairStates product;
#endif
#else
  PairStates da;
#if B_CONSTANT
  PairStates b, db;
#endif
#if HAS_D
  Real d[PAIR], dd[PAIR];
#endif
#if HAS_DT_BIAS
  Real ddt_bias[PAIR];
#endif
#endif
#if C_CONSTANT
  PairStates c;
#if !SUMMARY
  PairStates dc;
#endif
#endif
};

// --- Between memory and registers -----------------------------------------------------------------------------

// Where the elements of a thread's channels lie: those of frame r of a chunk at origin + r · stride.
struct Sequence {
  i64 origin, stride;
  int rows;  // of the chunk

  __device__ __forceinline__ Sequence(const Arguments& args, const Place& place, const Thread& thread, i64 begin, int rows)
      : origin((place.row * args.seq + frame(args, begin)) * args.dim + thread.channel),
        stride(args.reverse ? -args.dim : args.dim),
        rows(rows) {}

  // Whether the thread owns a frame that there is.
  __device__ __forceinline__ bool owns(const Thread& thread, int r) const {
    return thread.lane < SPAN && thread.here > 0 && r < rows;
  }

  __device__ __forceinline__ Pair load(const Element* tensor, const Thread& thread, int r) const {
    Pair pair{};
    if (!owns(thread, r)) return pair;
    const Element* from = tensor + origin + r * stride;
#if VECTOR == PAIR
    pair = *reinterpret_cast<const Pair*>(from);
#else
    pair.elements[0] = from[0];
    if (thread.here > 1) pair.elements[1] = from[1];
#endif
    return pair;
  }

  __device__ __forceinline__ void store(Element* tensor, const Thread& thread, int r, const Real (&values)[PAIR]) const {
    Element* to = tensor + origin + r * stride;
#if VECTOR == PAIR
    store_elements(to, values);
#else
    to[0] = to_element(values[0]);
    if (thread.here > 1) to[1] = to_element(values[1]);
#endif
  }

  // Brings the warp's frames of a tile nearer while another is walked.
  template <bool WHOLE>
  __device__ __forceinline__ void prefetch([[maybe_unused]] const Arguments& args, const Thread& thread, int r0) const {
    const int r = r0 + thread.place;
    if (thread.place >= TILE || r < 0 || r >= rows) return;
    const i64 at = origin - thread.pair * PAIR + r * stride;
    const auto bring = [&](const Element* tensor) { asm volatile("prefetch.global.L2 [%0];" ::"l"(tensor + at)); };
    bring(args.dt);
#if USE_X
    bring(args.x);
#endif
    if constexpr (WHOLE) {
      bring(args.dy);
#if HAS_Z
      bring(args.z);
#endif
    }
  }
};

// A tile of a projection on its way from memory to the block.
template <int COUNT>
struct Incoming {
  static constexpr int PER_FRAME = SLOT_WIDTH / COUNT, ALL = TILE * PER_FRAME, EACH = (ALL + THREADS - 1) / THREADS;
  ElementPack<COUNT> raw[EACH];

  // Calls f(number, frame, first component) for each access of this thread.
  template <typename F>
  static __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int access = k * THREADS + (int)threadIdx.x;
      if (ALL % THREADS == 0 || access < ALL) f(k, access / PER_FRAME, access % PER_FRAME * COUNT);
    }
  }

  __device__ __forceinline__ void load(const Element* tensor, const Arguments& args, const Place& place, i64 groups, i64 group,
                                       i64 i0, int rows) {
    const i64 first = (((place.row * args.seq + frame(args, i0)) * groups + group) * args.state + args.first_state) * COMPONENTS;
    const i64 width = groups * args.state * COMPONENTS, stride = args.reverse ? -width : width;
    const int count = states_here(args) * COMPONENTS;
    each([&](int k, int r, int column) {
      raw[k] = ElementPack<COUNT>{};
      if (r < rows && column < count) {
        raw[k] = *reinterpret_cast<const ElementPack<COUNT>*>(tensor + first + r * stride + column);
      }
    });
  }

  // What b and c are in frames that are skipped must not reach a sum.
  __device__ __forceinline__ void store(Real (*rows)[SLOT_WIDTH], const Marks& marks) const {
    each([&](int k, int r, int column) {
      Real values[COUNT];
#pragma unroll
      for (int e = 0; e < COUNT; e++) values[e] = marks.skip(r) ? (Real)0 : to_real(raw[k].elements[e]);
      store_reals(&rows[r][column], values);
    });
  }
};

// --- Between registers and shared memory ------------------------------------------------------------------------

// What the owner of frame r of a tile has of its pair.
__device__ __forceinline__ void put(Frames* frames, const Thread& thread, int r, const Real (&values)[PAIR]) {
  store_reals(frames[r / 2][thread.pair][r % 2], values);
}

// A span of the thread's pair.
typedef Real Span[SPAN][PAIR];

__device__ __forceinline__ void load_span(Span& values, const Frames* frames, const Thread& thread, int first) {
#pragma unroll
  for (int f = 0; f < SPAN; f += 2) {
    Real both[2 * PAIR];
    load_reals(both, frames[(first + f) / 2][thread.pair][0]);
#pragma unroll
    for (int k = 0; k < 2 * PAIR; k++) values[f + k / PAIR][k % PAIR] = both[k];
  }
}

// The states of a lane, as they lie in shared memory and in the sums over time.
__device__ __forceinline__ void load_lane(State (&states)[STATES], const Real* from) {
  Real reals[LANE_WIDTH];
  load_reals(reals, from);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if COMPLEX
    states[s] = {reals[2 * s], reals[2 * s + 1]};
#else
    states[s] = reals[s];
#endif
  }
}

__device__ __forceinline__ void store_lane(Real* to, const State (&states)[STATES]) {
  Real reals[LANE_WIDTH];
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if COMPLEX
    reals[2 * s] = states[s].re;
    reals[2 * s + 1] = states[s].im;
#else
    reals[s] = states[s];
#endif
  }
  store_reals(to, reals);
}

__device__ __forceinline__ void save(Real* to, const PairStates& h, const Thread& thread) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) store_lane(to + (p * 32 + thread.place) * LANE_WIDTH, h[p]);
}

__device__ __forceinline__ void restore(PairStates& h, const Real* from, const Thread& thread) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) load_lane(h[p], from + (p * 32 + thread.place) * LANE_WIDTH);
}

__device__ __forceinline__ void clear(PairStates& states) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) states[p][s] = to_state(0);
  }
}

// Δ of the frame that the thread owns; zero where there is none.
__device__ __forceinline__ void own_delta(Real (&delta)[PAIR], const Arguments& args, const Thread& thread, const Pair& dt,
                                          bool present) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    [[maybe_unused]] Real bias = 0, slope;
#if HAS_DT_BIAS
    bias = thread.bias[p];
#endif
    delta[p] = present && p < thread.here ? step_size(args, to_real(dt.elements[p]), bias, slope) : (Real)0;
  }
}

// w · scale · dy · silu(z) of that frame.
__device__ __forceinline__ void own_source(Real (&source)[PAIR], const Arguments& args, const Pair& dy,
                                           [[maybe_unused]] const Pair& z, bool skipped) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    Real value = to_real(dy.elements[p]) * (OUTPUT_WEIGHT * (Real)args.scale);
#if HAS_Z
    const Real gate = to_real(z.elements[p]);
    value *= gate * sigmoid(gate);
#endif
    source[p] = skipped ? (Real)0 : value;
  }
}

#if !SUMMARY
// --- The walk forward -----------------------------------------------------------------------------------------

// One frame of a thread's states: g·(B·x) of a channel.
__device__ __forceinline__ State input_of([[maybe_unused]] State a, [[maybe_unused]] Real delta, [[maybe_unused]] State decay,
                                          State b, Real x) {
#if GAIN_IS_DELTA
  return b * x;
#else
  return gain(a, delta, decay) * (b * x);
#endif
}

// Walks the states of a tile, which begins with frame r0 of the chunk, and leaves the Δ and x of its frames in the rows of
// the warp. KEEP: keeps the states before each span, and does not walk the last; else the rows of two spans serve all.
template <bool KEEP>
__device__ __forceinline__ void walk_states(Warp& warp, [[maybe_unused]] const Shared& shared, const Arguments& args,
                                            const Sequence& sequence, const Thread& thread, PairStates& h, const Marks& marks,
                                            int r0, int rows) {
  const int spans = (rows + SPAN - 1) / SPAN;
  Pair dt = sequence.load(args.dt, thread, r0 + thread.lane), x = sequence.load(args.x, thread, r0 + thread.lane);
#pragma unroll 1
  for (int k = 0; k < spans; k++) {
    const int first = (KEEP ? k : k % 2) * SPAN, own = k * SPAN + thread.lane;
    if (thread.lane < SPAN) {
      const bool skipped = marks.skip(own);
      Real delta[PAIR], values[PAIR];
      own_delta(delta, args, thread, dt, sequence.owns(thread, r0 + own) && !skipped);
#pragma unroll
      for (int p = 0; p < PAIR; p++) {
        values[p] = skipped ? (Real)0 : to_real(x.elements[p]);
#if GAIN_IS_DELTA
        values[p] *= delta[p];
#endif
      }
      put(warp.delta, thread, first + thread.lane, delta);
      put(warp.x, thread, first + thread.lane, values);
    }
    if constexpr (KEEP) save(warp.spans[k], h, thread);
    if (k + 1 < spans) {
      dt = sequence.load(args.dt, thread, r0 + own + SPAN);
      x = sequence.load(args.x, thread, r0 + own + SPAN);
    }
    __syncwarp();
    if (KEEP && k + 1 == spans) break;

    Span delta, input;
    load_span(delta, warp.delta, thread, first);
    load_span(input, warp.x, thread, first);
#pragma unroll
    for (int f = 0; f < SPAN; f++) {
      const bool reset = marks.reset(k * SPAN + f);
#if TILE_B
      State b[STATES];
      load_lane(b, &shared.b[k * SPAN + f][thread.lane * LANE_WIDTH]);
#endif
#pragma unroll
      for (int p = 0; p < PAIR; p++) {
#if B_CONSTANT
        const State(&b)[STATES] = thread.b[p];
#endif
#pragma unroll
        for (int s = 0; s < STATES; s++) {
          const State a = thread.a[p][s], e = decay(a, delta[f][p]);
          const State in = input_of(a, delta[f][p], e, b[s], input[f][p]);
          h[p][s] = reset ? in : e * h[p][s] + in;
        }
      }
    }
  }
  __syncwarp();
}

// --- The walk back --------------------------------------------------------------------------------------------

// Sums over a channel's lanes what each has of the frames of a span; a lane gets the sum of the frame that it owns.
__device__ __forceinline__ Real sum_of_own_frame(const Real (&values)[SPAN], const Thread& thread) {
  Real halves[2];
  const bool second = thread.lane & 2, odd = thread.lane & 1;
#pragma unroll
  for (int f = 0; f < 2; f++) {
    halves[f] = second ? values[f + 2] : values[f];
    halves[f] += __shfl_xor_sync(ALL_LANES, second ? values[f] : values[f + 2], thread_bit(2));
  }
  Real sum = odd ? halves[1] : halves[0];
  sum += __shfl_xor_sync(ALL_LANES, odd ? halves[0] : halves[1], thread_bit(1));
#pragma unroll
  for (int bit = SPAN; bit < LANES; bit *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, thread_bit(bit));
  return sum;
}

// Sums over the states of what becomes dx, dΔ and dz of the frames that a thread owns.
struct OwnSums {
  Real x[PAIR], delta[PAIR];
#if HAS_Z
  Real y[PAIR];
#endif
};

typedef State SpanStates[SPAN][STATES];

// One channel of a span, walked forward from what was kept, then back.
__device__ __forceinline__ void walk_channel(OwnSums& own, Thread& thread, int p, SpanStates& db, SpanStates& dc,
                                             [[maybe_unused]] const SpanStates& span_b, [[maybe_unused]] const SpanStates& span_c,
                                             const Real* kept, const Span& delta, const Span& x, const Span& dy,
                                             const Marks& marks, int first) {
  State before[STATES], e[SPAN][STATES], h[SPAN][STATES];
  load_lane(before, kept + (p * 32 + thread.place) * LANE_WIDTH);
#pragma unroll
  for (int f = 0; f < SPAN; f++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
#if B_CONSTANT
      const State b = thread.b[p][s];
#else
      const State b = span_b[f][s];
#endif
      e[f][s] = decay(thread.a[p][s], delta[f][p]);
      const State in = input_of(thread.a[p][s], delta[f][p], e[f][s], b, x[f][p]);
      h[f][s] = marks.reset(first + f) ? in : e[f][s] * (f > 0 ? h[f - 1][s] : before[s]) + in;
    }
  }

  Real to_x[SPAN], to_delta[SPAN];
#if HAS_Z
  Real y[SPAN];
#endif
#pragma unroll
  for (int f = SPAN - 1; f >= 0; f--) {
    const bool reset = marks.reset(first + f);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const State a = thread.a[p][s];
#if B_CONSTANT
      const State b = thread.b[p][s];
      State& to_b = thread.db[p][s];
      const bool first_b = false;
#else
      const State b = span_b[f][s];
      State& to_b = db[f][s];
      const bool first_b = p == 0;
#endif
#if C_CONSTANT
      const State c = thread.c[p][s];
      State& to_c = thread.dc[p][s];
      const bool first_c = false;
#else
      const State c = span_c[f][s];
      State& to_c = dc[f][s];
      const bool first_c = p == 0;
#endif
      const State lambda = conjugate(c) * dy[f][p] + thread.adjoint[p][s];
      const State previous = f > 0 ? h[f - 1][s] : before[s];
      const State of_c = conjugate(h[f][s]) * dy[f][p];
      to_c = first_c ? of_c : of_c + to_c;
      const State carried = conjugate(e[f][s]) * lambda;
#if GAIN_IS_DELTA
      // ∂a/∂A = Δa and ∂a/∂Δ = Aa share λ conj(a h_{i−1}); dx and the gain's part of dΔ share Re Σ λ conj(B).
      const State through_decay = reset ? to_state(0) : carried * conjugate(previous);
      const State of_b = lambda * x[f][p];
      thread.da[p][s] = through_decay * delta[f][p] + thread.da[p][s];
      const Real of_delta = real_part(through_decay * conjugate(a)), of_x = real_part(lambda * conjugate(b));
#else
      // Coefficients are had anew here: their derivatives would not find room in registers.
      Partials partials;
      const Coefficients k = discretize(a, delta[f][p], partials);
      const State d_a = reset ? to_state(0) : lambda * conjugate(previous), d_g = lambda * conjugate(b * x[f][p]);
      const State through_gain = lambda * conjugate(k.g), of_b = through_gain * x[f][p];
      thread.da[p][s] = d_a * conjugate(partials.a_by_a) + (d_g * conjugate(partials.g_by_a) + thread.da[p][s]);
      const Real of_delta = real_part(d_a * conjugate(partials.a_by_delta) + d_g * conjugate(partials.g_by_delta));
      const Real of_x = real_part(through_gain * conjugate(b));
#endif
      to_b = first_b ? of_b : of_b + to_b;
      to_x[f] = s > 0 ? to_x[f] + of_x : of_x;
      to_delta[f] = s > 0 ? to_delta[f] + of_delta : of_delta;
#if HAS_Z
      const Real of_y = real_part(c * h[f][s]);
      y[f] = s > 0 ? y[f] + of_y : of_y;
#endif
      thread.adjoint[p][s] = reset ? to_state(0) : carried;
    }
  }
  own.x[p] = sum_of_own_frame(to_x, thread);
  own.delta[p] = sum_of_own_frame(to_delta, thread);
#if HAS_Z
  own.y[p] = sum_of_own_frame(y, thread);
#endif
}

// What the owner of a frame needs to finish it.
struct Own {
#if GAIN_IS_DELTA || HAS_D
  Pair x;
#endif
#if HAS_SLOPE
  Pair dt;
#endif
#if HAS_D || HAS_Z
  Pair dy;
#endif
#if HAS_Z
  Pair z;
#endif
};

// Adds a pass to a sequence's gradient, and rounds it where it is the last.
__device__ __forceinline__ void add_pass([[maybe_unused]] const Arguments& args, [[maybe_unused]] Real* sums, Element* target,
                                         const Sequence& sequence, const Thread& thread, int r, Real (&values)[PAIR]) {
#if SEVERAL_PASSES
  Real* sum = sums + sequence.origin + r * sequence.stride;
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    if (p >= thread.here) break;
    if (!args.first_pass) values[p] += sum[p];
    if (!args.last_pass) sum[p] = values[p];
  }
  if (!args.last_pass) return;
#endif
  sequence.store(target, thread, r, values);
}

// Writes the gradients of the frame that the thread owns: r of the chunk, `row` of the tile.
__device__ __forceinline__ void finish_own(const OwnSums& sums, [[maybe_unused]] const Own& own, [[maybe_unused]] const Warp& warp,
                                           const Arguments& args, const Sequence& sequence, Thread& thread, bool skipped,
                                           int r, [[maybe_unused]] int row) {
  if (!sequence.owns(thread, r)) return;
  Real dx[PAIR], ddt[PAIR];
#if HAS_Z
  Real dz[PAIR];
#endif
#if GAIN_IS_DELTA
  Real delta[PAIR];
  load_reals(delta, warp.delta[row / 2][thread.pair][row % 2]);
#endif
#if HAS_D
#if SEVERAL_PASSES
  const bool with_d = args.first_pass;
#else
  const bool with_d = true;
#endif
#endif
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    Real to_x = sums.x[p], to_delta = sums.delta[p];
#if GAIN_IS_DELTA || HAS_D
    const Real x = to_real(own.x.elements[p]);
#endif
#if GAIN_IS_DELTA
    to_delta += x * to_x;
    to_x *= delta[p];
#endif
#if HAS_SLOPE
    Real slope, bias = 0;
#if HAS_DT_BIAS
    bias = thread.bias[p];
#endif
    step_size(args, to_real(own.dt.elements[p]), bias, slope);
    to_delta *= slope;
#endif
#if HAS_D || HAS_Z
    Real dy = to_real(own.dy.elements[p]);
#endif
#if HAS_Z
    const Real z = to_real(own.z.elements[p]), s = sigmoid(z);
    Real y = sums.y[p] * (OUTPUT_WEIGHT * (Real)args.scale);
#if HAS_D
    if (with_d) y += thread.d[p] * x;
#endif
    dz[p] = skipped ? (Real)0 : dy * (s * ((Real)1 + z * ((Real)1 - s))) * y;
    dy *= z * s;
#endif
#if HAS_D
    if (with_d) {
      to_x += thread.d[p] * dy;
      thread.dd[p] += skipped ? (Real)0 : dy * x;
    }
#endif
    dx[p] = skipped ? (Real)0 : to_x;
    ddt[p] = skipped ? (Real)0 : to_delta;
#if HAS_DT_BIAS
    thread.ddt_bias[p] += ddt[p];
#endif
  }
  add_pass(args, args.dx_sum, args.dx, sequence, thread, r, dx);
  add_pass(args, args.ddt_sum, args.ddt, sequence, thread, r, ddt);
#if HAS_Z
  add_pass(args, args.dz_sum, args.dz, sequence, thread, r, dz);
#endif
}

#if TILE_B || TILE_C
// Sums a span's dB or dC over the channels of the warp: [frame][slot].
__device__ __forceinline__ void sum_channels(Warp& warp, Real* sums, const SpanStates& values, const Thread& thread) {
  const auto at = [](int place) { return (place + place / 16 * 2) * LANE_WIDTH; };
#pragma unroll
  for (int f = 0; f < SPAN; f++) store_lane(&warp.scratch[f][at(thread.place)], values[f]);
  __syncwarp();
#pragma unroll
  for (int u = 0; u < UNITS_EACH; u++) {
    const int unit = (u * 32 + thread.place) % UNITS, f = unit / LANES, lane = unit % LANES;
    const int part = CHANNEL_PARTS > 1 ? thread.place / UNITS : 0;
    // The place of the lane in the first channel; channels are thread bits 1 and on.
    const int place0 = (lane & 1) | lane / 2 * (2 * CHANNELS_PER_WARP);
    constexpr int COUNT = CHANNELS_PER_WARP / CHANNEL_PARTS;
    Real sum[LANE_WIDTH];
    load_reals(sum, &warp.scratch[f][at(place0 + 2 * part * COUNT)]);
#pragma unroll
    for (int k = 1; k < COUNT; k++) {
      Real more[LANE_WIDTH];
      load_reals(more, &warp.scratch[f][at(place0 + 2 * (part * COUNT + k))]);
#pragma unroll
      for (int e = 0; e < LANE_WIDTH; e++) sum[e] += more[e];
    }
#pragma unroll
    for (int by = UNITS; by < 32; by *= 2) {
#pragma unroll
      for (int e = 0; e < LANE_WIDTH; e++) sum[e] += __shfl_xor_sync(ALL_LANES, sum[e], by);
    }
    if (part == 0) store_reals(&sums[unit * LANE_WIDTH], sum);
  }
  __syncwarp();
}
#endif

// Walks a tile back.
__device__ __forceinline__ void walk_back(Warp& warp, [[maybe_unused]] const Shared& shared, const Arguments& args,
                                          const Sequence& sequence, Thread& thread, const Marks& marks, int r0, int rows) {
  const int spans = (rows + SPAN - 1) / SPAN;
  const int last = r0 + (spans - 1) * SPAN + thread.lane;
  Pair dy = sequence.load(args.dy, thread, last), z{};
#if HAS_Z
  z = sequence.load(args.z, thread, last);
#endif
#pragma unroll 1
  for (int k = spans - 1; k >= 0; k--) {
    const int row = k * SPAN + thread.lane, r = r0 + row;
    Own own;
#if GAIN_IS_DELTA || HAS_D
    own.x = sequence.load(args.x, thread, r);
#endif
#if HAS_SLOPE
    own.dt = sequence.load(args.dt, thread, r);
#endif
#if HAS_D || HAS_Z
    own.dy = dy;
#endif
#if HAS_Z
    own.z = z;
#endif
    if (thread.lane < SPAN) {
      Real source[PAIR];
      own_source(source, args, dy, z, marks.skip(row));
      put(warp.dy, thread, thread.lane, source);
    }
    __syncwarp();
    if (k > 0) {
      dy = sequence.load(args.dy, thread, r - SPAN);
#if HAS_Z
      z = sequence.load(args.z, thread, r - SPAN);
#endif
    }

    Span delta, x, span_dy;
    load_span(delta, warp.delta, thread, k * SPAN);
    load_span(x, warp.x, thread, k * SPAN);
    load_span(span_dy, warp.dy, thread, 0);
    SpanStates b, c, db, dc;
#pragma unroll
    for (int f = 0; f < SPAN; f++) {
#if TILE_B
      load_lane(b[f], &shared.b[k * SPAN + f][thread.lane * LANE_WIDTH]);
#endif
#if TILE_C
      load_lane(c[f], &shared.c[k * SPAN + f][thread.lane * LANE_WIDTH]);
#endif
    }
    OwnSums sums;
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
      walk_channel(sums, thread, p, db, dc, b, c, warp.spans[k], delta, x, span_dy, marks, k * SPAN);
    }
    finish_own(sums, own, warp, args, sequence, thread, marks.skip(row), r, row);
    // All have read the states that were kept: other lanes' before the sums over states, their own before that.
#if TILE_B
    sum_channels(warp, warp.spans[k], db, thread);
#endif
#if TILE_C
    sum_channels(warp, warp.spans[k] + SPAN * SLOT_WIDTH, dc, thread);
#endif
#if !TILE_B && !TILE_C
    __syncwarp();
#endif
  }
}

// --- What a block shares --------------------------------------------------------------------------------------

// A tile whose dB and dC the warps have ready.
struct Ready {
  i64 first_row;  // of db_parts and dc_parts
  int rows;       // 0 for none
};

// Sums dB and dC of a tile over the warps, and leaves them to reduce.cu.
__device__ __forceinline__ void sum_warps([[maybe_unused]] const Shared& shared, [[maybe_unused]] const Arguments& args,
                                          [[maybe_unused]] const Ready& ready, [[maybe_unused]] i64 contribution,
                                          [[maybe_unused]] i64 contributions) {
#if TILE_B || TILE_C
  const auto of = [&](Real* parts, int offset) {
    const int units = (ready.rows + SPAN - 1) / SPAN * UNITS;
#pragma unroll 1
    for (int u = threadIdx.x; u < units; u += THREADS) {
      const int k = u / UNITS, unit = u % UNITS, r = k * SPAN + unit / LANES;
      Real sum[LANE_WIDTH];
      load_reals(sum, &shared.warps[0].spans[k][offset + unit * LANE_WIDTH]);
#pragma unroll
      for (int warp = 1; warp < WARPS; warp++) {
        Real more[LANE_WIDTH];
        load_reals(more, &shared.warps[warp].spans[k][offset + unit * LANE_WIDTH]);
#pragma unroll
        for (int e = 0; e < LANE_WIDTH; e++) sum[e] += more[e];
      }
      if (r < ready.rows) {
        store_reals(parts + ((ready.first_row + r) * contributions + contribution) * SLOT_WIDTH + unit % LANES * LANE_WIDTH, sum);
      }
    }
  };
#if TILE_B
  of(args.db_parts, 0);
#endif
#if TILE_C
  of(args.dc_parts, SPAN * SLOT_WIDTH);
#endif
#endif
}
#endif

// Brings B and C of a tile to the block; WHOLE: C too, which a walk of the states alone does without.
template <bool WHOLE, typename F>
__device__ __forceinline__ void enter_tile([[maybe_unused]] Shared& shared, [[maybe_unused]] const Arguments& args,
                                           [[maybe_unused]] const Place& place, [[maybe_unused]] const Marks& marks,
                                           [[maybe_unused]] i64 i0, [[maybe_unused]] int rows, F between) {
#if TILE_B
  Incoming<VECTOR_B> b;
  b.load(args.b, args, place, args.groups_b, place.group_b, i0, rows);
#endif
#if TILE_C
  Incoming<VECTOR_C> c;
  if constexpr (WHOLE) c.load(args.c, args, place, args.groups_c, place.group_c, i0, rows);
#endif
  __syncthreads();  // the tile before this has been walked by all
#if TILE_B
  b.store(shared.b, marks);
#endif
#if TILE_C
  if constexpr (WHOLE) c.store(shared.c, marks);
#endif
  between();
  __syncthreads();
}

// A in the rates of decay. An infinite one would make NaN of frames of no Δ, which leave the state as it is.
__device__ __forceinline__ State finite_rate(State a) {
#if COMPLEX
  return a;
#else
  const Real most = sizeof(Real) == 4 ? (Real)3.4028234663852886e38 : (Real)1.7976931348623157e308;
  return a < -most ? -most : a;
#endif
}

__device__ __forceinline__ void begin_block(Thread& thread, const Arguments& args, const Place& place) {
  thread.place = threadIdx.x % 32;
  thread.lane = lane_here();
  thread.pair = channel_here();
  thread.column = threadIdx.x / 32 * CHANNELS_EACH + thread.pair * PAIR;
  const int left = place.channels - thread.column;
  thread.here = left < 0 ? 0 : left < PAIR ? left : PAIR;
  thread.count = states_here(args);
  thread.channel = place.channel0 + thread.column;
  clear(thread.adjoint);
#if SUMMARY
#if !DECAY_BY_SUM
  const State one = to_state(1);
#endif
#else
  clear(thread.da);
#if B_CONSTANT
  clear(thread.db);
#endif
#if C_CONSTANT
  clear(thread.dc);
#endif
#endif
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const bool here = p < thread.here;
    const i64 row = (thread.channel + p) * args.state + args.first_state;
    load_states(thread.a[p], here ? args.a + row : nullptr, thread.count, thread.lane);
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.a[p][s] = finite_rate(thread.a[p][s]);
#if C_CONSTANT
    load_constant(thread.c[p], args.c + row * COMPONENTS, here ? thread.count : 0, thread.lane);
#endif
#if HAS_DT_BIAS
    thread.bias[p] = here ? args.dt_bias[thread.channel + p] : (Real)0;
#endif
#if SUMMARY
#if DECAY_BY_SUM
    thread.delta_sum[p] = (Real)0;
#else
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.product[p][s] = one;
#endif
#else
#if B_CONSTANT
    load_constant(thread.b[p], args.b + row * COMPONENTS, here ? thread.count : 0, thread.lane);
#endif
#if HAS_D
    thread.d[p] = here ? args.d[thread.channel + p] : (Real)0;
    thread.dd[p] = (Real)0;
#endif
#if HAS_DT_BIAS
    thread.ddt_bias[p] = (Real)0;
#endif
#endif
  }
}

#if SUMMARY
// Sums what the lanes of a channel have.
__device__ __forceinline__ Real sum_lanes(Real value) {
#pragma unroll
  for (int bit = 1; bit < LANES; bit *= 2) value += __shfl_xor_sync(ALL_LANES, value, thread_bit(bit));
  return value;
}

// Walks the adjoints alone of a tile, which begins with frame r0 of the segment.
__device__ __forceinline__ void walk_adjoints(Warp& warp, [[maybe_unused]] const Shared& shared, const Arguments& args,
                                              const Sequence& sequence, Thread& thread, const Marks& marks, i64 r0, int rows) {
  const int spans = (rows + SPAN - 1) / SPAN;
#pragma unroll 1
  for (int k = spans - 1; k >= 0; k--) {
    const int row = k * SPAN + thread.lane, r = (int)r0 + row, first = k % 2 * SPAN;
    const Pair dt = sequence.load(args.dt, thread, r), dy = sequence.load(args.dy, thread, r);
    Pair z{};
#if HAS_Z
    z = sequence.load(args.z, thread, r);
#endif
    if (thread.lane < SPAN) {
      const bool skipped = marks.skip(row);
      Real delta[PAIR], source[PAIR];
      own_delta(delta, args, thread, dt, sequence.owns(thread, r) && !skipped);
      own_source(source, args, dy, z, skipped);
      put(warp.delta, thread, first + thread.lane, delta);
      put(warp.dy, thread, first + thread.lane, source);
#if DECAY_BY_SUM
#pragma unroll
      for (int p = 0; p < PAIR; p++) thread.delta_sum[p] += delta[p];
#endif
    }
    __syncwarp();
    Span delta, source;
    load_span(delta, warp.delta, thread, first);
    load_span(source, warp.dy, thread, first);
#pragma unroll
    for (int f = SPAN - 1; f >= 0; f--) {
      const bool reset = marks.reset(k * SPAN + f);
#if TILE_C
      State c[STATES];
      load_lane(c, &shared.c[k * SPAN + f][thread.lane * LANE_WIDTH]);
#endif
#pragma unroll
      for (int p = 0; p < PAIR; p++) {
#if C_CONSTANT
        const State(&c)[STATES] = thread.c[p];
#endif
#pragma unroll
        for (int s = 0; s < STATES; s++) {
          const State e = decay(thread.a[p][s], delta[f][p]);
          const State lambda = conjugate(c[s]) * source[f][p] + thread.adjoint[p][s];
          thread.adjoint[p][s] = reset ? to_state(0) : conjugate(e) * lambda;
#if !DECAY_BY_SUM
          thread.product[p][s] = thread.product[p][s] * e;
#endif
        }
      }
    }
  }
  __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_summary(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Warp& warp = shared.warps[threadIdx.x / 32];

  const i64 index = block_index();
  if (index >= args.batch * args.chunks * args.units * args.blocks_per_unit) return;
  const Place place = find_place(args, index);
  if (place.chunk == 0) return;  // nothing comes before it
  const i64 begin = chunk_begin(args, place), frames = chunk_end(args, place) - begin;

  Thread thread;
  begin_block(thread, args, place);
  for (i64 i = (frames - 1) / TILE * TILE; i >= 0; i -= TILE) {
    const int rows = (int)(frames - i < TILE ? frames - i : TILE);
    const Marks marks = marks_of(args, place, begin + i, rows);
    enter_tile<true>(shared, args, place, marks, begin + i, rows, [] {});
    const Sequence sequence(args, place, thread, begin + i, rows);
    sequence.prefetch<true>(args, thread, -TILE);
    walk_adjoints(warp, shared, args, sequence, thread, marks, 0, rows);
  }
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + thread.channel + p;
#if DECAY_BY_SUM
    const Real sum = sum_lanes(thread.delta_sum[p]);
    if (p < thread.here && thread.lane == 0) args.delta_sums[boundary] = sum;
#endif
    if (p >= thread.here) continue;
    store_states(thread.adjoint[p], args.boundary_adjoints + boundary * SLOTS, SLOTS, thread.lane);
#if !DECAY_BY_SUM
    store_states(thread.product[p], args.decays + boundary * SLOTS, SLOTS, thread.lane);
#endif
  }
}
#else

// A segment of a row: its frames, and its number among those of all rows.
struct Segment {
  i64 number, begin, frames;
};

// The gradient of the state after the piece: after the segment, or what a later piece has left.
__device__ __forceinline__ void load_adjoints(Thread& thread, const Arguments& args, const Place& place, const Segment& segment,
                                              bool at_end) {
  const bool after_all = at_end && segment.begin + segment.frames == args.seq;
  const bool given = !after_all || (args.write_final && args.dfinal_state);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const i64 channel = thread.channel + p;
    const State* from = args.boundary_adjoints + (segment.number * args.dim + channel) * SLOTS;
    if (after_all) from = args.dfinal_state + (place.row * args.dim + channel) * args.state + args.first_state;
    load_states(thread.adjoint[p], given && p < thread.here ? from : nullptr, thread.count, thread.lane);
  }
}

// Hands the gradient of the state before the piece on.
__device__ __forceinline__ void store_adjoints(const Thread& thread, const Arguments& args, const Place& place,
                                               const Segment& segment) {
  const bool before_all = args.piece_first == 0 && segment.begin == 0;
  if (before_all ? !(args.write_final && args.dinitial_state) : args.piece_first == 0) return;
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    if (p >= thread.here) continue;
    const i64 channel = thread.channel + p;
    State* to = args.boundary_adjoints + (segment.number * args.dim + channel) * SLOTS;
    if (before_all) to = args.dinitial_state + (place.row * args.dim + channel) * args.state + args.first_state;
    store_states(thread.adjoint[p], to, thread.count, thread.lane);
  }
}

// The state before the chunk that begins with scan index i0.
__device__ __forceinline__ void load_start(PairStates& h, const Thread& thread, const Arguments& args, const Place& place, i64 i0) {
  const i64 chunk = place.row * args.chunks + i0 / args.chunk;
  const bool given = i0 > 0 || (args.write_final && args.initial_state);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const i64 channel = thread.channel + p;
    const State* from = args.boundary_states + (chunk * args.dim + channel) * args.boundary_width + args.boundary_first;
    if (i0 == 0) from = args.initial_state + (place.row * args.dim + channel) * args.state + args.first_state;
    load_states(h[p], given && p < thread.here ? from : nullptr, thread.count, thread.lane);
  }
}

// What is summed over time, and later over rows and segments by reduce.cu. `accumulate`: a later piece has been there.
__device__ __forceinline__ void end_block(const Thread& thread, const Arguments& args, i64 part, bool accumulate) {
  const auto add = [&](State* parts, const PairStates& sums) {
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
      State* to = parts + (part * args.dim + thread.channel + p) * SLOTS;
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        const int slot = slot_of(thread.lane, s);
        if (p < thread.here && slot < thread.count) to[slot] = accumulate ? to[slot] + sums[p][s] : sums[p][s];
      }
    }
  };
  add(args.da_parts, thread.da);
#if B_CONSTANT
  add(args.db_constant_parts, thread.db);
#endif
#if C_CONSTANT
  add(args.dc_constant_parts, thread.dc);
#endif
#if HAS_D || HAS_DT_BIAS
  const auto add_channel = [&](Real* parts, const Real(&sums)[PAIR]) {
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
      Real sum = sums[p];
#pragma unroll
      for (int bit = 1; bit < LANES; bit *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, thread_bit(bit));
      Real* to = parts + part * args.dim + thread.channel + p;
      if (p < thread.here && thread.lane == 0) *to = accumulate ? *to + sum : sum;
    }
  };
#if HAS_D
  if (args.first_pass) add_channel(args.dd_parts, thread.dd);
#endif
#if HAS_DT_BIAS
  add_channel(args.ddt_bias_parts, thread.ddt_bias);
#endif
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_backward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Warp& warp = shared.warps[threadIdx.x / 32];

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
  Thread thread;
  begin_block(thread, args, place);
  Ready ready{0, 0};

  for (place.row = row0; place.row < row_end; place.row++) {
    segment.number = place.row * args.segments + segment_of_row;
    load_adjoints(thread, args, place, segment, at_end);
    for (i64 begin = (end - 1) / args.chunk * args.chunk; begin >= first; begin -= args.chunk) {
      const int frames = (int)(begin + args.chunk < end ? args.chunk : end - begin), last = (frames - 1) / TILE;
      const Sequence sequence(args, place, thread, begin, frames);
      PairStates h;
      load_start(h, thread, args, place, begin);
#if TILES > 1
#pragma unroll 1
      for (int tile = 0; tile < last; tile++) {
        const int r0 = tile * TILE;
        const Marks marks = marks_of(args, place, begin + r0, TILE);
        enter_tile<false>(shared, args, place, marks, begin + r0, TILE, [&] {
          sum_warps(shared, args, ready, contribution, contributions);
          ready.rows = 0;
        });
        sequence.prefetch<false>(args, thread, r0 + TILE);
        save(warp.tiles[tile], h, thread);
        walk_states<false>(warp, shared, args, sequence, thread, h, marks, r0, TILE);
      }
#endif
#pragma unroll 1
      for (int tile = last; tile >= 0; tile--) {
        const int r0 = tile * TILE, rows = frames - r0 < TILE ? frames - r0 : TILE;
        const Marks marks = marks_of(args, place, begin + r0, rows);
        enter_tile<true>(shared, args, place, marks, begin + r0, rows,
                         [&] { sum_warps(shared, args, ready, contribution, contributions); });
        sequence.prefetch<true>(args, thread, r0 - TILE);
#if TILES > 1
        if (tile < last) restore(h, warp.tiles[tile], thread);
#endif
#if SEQ_IDX
        // Selections at every frame cost a third of all else: most tiles do without.
        if ((marks.resets | marks.skips) == 0) {
          walk_states<true>(warp, shared, args, sequence, thread, h, Marks{0, 0}, r0, rows);
          walk_back(warp, shared, args, sequence, thread, Marks{0, 0}, r0, rows);
        } else
#endif
        {
          walk_states<true>(warp, shared, args, sequence, thread, h, marks, r0, rows);
          walk_back(warp, shared, args, sequence, thread, marks, r0, rows);
        }
        ready = {segment.number * args.piece_frames + (begin + r0 - first), rows};
      }
    }
    store_adjoints(thread, args, place, segment);
  }
  __syncthreads();
  sum_warps(shared, args, ready, contribution, contributions);
  end_block(thread, args, row0 / args.rows_per_block * args.segments + segment_of_row, !at_end);
}
#endif
