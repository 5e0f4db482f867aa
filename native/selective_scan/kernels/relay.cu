// The forward scan of forward.cu for rows of few channels, where a multiprocessor has one to three blocks (`relay` of
// policy/forward.rs). The warps of a block walk neighbouring tiles of one row, all of the same channels, side by side, and hand the state
// on from tile to tile, in a ring: no exponential is computed twice, and there is one launch.
//
// Over a tile the states are h_i = p_i h_0 + l_i, with p_i the product of the decays up to frame i and l the walk from zero. A warp walks
// its tile from zero and keeps the decays in registers. As soon as it is handed the states before the tile, it hands on those after it;
// then it adds what the former add to the outputs, u_i = a_i u_{i−1} and y_i += C_i u_i. (Of chunks and blocks that is decoupled look-back,
// Merrill & Garland 2016, "Single-pass parallel prefix scan with decoupled look-back".)
//
// A warp has tiles of its own, which the device's engine brings (bulk.cuh), OWN_TILES ahead, so it waits for no other but for the states,
// and between being handed these and handing them on lie four multiply-adds. An element is made, and finished, by the lane that owns
// it: of a span, the frame that has its number.

#define USE_X 1
#define USE_B 1
#define USE_C 1
#define USE_DY 0
#define ONE_PASS 1

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "block.cuh"
#include "lanes.cuh"
#include "bulk.cuh"

#define SPAN LANES
#define SPANS (TILE / SPAN)
#define OWN_TILES 2

// Whether sums over lanes are taken twice, of what is walked from zero and of what is added to it, or the thread's parts of all frames
// wait for the latter. That is 5% faster, but where products or rates want registers, too, there are not enough (H200).
#define SUMS_TWICE (METHOD == BILINEAR || METHOD == ZOH_EXACT || METHOD == POLY || METHOD == HIGHORDER || \
                    (METHOD == FOH && (CHANGES_DT || HAS_D || HAS_Z)))

static_assert(LANES == 4 && SLOTS == 16 && PACK == 4 && CHANNELS == CHANNELS_PER_WARP, "all warps have the same channels");
static_assert(PARTS == WARPS && WARPS > 1, "each walks a tile of its own");
static_assert(!COMPLEX && ELEMENT != 1 && TILE_B && TILE_C && ROUNDS == 1 && !SUMMARY, "what is copied, and walked once");
static_assert(!CUT && !SEQ_IDX && !SEVERAL_PASSES, "a row is walked whole");
static_assert(TILE % SPAN == 0 && SPAN % 2 == 0, "a tile is made of spans, and these of pairs of frames");

__device__ __forceinline__ int column_of(int row) { return row; }

#include "spans.cuh"
#include "owners.cuh"

// Of a tile, as the engine copies them or as they are walked.
template <typename Stored>
struct Projections {
  Stored b[TILE][SLOTS], c[TILE][SLOTS];
};
typedef Element Sequence[TILE][CHANNELS];
// As the engine copies it, each tensor's part at a multiple of 128 bytes.
struct alignas(128) Tile {
  Sequence delta, x;
#if HAS_Z
  Sequence z;
#endif
  Projections<Element> projections;
};
static_assert(sizeof(Sequence) % 128 == 0 && sizeof(Projections<Element>) % 256 == 0, "the engine's parts are aligned");

