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
// the pair in registers, over the warp by exchanges, over the block at the end of the tile.
//
// A block walks a piece of one segment of the sequence, of one batch row after another, from the last tile to the
// first. States lie in `boundary_states` every `chunk` frames; where a chunk has several tiles, each warp first walks
// its states alone and keeps each tile's first. A tile may have PARTS, each with warps of its own for all of the block's
// channels: they walk both ways from zero to find what they begin with (find_ends). Every sum is taken in a fixed order: the
// same call gives the same bits.
// Sums over the blocks, rows and segments are left to reduce.cu.
//
// SUMMARY: scan_summary, which finds what each adjoint chunk adds to the gradient of the state before it if that after it
// is zero; prefix.cu makes of these the gradients after each segment. This walk is short on instructions and bound by its
// own chain of operations where warps are few: a segment has several such chunks.

// From one order of a lane's states to the next (see order_of).
#define ORDER_STEP (STATES / ORDERS)
// Where a chunk has many tiles, the state before its first is had from memory again: the shared memory that it leaves is that
// of one block more.
#define TILES_NOT_KEPT (TILES > 3 ? 1 : 0)
// Whether a row is one tile: longer than the usual, or in parts.
#define ROW_IS_TILE (TILE > 32 || PARTS > 1)
// Whether adjoints are walked alone.
#define ADJOINTS_ALONE (SUMMARY || PARTS > 1)

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
#define SPANS (PART_FRAMES / SPAN)
// Spans from that which is walked to that which is read. Two where states or adjoints are walked alone: that takes less time
// than a span's way from memory, and what lies in the rows of one may still be read when the next is there.
#define AHEAD (TILES > 1 || ADJOINTS_ALONE ? 2 : 1)
#define CHANNELS_EACH (CHANNELS_PER_WARP * PAIR)
// Warps that have the same frames, and these: of a tile, they walk one of PARTS parts.
#define WARPS_EACH (WARPS / PARTS)
#define PART_FRAMES (TILE / PARTS)
// Units of a lane's reals in a frame of a span's dB or dC.
#define UNITS (SPAN * LANES)
// Reals of a span of all channels of a warp.
#define FRAMES_REALS (PAIR * CHANNELS_PER_WARP * SPAN)
#define START_REALS (PAIR * 32 * LANE_WIDTH)
#define SUM_REALS (2 * SPAN * SLOT_WIDTH)
#define SPAN_REALS (START_REALS > SUM_REALS ? START_REALS : SUM_REALS)

static_assert(CHANNELS == WARPS_EACH * CHANNELS_EACH, "warps have equally many channels");
static_assert(PART_FRAMES % SPAN == 0 && TILE <= 64, "marks of a tile are a word");
static_assert(SPANS >= AHEAD, "what is read ahead lies in the tile");
static_assert(PARTS == 1 || (TILES == 1 && TILE_B == 1 && TILE_C == 1 && !SUMMARY), "parts are of one tile");
static_assert(LANES >= SPAN, "every frame of a span has an owner");
static_assert(STATES <= PACK, "a lane's states are neighbours");
static_assert(ORDERS <= STATES && ORDERS <= CHANNELS_PER_WARP, "orders differ in bits of a state and of a channel");

// A span of the channels of a warp.
typedef Real Frames[PAIR][CHANNELS_PER_WARP][SPAN];

// What belongs to a warp. Where lanes write what others read, __syncwarp lies between.
struct Warp {
  alignas(16) Frames delta[SPANS];  // first: see DISTANCE
#if !SUMMARY
  alignas(16) Frames x[SPANS];
  // The states before each span, [pair][thread]; when it has been walked back, its dB and dC, [b, c][frame][slot].
  alignas(16) Real spans[SPANS][SPAN_REALS];
  alignas(16) Real da[START_REALS];  // a thread's sums of dA over time: the walk needs the registers
  // Of the frame that a thread owns: the gradient of y before the gate, and what that of z is y times.
#if HAS_D
  alignas(16) Real dy_before_gate[32][PAIR];
#endif
#if HAS_Z
  alignas(16) Real dz_by_y[32][PAIR];
#endif
  // The sums of dD and of the gradient of dt_bias over the frames that a thread owns.
#if HAS_D
  alignas(16) Real dd[32][PAIR];
  alignas(16) Real d[CHANNELS_PER_WARP][PAIR];
#endif
#if HAS_DT_BIAS
  alignas(16) Real ddt_bias[32][PAIR];
#endif
#if TILES > 1
  alignas(16) Real tiles[TILES - 1 - TILES_NOT_KEPT][START_REALS];  // the states before the tiles of a chunk but the last
#endif
#endif
#if PARTS > 1
  // What the part's frames leave if they begin with zero, of states and of adjoints, and the product of their decays.
  alignas(16) Real ends[START_REALS];
  alignas(16) Real adjoint_ends[START_REALS];
  alignas(16) Real products[START_REALS];
#endif
  alignas(16) Frames dy[SUMMARY ? SPANS : PARTS > 1 ? AHEAD : 1];  // w · scale · dy · silu(z)
#if HAS_DT_BIAS
  alignas(16) Real dt_bias[CHANNELS_PER_WARP][PAIR];
#endif
};

// What a block walks. It lies in shared memory, because the walk needs the registers.
struct Course {
  Place place;
  i64 row_end, segment, part;      // the rows from place.row on; the segment of each
  i64 segment_begin, segment_end;  // scan indices
  i64 first, end;                  // those of the piece of it
  i64 contribution;                // the number of the block among those of a row
  i64 ready_at;                    // where in db_parts and dc_parts the tile belongs whose sums the warps have ready
  int ready_rows;                  // its frames; 0 for none
};

// A tile of a projection, in every order in which there are threads that hold their states (see order_of).
struct Rows {
  alignas(16) Real frames[TILE][ORDERS * SLOT_WIDTH];
};

struct Shared {
  Warp warps[WARPS];
#if TILE_B
  Rows b;
#endif
#if TILE_C
  Rows c;
#endif
  Course course;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// Marks of a tile's frames, a bit each, the same in all threads of a block. Frames that are none are skipped.
struct Marks {
  u64 resets, skips;

  // Those of the frames of a part.
  __device__ __forceinline__ Marks of_part(int part) const {
    const u64 own = TILE == PART_FRAMES ? ~(u64)0 : ((u64)1 << PART_FRAMES % 64) - 1;
    return {resets >> part * PART_FRAMES & own, skips >> part * PART_FRAMES & own};
  }

