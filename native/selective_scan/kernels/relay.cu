// The forward scan of forward.cu for rows of few channels (`Relay` of policy/forward.rs). The warps of a block walk neighbouring tiles of
// one strip, which is CHANNELS channels of a row, side by side, and hand the state on from tile to tile, in a ring: no exponential is
// computed twice, and there is one launch.
//
// Over a tile the states are h_i = p_i h_0 + l_i, with p_i the product of the decays up to frame i and l the walk from zero. A warp walks
// its tile from zero and keeps the decays in registers. As soon as it is handed the states before the tile, it hands on those after it;
// then it adds what the former add to the outputs, u_i = a_i u_{i−1} and y_i += C_i u_i. (Of chunks and blocks that is decoupled look-back,
// Merrill & Garland 2016, "Single-pass parallel prefix scan with decoupled look-back".)
//
// A block walks a strip. Or, SHARES_STRIPS, the tiles of all strips in line are cut in as many pieces as there are multiprocessors, or
// hardly fewer, and a block walks one (Osama, Merrill, Cecka, Garland & Owens 2023, "Stream-K"). It is longer than a strip, but for the last,
// so it may begin within one and end within another, and no strip is of three. A block walks what it has of the latter first, and hands
// the states on to the block after it, which goes on with that strip last (Course): what a block waits for, the block before it walks
// at once, and waits for nobody.
//
// A warp has tiles of its own, which the device's engine brings (bulk.cuh), OWN_TILES ahead, so it waits for no other but for the states,
// and between being handed these and handing them on lie four multiply-adds. An element is made, and finished, by the lane that owns
// it: of a span, the frame that has its number.
//
// Where rows are packed, each warp finds the marks of its tiles. One that goes on with the sequence of the one before is walked like any
// other. One that has marks is walked span by span: what comes from its first reset on before the states are there; all of it after, if
// it skips frames alone. Of several passes (of more than SLOTS states, or both ways), all but the first add to y.

#define USE_B 1
#define USE_C 1
#define ONE_PASS (!SEVERAL_PASSES)

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "block.cuh"
#include "lanes.cuh"
#include "bulk.cuh"
#include "tiles.cuh"

#define OWN_TILES 2

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

#include "spans.cuh"
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

// Whether a thread is the one of its warp that asks for tiles. Of a thread that it has elected itself, the compiler knows that it is
// alone: of another it asks before each copy, ten operations each.
__device__ __forceinline__ bool is_elected() {
  u32 elected;
  asm volatile("{\n.reg .pred elected;\nelect.sync _|elected, 0xffffffff;\nselp.u32 %0, 1, 0, elected;\n}" : "=r"(elected));
  return elected;
}

// Where a block is: at a tile of a strip, of which it walks so many from this one on.
struct Spot {
  int number, left;
#if SHARES_STRIPS
  u32 row, block;  // of channels, among those of the row
#endif

  __device__ __forceinline__ Place place(const Arguments& args) const {
#if SHARES_STRIPS
    return place_of(args, row, block);
#else
    return find_place(args);
#endif
  }
};

// The tiles that a block walks, by their position in the order in which it does: those of a strip, or a piece of those of all.
struct Course {
  int tiles;  // of a strip
#if SHARES_STRIPS
  int count;       // of the piece
  int first;       // the number of the first of these in its strip
  int head, tail;  // those of the strip that the block after goes on with, and of the one that the block before has begun
  u32 row, block;  // of the first
#endif

  __device__ __forceinline__ Course(const Arguments& args) : tiles((int)((args.seq + TILE - 1) / TILE)) {
#if SHARES_STRIPS
    const u32 each = (u32)args.tiles_per_block, begin = blockIdx.x * each;
    const u32 left = (u32)args.batch * blocks_of_channels(args) * (u32)tiles - begin;
    count = (int)(left < each ? left : each);
    u32 strip = begin;
    first = (int)take(strip, (u32)tiles);
    head = first + count;
#pragma unroll 1
    while (head >= tiles) head -= tiles;  // a few strips at most, in less time than a division
    tail = first > 0 ? tiles - first : 0;
    row = strip;
    block = take(row, blocks_of_channels(args));
#endif
  }

#if SHARES_STRIPS
  __device__ __forceinline__ int end() const { return count; }

  __device__ __forceinline__ Spot at(const Arguments& args, int position) const {
    int line = first + position;  // tiles from the beginning of the first strip on
    if (position < head) {
      line += count - head;
    } else if (position < count - tail) {
      line += tail - head;
    } else {
      line -= count - tail;
    }
    Spot spot{0, 0, row, block};
#pragma unroll 1
    for (; line >= tiles; line -= tiles) {
      if (++spot.block == blocks_of_channels(args)) {
        spot.block = 0;
        spot.row++;
      }
    }
    spot.number = line;
    spot.left = position < head ? head - position : tiles - line;
    return spot;
  }
#else
  __device__ __forceinline__ int end() const { return tiles; }

