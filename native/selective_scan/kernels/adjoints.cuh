// The adjoints of a tile alone, back from zero: what frames add to the gradient of the state before them.

// What the walk of the adjoints reads, from the last span of a tile on: it is on its way before the walk begins.
struct IncomingAdjoints {
  Pair dt[AHEAD], dy[AHEAD], z[AHEAD];

  __device__ __forceinline__ IncomingAdjoints(const Arguments& args, const Sequence& sequence, const Thread& thread) : z{} {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int span = (sequence.rows - 1) / SPAN - k, r = span * SPAN + thread.lane;
      if (span >= 0) load(args, thread, k, sequence.at(r), sequence.owns(thread, r));
    }
  }

  __device__ __forceinline__ void load(const Arguments& args, const Thread& thread, int k, i64 at, bool owned) {
    dt[k] = Sequence::load<STREAMS>(args.dt, thread, at, owned);
    dy[k] = Sequence::load<STREAMS>(args.dy, thread, at, owned);
#if HAS_Z
    z[k] = Sequence::load<STREAMS>(args.z, thread, at, owned);
#endif
  }
};

// Walks the adjoints of a span: k of its tile, whose Δ and source lie in span `at`.
__device__ __forceinline__ void walk_adjoint_span(Thread& thread, const Marks& marks, int k, int at) {
  Span delta[PAIR], source[PAIR];
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    load_span(delta[p], thread.frames, at, p);
    load_span(source[p], thread.frames + DISTANCE(dy), at, p);
  }
#pragma unroll
  for (int f = SPAN - 1; f >= 0; f--) {
    const bool reset = marks.reset(k * SPAN + f);
#if TILE_C
    State c[STATES];
    load_lane(c, row_of_c(thread, k * SPAN + f));
#endif
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
#if C_CONSTANT
      const State(&c)[STATES] = thread.c[p];
#endif
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        const State e = decay(thread.a[p][s], delta[p][f]);
        const State lambda = conjugate(c[s]) * source[p][f] + thread.adjoint[p][s];
        thread.adjoint[p][s] = reset ? to_state(0) : conjugate(e) * lambda;
#if !DECAY_BY_SUM
        thread.product[p][s] = thread.product[p][s] * e;
#endif
      }
    }
  }
}

// Before the adjoints are walked alone.
__device__ __forceinline__ void begin_adjoints(Thread& thread) {
  clear(thread.adjoint);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#if DECAY_BY_SUM
    thread.delta_sum[p] = (Real)0;
#else
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.product[p][s] = to_state(1);
#endif
  }
}

// Walks the adjoints alone of a tile.
__device__ __forceinline__ void walk_adjoints(const Warp& warp, const Arguments& args, const Sequence& sequence, Thread& thread,
                                              IncomingAdjoints incoming, const Marks& marks) {
  // Where the span lies that is read next: counted, because a product of 64 bits costs more than all else about it.
  const int last = (sequence.rows - 1) / SPAN;
  i64 next = sequence.at((last - AHEAD) * SPAN + thread.lane);
  const i64 step = SPAN * sequence.stride;
#pragma unroll 1
  for (int k0 = last; k0 >= 0; k0 -= AHEAD) {
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ahead++) {
      const int k = k0 - ahead;
      if (k < 0) break;
      const int r = k * SPAN + thread.lane, at = k % AHEAD;
      if (is_owner(thread)) {
        const bool present = sequence.owns(thread, r) && !marks.skip(r);
        Real delta[PAIR], values[PAIR], by_z[PAIR];
        own_delta(delta, warp, args, thread, incoming.dt[ahead], present);
        own_dy(values, by_z, incoming.dy[ahead], incoming.z[ahead], marks.skip(r));
        put(thread.frames, thread, at, delta);
        put_source(thread, args, at, values);
#if DECAY_BY_SUM
#pragma unroll
        for (int p = 0; p < PAIR; p++) thread.delta_sum[p] += delta[p];
#endif
      }
      if (k >= AHEAD) incoming.load(args, thread, ahead, next, sequence.owns(thread, r - AHEAD * SPAN));
      next -= step;
      __syncwarp();
      walk_adjoint_span(thread, marks, k, at);
    }
  }
  __syncwarp();
}