  __device__ __forceinline__ bool reset(int r) const { return SEQ_IDX && (resets >> r & 1) != 0; }
  __device__ __forceinline__ bool skip(int r) const { return SEQ_IDX && (skips >> r & 1) != 0; }
};

__device__ __forceinline__ Marks marks_of([[maybe_unused]] const Arguments& args, [[maybe_unused]] const Place& place,
                                          [[maybe_unused]] i64 i0, [[maybe_unused]] int rows) {
#if SEQ_IDX
  Marks marks{0, 0};
#pragma unroll
  for (int first = 0; first < TILE; first += 32) {
    const int r = first + threadIdx.x % 32;
    const int mark = r < rows ? args.marks[place.row * args.seq + i0 + r] : MARK_SKIP;
    marks.resets |= (u64)__ballot_sync(ALL_LANES, mark & MARK_RESET) << first;
    marks.skips |= (u64)__ballot_sync(ALL_LANES, mark & MARK_SKIP) << first;
  }
  return marks;
#else
  return {0, 0};
#endif
}

typedef ElementPack<PAIR> Pair;
typedef State PairStates[PAIR][STATES];

// What a thread is, and what it keeps over its block.
struct Thread {
  int warp, part, place, lane, pair, column;
  int here;  // channels of the pair that there are
  int order;
  // Where it finds in shared memory what is its own: Δ of its pair in the first span, its states before the first span, its
  // states of the first frame of b. Others lie at a distance from these.
  Real *frames, *states, *rows;
  PairStates a, adjoint;
#if ADJOINTS_ALONE
#if DECAY_BY_SUM
  Real delta_sum[PAIR];  // of the frames that the lane owns
#else
  PairStates product;
#endif
#endif
#if !SUMMARY
#if B_CONSTANT
  PairStates b, db;
#endif
#endif
#if C_CONSTANT
  PairStates c;
#if !SUMMARY
  PairStates dc;
#endif
#endif
};

// Reals from the Δ of a warp to another member.
#define DISTANCE(member) ((int)((u64)&((Warp*)nullptr)->member / sizeof(Real)))

// An address in shared memory that is kept as it is: the compiler would find it anew in each span.
template <typename T>
__device__ __forceinline__ T* fixed(T* shared) {
  u32 address = (u32)__cvta_generic_to_shared(shared);
  asm volatile("" : "+r"(address));
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// State s of a lane is s ^ order of its slots, by the channel's place among those of the warp: so an exchange with the
// channel whose order differs in a bit gives away what has that bit, and nobody has to select (sum_channels). The highest
// bits of the place, as many as there are of the order: neighbouring threads of a lane then read the same row.
__device__ __forceinline__ constexpr bool turns(int bit) { return bit * ORDERS >= CHANNELS_PER_WARP; }

__device__ __forceinline__ int order_of(int pair) {
  int order = 0, turned = STATES / 2;
#pragma unroll
  for (int bit = CHANNELS_PER_WARP / 2; bit > 0 && turns(bit); bit /= 2, turned /= 2) order |= pair & bit ? turned : 0;
  return order;
}

// Where a lane's states lie in a row, in an order: the threads that access it together find theirs in different banks.
__device__ __forceinline__ int place_in_row(int lane, int order) {
  return (lane % 2 + order / ORDER_STEP * 2 + lane / 2 * (2 * ORDERS)) * LANE_WIDTH;
}

// Whether the thread owns a frame of every span.
__device__ __forceinline__ bool is_owner([[maybe_unused]] const Thread& thread) { return LANES == SPAN || thread.lane < SPAN; }

// --- Between memory and registers -----------------------------------------------------------------------------

// Where the elements of a thread's channels lie: those of frame r of a chunk at origin + r · stride.
struct Sequence {
  i64 origin, stride;
  int rows;  // of the chunk

  __device__ __forceinline__ Sequence(const Arguments& args, const Place& place, const Thread& thread, i64 begin, int rows)
      : origin((place.row * args.seq + frame(args, begin)) * args.dim + place.channel0 + thread.column),
        stride(args.reverse ? -args.dim : args.dim),
        rows(rows) {}

  // Where the thread's elements of frame r lie.
  __device__ __forceinline__ i64 at(int r) const { return origin + r * stride; }

  // Whether the thread owns a frame that there is.
  __device__ __forceinline__ bool owns(const Thread& thread, int r) const {
    return is_owner(thread) && thread.here > 0 && r < rows;
  }

  // What lies there; zero where the thread does not own the frame.
  template <typename Stored>
  static __device__ __forceinline__ Pack<Stored, PAIR> load(const Stored* tensor, [[maybe_unused]] const Thread& thread, i64 at,
                                                            bool owned) {
    Pack<Stored, PAIR> pair{};
    if (!owned) return pair;
#if VECTOR == PAIR
    pair = *reinterpret_cast<const Pack<Stored, PAIR>*>(tensor + at);
#else
    pair.put(0, tensor[at]);
    pair.put(1, thread.here > 1 ? tensor[at + 1] : Stored{});
#endif
    return pair;
  }

  template <typename Stored>
  static __device__ __forceinline__ void store(Stored* tensor, [[maybe_unused]] const Thread& thread, i64 at,
                                               const Real (&values)[PAIR]) {
#if VECTOR == PAIR
    store_vector(tensor + at, values);
#else
    tensor[at] = rounded<Stored>(values[0]);
    if (thread.here > 1) tensor[at + 1] = rounded<Stored>(values[1]);
#endif
  }

  // Brings the warp's frames of a tile nearer while another is walked: what a walk of the states reads first, or the rest.
  // r0 may lie before the chunk, but not before `least`.
  template <bool STATES_FIRST>
  __device__ __forceinline__ void prefetch(const Arguments& args, const Thread& thread, int r0, i64 least) const {
    const auto bring = [](const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); };
#pragma unroll
    for (int first = 0; first < PART_FRAMES; first += 32) {
      const int of_tile = first + thread.place, r = r0 + of_tile;
      if (of_tile >= PART_FRAMES || thread.here == 0 || r < least || r >= rows) continue;
      if constexpr (STATES_FIRST) {
        bring(args.dt + at(r));
#if USE_X
        bring(args.x + at(r));
#endif
      } else {
        bring(args.dy + at(r));
#if HAS_Z
        bring(args.z + at(r));
#endif
#if SEVERAL_PASSES
        if (!args.first_pass) {
          bring(args.dx_sum + at(r));
          bring(args.ddt_sum + at(r));
        }
#endif
      }
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
      const int access = k * THREADS + thread_anew();
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
  __device__ __forceinline__ void store(Rows& rows, const Marks& marks) const {
    each([&](int k, int r, int column) {
#pragma unroll
      for (int order = 0; order < STATES; order += ORDER_STEP) {
        // Those of a lane at once, or a part of them.
        constexpr int PART = COUNT < LANE_WIDTH ? COUNT : LANE_WIDTH;
        const int turn = order * COMPONENTS;
#pragma unroll
        for (int first = 0; first < COUNT; first += PART) {
          Real values[PART];
#pragma unroll
          for (int e = 0; e < PART; e++) {
            values[e] = marks.skip(r) ? (Real)0 : raw[k].real(first + (e ^ (turn & (PART - 1))));
          }
          const int of_lane = (column + first) % LANE_WIDTH ^ (turn & ~(PART - 1));
          store_reals(&rows.frames[r][place_in_row((column + first) / LANE_WIDTH, order) + of_lane], values);
        }
      }
    });
  }
};

// --- Between registers and shared memory ------------------------------------------------------------------------

// A span of a channel of the thread's pair: span k of `frames`.
typedef Real Span[SPAN];

__device__ __forceinline__ void load_span(Span& values, const Real* frames, int k, int p) {
  load_reals(values, frames + k * FRAMES_REALS + p * (CHANNELS_PER_WARP * SPAN));
}

// The owner's frame of span k of the pair.
__device__ __forceinline__ void put(Real* frames, const Thread& thread, int k, const Real (&values)[PAIR]) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) frames[k * FRAMES_REALS + p * (CHANNELS_PER_WARP * SPAN) + thread.lane] = values[p];
}

__device__ __forceinline__ void get(Real (&values)[PAIR], const Real* frames, const Thread& thread, int k) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) values[p] = frames[k * FRAMES_REALS + p * (CHANNELS_PER_WARP * SPAN) + thread.lane];
}

// Where the thread's states of a frame of a tile lie, of b or c.
__device__ __forceinline__ const Real* row_of_b(const Thread& thread, int r) { return thread.rows + r * (ORDERS * SLOT_WIDTH); }
__device__ __forceinline__ const Real* row_of_c(const Thread& thread, int r) {
  return row_of_b(thread, r) + (TILE_B ? TILE * ORDERS * SLOT_WIDTH : 0);
}

#if !SUMMARY
// The thread's states of its pair, those of one channel after those of the other.
__device__ __forceinline__ void save(Real* to, const PairStates& h) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) store_lane(to + p * 32 * LANE_WIDTH, h[p]);
}

__device__ __forceinline__ void restore(PairStates& h, const Real* from) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) load_lane(h[p], from + p * 32 * LANE_WIDTH);
}

__device__ __forceinline__ Real* sums_of_da(const Thread& thread) { return thread.states + (DISTANCE(da) - DISTANCE(spans)); }

#if TILES > 1
__device__ __forceinline__ Real* states_before(const Thread& thread, int tile) {
  return thread.states + (DISTANCE(tiles) - DISTANCE(spans)) + (tile - TILES_NOT_KEPT) * START_REALS;
}
#endif
#endif

__device__ __forceinline__ void clear(PairStates& states) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) states[p][s] = to_state(0);
  }
}

