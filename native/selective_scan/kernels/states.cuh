// The states of a tile once more, forward, for the backward pass.

__device__ __forceinline__ void load_inputs(Span& inputs, const Span& delta, const Real* frames, int k, int p) {
  load_span(inputs, frames + DISTANCE(x), k, p);
#pragma unroll
  for (int f = 0; f < SPAN; f++) inputs[f] = scale_input(inputs[f], delta[f]);
}

// What a walk reads first: it is on its way before the walk begins.
struct First {
  Pair dt[AHEAD], x[AHEAD];

  __device__ __forceinline__ First(const Arguments& args, const Sequence& sequence, const Thread& thread) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int r = k * SPAN + thread.lane;
      const i64 at = sequence.at(r);
      load(thread, k, args.dt + at, args.x + at, sequence.owns(thread, r));
    }
  }

  __device__ __forceinline__ void load(const Thread& thread, int k, const Element* its_dt, const Element* its_x, bool owned) {
    dt[k] = Sequence::load<STREAMS>(its_dt, thread, 0, owned);
    x[k] = Sequence::load<STREAMS>(its_x, thread, 0, owned);
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
        const Coefficients of = discretize(rate_of(thread.a[p][s]), delta[p][f]);
        const State in = input_of(of, b[s], input[p][f]);
        h[p][s] = reset ? restart(of, in) : advance(of, h[p][s], in);
      }
    }
  }
}

// Walks the states of a tile, and leaves the Δ and x of its frames in the rows of the warp. KEEP: keeps the states before each
// span, and does not walk the last; else the rows have only as many spans at a time as are read ahead.
template <bool KEEP>
__device__ __forceinline__ void walk_states(const Warp& warp, const Arguments& args, const Sequence& sequence,
                                            const Thread& thread, PairStates& h, First incoming, const Marks& marks) {
  const int spans = (sequence.rows + SPAN - 1) / SPAN;
  const i64 step = SPAN * sequence.stride;
  const i64 next = sequence.at(AHEAD * SPAN + thread.lane);
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
        const bool present = sequence.owns(thread, own) && !marks.skip(own);
        Real delta[PAIR], values[PAIR];
        own_delta(delta, warp, args, thread, incoming.dt[ahead], present);
#pragma unroll
        for (int p = 0; p < PAIR; p++) values[p] = marks.skip(own) ? (Real)0 : incoming.x[ahead].real(p);
        put(frames, thread, ahead, delta);
        put(frames + DISTANCE(x), thread, ahead, values);
      }
      if constexpr (KEEP) save(kept + ahead * SPAN_REALS, h);
      if (k + AHEAD < spans) incoming.load(thread, ahead, dt, x, sequence.owns(thread, own + AHEAD * SPAN));
      dt += step;
      x += step;
      __syncwarp();
      if (!KEEP || k + 1 < spans) {
        walk_span(thread, h, marks, k, frames, ahead, row + ahead * (SPAN * ORDERS * SLOT_WIDTH));
      }
      if constexpr (!KEEP && AHEAD == 1) __syncwarp();  // all have read the rows, which the next span takes
    }
    if constexpr (KEEP) {
      frames += AHEAD * FRAMES_REALS;
      kept += AHEAD * SPAN_REALS;
    }
    row += AHEAD * (SPAN * ORDERS * SLOT_WIDTH);
  }
  __syncwarp();
}