// What a warp has for itself.
struct OfWarp {
  Tile tiles[OWN_TILES];
#if WIDENS
  Projections<Real> widened;
#endif
  alignas(16) Real made[TILE / 2][CHANNELS][2][2];  // pairs of frames of each channel, {Δ, scaled x} of a frame
  Real handed[32][STATES];                          // the states before its tile, a thread's each
};
struct Shared {
  OfWarp warps[WARPS];
  Barrier brought[WARPS][OWN_TILES];  // by the engine
  Barrier handed[WARPS];              // by the warp before
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// Whether a thread is the one of its warp that asks for tiles. Of a thread that it has elected itself, the compiler knows that it is
// alone: of another it asks before each copy, ten operations each.
__device__ __forceinline__ bool is_elected() {
  u32 elected;
  asm volatile("{\n.reg .pred elected;\nelect.sync _|elected, 0xffffffff;\nselp.u32 %0, 1, 0, elected;\n}" : "=r"(elected));
  return elected;
}

// Asks for a warp's tile. The row is found anew, in 32 bits: so it is known to be the same for all threads, too.
__device__ __forceinline__ void ask(Tile& tile, Barrier& brought, const Maps& maps, const Place& place, int number) {
  const int frame = number * TILE, channel = (int)place.channel0, row = (int)(blockIdx.z * gridDim.y + blockIdx.y);
  bring(tile.delta, maps.dt, channel, frame, row, brought);
  bring(tile.x, maps.x, channel, frame, row, brought);
#if HAS_Z
  bring(tile.z, maps.z, channel, frame, row, brought);
#endif
  bring(tile.projections.b, maps.b, 0, (int)place.group_b, frame, row, brought);
  bring(tile.projections.c, maps.c, 0, (int)place.group_c, frame, row, brought);
  brought.arrive_announcing(sizeof(Tile));
}

// Hands states on to a warp.
__device__ __forceinline__ void hand_on(Shared& shared, int warp, const State (&states)[STATES]) {
  store_lane(shared.warps[warp].handed[threadIdx.x % 32], states);
  __syncwarp();
  if (threadIdx.x % 32 == 0) shared.handed[warp].arrive();
}

// The projections of a tile as they are walked.
__device__ __forceinline__ const Projections<Real>& widen([[maybe_unused]] OfWarp& own, const Tile& tile) {
#if WIDENS
  widen_projection(own.widened.b, tile.projections.b);
  widen_projection(own.widened.c, tile.projections.c);
  return own.widened;
#else
  return tile.projections;
#endif
}

// Keeps the states before a frame for the backward pass, if it is one of those before which it wants them. The thread is found anew: the
// walk needs the registers.
__device__ __forceinline__ void keep_before(const Arguments& args, const Place& place, int frame, const State (&before)[STATES]) {
  const int interval = (int)args.checkpoint_interval, number = frame / interval;
  if (number * interval != frame) return;
  Thread thread;
  find_thread(thread, place);
  const i64 kept = place.row * args.checkpoint_count + number;
  State* to = args.checkpoints + (kept * args.dim + thread.channel) * args.state;
  store_states(before, to, states_of_round(thread, args, 0), thread.lane);
}

// Makes the elements of a tile, of which `rows` frames are of the row: each thread those that it owns. Gives the sum of Δ.
__device__ __forceinline__ Real make_elements(const Arguments& args, const Owner& owner, const Thread& thread, const Tile& tile,
                                              int rows, Real (&made)[TILE / 2][CHANNELS][2][2]) {
  Real pairs[SPANS][2], sum = 0;
#pragma unroll
  for (int span = 0; span < SPANS; span++) {
    const int r = span * SPAN + thread.lane;
    owner.make(args, to_real(tile.delta[r][thread.row]), to_real(tile.x[r][thread.row]), pairs[span]);
    // What is missing leaves the states as they are.
    if (CHANGES_DT && r >= rows) pairs[span][0] = 0;
    sum += pairs[span][0];
  }
#pragma unroll
  for (int span = 0; span < SPANS; span++) {
    store_reals(made[span * SPAN / 2 + thread.lane / 2][thread.row][thread.lane % 2], pairs[span]);
  }
#pragma unroll
  for (int bit = 1; bit < LANES; bit *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, thread_bit(bit));
  return sum;
}

// Δ and the scaled inputs of two frames.
__device__ __forceinline__ void fetch_made(const OfWarp& own, const Thread& thread, int r, Real (&delta)[2], Real (&x)[2]) {
  Real pairs[4];
  load_reals(pairs, own.made[r / 2][thread.row][0]);
#pragma unroll
  for (int f = 0; f < 2; f++) {
    delta[f] = pairs[2 * f];
    x[f] = pairs[2 * f + 1];
  }
}

// What a thread has of the outputs of a span: its parts of the sums of all frames, or the sum of its own.
struct Outputs {
  Real parts[SUMS_TWICE ? 1 : SPAN];
};

// Walks a tile from zero: to the states after it, the decays of each frame, and the outputs.
__device__ __forceinline__ void walk_from_zero(const Thread& thread, const OfWarp& own, const Projections<Real>& projections,
                                               State (&h)[STATES], State (&decay)[TILE][STATES], Outputs (&y)[SPANS]) {
#pragma unroll
  for (int span = 0; span < SPANS; span++) {
    Real parts[SPAN];
#pragma unroll
    for (int first = 0; first < SPAN; first += 2) {
      Real delta[2], x[2];
      fetch_made(own, thread, span * SPAN + first, delta, x);
#pragma unroll
      for (int f = 0; f < 2; f++) {
        const int g = first + f, r = span * SPAN + g;
        State b[STATES], c[STATES];
        load_slots(b, projections.b[r], thread.lane);
        load_slots(c, projections.c[r], thread.lane);
#pragma unroll
        for (int s = 0; s < STATES; s++) {
          const Coefficients k = discretize(thread.rate[s], delta[f]);
          const State input = HAS_GAIN ? k.g * (b[s] * x[f]) : b[s] * x[f];
          h[s] = r == 0 ? restart(k, input) : advance(k, h[s], input);
          decay[r][s] = decay_of(k);
          parts[g] = s == 0 ? c[s] * h[s] : c[s] * h[s] + parts[g];
        }
      }
    }
    if (SUMS_TWICE) sum_over_lanes(thread.lane, parts);
#pragma unroll
    for (int g = 0; g < (SUMS_TWICE ? 1 : SPAN); g++) y[span].parts[g] = parts[g];
  }
}

// Adds what the states before a span, which become those after it, add to its outputs; gives the sum of the thread's own frame.
__device__ __forceinline__ Real walk_on(const Thread& thread, const Projections<Real>& projections, int span, const Outputs& y,
                                        State (&before)[STATES], const State (&decay)[TILE][STATES]) {
  Real parts[SPAN];
#pragma unroll
  for (int g = 0; g < SPAN; g++) {
    const int r = span * SPAN + g;
    State c[STATES];
    load_slots(c, projections.c[r], thread.lane);
    parts[g] = SUMS_TWICE ? (Real)0 : y.parts[SUMS_TWICE ? 0 : g];
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      before[s] = decay[r][s] * before[s];
      parts[g] = SUMS_TWICE && s == 0 ? c[s] * before[s] : c[s] * before[s] + parts[g];
    }
  }
  sum_over_lanes(thread.lane, parts);
  return SUMS_TWICE ? y.parts[0] + parts[0] : parts[0];
}

