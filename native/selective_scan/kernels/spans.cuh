// Spans of SPAN frames, and the threads that walk the forward scan by them: what bounds the walk is the unit for exponentials,
// one of 16 a clock and multiprocessor; all else must hide behind it.

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

// The operands of a span.
struct Operands {
  Real x[SPAN];
#if TILE_B
  State b[STATES][SPAN];
#endif
#if TILE_C
  State c[STATES][SPAN];
#endif
};

struct SpanCoefficients {
  Coefficients of[STATES][SPAN];
};

__device__ __forceinline__ State b_of(const Thread& thread, [[maybe_unused]] const Operands& operands, int s,
                                      [[maybe_unused]] int g) {
#if B_CONSTANT
  return thread.b[s];
#else
  return operands.b[s][g];
#endif
}

// Where gains are known, inputs are taken in at once: neither b nor gains wait for the walk in registers.
__device__ __forceinline__ void discretize_span(const Thread& thread, const Real (&delta)[SPAN], const Operands& operands,
                                                SpanCoefficients& k) {
#pragma unroll
  for (int g = 0; g < SPAN; g++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      Coefficients& its = k.of[s][g];
      its = discretize(thread.rate[s], delta[g]);
#if HAS_GAIN
      its.g = its.g * (b_of(thread, operands, s, g) * operands.x[g]);
#endif
    }
  }
}

// A span, of which the first `rows` frames take part, or those that are not marked where there are marks, a byte each. WHOLE: all
// do, and none begins a sequence. `y` gets the thread's parts of Σ C h, and keeps those of the rounds before.
template <bool WHOLE>
__device__ __forceinline__ void walk_span(Thread& thread, const Operands& operands, const SpanCoefficients& k,
                                          [[maybe_unused]] u32 marks, [[maybe_unused]] int rows, Real* y) {
#pragma unroll
  for (int g = 0; g < SPAN; g++) {
#if SEQ_IDX
    if (marks >> 8 * g & MARK_RESET) {
#pragma unroll
      for (int s = 0; s < STATES; s++) thread.h[s] = to_state(0);
    }
    const bool here = WHOLE || !(marks >> 8 * g & MARK_SKIP);
#else
    const bool here = WHOLE || g < rows;
#endif
    [[maybe_unused]] State sum = to_state(ROUNDS > 1 ? y[g] : 0);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
#if HAS_GAIN
      const State input = k.of[s][g].g;
#else
      const State input = b_of(thread, operands, s, g) * operands.x[g];
#endif
      const State next = advance(k.of[s][g], thread.h[s], input);
      thread.h[s] = here ? next : thread.h[s];
#if SUMMARY && !DECAY_BY_SUM
      thread.product[s] = here ? decay_of(k.of[s][g]) * thread.product[s] : thread.product[s];
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

// Asks for a round's parameters.
__device__ __forceinline__ void load_parameters(State (&a)[STATES], [[maybe_unused]] Thread& thread, const Arguments& args, int round) {
  const int count = states_of_round(thread, args, round);
  const i64 parameters = thread.channel * args.state + first_state(args) + round * SLOTS;
  load_states(a, args.a + parameters, count, thread.lane);
#if B_CONSTANT
  load_constant(thread.b, args.b + parameters * COMPONENTS, count, thread.lane);
#endif
#if C_CONSTANT && !SUMMARY
  load_constant(thread.c, args.c + parameters * COMPONENTS, count, thread.lane);
#endif
}

// Takes them up; whether all rates are finite.
__device__ __forceinline__ bool take_parameters(State (&a)[STATES], Thread& thread, const Arguments& args, int round) {
  bool finite = true;
  const int count = states_of_round(thread, args, round);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    settle(a[s], args);
    a[s] = rate_of_slot(a[s], slot_of(thread.lane, s), count);
    thread.rate[s] = rate_of(a[s]);
#if B_CONSTANT
    settle(thread.b[s], args);
#endif
#if C_CONSTANT && !SUMMARY
    settle(thread.c[s], args);
#endif
#if REAL_F32
    finite = finite && is_finite(binary_rate(a[s]));  // in the units of the exponential, too
#else
    finite = finite && is_finite(a[s]);
#endif
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
  constexpr int AT_ONCE = STATES > 4 ? 4 : 8;  // chunks that are read before they are used: what registers have room for
  const i64 first = place.row * args.chunks;  // found once: by `in_part`, each address takes more operations
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
      const i64 in_chunk = (first + chunk + k) * args.dim + thread.channel, row = in_chunk * SWEEP_SLOTS + round * SLOTS;
      load_states<PACK>(ends[k], args.chunk_states + row, SLOTS, thread.lane);
#if DECAY_BY_SUM
      delta_sums[k] = args.delta_sums[in_chunk];
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
        const State decay = decay_over(thread.rate[s], delta_sums[k]);
#else
        const State decay = decays[k][s];
#endif
        thread.h[s] = over_chunk(thread.h[s], decay, ends[k][s], resets[k]);
      }
    }
  }
}
#endif

