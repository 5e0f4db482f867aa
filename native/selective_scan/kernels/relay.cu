// The forward scan of forward.cu for rows of few channels (`Relay` of policy/forward/plan.rs). The warps of a block walk neighbouring
// tiles of one strip, which is CHANNELS channels of a row, side by side, and hand the state on from tile to tile, in a ring: no
// exponential is computed twice, and there is one launch.
//
// Over a tile the states are h_i = p_i h_0 + l_i, with p_i the product of the decays up to frame i and l the walk from zero. A warp walks
// its tile from zero and keeps the decays in registers. As soon as it is handed the states before the tile, it hands on those after it;
// then it adds what the former add to the outputs, u_i = a_i u_{i−1} and y_i += C_i u_i. (Of chunks and blocks that is decoupled look-back,
// Merrill & Garland 2016, "Single-pass parallel prefix scan with decoupled look-back".)
//
// A block walks a strip. Or, SHARES_STRIPS, the tiles of all strips in line are cut in as many pieces as there are multiprocessors, or
// hardly fewer, and a block walks one (Osama, Merrill, Cecka, Garland & Owens 2023, "Stream-K"). It is longer than a strip, but for the
// last, so it may begin within one and end within another, and no strip is of three. A block walks what it has of the latter first, and hands
// the states on to the block after it, which goes on with that strip last (Course): what a block waits for, the block before it walks
// at once, and waits for nobody.
//
// A warp has tiles of its own, which the device's engine brings (bulk.cuh), OWN_TILES ahead, so it waits for no other but for the states,
// and between being handed these and handing them on lie four multiply-adds. An element is made, and finished, by the lane that owns
// it: of a span, the frame that has its number.
//
// Where rows are packed, each warp finds the marks of its tiles. One that goes on with the sequence of the one before is walked like any
// other. One that has marks is walked span by span: what comes from its first reset on before the states are there; all of it after, if
// it skips frames alone. Of several sweeps (of more than SLOTS states, or both ways), all but the first add to y.

#define ONE_DIRECTION 1
#define USE_B 1
#define USE_C 1
#define ONE_SWEEP (!SEVERAL_SWEEPS)

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "marks.cuh"
#include "block.cuh"
#include "lanes.cuh"
#include "bulk.cuh"
#include "tiles.cuh"

// Whether outputs are summed over lanes twice, once as walked from a state of zero and once what the state that is handed over adds; else
// a thread keeps its parts of the former in registers until it has the latter, and they are summed once. That is 5% faster, where there
// are registers for it beside those of products, rates and marks (H200).
#define SUMS_TWICE (METHOD == BILINEAR || METHOD == ZOH_EXACT || METHOD == POLY || METHOD == HIGHORDER || \
                    ((METHOD == FOH || SEQ_IDX) && HAS_OWNERS))

static_assert(LANES == 4 && SLOTS == 16 && PACK == 4 && CHANNELS == CHANNELS_PER_WARP, "all warps have the same channels");
static_assert(PARTS == WARPS && WARPS > 1, "each walks a tile of its own");
static_assert(!CUT, "rows have no chunks");
static_assert(!SEQ_IDX || TILE == 16, "a warp has a thread for each frame of a tile, and for as many before it");
static_assert(SPAN % 2 == 0, "a span is made of pairs of frames");

#include "owners.cuh"

// As the engine copies it, each tensor's part at a multiple of 128 bytes.
struct alignas(128) Tile {
  SequenceTile delta, x;
#if HAS_Z
  SequenceTile z;
#endif
  Projections<Element> projections;
};
static_assert(sizeof(SequenceTile) % 128 == 0 && sizeof(Projections<Element>) % 256 == 0, "the engine's parts are aligned");

