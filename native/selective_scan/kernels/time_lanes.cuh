// The walk of the forward scan of few and short rows: lanes over time as well as over states. It reads all of b and c for
// each channel, so that with many warps the unit for shared memory binds it.
//
// A warp has a channel: LANES lanes of STATES states, each by TIME_LANES lanes of OWN_FRAMES neighbouring frames of a tile.
// A thread computes the coefficients of its frames once and keeps them. It scans its frames from a state of
// zero, the time lanes are joined by a scan of (product of decays, state) over the warp (Kogge and Stone 1973), and with the
// state before its first frame each thread walks its frames again: two operations a state and frame, where a second walk
// of chunks takes all of five and the exponential. The state after the tile comes to the first time lane.
//
// Thread bits: those of a lane as block.cuh has them, so that sums over states are taken alike, and those of the time lane
// between them, where block.cuh has channels.

static_assert(TIME_LANES * LANES == 32 && CHANNELS == WARPS, "a warp has a channel");
static_assert(OWN_FRAMES % 4 == 0 && OWN_FRAMES >= LANES, "every lane has outputs to write");
static_assert(PACK == STATES, "a thread has neighbouring states");
static_assert(!SUMMARY && ROUNDS == 1, "a row is one chunk, walked once");

// What a thread keeps over its row.
struct Thread {
  int lane, time_lane, row, count;
  i64 channel;
  Rate rate[STATES];
  State h[STATES];  // in the first time lane the state before the tile, else zero
#if B_CONSTANT
  State b[STATES];
#endif
#if C_CONSTANT
  State c[STATES];
#endif
};

// Of the thread's frames.
typedef State OwnStates[OWN_FRAMES][STATES];

// States are kept for the backward pass wherever a thread's frames begin with one that is due.
struct Kept {
  __device__ __forceinline__ Kept(const Arguments&, i64, int) {}
};

__device__ __forceinline__ void begin_thread(Thread& thread, const Arguments& args, const Place& place) {
  thread.lane = lane_of(threadIdx.x % 32);
  thread.time_lane = channel_of(threadIdx.x % 32);
  thread.row = threadIdx.x / 32;
  const int column = column_of(thread.row);
  const bool active = column < place.channels;
  thread.channel = place.channel0 + (active ? column : 0);
  thread.count = active ? states_here(args) : 0;
  const i64 parameters = thread.channel * args.state + first_state(args);
  State a[STATES];
  load_states(a, args.a + parameters, thread.count, thread.lane);
#if B_CONSTANT
  load_constant(thread.b, args.b + parameters * COMPONENTS, thread.count, thread.lane);
#endif
#if C_CONSTANT
  load_constant(thread.c, args.c + parameters * COMPONENTS, thread.count, thread.lane);
#endif
  const State* before = nullptr;
  if (first_direction(args) && args.initial_state && thread.time_lane == 0) {
    before = args.initial_state + state_at(args, place.row, thread.channel);
  }
  load_states(thread.h, before, thread.count, thread.lane);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    settle(a[s], args);
    thread.rate[s] = rate_of(finite_rate(rate_of_slot(a[s], slot_of(thread.lane, s), thread.count)));
    settle(thread.h[s], args);
#if B_CONSTANT
    settle(thread.b[s], args);
#endif
#if C_CONSTANT
    settle(thread.c[s], args);
#endif
  }
}

// The thread's states of its frames of a projection.
__device__ __forceinline__ void fetch_projection(const Projection& tile, const Thread& thread, OwnStates& values) {
#pragma unroll
  for (int f = 0; f < OWN_FRAMES; f++) {
    load_lane(values[f], &tile[thread.time_lane][f * SLOT_WIDTH + thread.lane * LANE_WIDTH]);
  }
}

#if SEQ_IDX
// Frames that are none change nothing. The frames that begin a sequence, a bit each.
__device__ __forceinline__ u32 mend(const Tile& tile, int first, OwnStates& decays, OwnStates& inputs) {
  u32 resets = 0;
#pragma unroll
  for (int f = 0; f < OWN_FRAMES; f++) {
    const u8 mark = tile.marks[first + f];
    if (mark & MARK_RESET) resets |= 1u << f;
    if (!(mark & MARK_SKIP)) continue;
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      inputs[f][s] = to_state(0);
      decays[f][s] = to_state(1);
    }
  }
  return resets;
}
#endif

// Decays and inputs, g·(B·x), of the thread's frames, of which `first` is the first in the tile, and all decays in one. The frames
// that begin a sequence, a bit each.
__device__ __forceinline__ u32 find_coefficients(const Tile& tile, const Thread& thread, int first, [[maybe_unused]] bool marked,
                                                 OwnStates& decays, OwnStates& inputs, State (&product)[STATES]) {
  Real delta[OWN_FRAMES], x[OWN_FRAMES];
  load_reals(delta, &tile.delta[thread.row][first]);
  load_reals(x, &tile.x[thread.row][first]);
#if TILE_B
  OwnStates b;
  fetch_projection(tile.b, thread, b);
#endif
#pragma unroll
  for (int f = 0; f < OWN_FRAMES; f++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
#if B_CONSTANT
      const State its_b = thread.b[s];
#else
      const State its_b = b[f][s];
#endif
      const Coefficients k = discretize(thread.rate[s], delta[f]);
      decays[f][s] = decay_of(k);
      inputs[f][s] = restart(k, input_of(k, its_b, x[f]));
    }
  }
#if SEQ_IDX
  const u32 resets = marked ? mend(tile, first, decays, inputs) : 0;