// What Re Σ C h is multiplied by: half where the other direction adds the same again, for which it takes several passes.
__device__ __forceinline__ Real output_weight([[maybe_unused]] const Arguments& args) {
#if SEVERAL_PASSES
  return OUTPUT_WEIGHT * args.scale;
#else
  return OUTPUT_WEIGHT;
#endif
}

// Δ of the frame that the thread owns; zero where there is none, for which nothing was loaded.
__device__ __forceinline__ void own_delta(Real (&delta)[PAIR], [[maybe_unused]] const Warp& warp, const Arguments& args,
                                          const Thread& thread, const Pair& dt, bool present) {
  Real bias[PAIR] = {0, 0}, slope;
#if HAS_DT_BIAS
  load_reals(bias, warp.dt_bias[thread.pair]);
#endif
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const Real its = step_size(args, dt.real(p), bias[p], slope);
#if HAS_DT_BIAS || SOFTPLUS || LIMIT || SEQ_IDX
    delta[p] = present && p < thread.here ? its : (Real)0;
#else
    delta[p] = its;
#endif
  }
}

// The gradient of y before the gate, of that frame. `by_z`: its derivative by z.
__device__ __forceinline__ void own_dy(Real (&values)[PAIR], [[maybe_unused]] Real (&by_z)[PAIR], const Pair& dy,
                                       [[maybe_unused]] const Pair& z, bool skipped) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    values[p] = skipped ? (Real)0 : dy.real(p);
#if HAS_Z
    const Real gate = skipped ? (Real)0 : z.real(p), s = sigmoid(gate);
    by_z[p] = values[p] * (s * ((Real)1 + gate * ((Real)1 - s)));
    values[p] *= gate * s;
#endif
  }
}

// The source of the adjoints in that frame.
__device__ __forceinline__ void put_source(const Thread& thread, const Arguments& args, int k, Real (&values)[PAIR]) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) values[p] *= output_weight(args);
  put(thread.frames + DISTANCE(dy), thread, k, values);
}

// Sums what the lanes of a channel have; those that differ in bits below FIRST have sums of their own.
template <int FIRST = 1>
__device__ __forceinline__ Real sum_lanes(Real value) {
#pragma unroll
  for (int bit = FIRST; bit < LANES; bit *= 2) value += __shfl_xor_sync(ALL_LANES, value, thread_bit(bit));
  return value;
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

// What B is multiplied by where the gain is Δ: Δx, else x.
__device__ __forceinline__ void load_inputs(Span& inputs, [[maybe_unused]] const Span& delta, const Real* frames, int k,
                                            int p) {
  load_span(inputs, frames + DISTANCE(x), k, p);
#if GAIN_IS_DELTA
#pragma unroll
  for (int f = 0; f < SPAN; f++) inputs[f] *= delta[f];
#endif
}

// What a walk reads first: it is on its way before the walk begins.
struct First {
  Pair dt[AHEAD], x[AHEAD];

  __device__ __forceinline__ First(const Arguments& args, const Sequence& sequence, const Thread& thread, int r0) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int r = r0 + k * SPAN + thread.lane;
      const i64 at = sequence.at(r);
      load(thread, k, args.dt + at, args.x + at, sequence.owns(thread, r));
    }
  }

  __device__ __forceinline__ void load(const Thread& thread, int k, const Element* its_dt, const Element* its_x, bool owned) {
    dt[k] = Sequence::load(its_dt, thread, 0, owned);
    x[k] = Sequence::load(its_x, thread, 0, owned);
  }
};

struct FirstBack {
  Pair dy, z;

  __device__ __forceinline__ FirstBack(const Arguments& args, const Sequence& sequence, const Thread& thread, int r0, int rows)
      : z{} {
    const int r = r0 + (rows - 1) / SPAN * SPAN + thread.lane;
    const i64 at = sequence.at(r);
    const bool owned = sequence.owns(thread, r);
    dy = Sequence::load(args.dy, thread, at, owned);
#if HAS_Z
    z = Sequence::load(args.z, thread, at, owned);
#endif
  }
};

// Walks the states of a span: k of its tile, whose Δ and x lie in span `at` from `frames` on, and whose B from `row` on.
__device__ __forceinline__ void walk_span(const Thread& thread, PairStates& h, const Marks& marks, int k, const Real* frames,
                                          int at, [[maybe_unused]] const Real* row) {
  Span delta[PAIR], input[PAIR];
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    load_span(delta[p], frames, at, p);
    load_inputs(input[p], delta[p], frames, at, p);
  }
#pragma unroll
  for (int f = 0; f < SPAN; f++) {
    const bool reset = marks.reset(k * SPAN + f);
#if TILE_B
    State b[STATES];
    load_lane(b, row + f * (ORDERS * SLOT_WIDTH));
#endif
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
#if B_CONSTANT
      const State(&b)[STATES] = thread.b[p];
#endif
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        const State a = thread.a[p][s], e = decay(a, delta[p][f]);
        const State in = input_of(a, delta[p][f], e, b[s], input[p][f]);
        h[p][s] = reset ? in : e * h[p][s] + in;
      }
    }
  }
}

// Walks the states of a tile, which begins with frame r0 of the chunk, and leaves the Δ and x of its frames in the rows of
// the warp. KEEP: keeps the states before each span, and does not walk the last; else the rows of two spans serve all.
template <bool KEEP>
__device__ __forceinline__ void walk_states(const Warp& warp, const Arguments& args, const Sequence& sequence,
                                            const Thread& thread, PairStates& h, First incoming, const Marks& marks, int r0,
                                            int rows) {
  const int spans = (rows + SPAN - 1) / SPAN;
  const i64 step = SPAN * sequence.stride;
  const i64 next = sequence.at(r0 + AHEAD * SPAN + thread.lane);
  const Element *dt = args.dt + next, *x = args.x + next;
  // What belongs to span k0.
  Real *frames = thread.frames, *kept = thread.states;
  const Real* row = row_of_b(thread, 0);
#pragma unroll 1
  for (int k0 = 0; k0 < spans; k0 += AHEAD) {
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ahead++) {
      const int k = k0 + ahead;
      if (k >= spans) break;
      const int own = k * SPAN + thread.lane;
      if (is_owner(thread)) {
        const bool present = sequence.owns(thread, r0 + own) && !marks.skip(own);
        Real delta[PAIR], values[PAIR];
        own_delta(delta, warp, args, thread, incoming.dt[ahead], present);
#pragma unroll
        for (int p = 0; p < PAIR; p++) values[p] = marks.skip(own) ? (Real)0 : incoming.x[ahead].real(p);
        put(frames, thread, ahead, delta);
        put(frames + DISTANCE(x), thread, ahead, values);
      }
      if constexpr (KEEP) save(kept + ahead * SPAN_REALS, h);
      if (k + AHEAD < spans) incoming.load(thread, ahead, dt, x, sequence.owns(thread, r0 + own + AHEAD * SPAN));
      dt += step;
      x += step;
      __syncwarp();
      if (!KEEP || k + 1 < spans) {
        walk_span(thread, h, marks, k, frames, ahead, row + ahead * (SPAN * ORDERS * SLOT_WIDTH));
      }
    }
    if constexpr (KEEP) {
      frames += AHEAD * FRAMES_REALS;
      kept += AHEAD * SPAN_REALS;
    }
    row += AHEAD * (SPAN * ORDERS * SLOT_WIDTH);
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
  return sum_lanes<SPAN>(sum);
}

// Sums over the states of what becomes dx, dΔ and dz of the frames that a thread owns.
struct OwnSums {
  Real x[PAIR], delta[PAIR];
#if HAS_Z
  Real y[PAIR];
#endif
};

// States of a lane over a span.
typedef State SpanStates[SPAN][STATES];

// Those of B or C, from a frame's row on.
__device__ __forceinline__ void load_span(SpanStates& states, const Real* row) {
#pragma unroll
  for (int f = 0; f < SPAN; f++) load_lane(states[f], row + f * (ORDERS * SLOT_WIDTH));
}