// What a warp has for itself.
struct OfWarp {
  Tile tiles[OWN_TILES];
#if WIDENS
  Projections<Real> widened;
#endif
  alignas(16) Real made[TILE / 2][CHANNELS][2][2];  // pairs of frames of each channel, {Δ, scaled x} of a frame
  Real handed[32][STATES];                          // the states before its tile, a thread's each
#if SHARES_STRIPS
  Real after[32][STATES];  // those after the last tile that the block walks of a strip
#endif
};
struct Shared {
  OfWarp warps[WARPS];
  Barrier brought[WARPS][OWN_TILES];  // by the engine
  Barrier handed[WARPS];              // by the warp before
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

#include "relay_course.cuh"
#include "relay_hand_on.cuh"
#include "relay_marks.cuh"
#include "relay_tile.cuh"

// Whether a thread is the one of its warp that asks for tiles. Of a thread that it has elected itself, the compiler knows that it is
// alone: of another it asks before each copy, ten operations each.
__device__ __forceinline__ bool is_elected() {
  u32 elected;
  asm volatile("{\n.reg .pred elected;\nelect.sync _|elected, 0xffffffff;\nselp.u32 %0, 1, 0, elected;\n}" : "=r"(elected));
  return elected;
}

// Asks for a warp's tile.
__device__ __forceinline__ void ask(Tile& tile, Barrier& brought, const Arguments& args, const Maps& maps, const Place& place,
                                    int number) {
  bring_tile(tile, args, maps, place, (int)row_anew(place), number * TILE, brought);
  brought.arrive_announcing(sizeof(Tile));
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

// Walks a tile all of whose frames go on with the sequence of those before.
__device__ __forceinline__ void walk_whole(Shared& shared, const Arguments& args, const Place& place, const Owner& owner,
                                           const Thread& thread, const Step& step, const Tile& tile,
                                           const Projections<Real>& projections, Real delta_sum) {
  const OfWarp& own = shared.warps[step.warp];
  State decay[TILE][STATES], from_zero[STATES], all[STATES], before[STATES];
  Outputs y[SPANS];
  walk_from_zero(thread, own, projections, from_zero, decay, y);
#pragma unroll
  for (int s = 0; s < STATES; s++) all[s] = left_of(thread.rate[s], delta_sum, decay, s);

  wait_for_states(shared, step, before);
  State after[STATES];
#pragma unroll
  for (int s = 0; s < STATES; s++) after[s] = over_chunk(before[s], all[s], from_zero[s], false);
  hand_on(shared, step, after);
  if (args.boundary_states) keep_before(args, place, step.number * TILE, before);

  Real parts[SPANS][SPAN];
#pragma unroll
  for (int span = 0; span < SPANS; span++) walk_on(thread, projections, span, y[span], before, decay, parts[span]);
  __syncwarp();  // sums go side by side, behind all walks: the compiler puts some before that, and zoh_exact waits for them (3%, H200)
  Target target(args, place, step.number);
#pragma unroll
  for (int span = 0; span < SPANS; span++) {
    sum_over_lanes(thread.lane, parts[span]);
    const Real sum = SUMS_TWICE ? y[span].parts[0] + parts[span][0] : parts[span][0];
    put(args, owner, thread, tile, span, 0, sum, target);
  }
}

#if SEQ_IDX
// Walks a tile that has marks, in two parts: what comes from its first reset on, which does not wait for the states before it, and what
// comes before.
__device__ __forceinline__ void walk_marked(Shared& shared, const Arguments& args, const Place& place, const Owner& owner,
                                            Thread& thread, const Step& step, const Tile& tile,
                                            const Projections<Real>& projections, const Marks& marks) {
  Target target(args, place, step.number);
  const int end = target.end < TILE ? target.end : TILE, reset = marks.resets ? marks.first_reset() : end;
  bool is_known = marks.resets;  // whether the states after the tile are
#pragma unroll
  for (int s = 0; s < STATES; s++) thread.h[s] = to_state(0);
#pragma unroll 1
  for (int part = is_known ? 0 : 1; part < 2; part++) {
    target.first = part == 0 ? reset : 0;
    target.end = part == 0 ? end : reset;
    if (part == 1) {
      State before[STATES], after[STATES];
      wait_for_states(shared, step, before);
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        after[s] = is_known ? thread.h[s] : before[s];
        thread.h[s] = before[s];
      }
      is_known = is_known || marks.skip_all();
      if (is_known) hand_on(shared, step, after);
      if (args.boundary_states) keep_before(args, place, step.number * TILE, before);
    }
    walk_tile_part(args, owner, thread, shared.warps[step.warp], tile, projections, marks, target);
  }
  if (!is_known) hand_on(shared, step, thread.h);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    scan_relay(const Arguments args, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  let_next_begin();
  const int warp = of_warp((int)threadIdx.x / 32);
  OfWarp& own = shared.warps[warp];
  const bool asks = is_elected();
  // Every block has a row: the grid is rounded up from 65,536 rows on alone (Blocks of launch.rs), and the policy leaves the relay three
  // strips a multiprocessor at most.
  const Course course(args);
  // A warp asks for its first tile, then for its parameters, and for the next tile while these are on their way: what it begins with comes
  // all at once.
  const auto ask_first = [&](int stage) {
    const int position = warp + stage * WARPS;
    if (position >= course.end()) return;
    const Spot spot = course.at(args, position);
    ask(own.tiles[stage], shared.brought[warp][stage], args, maps, spot.place(args), spot.number);
  };
  if (asks) {
    for (int stage = 0; stage < OWN_TILES; stage++) shared.brought[warp][stage].begin(1);
    shared.handed[warp].begin(1);
    show_to_engine();
    ask_first(0);
  }

  Step step{warp};
  int position = 0;  // of the first tile of a strip
  do {
    Spot spot = course.at(args, position);
#if SHARES_STRIPS
    spot = {of_warp(spot.number), of_warp(spot.left), (u32)of_warp((int)spot.row), (u32)of_warp((int)spot.block)};
#endif
    const int skipped = step.position() - position;  // tiles before the warp's first
    const Place place = spot.place(args);
    step.number = spot.number + skipped;
    step.end = spot.number + spot.left;
#if SEQ_IDX
    int index = index_for_marks(args, place, step.number);
#endif
    Thread thread;
    find_thread(thread, place);
    Owner owner(args, thread);
    begin_thread(thread, args, place, [&] {
      if (position > 0 || !asks) return;
#pragma unroll
      for (int stage = 1; stage < OWN_TILES; stage++) ask_first(stage);
    });
    owner.settle_parameters(args);
    if (position == 0) __syncthreads();  // now the barriers of all warps have begun
    position += spot.left;
    if (skipped >= spot.left) continue;
    wait_for_kernels_before();  // they may still read what lies where y goes, and what blocks hand on
    if (skipped == 0) {
#if SHARES_STRIPS
      if (spot.number > 0) wait_for_block(args, thread.h);
#endif
      store_lane(own.handed[threadIdx.x % 32], thread.h);
      if (step.position() == 0) tell(shared, warp);
    }

    const auto ask_next = [&](Tile& tile, Barrier& brought) {
      const int number = step.number + OWN_TILES * WARPS;
      if (number < step.end) {
        ask(tile, brought, args, maps, place, number);
        return;
      }
#if SHARES_STRIPS
      const int next = step.position() + OWN_TILES * WARPS;
      if (next >= course.end()) return;
      const Spot there = course.at(args, next);
      ask(tile, brought, args, maps, there.place(args), there.number);
#endif
    };
    // A last tile that lacks frames is walked by itself where these would not leave the states as they are; where rows are packed, it has
    // marks.
    const bool by_itself = !SEQ_IDX && any_of_warp(!thread.finite) && step.end * TILE > args.seq;
    const int whole = by_itself ? step.end - 1 : step.end;
#pragma unroll 1
    for (; step.number < whole; step.advance()) {
      Tile& tile = own.tiles[step.round % OWN_TILES];
      Barrier& brought = shared.brought[warp][step.round % OWN_TILES];
      const int left = (int)args.seq - step.number * TILE;
      brought.wait(step.round / OWN_TILES % 2);
      const Real delta_sum = make_elements(args, owner, thread, tile, left, own.made);
      const Projections<Real>& projections = widen(own, tile);
      __syncwarp();
#if SEQ_IDX
      Marks marks;
      if (!goes_on(index)) marks = Marks(args, place, step.number, index);
      index = index_for_marks(args, place, step.number + WARPS);
      if (marks.any()) {
        walk_marked(shared, args, place, owner, thread, step, tile, projections, marks);
      } else
#endif
      {
        walk_whole(shared, args, place, owner, thread, step, tile, projections, delta_sum);
      }
      __syncwarp();
      if (asks) ask_next(tile, brought);
    }
    if (by_itself && step.number < step.end) {
      Tile& tile = own.tiles[step.round % OWN_TILES];
      Barrier& brought = shared.brought[warp][step.round % OWN_TILES];
      brought.wait(step.round / OWN_TILES % 2);
      make_elements(args, owner, thread, tile, TILE, own.made);
      const Projections<Real>& projections = widen(own, tile);
      wait_for_states(shared, step, thread.h);
      __syncwarp();
      if (args.boundary_states) keep_before(args, place, step.number * TILE, thread.h);
      walk_tile_part(args, owner, thread, own, tile, projections, Marks(), Target(args, place, step.number));
      hand_on(shared, step, thread.h);
      if (SHARES_STRIPS && asks) ask_next(tile, brought);
      step.advance();
    }
    // Who has walked the last tile leaves the states after it: those after the row, or for the block that goes on with the strip.
    if (step.number - WARPS == step.end - 1) {
      load_lane(thread.h, place_after(shared, step, true));
#if SHARES_STRIPS
      if (step.end < course.tiles) {
        hand_on_to_block(args, thread.h);
        continue;
      }
#endif
      end_thread(thread, args, place);
    }
  } while (SHARES_STRIPS && position < course.end());
}