#else
  constexpr u32 resets = 0;
#endif
#if DECAY_BY_SUM && !SEQ_IDX
  Real sum = delta[0];
#pragma unroll
  for (int f = 1; f < OWN_FRAMES; f++) sum += delta[f];
#pragma unroll
  for (int s = 0; s < STATES; s++) product[s] = decay_at(thread.rate[s], sum);
#else
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    product[s] = decays[0][s];
#pragma unroll
    for (int f = 1; f < OWN_FRAMES; f++) product[s] = decays[f][s] * product[s];
  }
#endif
  return resets;
}

// The state after frame f of the thread. Where a sequence begins it takes nothing over, be that no number.
__device__ __forceinline__ State after_frame(State before, State decay, State input, u32 resets, int f) {
  return resets >> f & 1 ? input : decay * before + input;
}

// What the time lane `by` before this has; anything where there is none.
__device__ __forceinline__ bool from_before(bool value, int by) { return __shfl_up_sync(ALL_LANES, (int)value, 2 * by) != 0; }
__device__ __forceinline__ Real from_before(Real value, int by) { return __shfl_up_sync(ALL_LANES, value, 2 * by); }
__device__ __forceinline__ Complex from_before(Complex value, int by) {
  return {from_before(value.re, by), from_before(value.im, by)};
}

// What the time lane before this has; the first gets that of the last.
__device__ __forceinline__ Real turned(Real value, const Thread& thread) {
  const int place = threadIdx.x % 32, back = thread.time_lane == 0 ? 1 - TIME_LANES : 1;
  return __shfl_sync(ALL_LANES, value, place - 2 * back);
}
__device__ __forceinline__ Complex turned(Complex value, const Thread& thread) {
  return {turned(value.re, thread), turned(value.im, thread)};
}

// The state before the thread's first frame; thread.h becomes that before the next tile.
__device__ __forceinline__ void scan_time_lanes(Thread& thread, const OwnStates& decays, const OwnStates& inputs, u32 resets,
                                                State (&product)[STATES], State (&h)[STATES]) {
  // The steps of the scan that take nothing over, a bit `by` each: there is nothing, or a sequence begins in what has been joined.
  u32 begins = 0;
  bool reset = resets != 0;
#pragma unroll
  for (int by = 1; by < TIME_LANES; by *= 2) {
    begins |= reset || thread.time_lane < by ? by : 0;
    if (SEQ_IDX) reset |= from_before(reset, by) && thread.time_lane >= by;
  }
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    State state = thread.h[s];
#pragma unroll
    for (int f = 0; f < OWN_FRAMES; f++) state = after_frame(state, decays[f][s], inputs[f][s], resets, f);
#pragma unroll
    for (int by = 1; by < TIME_LANES; by *= 2) {
      const State before = from_before(state, by);
      state = over_chunk(before, product[s], state, begins & by);
      // Wrong where the product reaches back to the first time lane; there it is not asked for any more.
      product[s] = product[s] * from_before(product[s], by);
    }
    const State previous = turned(state, thread);
    h[s] = thread.time_lane == 0 ? thread.h[s] : previous;
    thread.h[s] = thread.time_lane == 0 ? previous : to_state(0);
  }
}

// Keeps the state before frame i of the row, if it is due.
__device__ __forceinline__ void keep(const State (&h)[STATES], const Thread& thread, const Arguments& args, const Place& place,
                                     u32 i) {
  const u32 interval = (u32)args.boundary_interval;
  if (i % interval != 0) return;
  store_states(h, boundary_state_at(args, place.row, i / interval, thread.channel), thread.count, thread.lane);
}

// Walks the thread's frames and puts Σ C h where x was.
__device__ __forceinline__ void walk_frames(Tile& tile, const Thread& thread, int first, const OwnStates& decays,
                                            const OwnStates& inputs, u32 resets, State (&h)[STATES]) {
#if TILE_C
  OwnStates c;
  fetch_projection(tile.c, thread, c);
#endif
  Real y[OWN_FRAMES];
#pragma unroll
  for (int f = 0; f < OWN_FRAMES; f++) {
    State sum = to_state(0);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      h[s] = after_frame(h[s], decays[f][s], inputs[f][s], resets, f);
#if C_CONSTANT
      const State output = thread.c[s] * h[s];
#else
      const State output = c[f][s] * h[s];
#endif
      sum = s == 0 ? output : output + sum;
    }
    y[f] = real_part(sum);
  }
  store_sums(&tile.x[thread.row][first], thread.lane, y);
}

// Walks a tile, which begins with frame i of the row.
__device__ __forceinline__ void walk(Tile& tile, Thread& thread, const Arguments& args, const Place& place, Kept&, int i,
                                     int rows, bool marked) {
  const int first = thread.time_lane * OWN_FRAMES;
  OwnStates decays, inputs;
  State product[STATES], h[STATES];
  const u32 resets = find_coefficients(tile, thread, first, marked, decays, inputs, product);
  scan_time_lanes(thread, decays, inputs, resets, product, h);
  if (args.boundary_states && first < rows) keep(h, thread, args, place, (u32)(i + first));
  walk_frames(tile, thread, first, decays, inputs, resets, h);
}

__device__ __forceinline__ void end_thread(const Thread& thread, const Arguments& args, const Place& place) {
  if (!first_direction(args) || !args.final_state || thread.time_lane != 0) return;
  State* after = args.final_state + state_at(args, place.row, thread.channel);
  store_states(thread.h, after, thread.count, thread.lane);
}