// What all decays of a tile leave of the states before it.
__device__ __forceinline__ State left_of(const Rate& rate, [[maybe_unused]] Real delta_sum,
                                         [[maybe_unused]] const State (&decay)[TILE][STATES], [[maybe_unused]] int s) {
#if DECAY_BY_SUM
  // Of an infinite rate, too, frames of no Δ leave the state as it is.
  return delta_sum == 0 ? (State)1 : decay_at(rate, delta_sum);
#else
  State product = decay[0][s];
#pragma unroll
  for (int r = 1; r < TILE; r++) product = product * decay[r][s];
  return product;
#endif
}

// Where the outputs of the thread's own frames of a tile go. It is found anew for each: the walk needs the registers.
struct Target {
  Element* next;
  i64 stride;
  int rows;  // frames of the tile that there are
  bool active;

  __device__ __forceinline__ Target(const Arguments& args, const Place& place, int number)
      : stride(SPAN * args.dim), rows((int)args.seq - number * TILE) {
    Thread thread;
    find_thread(thread, place);
    active = thread.active;
    next = args.y + (place.row * args.seq + number * TILE + thread.lane) * args.dim + thread.channel;
  }
};

// Finishes the sum of the thread's own frame of a span and stores it, if there is that frame; goes on to the next span.
__device__ __forceinline__ void put(const Owner& owner, const Thread& thread, const Tile& tile, int span, Real y, Target& target) {
  const int r = span * SPAN + thread.lane;
  Real x = 0, z = 0;
#if HAS_D
  x = to_real(tile.x[r][thread.row]);
#endif
#if HAS_Z
  z = to_real(tile.z[r][thread.row]);
#endif
  y = owner.finish(y, x, z);
  if (target.active && r < target.rows) *target.next = to_element(y);
  target.next += target.stride;
}