// B or C of a span, and the sums of its gradient: where it is constant, one for each channel, over time; else one for each
// frame, over the pair.
template <bool CONSTANT>
struct Operand {
  static constexpr int COUNT = CONSTANT ? PAIR : SPAN;
  const State (&values)[COUNT][STATES];
  State (&sums)[COUNT][STATES];

  __device__ __forceinline__ State at(int p, int f, int s) const { return values[CONSTANT ? p : f][s]; }

  __device__ __forceinline__ void add(int p, int f, int s, State gradient) const {
    State& sum = sums[CONSTANT ? p : f][s];
    sum = !CONSTANT && p == 0 ? gradient : gradient + sum;
  }
};

// One channel of a span, walked forward from what was kept, then back.
__device__ __forceinline__ void walk_channel(OwnSums& own, Thread& thread, int p, const Operand<B_CONSTANT>& operand_b,
                                             const Operand<C_CONSTANT>& operand_c, const Real* kept, const Span& delta,
                                             const Span& x, const Span& dy, const Marks& marks, int first) {
  State before[STATES], e[SPAN][STATES], h[SPAN][STATES];
  load_lane(before, kept + p * 32 * LANE_WIDTH);
#pragma unroll
  for (int f = 0; f < SPAN; f++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      e[f][s] = decay(thread.a[p][s], delta[f]);
      const State in = input_of(thread.a[p][s], delta[f], e[f][s], operand_b.at(p, f, s), x[f]);
      h[f][s] = marks.reset(first + f) ? in : e[f][s] * (f > 0 ? h[f - 1][s] : before[s]) + in;
    }
  }

#if HAS_Z
  Real y[SPAN];
#pragma unroll
  for (int f = 0; f < SPAN; f++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const Real of_y = real_part(operand_c.at(p, f, s) * h[f][s]);
      y[f] = s > 0 ? y[f] + of_y : of_y;
    }
  }
  own.y[p] = sum_of_own_frame(y, thread);
#endif

  Real to_x[SPAN], to_delta[SPAN];
  State da[STATES];
  load_lane(da, sums_of_da(thread) + p * 32 * LANE_WIDTH);
#pragma unroll
  for (int f = SPAN - 1; f >= 0; f--) {
    const bool reset = marks.reset(first + f);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const State a = thread.a[p][s], b = operand_b.at(p, f, s), c = operand_c.at(p, f, s);
      const State lambda = conjugate(c) * dy[f] + thread.adjoint[p][s];
      const State previous = f > 0 ? h[f - 1][s] : before[s];
      operand_c.add(p, f, s, conjugate(h[f][s]) * dy[f]);
      const State carried = conjugate(e[f][s]) * lambda;
#if GAIN_IS_DELTA
      // ∂a/∂A = Δa and ∂a/∂Δ = Aa share λ conj(a h_{i−1}); dx and the gain's part of dΔ share Re Σ λ conj(B).
      const State through_decay = reset ? to_state(0) : carried * conjugate(previous);
      const State of_b = lambda * x[f];
      da[s] = through_decay * delta[f] + da[s];
      const Real of_delta = real_part(through_decay * conjugate(a)), of_x = real_part(lambda * conjugate(b));
#else
      // Coefficients are had anew here: their derivatives would not find room in registers.
      Partials partials;
      const Coefficients k = discretize(a, delta[f], partials);
      const State d_a = reset ? to_state(0) : lambda * conjugate(previous), d_g = lambda * conjugate(b * x[f]);
      const State through_gain = lambda * conjugate(k.g), of_b = through_gain * x[f];
      da[s] = d_a * conjugate(partials.a_by_a) + (d_g * conjugate(partials.g_by_a) + da[s]);
      const Real of_delta = real_part(d_a * conjugate(partials.a_by_delta) + d_g * conjugate(partials.g_by_delta));
      const Real of_x = real_part(through_gain * conjugate(b));
#endif
      operand_b.add(p, f, s, of_b);
      to_x[f] = s > 0 ? to_x[f] + of_x : of_x;
      to_delta[f] = s > 0 ? to_delta[f] + of_delta : of_delta;
      thread.adjoint[p][s] = reset ? to_state(0) : carried;
    }
  }
  store_lane(sums_of_da(thread) + p * 32 * LANE_WIDTH, da);
  own.x[p] = sum_of_own_frame(to_x, thread);
  own.delta[p] = sum_of_own_frame(to_delta, thread);
}

// What earlier passes have come to in the gradients of the frame that a thread owns: from memory, before it is wanted.
struct Earlier {
  Pack<Real, PAIR> x, delta, z;

  __device__ __forceinline__ void load([[maybe_unused]] const Arguments& args, [[maybe_unused]] const Thread& thread,
                                       [[maybe_unused]] i64 at, [[maybe_unused]] bool owned) {
#if SEVERAL_PASSES
    const bool there = owned && !args.first_pass;
    x = Sequence::load(args.dx_sum, thread, at, there);
    delta = Sequence::load(args.ddt_sum, thread, at, there);
#if HAS_Z
    z = Sequence::load(args.dz_sum, thread, at, there);
#endif
#endif
  }
};

// Adds a pass to a sequence's gradient. What is to be rounded gathers in `sums` until the last; else that is `target`.
__device__ __forceinline__ void add_pass([[maybe_unused]] const Arguments& args, [[maybe_unused]] Real* sums, Element* target,
                                         const Thread& thread, i64 at, Real (&values)[PAIR],
                                         [[maybe_unused]] const Pack<Real, PAIR>& earlier) {
#if SEVERAL_PASSES
#pragma unroll
  for (int p = 0; p < PAIR; p++) values[p] += earlier.real(p);
#if ELEMENT > 1
  if (!args.last_pass) {
    Sequence::store(sums, thread, at, values);
    return;
  }
#endif
#endif
  Sequence::store(target, thread, at, values);
}

// ∂Δ/∂dt. Of softplus it is 1 − e^−Δ; where Δ was limited, dt must be asked.
__device__ __forceinline__ Real slope_of([[maybe_unused]] const Arguments& args, [[maybe_unused]] Real delta,
                                         [[maybe_unused]] Real dt, [[maybe_unused]] Real bias) {
#if LIMIT
  Real slope;
  step_size(args, dt, bias, slope);
  return slope;
#elif SOFTPLUS
  return -expm1(-delta);
#else
  return (Real)1;
#endif
}

// Writes the gradients of the frame of span k that the thread owns, which lie at `at` in memory.
__device__ __forceinline__ void finish_own(const OwnSums& sums, [[maybe_unused]] const Pair& dt, [[maybe_unused]] Warp& warp,
                                           const Arguments& args, const Thread& thread, const Earlier& earlier, bool skipped,
                                           i64 at, int k) {
  Real dx[PAIR], ddt[PAIR], x[PAIR], delta[PAIR];
  get(x, thread.frames + DISTANCE(x), thread, k);
  get(delta, thread.frames, thread, k);
  [[maybe_unused]] Real bias[PAIR] = {0, 0};
#if HAS_DT_BIAS
  Real ddt_bias[PAIR];
  load_reals(bias, warp.dt_bias[thread.pair]);
  load_reals(ddt_bias, warp.ddt_bias[thread.place]);
#endif
#if HAS_D
  Real dy[PAIR], d[PAIR], dd[PAIR];
  load_reals(dy, warp.dy_before_gate[thread.place]);
  load_reals(d, warp.d[thread.pair]);
  load_reals(dd, warp.dd[thread.place]);
#if SEVERAL_PASSES
  const bool with_d = args.first_pass;
#else
  const bool with_d = true;
#endif
#endif
#if HAS_Z
  Real dz[PAIR];
  load_reals(dz, warp.dz_by_y[thread.place]);
#endif
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    Real to_x = sums.x[p], to_delta = sums.delta[p];
#if GAIN_IS_DELTA
    to_delta += x[p] * to_x;
    to_x *= delta[p];
#endif
    to_delta *= slope_of(args, delta[p], dt.real(p), bias[p]);
#if HAS_Z
    Real y = sums.y[p] * (output_weight(args));
#if HAS_D
    if (with_d) y += d[p] * x[p];
#endif
    dz[p] = skipped ? (Real)0 : dz[p] * y;
#endif
#if HAS_D
    if (with_d) {
      to_x += d[p] * dy[p];
      dd[p] += dy[p] * x[p];
    }
#endif
    dx[p] = skipped ? (Real)0 : to_x;
    ddt[p] = skipped ? (Real)0 : to_delta;
#if HAS_DT_BIAS
    ddt_bias[p] += ddt[p];
#endif
  }
