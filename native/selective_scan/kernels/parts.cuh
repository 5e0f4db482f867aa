// A tile in parts, side by side: what each begins with.

// The sources of the adjoints in the frames of a part: they are on their way before the tile has come.
struct AdjointSources {
  IncomingSource of[SPANS];

  __device__ __forceinline__ AdjointSources(const Arguments& args, const Sequence& sequence, const Thread& thread) {
#pragma unroll
    for (int k = 0; k < SPANS; k++) of[k] = IncomingSource(args, sequence, thread, k * SPAN + thread.lane);
  }
};

// Puts Δ, x and the source of the frames that a thread owns where the other lanes of its channel read them.
__device__ __forceinline__ void put_part(const Warp& warp, const Arguments& args, const Sequence& sequence,
                                         const Thread& thread, const First& first, const AdjointSources& sources, const Marks& marks) {
  if (is_owner(thread)) {
#pragma unroll
    for (int k = 0; k < SPANS; k++) {
      const int r = k * SPAN + thread.lane;
      const bool skipped = marks.skip(r);
      Real delta[PAIR], x[PAIR], source[PAIR], by_z[PAIR];
      own_delta(delta, warp, args, thread, first.dt[k], sequence.owns(thread, r) && !skipped);
      own_dy(source, by_z, sources.of[k], skipped);
#pragma unroll
      for (int p = 0; p < PAIR; p++) x[p] = skipped ? (Real)0 : first.x[k].real(p);
      put(thread.frames, thread, k, delta);
      put(thread.frames + DISTANCE(x), thread, k, x);
      put_source(thread, args, k, source);
    }
  }
  __syncwarp();
}

// What the parts leave that lie before a part or after it, in the order in which they are joined: first those before it, from the
// first on, then those after it, from the last on.
struct OtherParts {
  PairStates products[PARTS - 1], ends[PARTS - 1];

  static __device__ __forceinline__ bool is_before(const Thread& thread, int k) { return k < thread.part; }
  static __device__ __forceinline__ int number(const Thread& thread, int k) {
    return is_before(thread, k) ? k : PARTS - 1 - (k - thread.part);
  }

  // All at once: one after the other they would take their way from shared memory in turn.
  __device__ __forceinline__ OtherParts(const Shared& shared, const Thread& thread) {
    const int own = thread.place * LANE_WIDTH;
#pragma unroll
    for (int k = 0; k < PARTS - 1; k++) {
      const Warp& its = shared.warps[thread.warp + (number(thread, k) - thread.part) * WARPS_EACH];
      restore(products[k], its.products + own);
      restore(ends[k], (is_before(thread, k) ? its.ends : its.adjoint_ends) + own);
    }
  }
};

// Leads states over a part, or, BACK, adjoints. `resets`: it forgets what comes to it.
template <bool BACK>
__device__ __forceinline__ void join_part(PairStates& carried, const PairStates& product, const PairStates& ends, bool resets) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const State decay = BACK ? conjugate(product[p][s]) : product[p][s];
      carried[p][s] = over_chunk(carried[p][s], decay, ends[p][s], resets);
    }
  }
}

// What a part comes to if it begins with zero. Of the adjoints, with one decay for both ways:
//   λ before the part = Σ_f conj(P_f) conj(C_f) dy_f, P_f = Π_{j ≤ f} a_j
// over the frames before the first that resets. Of a part that does, nobody asks for the product.
struct PartEnds {
  PairStates states, adjoints, product;
};

__device__ __forceinline__ void walk_part(PartEnds& ends, const Thread& thread, const Marks& marks) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      ends.states[p][s] = ends.adjoints[p][s] = to_state(0);
      ends.product[p][s] = to_state(1);
    }
  }
  // Frames beyond the row change nothing: Δ, x, the source, B and C are zero there, and real rates finite.
  [[maybe_unused]] bool forgets = false;
#pragma unroll 1
  for (int k = 0; k < SPANS; k++) {
    Span delta[PAIR], input[PAIR], source[PAIR];
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
      load_span(delta[p], thread.frames, k, p);
      load_inputs(input[p], delta[p], thread.frames, k, p);
      load_span(source[p], thread.frames + DISTANCE(dy), k, p);
    }
#pragma unroll
    for (int f = 0; f < SPAN; f++) {
      const bool reset = marks.reset(k * SPAN + f);
      forgets = forgets || reset;
      State b[STATES], c[STATES];
      load_lane(b, row_of_b(thread, k * SPAN + f));
      load_lane(c, row_of_c(thread, k * SPAN + f));
#pragma unroll
      for (int p = 0; p < PAIR; p++) {
#pragma unroll
        for (int s = 0; s < STATES; s++) {
          const Coefficients of = discretize(rate_of(thread.a[p][s]), delta[p][f]);
          const State in = input_of(of, b[s], input[p][f]), adds = conjugate(c[s]) * source[p][f];
          ends.states[p][s] = reset ? restart(of, in) : advance(of, ends.states[p][s], in);
          ends.product[p][s] = ends.product[p][s] * decay_of(of);
          // Of zero nothing comes, even where decays come to more than a real holds.
          const State adjoint = conjugate(ends.product[p][s]) * adds + ends.adjoints[p][s];
          ends.adjoints[p][s] = forgets || is_zero(adds) ? ends.adjoints[p][s] : adjoint;
        }
      }
    }
  }
}

// Finds the state before the part from that before the tile, h, and the adjoint after it from that after the tile: each part
// walks from zero, for both at once, and takes what the parts before and after it leave.
__device__ __forceinline__ void find_ends(Shared& shared, const Arguments& args, const Sequence& sequence, Thread& thread,
                                          PairStates& h, const First& first, const AdjointSources& sources, const Marks& of_tile) {
  const Marks marks = of_tile.of_part(thread.part);
  Warp& warp = shared.warps[thread.warp];
  const int own = thread.place * LANE_WIDTH;
  put_part(warp, args, sequence, thread, first, sources, marks);
  PartEnds ends;
  walk_part(ends, thread, marks);
  save(warp.ends + own, ends.states);
  save(warp.adjoint_ends + own, ends.adjoints);
  save(warp.products + own, ends.product);
  __syncthreads();  // all parts have left theirs

  const OtherParts others(shared, thread);
#pragma unroll
  for (int k = 0; k < PARTS - 1; k++) {
    const bool resets = of_tile.of_part(OtherParts::number(thread, k)).resets != 0;
    if (OtherParts::is_before(thread, k)) {
      join_part<false>(h, others.products[k], others.ends[k], resets);
    } else {
      join_part<true>(thread.adjoint, others.products[k], others.ends[k], resets);
    }
  }
}

// Keeps the states before each span.
__device__ __forceinline__ void keep_states(const Thread& thread, PairStates& h, const Marks& marks) {
#pragma unroll
  for (int k = 0; k < SPANS; k++) {
    save(thread.states + k * SPAN_REALS, h);
    if (k + 1 < SPANS) walk_span(thread, h, marks, k, thread.frames, k, row_of_b(thread, k * SPAN));
  }
}
