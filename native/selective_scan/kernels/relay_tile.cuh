// A warp's tile in the relay, from what the engine has brought to what is stored: elements, the walk from zero, what the states before the
// tile add, outputs; and the walk span by span of a part of a tile. No thread waits for one of another warp here.

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
#if SEVERAL_SWEEPS
  // To what the sweeps before this have left, each element once. Sweeps follow one another, so the bits are the same each time.
  y *= args.scale;
  if (is_wanted && !args.first_sweep) atomicAdd(target.next, y);
  if (is_wanted && args.first_sweep) *target.next = y;
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