#if HAS_D
  store_reals(warp.dd[thread.place], dd);
#endif
#if HAS_DT_BIAS
  store_reals(warp.ddt_bias[thread.place], ddt_bias);
#endif
  add_pass(args, args.dx_sum, args.dx, thread, at, dx, earlier.x);
  add_pass(args, args.ddt_sum, args.ddt, thread, at, ddt, earlier.delta);
#if HAS_Z
  add_pass(args, args.dz_sum, args.dz, thread, at, dz, earlier.z);
#endif
}

#if TILE_B || TILE_C
// What a thread keeps, and what its partner over this bit of the channel gives.
__device__ __forceinline__ Real kept_and_given(Real keep, Real give, int bit) {
  return keep + __shfl_xor_sync(ALL_LANES, give, 2 * bit);
}
__device__ __forceinline__ Complex kept_and_given(Complex keep, Complex give, int bit) {
  return {kept_and_given(keep.re, give.re, bit), kept_and_given(keep.im, give.im, bit)};
}

// A component of a state.
__device__ __forceinline__ Real real_of(Real state, int) { return state; }
__device__ __forceinline__ Real real_of(Complex state, int component) { return component == 0 ? state.re : state.im; }

// Sums a span's dB and dC over the channels of the warp: [b, c][frame][slot]. Each exchange halves what a thread holds: of
// its states, where there are threads in that order, else of its frames, and when one is left, of b and c. In registers,
// because the unit for shared memory has as much to do as the schedulers: an exchange passes through it once, and a store
// and a load would twice.
__device__ __forceinline__ void sum_channels(Real* sums, const Thread& thread, SpanStates (&values)[TILE_B + TILE_C]) {
  constexpr int BOTH = TILE_B + TILE_C;
  int states = STATES, frames = SPAN, frame = 0, step = 1, which = 0;
#pragma unroll
  for (int bit = CHANNELS_PER_WARP / 2; bit > 0; bit /= 2) {
    const bool upper = thread.pair & bit;
    if (turns(bit)) {
      states /= 2;
#pragma unroll
      for (int w = 0; w < BOTH; w++) {
#pragma unroll
        for (int f = 0; f < frames; f++) {
#pragma unroll
          for (int s = 0; s < states; s++) values[w][f][s] = kept_and_given(values[w][f][s], values[w][f][s + states], bit);
        }
      }
    } else if (frames > 1) {
      // Every other frame: what is left of neighbouring ones is stored to different banks.
      frames /= 2;
      frame += upper ? step : 0;
      step *= 2;
#pragma unroll
      for (int w = 0; w < BOTH; w++) {
#pragma unroll
        for (int f = 0; f < frames; f++) {
#pragma unroll
          for (int s = 0; s < states; s++) {
            const State low = values[w][2 * f][s], high = values[w][2 * f + 1][s];
            values[w][f][s] = kept_and_given(upper ? high : low, upper ? low : high, bit);
          }
        }
      }
    } else {
      which = upper ? 1 : 0;
#pragma unroll
      for (int s = 0; s < states; s++) {
        State &low = values[0][0][s], high = values[BOTH - 1][0][s];
        low = kept_and_given(upper ? high : low, upper ? low : high, bit);
      }
    }
  }
  // Where only one of the two varies, both partners have its sums.
  constexpr bool SPLIT = CHANNELS_PER_WARP > SPAN * ORDERS;
  constexpr int HELD = STATES / ORDERS * COMPONENTS;
  if (SPLIT && which >= BOTH) return;
#pragma unroll
  for (int w = 0; w < (SPLIT ? 1 : BOTH); w++) {
#pragma unroll
    for (int f = 0; f < frames; f++) {
      const int of_c = TILE_B ? w + which : 1;
      Real held[HELD];
#pragma unroll
      for (int e = 0; e < HELD; e++) held[e] = real_of(values[w][f][e / COMPONENTS], e % COMPONENTS);
      const int slot = thread.lane * STATES + thread.order;
      store_reals(&sums[(of_c * SPAN + frame + f * step) * SLOT_WIDTH + slot * COMPONENTS], held);
    }
  }
}
#endif

// Walks a tile back.
__device__ __forceinline__ void walk_back(Warp& warp, const Arguments& args, const Sequence& sequence, Thread& thread,
                                          const FirstBack& first_span, const Marks& marks, int r0, int rows) {
  const int spans = (rows + SPAN - 1) / SPAN;
  const int last = r0 + (spans - 1) * SPAN + thread.lane;
  i64 at = sequence.at(last);
  bool owned = sequence.owns(thread, last);
  Pair dy = first_span.dy, z = first_span.z;
#pragma unroll 1
  for (int k = spans - 1; k >= 0; k--) {
    const int first = k * SPAN;
    [[maybe_unused]] const int row = first + thread.lane;
#if LIMIT
    const Pair dt = Sequence::load(args.dt, thread, at, owned);
#endif
    if (is_owner(thread)) {
      Real values[PAIR], by_z[PAIR];
      own_dy(values, by_z, dy, z, marks.skip(row));
#if HAS_D
      store_reals(warp.dy_before_gate[thread.place], values);
#endif
#if HAS_Z
      store_reals(warp.dz_by_y[thread.place], by_z);
#endif
      put_source(thread, args, 0, values);
    }
    __syncwarp();

#if TILE_B || TILE_C
    SpanStates gradients[TILE_B + TILE_C];
#endif
#if TILE_B
    SpanStates b;
    load_span(b, row_of_b(thread, first));
    const Operand<false> operand_b{b, gradients[0]};
#else
    const Operand<true> operand_b{thread.b, thread.db};
#endif
#if TILE_C
    SpanStates c;
    load_span(c, row_of_c(thread, first));
    const Operand<false> operand_c{c, gradients[TILE_B]};
#else
    const Operand<true> operand_c{thread.c, thread.dc};
#endif
    OwnSums sums;
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
      // Each channel reads its frames anew: registers for both at once would be spilled.
      asm volatile("" ::: "memory");
      Span delta, x, source;
      load_span(delta, thread.frames, k, p);
      load_inputs(x, delta, thread.frames, k, p);
      load_span(source, thread.frames + DISTANCE(dy), 0, p);
      walk_channel(sums, thread, p, operand_b, operand_c, thread.states + k * SPAN_REALS, delta, x, source, marks, first);
      // Now, because the operands' loads above wait for stores, and would for these loads too. A branch around two loads, where
      // there is z, costs registers.
      if (p == 0 && (HAS_Z || k > 0)) {
        const bool next = k > 0 && sequence.owns(thread, 0);  // a span that is not the last is whole
        dy = Sequence::load(args.dy, thread, at - SPAN * sequence.stride, next);
#if HAS_Z
        z = Sequence::load(args.z, thread, at - SPAN * sequence.stride, next);
#endif
      }
    }
    Earlier earlier;
    earlier.load(args, thread, at, owned);
#if TILE_B || TILE_C
    __syncwarp();  // all have read the states that were kept, where these sums go
    sum_channels(warp.spans[k], thread, gradients);
#endif
#if LIMIT
    if (owned) finish_own(sums, dt, warp, args, thread, earlier, marks.skip(row), at, k);
#else
    if (owned) finish_own(sums, Pair{}, warp, args, thread, earlier, marks.skip(row), at, k);
#endif
    owned = sequence.owns(thread, 0);
    at -= SPAN * sequence.stride;
    __syncwarp();  // all have read the source of the adjoints
  }
}

// --- What a block shares --------------------------------------------------------------------------------------