  __device__ __forceinline__ Spot at(const Arguments&, int position) const { return {position, tiles - position}; }
#endif
};

// A number that all threads of a warp have: by an exchange, so that the compiler knows it.
__device__ __forceinline__ int of_warp(int number) { return __shfl_sync(ALL_LANES, number, 0); }

// The row of a strip as if for the first time: what the compiler has found from it before, addresses above all, it would keep in registers
// all through the walk of other tiles.
__device__ __forceinline__ u32 row_anew([[maybe_unused]] const Place& place) {
#if SHARES_STRIPS
  u32 row = (u32)place.row;
  asm volatile("" : "+r"(row));
  return row;
#else
  u32 y, z, rows;
  asm volatile("mov.u32 %0, %%ctaid.y;\nmov.u32 %1, %%ctaid.z;\nmov.u32 %2, %%nctaid.y;" : "=r"(y), "=r"(z), "=r"(rows));
  return z * rows + y;
#endif
}

// Asks for a warp's tile.
__device__ __forceinline__ void ask(Tile& tile, Barrier& brought, const Arguments& args, const Maps& maps, const Place& place,
                                    int number) {
  bring_tile(tile, args, maps, place, (int)row_anew(place), number * TILE, brought);
  brought.arrive_announcing(sizeof(Tile));
}

// Tells a warp that it has been handed the states before its tile. The warp before it does, when it has been told itself: so what was
// handed in the round before has been read.
__device__ __forceinline__ void tell(Shared& shared, int warp) {
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

#if SHARES_STRIPS
// Where a thread's states lie that are handed on to a block.
__device__ __forceinline__ State* handed_states(const Arguments& args, u32 block) {
  return args.handed_states + (block * 32 + threadIdx.x % 32) * STATES;
}

// Hands states on to the block after this.
__device__ __forceinline__ void hand_on_to_block(const Arguments& args, const State (&states)[STATES]) {
  store_lane(handed_states(args, blockIdx.x + 1), states);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(args.handed + blockIdx.x + 1), "l"(args.token) : "memory");
  }
}

// Waits for the states that the block before this hands on. A flag is the token, a random number of the process, from when they are there
// until they have been read, and no flag is when a kernel has ended: so nothing has to be cleared before one. Blocks begin in the order of
// their numbers, as where CUB's scan waits for one before it.
__device__ __forceinline__ void wait_for_block(const Arguments& args, State (&states)[STATES]) {
  u64* flag = args.handed + blockIdx.x;
  u64 token;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(token) : "l"(flag) : "memory");
  } while (token != args.token);
  load_lane(states, handed_states(args, blockIdx.x));
  __syncwarp();
  if (threadIdx.x % 32 == 0) *flag = 0;
}
#endif

#if SEQ_IDX
// The index of a frame in scan order, or −1 where there is none.
__device__ __forceinline__ int index_at(const Arguments& args, u32 row, int i) {
  return i >= 0 && i < args.seq ? args.seq_idx[row * args.seq + frame_at(args, i)] : -1;
}

// Of the frames of a tile, and of as many before them, a thread's each: what their marks are found by.
__device__ __forceinline__ int index_for_marks(const Arguments& args, const Place& place, int number) {
  return index_at(args, row_anew(place), (number - 1) * TILE + thread_anew() % 32);
}

// The index of the last frame before this one, in scan order, that is not skipped, or −1. By all threads of a warp, which go back in wide
// strides over long stretches of padding.
__device__ __forceinline__ int index_before(const Arguments& args, u32 row, int end) {
  constexpr int AT_ONCE = 4;
#pragma unroll 1
  for (; end > 0; end -= AT_ONCE * 32) {
    int indices[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      indices[k] = index_at(args, row, end - (k + 1) * 32 + (int)(threadIdx.x % 32));
    }
    // All are taken up before one is given back: those that were left on their way, the walk would wait for, and with them for the indices
    // of the next tile, every time (a scoreboard; a long row 7%, H200).
    u32 taken[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) taken[k] = __ballot_sync(ALL_LANES, indices[k] >= 0);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (taken[k]) return __shfl_sync(ALL_LANES, indices[k], 31 - __clz(taken[k]));
    }
  }
  return -1;
}

// Whether all frames of a tile go on with the sequence of the frame before it, from what all threads of its warp have of `index_for_marks`:
// so do most, and to ask takes a fifth of what it takes to find their marks.
__device__ __forceinline__ bool goes_on(int index) {
  const int last = __shfl_sync(ALL_LANES, index, TILE - 1);
  return !any_of_warp(threadIdx.x % 32 >= TILE && (index < 0 || index != last));
}
#endif

// The marks of the frames of a tile, a bit each.
struct Marks {
  u32 resets = 0, skips = 0;