// Finds what a thread is, its parameters and the states before its chunk. `meanwhile`: what is done while these are on their way.
template <typename Meanwhile>
__device__ __forceinline__ void begin_thread(Thread& thread, const Arguments& args, const Place& place, Meanwhile meanwhile) {
  find_thread(thread, place);
  const State* before = nullptr;
#if SUMMARY && DECAY_BY_SUM
  thread.delta_sum = 0;
#elif SUMMARY
#pragma unroll
  for (int s = 0; s < STATES; s++) thread.product[s] = to_state(1);
#else
  if (!JOINS && place.chunk > 0) {
    before = chunk_state_at(args, in_part(args, place.row, args.chunks, place.chunk, thread.channel));
  } else if (first_direction(args) && args.initial_state) {
    before = args.initial_state + state_at(args, place.row, thread.channel);
  }
#endif
  bool finite = true;
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round++) {
    State a[STATES];
    load_parameters(a, thread, args, round);
    load_states(thread.h, before ? before + round * SLOTS : before, states_of_round(thread, args, round), thread.lane);
    meanwhile();
    finite = take_parameters(a, thread, args, round) && finite;
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
__device__ __forceinline__ void begin_thread(Thread& thread, const Arguments& args, const Place& place) {
  begin_thread(thread, args, place, [] {});
}

// The states that are kept for the backward pass.
struct Kept {
  int number;
  int at;  // the frame of the chunk before which the next is

  __device__ __forceinline__ Kept(const Arguments& args, i64 begin, int frames)
      : number(args.boundary_states ? (int)((begin + args.boundary_interval - 1) / args.boundary_interval) : 0),
        at(args.boundary_states ? (int)(number * args.boundary_interval - begin) : frames) {}
};

// Keeps the states before a tile for the backward pass.
__device__ __forceinline__ void keep(Thread& thread, const Arguments& args, const Place& place, Kept& kept) {
  find_thread(thread, place);
  State* to = boundary_state_at(args, place.row, kept.number, thread.channel);
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round++) {
#if ROUNDS > 1
    take_states(thread, round);
#endif
    store_states(thread.h, to + round * SLOTS, states_of_round(thread, args, round), thread.lane);
  }
  kept.number++;
  kept.at += (int)args.boundary_interval;
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
    const i64 in_chunk = in_part(args, place.row, args.chunks, place.chunk, thread.channel);
    store_states<PACK>(thread.h, chunk_state_at(args, in_chunk) + first, SLOTS, thread.lane);  // zero beyond the last
#if DECAY_BY_SUM
    if (thread.lane == 0) args.delta_sums[in_chunk] = thread.delta_sum;
#else
    store_states<PACK>(thread.product, args.decays + in_chunk * SWEEP_SLOTS + first, SLOTS, thread.lane);
#endif
#else
    if (first_direction(args) && args.final_state && (!CUT || place.chunk == args.chunks - 1)) {
      State* after = args.final_state + state_at(args, place.row, thread.channel);
      store_states(thread.h, after + first, states_of_round(thread, args, round), thread.lane);
    }
#endif
  }
}
