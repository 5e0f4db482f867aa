// The walk back over a tile, from which all gradients come.

// Sums over a channel's lanes what each has of the frames of a span; a lane gets the sum of the frame that it owns.
__device__ __forceinline__ Real sum_of_own_frame(Real (&values)[SPAN], const Thread& thread) {
  sum_over_lanes<SPAN, SPAN>(thread.lane, values);
  return sum_lanes<SPAN>(values[0]);
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
  Span input;
#pragma unroll
  for (int f = 0; f < SPAN; f++) input[f] = scale_kept_input(x[f], delta[f]);
  KeptCoefficients k[SPAN][STATES];
  State before[STATES], h[SPAN][STATES];
  load_lane(before, kept + p * 32 * LANE_WIDTH);
#pragma unroll
  for (int f = 0; f < SPAN; f++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      k[f][s] = discretize_to_keep(thread.a[p][s], delta[f]);
      const State in = input_of(k[f][s], operand_b.at(p, f, s), input[f]);
      h[f][s] = marks.reset(first + f) ? restart(k[f][s], in) : advance(k[f][s], f > 0 ? h[f - 1][s] : before[s], in);
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
#if DA_IN_REGISTERS
  State(&da)[STATES] = thread.da[p];
#else
  State da[STATES];
  load_lane(da, sums_of_da(thread) + p * 32 * LANE_WIDTH);
#endif
#pragma unroll
  for (int f = SPAN - 1; f >= 0; f--) {
    const bool reset = marks.reset(first + f);
    [[maybe_unused]] Real to_delta_by_x = 0;
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const State a = thread.a[p][s], b = operand_b.at(p, f, s), c = operand_c.at(p, f, s);
      const State lambda = conjugate(c) * dy[f] + thread.adjoint[p][s];
      const State previous = f > 0 ? h[f - 1][s] : before[s];
      operand_c.add(p, f, s, conjugate(h[f][s]) * dy[f]);
      const State carried = adjoint_before(k[f][s], lambda), of_in = adjoint_of_input(k[f][s], lambda), of_b = of_in * input[f];
      const Real of_x = real_part(of_in * conjugate(b));
#if GAIN_BY_Z
      const State of_z = adjoint_of_z(rate_of(a), delta[f], k[f][s], lambda, previous, b * input[f], reset);
      const Real of_delta = real_part(of_z * conjugate(SHARE_OF_Z * a));
      da[s] = of_z * (SHARE_OF_Z * delta[f]) + da[s];
#else
      // Both derivatives of the decay share λ conj(a h_{i−1}).
      const State of_decay = reset ? to_state(0) : carried * conjugate(previous);
      const Partials partials = partials_of_gain(a, delta[f], k[f][s]);
      const State of_g = lambda * conjugate(b);
      const Real of_delta = real_part(of_decay * conjugate(a)), of_delta_by_x = real_part(of_g * conjugate(partials.by_delta));
      da[s] = of_decay * delta[f] + da[s];
      da[s] = of_g * conjugate(partials.by_a) * x[f] + da[s];
      to_delta_by_x = s > 0 ? to_delta_by_x + of_delta_by_x : of_delta_by_x;
#endif
      operand_b.add(p, f, s, of_b);
      to_x[f] = s > 0 ? to_x[f] + of_x : of_x;
      to_delta[f] = s > 0 ? to_delta[f] + of_delta : of_delta;
      thread.adjoint[p][s] = reset ? to_state(0) : carried;
    }
#if !GAIN_BY_Z
    to_delta[f] = to_delta_by_x * x[f] + to_delta[f];
#endif
  }
#if !DA_IN_REGISTERS
  store_lane(sums_of_da(thread) + p * 32 * LANE_WIDTH, da);
#endif
  own.x[p] = sum_of_own_frame(to_x, thread);
  own.delta[p] = sum_of_own_frame(to_delta, thread);
}

// Of elements that are rounded, what earlier sweeps have come to in the gradients of the frame that a thread owns: the last
// has it from memory.
struct Earlier {
  Pack<Real, PAIR> x, delta, z;

  __device__ __forceinline__ Earlier([[maybe_unused]] const Arguments& args, [[maybe_unused]] const Thread& thread,
                                     [[maybe_unused]] i64 at) {
#if SEVERAL_SWEEPS && ELEMENT > 1
    x = Sequence::load<false>(args.dx_sum, thread, at, args.last_sweep);
    delta = Sequence::load<false>(args.ddt_sum, thread, at, args.last_sweep);
#if HAS_Z
    z = Sequence::load<false>(args.dz_sum, thread, at, args.last_sweep);
#endif
#endif
  }
};