  Marks() = default;
#if SEQ_IDX
  // Of those of a tile, from what all threads of its warp have of `index_for_marks`.
  __device__ __forceinline__ Marks(const Arguments& args, const Place& place, int number, int index) {
    const int own = (int)(threadIdx.x % 32) - TILE;
    const u32 taken = __ballot_sync(ALL_LANES, index >= 0);
    int last = -1;
    if (taken >> TILE && !(taken << TILE)) last = index_before(args, row_anew(place), (number - 1) * TILE);
    const u8 mark = mark_in_warp(index, last);
    const u32 bits = own < 0 ? 0 : (mark & MARK_RESET ? 1u << own : 0) | (mark & MARK_SKIP ? 1u << TILE << own : 0);
    const u32 all = __reduce_or_sync(ALL_LANES, bits);
    resets = all % (1u << TILE);
    skips = all >> TILE;
  }
#endif

  // Those of a span, a byte each.
  __device__ __forceinline__ u32 of_span(int span) const {
    const auto bytes_of = [&](u32 bits) { return (bits >> span * SPAN) % (1u << SPAN) * 0x204081u & 0x1010101u; };
    return bytes_of(resets) * MARK_RESET | bytes_of(skips) * MARK_SKIP;
  }
  __device__ __forceinline__ bool any() const { return resets || skips; }
  __device__ __forceinline__ bool skip_all() const { return skips == (1u << TILE) - 1; }
  __device__ __forceinline__ int first_reset() const { return 31 - __clz(resets & -resets); }
};
static_assert(SPAN == 4, "bits of a span become bytes by a product");

// Keeps the states before a frame for the backward pass, if it is one of those before which it wants them. The thread is found anew: the
// walk needs the registers.
__device__ __forceinline__ void keep_before(const Arguments& args, const Place& place, int frame, const State (&before)[STATES]) {
  const int interval = (int)args.boundary_interval, number = frame / interval;
  if (number * interval != frame) return;
  Thread thread;
  find_thread(thread, place);
  State* to = boundary_state_at(args, place.row, number, thread.channel);
  store_states(before, to, states_of_round(thread, args, 0), thread.lane);
}