// Sums dB and dC of the tile that the warps have ready over them, and leaves them to reduce.cu.
__device__ __forceinline__ void sum_warps([[maybe_unused]] const Shared& shared, [[maybe_unused]] const Arguments& args) {
#if TILE_B || TILE_C
  const int rows = shared.course.ready_rows, units = (rows + SPAN - 1) / SPAN * UNITS;
  const int frame = (int)(args.units * args.blocks_per_unit) * SLOT_WIDTH;
#pragma unroll 1
  for (int u = threadIdx.x; u < (TILE_B + TILE_C) * units; u += THREADS) {
    const bool of_c = !TILE_B || u >= units;
    const int own = TILE_B && of_c ? u - units : u, span = own / UNITS, unit = own % UNITS, r = span * SPAN + unit / LANES;
    const int at = (of_c ? SPAN * SLOT_WIDTH : 0) + unit * LANE_WIDTH, k = span % SPANS;
    const Warp* warps = shared.warps + span / SPANS * WARPS_EACH;
    Real sum[LANE_WIDTH];
    load_reals(sum, &warps[0].spans[k][at]);
#pragma unroll
    for (int warp = 1; warp < WARPS_EACH; warp++) {
      Real more[LANE_WIDTH];
      load_reals(more, &warps[warp].spans[k][at]);
#pragma unroll
      for (int e = 0; e < LANE_WIDTH; e++) sum[e] += more[e];
    }
    Real* parts = (of_c ? args.dc_parts : args.db_parts) + shared.course.ready_at;
    if (r < rows) store_reals(parts + (i64)r * frame + unit % LANES * LANE_WIDTH, sum);
  }
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

// Finds what a thread is.
__device__ __forceinline__ void find_thread(Thread& thread, Shared& shared, const Place& place) {
  const int index = thread_anew();
  thread.warp = index / 32;
  thread.part = PARTS > 1 ? thread.warp / WARPS_EACH : 0;
  thread.place = index % 32;
  thread.lane = lane_of(thread.place);
  thread.pair = channel_of(thread.place);
  thread.order = order_of(thread.pair);
  thread.column = (thread.warp - thread.part * WARPS_EACH) * CHANNELS_EACH + thread.pair * PAIR;
  const int left = place.channels - thread.column;
  thread.here = left < 0 ? 0 : left < PAIR ? left : PAIR;
  Warp& warp = shared.warps[thread.warp];
  thread.frames = fixed(warp.delta[0][0][thread.pair]);
#if !SUMMARY
  thread.states = fixed(&warp.spans[0][thread.place * LANE_WIDTH]);
#endif
#if TILE_B
  thread.rows = fixed(&shared.b.frames[thread.part * PART_FRAMES][place_in_row(thread.lane, thread.order)]);
#elif TILE_C
  thread.rows = fixed(&shared.c.frames[0][place_in_row(thread.lane, thread.order)]);
#endif
}

// The same for every row, chunk and tile and at the end, so that registers are free between; a block of parts, alone on its
// multiprocessor, has enough.
__device__ __forceinline__ void find_thread_anew([[maybe_unused]] Thread& thread, [[maybe_unused]] Shared& shared,
                                                 [[maybe_unused]] const Place& place) {
#if PARTS == 1
  find_thread(thread, shared, place);
#endif
}

__device__ __forceinline__ void begin_block(Thread& thread, Shared& shared, const Arguments& args, const Place& place) {
  find_thread(thread, shared, place);
  [[maybe_unused]] Warp& warp = shared.warps[thread.warp];
  const int count = states_here(args);
#if !SUMMARY
  PairStates none;
  clear(none);
  save(sums_of_da(thread), none);
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
    const i64 row = (place.channel0 + thread.column + p) * args.state + args.first_state;
    load_states(thread.a[p], here ? args.a + row : nullptr, count, thread.lane, thread.order);
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.a[p][s] = finite_rate(thread.a[p][s]);
#if C_CONSTANT
    load_constant(thread.c[p], args.c + row * COMPONENTS, here ? count : 0, thread.lane, thread.order);
#endif
#if HAS_DT_BIAS
    if (thread.lane == 0) warp.dt_bias[thread.pair][p] = here ? args.dt_bias[place.channel0 + thread.column + p] : (Real)0;
#endif
#if !SUMMARY
#if B_CONSTANT
    load_constant(thread.b[p], args.b + row * COMPONENTS, here ? count : 0, thread.lane, thread.order);
#endif
#if HAS_D
    if (thread.lane == 0) warp.d[thread.pair][p] = here ? args.d[place.channel0 + thread.column + p] : (Real)0;
    warp.dd[thread.place][p] = (Real)0;
#endif
#if HAS_DT_BIAS
    warp.ddt_bias[thread.place][p] = (Real)0;
#endif
#endif
  }
#if HAS_D || HAS_DT_BIAS
  __syncwarp();
#endif
}

#if ADJOINTS_ALONE
// What the walk of the adjoints reads, from the last span of a tile on: it is on its way before the walk begins.
struct IncomingAdjoints {
  Pair dt[AHEAD], dy[AHEAD], z[AHEAD];

  __device__ __forceinline__ IncomingAdjoints(const Arguments& args, const Sequence& sequence, const Thread& thread, int rows)
      : z{} {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int span = (rows - 1) / SPAN - k, r = span * SPAN + thread.lane;
      if (span >= 0) load(args, thread, k, sequence.at(r), sequence.owns(thread, r));
    }
  }

  __device__ __forceinline__ void load(const Arguments& args, const Thread& thread, int k, i64 at, bool owned) {
    dt[k] = Sequence::load(args.dt, thread, at, owned);
    dy[k] = Sequence::load(args.dy, thread, at, owned);
#if HAS_Z
    z[k] = Sequence::load(args.z, thread, at, owned);
#endif
  }
};

// Walks the adjoints of a span: k of its tile, whose Δ and source lie in span `at`.
__device__ __forceinline__ void walk_adjoint_span(Thread& thread, const Marks& marks, int k, int at) {
  Span delta[PAIR], source[PAIR];
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    load_span(delta[p], thread.frames, at, p);
    load_span(source[p], thread.frames + DISTANCE(dy), at, p);
  }
#pragma unroll
  for (int f = SPAN - 1; f >= 0; f--) {
    const bool reset = marks.reset(k * SPAN + f);
#if TILE_C
    State c[STATES];
    load_lane(c, row_of_c(thread, k * SPAN + f));
#endif
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
#if C_CONSTANT
      const State(&c)[STATES] = thread.c[p];
#endif
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        const State e = decay(thread.a[p][s], delta[p][f]);
        const State lambda = conjugate(c[s]) * source[p][f] + thread.adjoint[p][s];
        thread.adjoint[p][s] = reset ? to_state(0) : conjugate(e) * lambda;
#if !DECAY_BY_SUM
        thread.product[p][s] = thread.product[p][s] * e;
#endif
      }
    }
  }
}

// Before the adjoints are walked alone.
__device__ __forceinline__ void begin_adjoints(Thread& thread) {
  clear(thread.adjoint);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#if DECAY_BY_SUM
    thread.delta_sum[p] = (Real)0;
#else
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.product[p][s] = to_state(1);
#endif
  }
}

// Walks the adjoints alone of a tile, with whose first frame `sequence` begins.
__device__ __forceinline__ void walk_adjoints(const Warp& warp, const Arguments& args, const Sequence& sequence, Thread& thread,
                                              IncomingAdjoints incoming, const Marks& marks, int rows) {
  // Where the span lies that is read next: counted, because a product of 64 bits costs more than all else about it.
  const int last = (rows - 1) / SPAN;
  i64 next = sequence.at((last - AHEAD) * SPAN + thread.lane);
  const i64 step = SPAN * sequence.stride;
#pragma unroll 1
  for (int k0 = last; k0 >= 0; k0 -= AHEAD) {
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ahead++) {
      const int k = k0 - ahead;
      if (k < 0) break;
      const int r = k * SPAN + thread.lane, at = k % AHEAD;
      if (is_owner(thread)) {
        const bool present = sequence.owns(thread, r) && !marks.skip(r);
        Real delta[PAIR], values[PAIR], by_z[PAIR];
        own_delta(delta, warp, args, thread, incoming.dt[ahead], present);
        own_dy(values, by_z, incoming.dy[ahead], incoming.z[ahead], marks.skip(r));
        put(thread.frames, thread, at, delta);
        put_source(thread, args, at, values);
#if DECAY_BY_SUM
#pragma unroll
        for (int p = 0; p < PAIR; p++) thread.delta_sum[p] += delta[p];
#endif
      }
      if (k >= AHEAD) incoming.load(args, thread, ahead, next, sequence.owns(thread, r - AHEAD * SPAN));
      next -= step;
      __syncwarp();
      walk_adjoint_span(thread, marks, k, at);
    }
  }
  __syncwarp();
}
#endif

