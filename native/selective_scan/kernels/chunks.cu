// What each chunk of a row comes to if it begins with zero, where the device copies whole tiles by itself (bulk.cuh): the state
// that it ends with, or, ADJOINTS, what it adds to the gradient of the state before it, and ΣΔ, of which prefix.cu or the walk
// makes the product of its decays. So do forward.cu, as SUMMARY, and adjoints.cu where dt is not Δ.
//
// ADJOINTS: chunks are walked from the last frame to the first, with λ ← a(λ + C dy); h ← ah + g B x else.
//
// A block has one chunk of one batch row and CHANNELS channels; a thread has STATES states of a channel. A step is four frames,
// whose operands are read one step ahead.

#define ONE_DIRECTION 1
#define USE_B !ADJOINTS
#define USE_C ADJOINTS
#define ONE_SWEEP 0

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "block.cuh"
#include "bulk.cuh"

#define STEP 4

static_assert(LANES == 4 && STATES == 4 && PACK == 4 && CHANNELS == 32 && WARPS == 4, "a lane has neighbouring states");
static_assert(!COMPLEX && ELEMENT != 1 && !HAS_DT_BIAS && !DT_SOFTPLUS && !DT_LIMIT && !SEQ_IDX, "dt is Δ");
static_assert(DECAY_BY_SUM, "no product of decays is kept");
static_assert(TILE % STEP == 0, "a tile is made of steps");

// As the engine copies it, each tensor's part at a multiple of 128 bytes: Δ, x or dy, and B or C.
struct Tile {
  Element delta[TILE][CHANNELS], source[TILE][CHANNELS], projection[TILE][SLOTS];
};

struct Shared {
  Tile tiles[STAGES];
#if WIDENS
  Real widened[STAGES][TILE][SLOTS];
#endif
  Stages stages;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// The frames of a chunk in scan order, in tiles from the side on which the walk begins. Of the last some may be missing.
struct Frames {
  int begin, end;

  __device__ __forceinline__ int tiles() const { return (end - begin + TILE - 1) / TILE; }
  __device__ __forceinline__ int first_of(int number) const {
    return ADJOINTS ? end - (number + 1) * TILE : begin + number * TILE;
  }
};

struct Thread {
  int lane, column;
  Real delta_sum;
  Rate rate[STATES];
  State carried[STATES];
};

struct Operands {
  Real delta[STEP], source[STEP];
  State projection[STEP][STATES];
};

__device__ __forceinline__ void ask(Shared& shared, const Arguments& args, const ChunkMaps& maps, const Place& place,
                                    const Frames& frames, int number, int stage) {
  if (WIDENS && threadIdx.x != THREADS) return;
  Barrier& barrier = shared.stages.brought[stage];
  Tile& tile = shared.tiles[stage];
  const int frame = first_frame(args, frames.first_of(number)), channel = (int)place.channel0, row = (int)place.row;
  bring(tile.delta, maps.dt, channel, frame, row, barrier);
  bring(tile.source, maps.source, channel, frame, row, barrier);
  bring(tile.projection, maps.projection, (int)first_state(args), (int)(ADJOINTS ? place.group_c : place.group_b), frame, row,
        barrier);
  barrier.arrive_announcing(sizeof(Tile));
}

// What the carrier does.
__device__ __forceinline__ void carry(Shared& shared, const Arguments& args, const ChunkMaps& maps, const Place& place,
                                      const Frames& frames) {
  const auto ask_for = [&](int number, int stage) { ask(shared, args, maps, place, frames, number, stage); };
  const auto widen = [&]([[maybe_unused]] int stage) {
#if WIDENS
    widen_projection(shared.widened[stage], shared.tiles[stage].projection);
#endif
  };
  const int tiles = frames.tiles();
  // Nothing is taken of a tile but its place.
  const auto after = [&](int number, const Turn<STAGES>& stage) {
    if (number + STAGES < tiles) shared.stages.walked[stage.place].wait(stage.parity);
  };
  carry_tiles(shared.stages, tiles, ask_for, widen, after);
}

// Those of the step that begins with the tile's frame `first`, as the walk counts them.
__device__ __forceinline__ void fetch(const Shared& shared, int stage, const Thread& thread, int first, Operands& operands) {
  const Tile& tile = shared.tiles[stage];
#if WIDENS
  const Real(&projection)[TILE][SLOTS] = shared.widened[stage];
#else
  const Real(&projection)[TILE][SLOTS] = tile.projection;
#endif
#pragma unroll
  for (int f = 0; f < STEP; f++) {
    const int r = in_tile(ADJOINTS ? TILE - 1 - first - f : first + f);
    operands.delta[f] = to_real(tile.delta[r][thread.column]);
    operands.source[f] = to_real(tile.source[r][thread.column]);
    load_slots(operands.projection[f], projection[r], thread.lane);
  }
}

// Walks a step; WHOLE: all of it, else its first `rows` frames.
template <bool WHOLE>
__device__ __forceinline__ void walk(Thread& thread, const Operands& operands, [[maybe_unused]] int rows) {
#pragma unroll
  for (int f = 0; f < STEP; f++) {
    const bool here = WHOLE || f < rows;
    const Real delta = here ? operands.delta[f] : (Real)0;
    thread.delta_sum += delta;
    [[maybe_unused]] const Real input = scale_input(operands.source[f], delta);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
#if ADJOINTS
      const State next = decay_at(thread.rate[s], delta) * (operands.projection[f][s] * operands.source[f] + thread.carried[s]);
#else
      const Coefficients k = discretize(thread.rate[s], delta);
      const State next = advance(k, thread.carried[s], input_of(k, operands.projection[f][s], input));
#endif
      thread.carried[s] = here ? next : thread.carried[s];
    }
  }
}