// Makes the elements of a tile, of which `rows` frames are of the row: each thread those that it owns. Gives the sum of Δ.
__device__ __forceinline__ Real make_elements(const Arguments& args, const Owner& owner, const Thread& thread, const Tile& tile,
                                              int rows, Real (&made)[TILE / 2][CHANNELS][2][2]) {
  Real pairs[SPANS][2], sum = 0;
#pragma unroll
  for (int span = 0; span < SPANS; span++) {
    const int r = span * SPAN + thread.lane, at = first_of_span(span) + owner.frame_of(thread);
    owner.make(args, to_real(tile.delta[at][thread.row]), to_real(tile.x[at][thread.row]), pairs[span]);
    // What is missing leaves the states as they are.
    if (CHANGES_DT && r >= rows) pairs[span][0] = 0;
    sum += pairs[span][0];
  }
#pragma unroll
  for (int span = 0; span < SPANS; span++) {
    store_reals(made[span * SPAN / 2 + thread.lane / 2][thread.row][thread.lane % 2], pairs[span]);
  }
  return sum_lanes(sum);
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
        load_slots(b, projections.b[in_tile(r)], thread.lane);
        load_slots(c, projections.c[in_tile(r)], thread.lane);
#pragma unroll
        for (int s = 0; s < STATES; s++) {
          const Coefficients k = discretize(thread.rate[s], delta[f]);
          const State input = input_of(k, b[s], x[f]);
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

// Adds to the thread's parts of a span's outputs, `parts`, what the states before it add to them, which become those after it.
__device__ __forceinline__ void walk_on(const Thread& thread, const Projections<Real>& projections, int span, const Outputs& y,
                                        State (&before)[STATES], const State (&decay)[TILE][STATES], Real (&parts)[SPAN]) {
#pragma unroll
  for (int g = 0; g < SPAN; g++) {
    const int r = span * SPAN + g;
    State c[STATES];
    load_slots(c, projections.c[in_tile(r)], thread.lane);
    parts[g] = SUMS_TWICE ? (Real)0 : y.parts[SUMS_TWICE ? 0 : g];
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      before[s] = decay[r][s] * before[s];
      parts[g] = SUMS_TWICE && s == 0 ? c[s] * before[s] : c[s] * before[s] + parts[g];
    }
  }
}

// What all decays of a tile leave of the states before it.
__device__ __forceinline__ State left_of(const Rate& rate, [[maybe_unused]] Real delta_sum,
                                         [[maybe_unused]] const State (&decay)[TILE][STATES], [[maybe_unused]] int s) {
#if DECAY_BY_SUM
  return decay_over(rate, delta_sum);
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
  int first, end;  // of the frames that are stored
  bool active;

  __device__ __forceinline__ Target(const Arguments& args, const Place& place, int number)
      : stride((REVERSE ? -SPAN : SPAN) * args.dim), first(0), end((int)args.seq - number * TILE) {
    Thread thread;
    find_thread(thread, place);
    active = thread.active;
    next = args.y + (row_anew(place) * args.seq + frame_at(args, number * TILE + thread.lane)) * args.dim + thread.channel;
  }
};

// Finishes the sum of the thread's own frame of a span and stores it, if it is one of those whose outputs are wanted; goes on to the
// next span.
__device__ __forceinline__ void put([[maybe_unused]] const Arguments& args, const Owner& owner, const Thread& thread,
                                    const Tile& tile, int span, [[maybe_unused]] u32 marks, Real y, Target& target) {
  [[maybe_unused]] const int at = first_of_span(span) + owner.frame_of(thread);
  Real x = 0, z = 0;
#if HAS_D
  x = to_real(tile.x[at][thread.row]);
#endif
#if HAS_Z
  z = to_real(tile.z[at][thread.row]);
#endif
  y = owner.finish(y, x, z);
#if SEQ_IDX
  if (marks >> 8 * thread.lane & MARK_SKIP) y = 0;
#endif
  // By a difference: numbers of frames, by which a tile was made, would be kept for this.
  const int first = target.first - thread.lane, end = target.end - thread.lane;
  const bool is_wanted = target.active && first <= span * SPAN && span * SPAN < end;
#if SEVERAL_PASSES
  // To what the passes before this have left, each element once. Passes follow one another, so the bits are the same each time.
  y *= args.scale;
  if (is_wanted && !args.first_pass) atomicAdd(target.next, y);
  if (is_wanted && args.first_pass) *target.next = y;
#else
  if (is_wanted) *target.next = to_element(y);
#endif
  target.next += target.stride;
}

// Walks a tile from the span of the first frame that is stored to that of the last, span by span: where a rate is infinite, frames that
// are missing would not leave the states as they are.
__device__ __forceinline__ void walk_tile_part(const Arguments& args, const Owner& owner, Thread& thread, const OfWarp& own,
                                               const Tile& tile, const Projections<Real>& projections, const Marks& its_marks,
                                               Target target) {
  int span = target.first / SPAN;
  target.next += span * target.stride;
#pragma unroll 1
  for (; span * SPAN < target.end; span++) {
    const u32 marks = its_marks.of_span(span);
    Real delta[SPAN], y[SPAN];
    Operands operands;
    SpanCoefficients k;
#pragma unroll
    for (int g = 0; g < SPAN; g++) {
      const int r = span * SPAN + g;
      Real pair[2];
      load_reals(pair, own.made[r / 2][thread.row][r % 2]);
      delta[g] = pair[0];
      operands.x[g] = pair[1];
      fetch_frame(projections, thread.lane, in_tile(r), g, operands);
    }
    discretize_span(thread, delta, operands, k);
    walk_span<false>(thread, operands, k, marks, target.end - span * SPAN, y);
    sum_over_lanes(thread.lane, y);
    put(args, owner, thread, tile, span, marks, y[0], target);
  }
}

// Where a warp is: the tile of a strip that it walks, in which of its rounds, and up to which the block walks them.
struct Step {
  int warp, round, number, end;

  __device__ __forceinline__ int position() const { return warp + round * WARPS; }
  __device__ __forceinline__ int next_warp() const { return warp + 1 < WARPS ? warp + 1 : 0; }
  __device__ __forceinline__ void advance() {
    round++;
    number += WARPS;
  }
};

// Waits for the states before a warp's tile.
__device__ __forceinline__ void wait_for_states(Shared& shared, const Step& step, State (&before)[STATES]) {
  shared.handed[step.warp].wait(step.round % 2);
  load_lane(before, shared.warps[step.warp].handed[threadIdx.x % 32]);
}

// Where a thread's states after a tile go: to the next warp. Those after the last tile that the block walks of a strip the thread has back
// from there or, where the next warp may walk another strip, from memory of its own.
__device__ __forceinline__ Real* place_after(Shared& shared, const Step& step, [[maybe_unused]] bool is_last) {
  auto* states = &shared.warps[step.next_warp()].handed;
#if SHARES_STRIPS
  if (is_last) states = &shared.warps[step.warp].after;
#endif
  return (*states)[threadIdx.x % 32];
}

// Hands on the states after a warp's tile. After the last of a strip the next warp is told, too, so that none is ahead of what others have
// been handed.
__device__ __forceinline__ void hand_on(Shared& shared, const Step& step, const State (&after)[STATES]) {
  store_lane(place_after(shared, step, step.number + 1 == step.end), after);
  tell(shared, step.next_warp());
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
