// A tile in parts, side by side: what each begins with.

// Leads states over a part of those before this, or, BACK, adjoints over one of those after it.
template <bool BACK>
__device__ __forceinline__ void join_part(PairStates& carried, const Shared& shared, const Thread& thread, const Marks& of_tile,
                                          int part) {
  const bool resets = of_tile.of_part(part).resets != 0;  // then it forgets what comes to it
  const Warp& its = shared.warps[thread.warp + (part - thread.part) * WARPS_EACH];
  const int own = thread.place * LANE_WIDTH;
  PairStates product, ends;
  restore(product, its.products + own);
  restore(ends, (BACK ? its.adjoint_ends : its.ends) + own);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      const State decay = BACK ? conjugate(product[p][s]) : product[p][s];
      carried[p][s] = over_chunk(carried[p][s], decay, ends[p][s], resets);
    }
  }
}

// Finds the state before the part from that before the tile, h, and the adjoint after it from that after the tile: each part
// walks both ways from zero, and takes what the parts before and after it leave.
__device__ __forceinline__ void find_ends(Shared& shared, const Arguments& args, const Sequence& sequence, Thread& thread,
                                          PairStates& h, const First& first, const Marks& of_tile) {
  const Marks marks = of_tile.of_part(thread.part);
  Warp& warp = shared.warps[thread.warp];
  const int own = thread.place * LANE_WIDTH;
  const IncomingAdjoints incoming(args, sequence, thread);
  PairStates states, after;
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) after[p][s] = thread.adjoint[p][s];
  }
  clear(states);
  walk_states<false>(warp, args, sequence, thread, states, first, marks);
  begin_adjoints(thread);
  walk_adjoints(warp, args, sequence, thread, incoming, marks);
  save(warp.ends + own, states);
  save(warp.adjoint_ends + own, thread.adjoint);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#if DECAY_BY_SUM
    const Real sum = sum_lanes(thread.delta_sum[p]);
#endif
#pragma unroll
    for (int s = 0; s < STATES; s++) {
#if DECAY_BY_SUM
      states[p][s] = decay(thread.a[p][s], sum);
#else
      states[p][s] = thread.product[p][s];
#endif
    }
  }
  save(warp.products + own, states);
  __syncthreads();  // all parts have left theirs

  for (int part = 0; part < thread.part; part++) join_part<false>(h, shared, thread, of_tile, part);
  for (int part = PARTS - 1; part > thread.part; part--) join_part<true>(after, shared, thread, of_tile, part);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.adjoint[p][s] = after[p][s];
  }
}