// Adds a sweep to a sequence's gradient, which gathers in `sums`. What is to be rounded does until the last sweep, which adds it,
// `earlier`, to its own; where nothing is, `sums` is `target`. (In f32 what is subnormal is added as zero.)
__device__ __forceinline__ void add_sweep([[maybe_unused]] const Arguments& args, [[maybe_unused]] Real* sums, Element* target,
                                          const Thread& thread, i64 at, Real (&values)[PAIR],
                                          [[maybe_unused]] const Pack<Real, PAIR>& earlier) {
#if SEVERAL_SWEEPS
  if (args.first_sweep) {
    Sequence::store<false>(sums, thread, at, values);
    return;
  }
  if (ELEMENT < 2 || !args.last_sweep) {
    Sequence::add(sums, thread, at, values);
    return;
  }
#pragma unroll
  for (int p = 0; p < PAIR; p++) values[p] += earlier.real(p);
#endif
  Sequence::store<STREAMS>(target, thread, at, values);
}

// ∂Δ/∂dt. Where Δ was limited, dt must be asked.
__device__ __forceinline__ Real slope_of([[maybe_unused]] const Arguments& args, [[maybe_unused]] Real delta,
                                         [[maybe_unused]] Real dt, [[maybe_unused]] Real bias) {
#if DT_LIMIT
  Real slope;
  step_size(args, dt, bias, slope);
  return slope;
#elif DT_SOFTPLUS
  return slope_of_softplus(delta);
#else
  return (Real)1;
#endif
}

// Writes the gradients of the frame of span k that the thread owns, which lie at `at` in memory.
__device__ __forceinline__ void finish_own(const OwnSums& sums, [[maybe_unused]] const Pair& dt, [[maybe_unused]] Warp& warp,
                                           const Arguments& args, const Thread& thread, bool skipped, i64 at, int k) {
  const Earlier earlier(args, thread, at);
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
#if SEVERAL_SWEEPS
  const bool with_d = args.first_sweep;
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
#if GAIN_BY_Z
    to_delta += scale_kept_input(x[p], 1) * to_x;
#endif
    to_x *= scale_kept_input(1, delta[p]);
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
  add_sweep(args, args.dx_sum, args.dx, thread, at, dx, earlier.x);
  add_sweep(args, args.ddt_sum, args.ddt, thread, at, ddt, earlier.delta);
#if HAS_Z
  add_sweep(args, args.dz_sum, args.dz, thread, at, dz, earlier.z);
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

// Walks a tile back, to span number `least`.
__device__ __forceinline__ void walk_back(Warp& warp, const Arguments& args, const Sequence& sequence, Thread& thread,
                                          IncomingSource incoming, const Marks& marks, int least) {
  const int spans = (sequence.rows + SPAN - 1) / SPAN, last = (spans - 1) * SPAN + thread.lane;
  i64 at = sequence.at(last);
  bool owned = sequence.owns(thread, last);
#pragma unroll 1
  for (int k = spans - 1; k >= least; k--) {
    const int first = k * SPAN;
    [[maybe_unused]] const int row = first + thread.lane;
#if DT_LIMIT
    const Pair dt = Sequence::load<STREAMS>(args.dt, thread, at, owned);
#endif
    if (is_owner(thread)) {
      Real values[PAIR], by_z[PAIR];
      own_dy(values, by_z, incoming, marks.skip(row));
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
      load_span(x, thread.frames + DISTANCE(x), k, p);
      load_span(source, thread.frames + DISTANCE(dy), 0, p);
      walk_channel(sums, thread, p, operand_b, operand_c, thread.states + k * SPAN_REALS, delta, x, source, marks, first);
      // Now, because the operands' loads above wait for stores, and would for these loads too. A branch around two loads, where
      // there is z, costs registers.
      if (p == 0 && (HAS_Z || k > least)) {
        const bool next = k > least && sequence.owns(thread, 0);  // a span that is not the last is whole
        incoming.load(args, thread, at - SPAN * sequence.stride, next);
      }
    }
#if TILE_B || TILE_C
    __syncwarp();  // all have read the states that were kept, where these sums go
    sum_channels(warp.spans[k], thread, gradients);
#endif
#if DT_LIMIT
    if (owned) finish_own(sums, dt, warp, args, thread, marks.skip(row), at, k);
#else
    if (owned) finish_own(sums, Pair{}, warp, args, thread, marks.skip(row), at, k);
#endif
    owned = sequence.owns(thread, 0);
    at -= SPAN * sequence.stride;
    __syncwarp();  // all have read the source of the adjoints
  }
}