#if SUMMARY
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_summary(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Warp& warp = shared.warps[threadIdx.x / 32];

  let_next_begin();
  if (threadIdx.x == 0) shared.course.place = find_place(args);
  __syncthreads();
  const Place& place = shared.course.place;
  if (place.row >= args.batch) return;
  const i64 begin = chunk_begin(args, place);
  const int frames = (int)(chunk_end(args, place) - begin);
  if (begin < args.segment) return;  // no segment comes before it

  Thread thread;
  begin_block(thread, shared, args, place);
  begin_adjoints(thread);
  wait_for_kernels_before();
  for (int i = (frames - 1) / PART_FRAMES * PART_FRAMES; i >= 0; i -= PART_FRAMES) {
    const int rows = frames - i < PART_FRAMES ? frames - i : PART_FRAMES;
    const Sequence sequence(args, place, thread, begin + i, rows);
    const IncomingAdjoints incoming(args, sequence, thread, rows);
    const Marks marks = marks_of(args, place, begin + i, rows);
    enter_tile<true>(shared, args, place, marks, begin + i, rows, [] {});
    sequence.prefetch<true>(args, thread, -PART_FRAMES, -i);
    sequence.prefetch<false>(args, thread, -PART_FRAMES, -i);
    walk_adjoints(warp, args, sequence, thread, incoming, marks, rows);
  }
  find_thread_anew(thread, shared, place);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + place.channel0 + thread.column + p;
#if DECAY_BY_SUM
    const Real sum = sum_lanes(thread.delta_sum[p]);
    if (p < thread.here && thread.lane == 0) args.delta_sums[boundary] = sum;
#endif
    if (p >= thread.here) continue;
    store_states(thread.adjoint[p], args.adjoint_ends + boundary * SLOTS, SLOTS, thread.lane);
#if !DECAY_BY_SUM
    store_states(thread.product[p], args.decays + boundary * SLOTS, SLOTS, thread.lane);
#endif
  }
}
#else

// Rows of states in memory, those of the pair's channels `step` apart; zero where `from` is none.
__device__ __forceinline__ void load_pair(PairStates& states, const Thread& thread, const Arguments& args, const State* from,
                                          i64 step) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    load_states(states[p], from && p < thread.here ? from + p * step : nullptr, states_here(args), thread.lane, thread.order);
  }
}

// The gradient of the state after the piece: after the segment, or what a later piece has left.
__device__ __forceinline__ void load_adjoints(Thread& thread, const Arguments& args, const Course& course) {
  const i64 row = course.place.row, channel = course.place.channel0 + thread.column;
  const State* from = nullptr;
  i64 step = args.state;
  if (course.end < args.seq) {
    from = args.boundary_adjoints + ((row * args.segments + course.segment) * args.dim + channel) * SLOTS;
    step = SLOTS;
  } else if (args.write_final && args.dfinal_state) {
    from = args.dfinal_state + (row * args.dim + channel) * args.state + args.first_state;
  }
  load_pair(thread.adjoint, thread, args, from, step);
}

// Hands the gradient of the state before the piece on.
__device__ __forceinline__ void store_adjoints(const Thread& thread, const Arguments& args, const Course& course) {
  if (thread.part > 0) return;
  const i64 row = course.place.row, channel = course.place.channel0 + thread.column;
  State* to = args.boundary_adjoints + ((row * args.segments + course.segment) * args.dim + channel) * SLOTS;
  i64 step = SLOTS;
  if (course.first == 0) {
    if (!(args.write_final && args.dinitial_state)) return;
    to = args.dinitial_state + (row * args.dim + channel) * args.state + args.first_state;
    step = args.state;
  } else if (args.piece_first == 0) {
    return;
  }
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    if (p < thread.here) store_states(thread.adjoint[p], to + p * step, states_here(args), thread.lane, thread.order);
  }
}

// The state before the chunk that begins with scan index `begin`.
__device__ __forceinline__ void load_start(PairStates& h, const Thread& thread, const Arguments& args, const Place& place,
                                           i64 begin) {
  const i64 channel = place.channel0 + thread.column;
  const State* from = nullptr;
  i64 step = args.state;
  if (begin > 0) {
    const i64 boundary = (place.row * args.chunks + (u64)begin / (u64)args.chunk) * args.dim + channel;
    from = args.boundary_states + boundary * args.boundary_width + args.boundary_first;
    step = args.boundary_width;
  } else if (args.write_final && args.initial_state) {
    from = args.initial_state + (place.row * args.dim + channel) * args.state + args.first_state;
  }
  load_pair(h, thread, args, from, step);
}

#if PARTS > 1
// Finds the state before the part from that before the tile, h, and the adjoint after it from that after the tile: each part
// walks both ways from zero, and takes what the parts before and after it leave.
__device__ __forceinline__ void find_ends(Shared& shared, const Arguments& args, const Sequence& sequence, Thread& thread,
                                          PairStates& h, const First& first, const Marks& of_tile, int rows) {
  const Marks marks = of_tile.of_part(thread.part);
  Warp& warp = shared.warps[thread.warp];
  const int own = thread.place * LANE_WIDTH;
  const IncomingAdjoints incoming(args, sequence, thread, rows);
  PairStates states, after;
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) after[p][s] = thread.adjoint[p][s];
  }
  clear(states);
  walk_states<false>(warp, args, sequence, thread, states, first, marks, 0, rows);
  begin_adjoints(thread);
  walk_adjoints(warp, args, sequence, thread, incoming, marks, rows);
  save(warp.ends + own, states);
  save(warp.adjoint_ends + own, thread.adjoint);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#if DECAY_BY_SUM
    const Real sum = sum_lanes(thread.delta_sum[p]);
#endif
#pragma unroll
    for (int s = 0; s < STATES; s++) {
#if DECAY_BY_SUM
      states[p][s] = decay(thread.a[p][s], sum);
#else
      states[p][s] = thread.product[p][s];
#endif
    }
  }
  save(warp.products + own, states);
  __syncthreads();  // all parts have left theirs

  PairStates product;
  for (int part = 0; part < thread.part; part++) {
    const bool resets = of_tile.of_part(part).resets != 0;  // then it forgets what comes to it
    const Warp& before = shared.warps[thread.warp + (part - thread.part) * WARPS_EACH];
    restore(product, before.products + own);
    restore(states, before.ends + own);
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
#pragma unroll
      for (int s = 0; s < STATES; s++) h[p][s] = resets ? states[p][s] : product[p][s] * h[p][s] + states[p][s];
    }
  }
  for (int part = PARTS - 1; part > thread.part; part--) {
    const bool resets = of_tile.of_part(part).resets != 0;
    const Warp& behind = shared.warps[thread.warp + (part - thread.part) * WARPS_EACH];
    restore(product, behind.products + own);
    restore(states, behind.adjoint_ends + own);
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        after[p][s] = resets ? states[p][s] : conjugate(product[p][s]) * after[p][s] + states[p][s];
      }
    }
  }
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.adjoint[p][s] = after[p][s];
  }
}
#endif

