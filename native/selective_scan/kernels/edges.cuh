// What comes in at the edges of pieces, segments and chunks of the backward pass, and goes out: states before them, and gradients of the
// state after them.

// Rows of states in memory, those of the pair's channels `step` apart; zero where `from` is none.
__device__ __forceinline__ void load_pair(PairStates& states, const Thread& thread, const Arguments& args, const State* from,
                                          i64 step) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    load_states(states[p], from && p < thread.here ? from + p * step : nullptr, states_here(args), thread.lane, thread.order);
  }
}

#if JOINS
// Leads the gradients after the row over the adjoint chunks after the segment, the last first, from what each of them adds. So does
// prefix.cu for all segments; where chunks are few, each block does it for its own in less time than a launch takes.
__device__ __forceinline__ void join_adjoint_chunks(Thread& thread, const Arguments& args, const Course& course) {
  // Chunks that are read before they are used. Those that are none are read, too, and left out: branches would cost spills. So are
  // channels that are none.
  constexpr int AT_ONCE = 3;
  const i64 row = course.place.row, channel = course.place.channel0 + (thread.here > 0 ? thread.column : 0);
  const int to_second = thread.here > 1 ? 1 : 0;
  // In the order of their slots, so that a lane's come in one access.
  PairStates a;
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    turn(a[p], thread.a[p], thread.order);
    turn(thread.adjoint[p], thread.adjoint[p], thread.order);
  }
  // The row's last may be short.
  const int first = (int)(((u32)course.end + (u32)args.adjoint_chunk - 1) / (u32)args.adjoint_chunk);
  // Counted: a product of 64 bits costs more than all else about a chunk.
  i64 at = in_part(args, row, args.adjoint_chunks, args.adjoint_chunks - 1, channel);
#pragma unroll 1
  for (int last = (int)args.adjoint_chunks - 1; last >= first; last -= AT_ONCE) {
    PairStates ends[AT_ONCE];
#if DECAY_BY_SUM
    Real delta_sums[AT_ONCE][PAIR];
#else
    PairStates decays[AT_ONCE];
#endif
    bool resets[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
      for (int p = 0; p < PAIR; p++) {
        const i64 own = at + p * to_second;
        load_slots(ends[k][p], args.adjoint_ends + own * SLOTS, thread.lane);
#if DECAY_BY_SUM
        delta_sums[k][p] = args.delta_sums[own];
#else
        load_slots(decays[k][p], args.decays + own * SLOTS, thread.lane);
#endif
      }
      const bool is_last = last - k <= first;
      resets[k] = SEQ_IDX && args.adjoint_resets[row * args.adjoint_chunks + (is_last ? first : last - k)] != 0;
      at -= is_last ? 0 : args.dim;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const bool is_one = last - k >= first;
#pragma unroll
      for (int p = 0; p < PAIR; p++) {
#pragma unroll
        for (int s = 0; s < STATES; s++) {
#if DECAY_BY_SUM
          const State decay = conjugate(exp_product(a[p][s], delta_sums[k][p]));
#else
          const State decay = conjugate(decays[k][p][s]);
#endif
          const State before = over_chunk(thread.adjoint[p][s], decay, ends[k][p][s], resets[k]);
          thread.adjoint[p][s] = is_one && p < thread.here ? before : thread.adjoint[p][s];
        }
      }
    }
  }
#pragma unroll
  for (int p = 0; p < PAIR; p++) turn(thread.adjoint[p], thread.adjoint[p], thread.order);
}
#endif

// The gradient of the state after the piece: after the segment, or what a later piece has left.
__device__ __forceinline__ void load_adjoints(Thread& thread, const Arguments& args, const Course& course) {
  const i64 row = course.place.row, channel = course.place.channel0 + thread.column;
  const State* from = nullptr;
  i64 step = args.state;
  if (!ROW_IS_TILE && course.end < (JOINS ? course.segment_end : args.seq)) {
    from = args.segment_adjoints + in_part(args, row, args.segments, course.segment, channel) * SLOTS;
    step = SLOTS;
  } else if (args.first_direction && args.dfinal_state) {
    from = args.dfinal_state + state_at(args, row, channel);
  }
  load_pair(thread.adjoint, thread, args, from, step);
#if JOINS
  if (course.end == course.segment_end) join_adjoint_chunks(thread, args, course);
#endif
}

// Hands the gradient of the state before the piece on.
__device__ __forceinline__ void store_adjoints(const Thread& thread, const Arguments& args, const Course& course) {
  if (thread.part > 0) return;
  const i64 row = course.place.row, channel = course.place.channel0 + thread.column;
  State* to = args.segment_adjoints + in_part(args, row, args.segments, course.segment, channel) * SLOTS;
  i64 step = SLOTS;
  if (ROW_IS_TILE || course.first == 0) {
    if (!(args.first_direction && args.dinitial_state)) return;
    to = args.dinitial_state + state_at(args, row, channel);
    step = args.state;
  } else if (course.first == course.segment * args.segment) {
    return;
  }
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    if (p < thread.here) store_states(thread.adjoint[p], to + p * step, states_here(args), thread.lane, thread.order);
  }
}

// The state before a chunk.
__device__ __forceinline__ void load_start(PairStates& h, const Thread& thread, const Arguments& args, const Place& place,
                                           u32 chunk) {
  const i64 channel = place.channel0 + thread.column;
  const State* from = nullptr;
  i64 step = args.state;
  if (chunk > 0) {
    from = chunk_state_at(args, in_part(args, place.row, args.chunks, chunk, channel));
    step = args.chunk_states_width;
  } else if (args.first_direction && args.initial_state) {
    from = args.initial_state + state_at(args, place.row, channel);
  }
  load_pair(h, thread, args, from, step);
}
