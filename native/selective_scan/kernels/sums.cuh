// What a block of the backward pass leaves to reduce.cu: at the end of each tile dB and dC, summed over its warps; at its own end what is
// summed over time.

#if TILE_B || TILE_C
// A slice of the dB or dC of a tile's spans: number n of those of dB, then as many of dC.
struct Slice {
  bool of_c;
  int span, place;

  __device__ __forceinline__ Slice(int n, int slices) : of_c(!TILE_B || n >= slices) {
    const int own = TILE_B && of_c ? n - slices : n;
    span = own / SLICES;
    place = own % SLICES;
  }
};
#endif

// Sums dB and dC of the tile that the warps have ready over them, and leaves them to reduce.cu.
__device__ __forceinline__ void sum_warps([[maybe_unused]] const Shared& shared, [[maybe_unused]] const Arguments& args) {
#if TILE_B || TILE_C
  // Where a row is one tile nothing else is done at its end: all of a thread's are on their way at once.
  constexpr int OF_TILE = TILE / SPAN * SLICES;
  constexpr int AT_ONCE = ROW_IS_TILE ? ((TILE_B + TILE_C) * OF_TILE + THREADS - 1) / THREADS : 1;
#if WITHIN_TILES
  const int from = shared.course.ready_from;
#else
  constexpr int from = 0;
#endif
  const int rows = shared.course.ready_rows, slices = ROW_IS_TILE ? OF_TILE : (rows + SPAN - 1) / SPAN * SLICES;
  const int all = (TILE_B + TILE_C) * slices, frame = (int)blocks_of_channels(args) * SLOT_WIDTH;
#pragma unroll 1
  for (int first = thread_anew(); first < all; first += AT_ONCE * THREADS) {
    Real sums[AT_ONCE][LANE_WIDTH];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      const Slice slice(first + n * THREADS, slices);
      if (n > 0 && first + n * THREADS >= all) break;
      const int at = (slice.of_c ? SPAN * SLOT_WIDTH : 0) + slice.place * LANE_WIDTH, k = slice.span % SPANS;
      const Warp* warps = shared.warps + slice.span / SPANS * WARPS_EACH;
      load_reals(sums[n], &warps[0].spans[k][at]);
#pragma unroll
      for (int warp = 1; warp < WARPS_EACH; warp++) {
        Real more[LANE_WIDTH];
        load_reals(more, &warps[warp].spans[k][at]);
#pragma unroll
        for (int e = 0; e < LANE_WIDTH; e++) sums[n][e] += more[e];
      }
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      const Slice slice(first + n * THREADS, slices);
      if (n > 0 && first + n * THREADS >= all) break;
      const int r = slice.span * SPAN + slice.place / LANES;
      Real* parts = (slice.of_c ? args.dc_parts : args.db_parts) + shared.course.ready_at;
      if (r >= from && r < rows) store_reals(parts + (i64)r * frame + slice.place % LANES * LANE_WIDTH, sums[n]);
    }
  }
#endif
}

// Where a warp's sums of dA lie when its block ends.
__device__ __forceinline__ const Real* sums_of_da(const Warp& warp) {
#if DA_IN_REGISTERS
  return warp.spans[0];
#else
  return warp.da;
#endif
}

// What is summed over time, and later over rows and segments by reduce.cu. `accumulate`: a later piece has left its sums there. Of dA
// a thread may write, at the end of a segment's last piece, where it has read its own gradients in load_adjoints.
__device__ __forceinline__ void end_block(const Thread& thread, const Shared& shared, const Arguments& args, const Course& course,
                                          bool accumulate) {
  if (thread.part > 0) return;
  const i64 channel0 = course.part * args.dim + course.place.channel0 + thread.column;
  const int count = states_here(args);
  const auto add = [&](State* parts, int p, const State(&sums)[STATES]) {
    State* to = parts + (channel0 + p) * SLOTS;
    State all[STATES];
    load_states(all, accumulate ? to : nullptr, count, thread.lane, thread.order);
#pragma unroll
    for (int s = 0; s < STATES; s++) all[s] = accumulate ? all[s] + sums[s] : sums[s];
    store_states(all, to, count, thread.lane, thread.order);
  };
#if HAS_D || HAS_DT_BIAS
  const auto add_channel = [&](Real* parts, int p, Real (Warp::*sums)[32][PAIR]) {
    Real sum = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) sum += (shared.warps[thread.warp + part * WARPS_EACH].*sums)[thread.place][p];
    sum = sum_lanes(sum);
    Real* to = parts + channel0 + p;
    if (p < thread.here && thread.lane == 0) *to = accumulate ? *to + sum : sum;
  };
#endif
#pragma unroll(ROW_IS_TILE ? PAIR : 1)
  for (int p = 0; p < PAIR; p++) {
    const int own = (p * 32 + thread.place) * LANE_WIDTH;
    State da[STATES], more[STATES];
    load_lane(da, sums_of_da(shared.warps[thread.warp]) + own);
#pragma unroll
    for (int part = 1; part < PARTS; part++) {
      load_lane(more, sums_of_da(shared.warps[thread.warp + part * WARPS_EACH]) + own);
#pragma unroll
      for (int s = 0; s < STATES; s++) da[s] = da[s] + more[s];
    }
    if (p < thread.here) add(args.da_parts, p, da);
#if HAS_D
    if (args.first_sweep) add_channel(args.dd_parts, p, &Warp::dd);
#endif
#if HAS_DT_BIAS
    add_channel(args.ddt_bias_parts, p, &Warp::ddt_bias);
#endif
  }
#if B_CONSTANT || C_CONSTANT
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    if (p >= thread.here) break;
#if B_CONSTANT
    add(args.db_constant_parts, p, thread.db[p]);
#endif
#if C_CONSTANT
    add(args.dc_constant_parts, p, thread.dc[p]);
#endif
  }
#endif
}