__device__ __forceinline__ void begin_thread(Thread& thread, const Arguments& args, const Place& place) {
  thread.lane = lane_of(threadIdx.x % 32);
  thread.column = row_of(threadIdx.x);
  thread.delta_sum = 0;
  const State* row = thread.column < place.channels ? args.a + (place.channel0 + thread.column) * args.state : nullptr;
  State a[STATES];
  load_states(a, row ? row + first_state(args) : row, states_here(args), thread.lane);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    a[s] = rate_of_slot(a[s], slot_of(thread.lane, s), states_here(args));
    thread.rate[s] = rate_of(ADJOINTS ? finite_rate(a[s]) : a[s]);
    thread.carried[s] = to_state(0);
  }
}

// Leaves what the chunk has come to.
__device__ __forceinline__ void end_thread(const Thread& thread, const Arguments& args, const Place& place) {
  const int lane = lane_of(thread_anew() % 32), column = row_of(thread_anew());
  if (column >= place.channels) return;
  const i64 in_chunk = in_part(args, place.row, args.chunks, place.chunk, place.channel0 + column);
#if ADJOINTS
  State* to = args.adjoint_ends + in_chunk * SLOTS;
#else
  State* to = chunk_state_at(args, in_chunk);
#endif
  store_states<PACK>(thread.carried, to, SLOTS, lane);  // zero beyond the last
  if (lane == 0) args.delta_sums[in_chunk] = thread.delta_sum;
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    scan_chunks(const Arguments args, const __grid_constant__ ChunkMaps maps) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  let_next_begin();
  const Place place = find_place(args);
  if (place.row >= args.batch) return;
  const i64 begin = chunk_begin(args, place);
  // Nobody asks for the end of the last chunk, nor for what is before the first segment.
  if (ADJOINTS ? begin < args.segment : place.chunk == args.chunks - 1) return;
  const Frames frames{(int)begin, (int)chunk_end(args, place)};
  if (threadIdx.x == THREADS) shared.stages.begin();
  __syncthreads();
  if (threadIdx.x >= THREADS) {
    if (WIDENS || threadIdx.x == THREADS) carry(shared, args, maps, place, frames);
    return;
  }

  Thread thread;
  begin_thread(thread, args, place);
  const int tiles = frames.tiles(), whole = (frames.end - frames.begin) / TILE;
  Turn<STAGES> stage;
  Operands operands;
  shared.stages.wait(stage);
  fetch(shared, stage.place, thread, 0, operands);
#pragma unroll 1
  for (int number = 0; number < whole; number++) {
    Turn<STAGES> next = stage;
    next.advance();
#pragma unroll
    for (int first = 0; first < TILE; first += STEP) {
      const bool goes_on = first == TILE - STEP;
      Operands ahead;
      if (goes_on) {
        shared.stages.tell_walked(stage.place);
        if (number + 1 < tiles) shared.stages.wait(next);
      }
      // After the last tile there is nothing to be fetched; what is there is not used.
      fetch(shared, goes_on ? next.place : stage.place, thread, goes_on ? 0 : first + STEP, ahead);
      walk<true>(thread, operands, STEP);
      operands = ahead;
    }
    stage = next;
  }
  const int left = frames.end - frames.begin - whole * TILE;
#pragma unroll 1
  for (int first = 0; first < left; first += STEP) {
    fetch(shared, stage.place, thread, first, operands);
    walk<false>(thread, operands, left - first);
  }
  wait_for_kernels_before();  // they may still read what lies where this goes
  end_thread(thread, args, place);
}