// Walks the `rows` frames that there are of a tile from the states before it, span by span: where a rate is infinite, frames that are
// missing would not leave the states as they are.
__device__ __forceinline__ void walk_part(const Owner& owner, Thread& thread, const OfWarp& own, const Tile& tile,
                                          const Projections<Real>& projections, Target& target) {
  const int rows = target.rows;
#pragma unroll 1
  for (int span = 0; span * SPAN < rows; span++) {
    Real delta[SPAN], y[SPAN];
    Span operands;
    SpanCoefficients k;
#pragma unroll
    for (int g = 0; g < SPAN; g++) {
      const int r = span * SPAN + g;
      Real pair[2];
      load_reals(pair, own.made[r / 2][thread.row][r % 2]);
      delta[g] = pair[0];
      operands.x[g] = pair[1];
      State b[STATES], c[STATES];
      load_slots(b, projections.b[r], thread.lane);
      load_slots(c, projections.c[r], thread.lane);
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        operands.b[s][g] = b[s];
        operands.c[s][g] = c[s];
      }
    }
    discretize_span(thread, delta, operands, k);
    walk_span<false>(thread, operands, k, 0, rows - span * SPAN, y);
    sum_over_lanes(thread.lane, y);
    put(owner, thread, tile, span, y[0], target);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    scan_relay(const Arguments args, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  let_next_begin();
  const Place place = find_place(args);
  if (place.row >= args.batch) return;
  // By an exchange, so that the compiler knows that all threads of a warp have the same.
  const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0);
  const int tiles = (int)((args.seq + TILE - 1) / TILE);
  OfWarp& own = shared.warps[warp];
  const bool asks = is_elected();
  if (asks) {
    for (int stage = 0; stage < OWN_TILES; stage++) shared.brought[warp][stage].begin(1);
    shared.handed[warp].begin(1);
    show_to_engine();
#pragma unroll
    for (int stage = 0; stage < OWN_TILES; stage++) {
      const int number = warp + stage * WARPS;
      if (number < tiles) ask(own.tiles[stage], shared.brought[warp][stage], maps, place, number);
    }
  }
  Thread thread;
  find_thread(thread, place);
  Owner owner(args, thread);
  begin_thread(thread, args, place);
  owner.settle_parameters(args);
  __syncthreads();  // the barriers of all warps have begun
  if (warp == 0) hand_on(shared, 0, thread.h);
  wait_for_kernels_before();  // they may still read what lies where y goes

  const int next_warp = warp + 1 < WARPS ? warp + 1 : 0;
  // A last tile that lacks frames is walked by itself where these would not leave the states as they are.
  const int whole = any_of_warp(!thread.finite) && args.seq % TILE != 0 ? tiles - 1 : tiles;
  int round = 0, number = warp;
#pragma unroll 1
  for (; number < whole; round++, number += WARPS) {
    Tile& tile = own.tiles[round % OWN_TILES];
    Barrier& brought = shared.brought[warp][round % OWN_TILES];
    const int left = (int)args.seq - number * TILE;
    brought.wait(round / OWN_TILES % 2);
    const Real delta_sum = make_elements(args, owner, thread, tile, left, own.made);
    const Projections<Real>& projections = widen(own, tile);
    __syncwarp();

    State decay[TILE][STATES], from_zero[STATES], all[STATES], before[STATES];
    Outputs y[SPANS];
    walk_from_zero(thread, own, projections, from_zero, decay, y);
#pragma unroll
    for (int s = 0; s < STATES; s++) all[s] = left_of(thread.rate[s], delta_sum, decay, s);

    shared.handed[warp].wait(round % 2);
    load_lane(before, own.handed[threadIdx.x % 32]);
    State after[STATES];
#pragma unroll
    for (int s = 0; s < STATES; s++) after[s] = over_chunk(before[s], all[s], from_zero[s], false);
    hand_on(shared, next_warp, after);
    if (args.checkpoints) keep_before(args, place, number * TILE, before);

    Target target(args, place, number);
#pragma unroll
    for (int span = 0; span < SPANS; span++) {
      const Real sum = walk_on(thread, projections, span, y[span], before, decay);
      put(owner, thread, tile, span, sum, target);
    }
    __syncwarp();
    const int next = number + OWN_TILES * WARPS;
    if (asks && next < tiles) ask(tile, brought, maps, place, next);
  }
  if (number < tiles) {
    const Tile& tile = own.tiles[round % OWN_TILES];
    shared.brought[warp][round % OWN_TILES].wait(round / OWN_TILES % 2);
    make_elements(args, owner, thread, tile, TILE, own.made);
    const Projections<Real>& projections = widen(own, tile);
    shared.handed[warp].wait(round % 2);
    load_lane(thread.h, own.handed[threadIdx.x % 32]);
    __syncwarp();
    if (args.checkpoints) keep_before(args, place, number * TILE, thread.h);
    Target target(args, place, number);
    walk_part(owner, thread, own, tile, projections, target);
  } else if (number - WARPS == tiles - 1) {
    load_lane(thread.h, shared.warps[next_warp].handed[threadIdx.x % 32]);  // as this thread has handed it on
  } else {
    return;
  }
  end_thread(thread, args, place);
}