// What is summed over time, and later over rows and segments by reduce.cu. `accumulate`: a later piece has left its sums there.
__device__ __forceinline__ void end_block(const Thread& thread, const Shared& shared, const Arguments& args, const Course& course,
                                          bool accumulate) {
  if (thread.part > 0) return;
  const i64 channel0 = course.part * args.dim + course.place.channel0 + thread.column;
  const int count = states_here(args);
  const auto add = [&](State* parts, int p, const State(&sums)[STATES]) {
    State* to = parts + (channel0 + p) * SLOTS;
    State all[STATES];
    load_states(all, accumulate ? to : nullptr, count, thread.lane, thread.order);
#pragma unroll
    for (int s = 0; s < STATES; s++) all[s] = accumulate ? all[s] + sums[s] : sums[s];
    store_states(all, to, count, thread.lane, thread.order);
  };
#if HAS_D || HAS_DT_BIAS
  const auto add_channel = [&](Real* parts, int p, Real (Warp::*sums)[32][PAIR]) {
    Real sum = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) sum += (shared.warps[thread.warp + part * WARPS_EACH].*sums)[thread.place][p];
    sum = sum_lanes(sum);
    Real* to = parts + channel0 + p;
    if (p < thread.here && thread.lane == 0) *to = accumulate ? *to + sum : sum;
  };
#endif
#pragma unroll 1
  for (int p = 0; p < PAIR; p++) {
    const int own = (p * 32 + thread.place) * LANE_WIDTH;
    State da[STATES], more[STATES];
    load_lane(da, shared.warps[thread.warp].da + own);
#pragma unroll
    for (int part = 1; part < PARTS; part++) {
      load_lane(more, shared.warps[thread.warp + part * WARPS_EACH].da + own);
#pragma unroll
      for (int s = 0; s < STATES; s++) da[s] = da[s] + more[s];
    }
    if (p < thread.here) add(args.da_parts, p, da);
#if HAS_D
    if (args.first_pass) add_channel(args.dd_parts, p, &Warp::dd);
#endif
#if HAS_DT_BIAS
    add_channel(args.ddt_bias_parts, p, &Warp::ddt_bias);
#endif
  }
#if B_CONSTANT || C_CONSTANT
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    if (p >= thread.here) break;
#if B_CONSTANT
    add(args.db_constant_parts, p, thread.db[p]);
#endif
#if C_CONSTANT
    add(args.dc_constant_parts, p, thread.dc[p]);
#endif
  }
#endif
}

// What the block walks; false where there is nothing. The grid's rows are those that blocks begin with.
__device__ __forceinline__ bool find_course(Course& course, const Arguments& args) {
  u32 index = blockIdx.x;
  const u32 contribution = take(index, (u32)(args.units * args.blocks_per_unit));
  course.contribution = contribution;
  course.segment = index;
  course.part = row_of_block() * args.segments + course.segment;
  Place& place = course.place;
  place.row = row_of_block() * args.rows_per_block;
  if (place.row >= args.batch) return false;
  course.row_end = place.row + args.rows_per_block < args.batch ? place.row + args.rows_per_block : args.batch;
  course.segment_begin = course.segment * args.segment;
  course.segment_end = course.segment_begin + args.segment < args.seq ? course.segment_begin + args.segment : args.seq;
  course.first = course.segment_begin + args.piece_first;
  const i64 end = course.first + args.piece_frames;
  course.end = end < course.segment_end ? end : course.segment_end;
  set_channels(place, args, contribution);
  course.ready_rows = 0;
  return course.first < course.end;  // the last segment may be shorter than the others
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_backward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Course& course = shared.course;
  let_next_begin();
  __shared__ bool walks;
  if (threadIdx.x == 0) walks = find_course(course, args);
  __syncthreads();
  if (!walks) return;

  Thread thread;
  begin_block(thread, shared, args, course.place);
  wait_for_kernels_before();
  Warp& warp = shared.warps[thread.warp];
  for (;;) {
    find_thread_anew(thread, shared, course.place);
    load_adjoints(thread, args, course);
    const i64 last_begin = course.end <= args.chunk ? 0 : (i64)((u64)(course.end - 1) / (u64)args.chunk * args.chunk);
    for (i64 begin = last_begin; begin + args.chunk > course.first; begin -= args.chunk) {
      const int frames = (int)(course.end - begin < args.chunk ? course.end - begin : args.chunk);
      const int last = (frames - 1) / TILE;
      if (!ROW_IS_TILE) find_thread_anew(thread, shared, course.place);
      const Sequence sequence(args, course.place, thread, begin, frames);
      PairStates h;
      load_start(h, thread, args, course.place, begin);
#if TILES > 1
#pragma unroll 1
      for (int tile = 0; tile < last; tile++) {
        const int r0 = tile * PART_FRAMES;
        const First first_span(args, sequence, thread, r0);
        const Marks marks = marks_of(args, course.place, begin + r0, PART_FRAMES);
        enter_tile<false>(shared, args, course.place, marks, begin + r0, PART_FRAMES, [] {});
        sequence.prefetch<true>(args, thread, r0 + PART_FRAMES, 0);
        if (tile >= TILES_NOT_KEPT) save(states_before(thread, tile), h);
        walk_states<false>(warp, args, sequence, thread, h, first_span, marks, r0, PART_FRAMES);
      }
#endif
      // The piece may begin within the chunk.
#pragma unroll 1
      for (int tile = last; tile >= 0 && begin + tile * TILE >= course.first; tile--) {
        find_thread_anew(thread, shared, course.place);
        const int tile0 = tile * TILE, in_tile = frames - tile0 < TILE ? frames - tile0 : TILE;
        const int r0 = tile0 + thread.part * PART_FRAMES, left = frames - r0;
        const int rows = left < 0 ? 0 : left < PART_FRAMES ? left : PART_FRAMES;
        const First first_span(args, sequence, thread, r0);
        const Marks of_tile = marks_of(args, course.place, begin + tile0, in_tile), marks = of_tile.of_part(thread.part);
        enter_tile<true>(shared, args, course.place, of_tile, begin + tile0, in_tile, [&] { sum_warps(shared, args); });
        // Sums are asked for again when the next tile is entered. Now, so that nothing of this has to be kept for it.
        if (threadIdx.x == 0) {
          const i64 contributions = args.units * args.blocks_per_unit;
          course.ready_at = course.place.row * args.parts_row + course.segment * args.parts_segment +
                            ((begin + tile0 - course.first) * contributions + course.contribution) * SLOT_WIDTH;
          course.ready_rows = in_tile;
        }
#if PARTS > 1
        find_ends(shared, args, Sequence(args, course.place, thread, begin + r0, rows), thread, h, first_span, of_tile, rows);
#endif
#if !ROW_IS_TILE
        // The chunk before this is walked from its first tile on.
        sequence.prefetch<true>(args, thread, (last - tile) * PART_FRAMES - (int)args.chunk, course.first - begin);
        sequence.prefetch<false>(args, thread, r0 - PART_FRAMES, course.first - begin);
#endif
#if TILES > 1
#if TILES_NOT_KEPT
        if (tile < TILES_NOT_KEPT && tile < last) load_start(h, thread, args, course.place, begin);
#endif
        if (tile >= TILES_NOT_KEPT && tile < last) restore(h, states_before(thread, tile));
#endif
        const FirstBack first_back(args, sequence, thread, r0, rows);
#if SEQ_IDX
        // Selections at every frame cost a third of all else: most tiles do without.
        if ((marks.resets | marks.skips) == 0) {
          walk_states<true>(warp, args, sequence, thread, h, first_span, Marks{0, 0}, r0, rows);
          walk_back(warp, args, sequence, thread, first_back, Marks{0, 0}, r0, rows);
        } else
#endif
        {
          walk_states<true>(warp, args, sequence, thread, h, first_span, marks, r0, rows);
          walk_back(warp, args, sequence, thread, first_back, marks, r0, rows);
        }
#if TILES > 1
        clear(h);  // the next tile's are restored: without this, they would be kept in registers through the walk back
#endif
      }
    }
    find_thread_anew(thread, shared, course.place);
    store_adjoints(thread, args, course);
    __syncthreads();  // the sums of the last tile are ready, and nobody needs the row
    if (course.place.row + 1 >= course.row_end) break;
    __syncthreads();
    if (threadIdx.x == 0) course.place.row++;
    __syncthreads();
  }
  sum_warps(shared, args);
  find_thread_anew(thread, shared, course.place);
  end_block(thread, shared, args, course, args.sums_go_on && course.end < course.segment_end);
}
#endif
