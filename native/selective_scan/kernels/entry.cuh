// What a block of the backward pass begins with, and each of its tiles: what a thread is, its parameters, and B and C in shared memory.

// Finds what a thread is.
__device__ __forceinline__ void find_thread(Thread& thread, Shared& shared, const Place& place) {
  const int index = thread_anew();
  thread.warp = index / 32;
  thread.part = PARTS > 1 ? thread.warp / WARPS_EACH : 0;
  thread.place = index % 32;
  thread.lane = lane_of(thread.place);
  thread.pair = channel_of(thread.place);
  thread.order = order_of(thread.pair);
  thread.column = (thread.warp - thread.part * WARPS_EACH) * CHANNELS_EACH + thread.pair * PAIR;
  const int left = place.channels - thread.column;
  thread.here = left < 0 ? 0 : left < PAIR ? left : PAIR;
  Warp& warp = shared.warps[thread.warp];
  thread.frames = fixed(warp.delta[0][0][thread.pair]);
#if !SUMMARY
  thread.states = fixed(&warp.spans[0][thread.place * LANE_WIDTH]);
#endif
#if TILE_B
  thread.rows = fixed(&shared.b.frames[thread.part * PART_FRAMES][place_in_row(thread.lane, thread.order)]);
#elif TILE_C
  thread.rows = fixed(&shared.c.frames[0][place_in_row(thread.lane, thread.order)]);
#endif
}

// The same for every row and tile and at the end, so that registers are free between; a block of parts, alone on its
// multiprocessor, has enough.
__device__ __forceinline__ void find_thread_anew([[maybe_unused]] Thread& thread, [[maybe_unused]] Shared& shared,
                                                 [[maybe_unused]] const Place& place) {
#if PARTS == 1
  find_thread(thread, shared, place);
#endif
}

// The rates as they are walked with. Apart from their loads, so that a tile can be asked for between.
__device__ __forceinline__ void settle_rates(Thread& thread, const Arguments& args) {
  const int count = states_here(args);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      thread.a[p][s] = finite_rate(rate_of_slot(thread.a[p][s], slot_of(thread.lane, s ^ thread.order), count));
    }
  }
}

__device__ __forceinline__ void begin_block(Thread& thread, Shared& shared, const Arguments& args, const Place& place) {
  find_thread(thread, shared, place);
  [[maybe_unused]] Warp& warp = shared.warps[thread.warp];
  const int count = states_here(args);
#if !SUMMARY
#if DA_IN_REGISTERS
  clear(thread.da);
#else
  PairStates none;
  clear(none);
  save(sums_of_da(thread), none);
#endif
#if B_CONSTANT
  clear(thread.db);
#endif
#if C_CONSTANT
  clear(thread.dc);
#endif
#endif
  // All on their way at once: behind a store, loads would wait for what it stores.
  [[maybe_unused]] Real dt_bias[PAIR], d[PAIR];
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const bool here = p < thread.here;
    const i64 channel = place.channel0 + thread.column + p, row = channel * args.state + args.first_state;
    load_states(thread.a[p], here ? args.a + row : nullptr, count, thread.lane, thread.order);
#if C_CONSTANT
    load_constant(thread.c[p], args.c + row * COMPONENTS, here ? count : 0, thread.lane, thread.order);
#endif
#if HAS_DT_BIAS
    dt_bias[p] = here ? args.dt_bias[channel] : (Real)0;
#endif
#if !SUMMARY && HAS_D
    d[p] = here ? args.d[channel] : (Real)0;
#endif
#if !SUMMARY
#if B_CONSTANT
    load_constant(thread.b[p], args.b + row * COMPONENTS, here ? count : 0, thread.lane, thread.order);
#endif
#endif
  }
#if HAS_DT_BIAS
  if (thread.lane == 0) store_reals(warp.dt_bias[thread.pair], dt_bias);
#endif
#if !SUMMARY
  [[maybe_unused]] const Real nothing[PAIR] = {0, 0};
#if HAS_DT_BIAS
  store_reals(warp.ddt_bias[thread.place], nothing);
#endif
#if HAS_D
  if (thread.lane == 0) store_reals(warp.d[thread.pair], d);
  store_reals(warp.dd[thread.place], nothing);
#endif
#endif
#if HAS_D || HAS_DT_BIAS
  __syncwarp();
#endif
  if (!RATES_LATER) settle_rates(thread, args);
}

// Brings B and C of a tile to the block; WHOLE: C too, which a walk of the states alone does without.
template <bool WHOLE, typename F>
__device__ __forceinline__ void enter_tile([[maybe_unused]] Shared& shared, [[maybe_unused]] const Arguments& args,
                                           [[maybe_unused]] const Place& place, [[maybe_unused]] const Marks& marks,
                                           [[maybe_unused]] i64 i0, [[maybe_unused]] int rows, F between) {
#if TILE_B
  Incoming<VECTOR_B> b;
  b.load(args.b, args, place, args.groups_b, place.group_b, i0, rows);
#endif
#if TILE_C
  Incoming<VECTOR_C> c;
  if constexpr (WHOLE) c.load(args.c, args, place, args.groups_c, place.group_c, i0, rows);
#endif
  __syncthreads();  // the tile before this has been walked by all
#if TILE_B
  b.store(shared.b, marks);
#endif
#if TILE_C
  if constexpr (WHOLE) c.store(shared.c, marks);
#endif
  between();
  __syncthreads();
}
