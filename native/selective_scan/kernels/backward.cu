// The backward pass of one direction of the scan.
//
// With λ_i = ∂L/∂h_i, w = 1 (2 where complex) and dy_i the gradient of y before the gate:
//   λ_i = w dy_i conj(C_i) + conj(a_{i+1}) λ_{i+1}
//   da = λ conj(h_{i−1}), dg = λ conj(B x)
//   dA = Σ da conj(∂a/∂A) + dg conj(∂g/∂A), dΔ = Re Σ da conj(∂a/∂Δ) + dg conj(∂g/∂Δ)
//   dB = λ conj(g) x, dC = w dy conj(h), dx = Re Σ λ conj(g B) + D dy, dD = Σ dy x
// The average over both directions is linear: each direction has its own backward pass with half the source.
//
// A warp has PAIR neighbouring channels of each of its CHANNELS_PER_WARP places, LANES lanes of STATES states each, and is
// on its own but for B, C and their gradients, which its block shares (pairs.cuh). It walks a tile forward, span by span
// of SPAN frames, and keeps the state before each span (states.cuh); then back, span by span: forward again from what was
// kept, so that decays and states of the span stay in registers, and back through them (gradients.cuh). Sums over the
// states of a frame end in the lane of that number, which owns the frame: it reads what came with it and writes its
// gradients. dB and dC are summed over the pair in registers, over the warp by exchanges, over the block at the end of the
// tile.
//
// A block walks a piece of one segment of the sequence, of one batch row after another, from the last tile to the first.
// States lie in `chunk_states` every `chunk` frames; where a chunk has several tiles, each warp first walks its states
// alone and keeps each tile's first. A tile may have PARTS, each with warps of its own for all of the block's channels:
// they walk from zero first to find what they begin with (parts.cuh). Every sum is taken in a fixed order: the same
// call gives the same bits. Sums over the blocks, rows and segments are left to reduce.cu.
//
// JOINS: adjoint chunks are few, and a block finds by itself what those after its segment come to.
//
// WITHIN_TILES: segments begin and end within tiles, which are chunks. Of a tile, the block walks all states, and back the frames
// of its segment.
//
// FINDS_MARKS: rows are packed and one chunk each; the block finds by itself which frames begin a sequence or are skipped.
//
// STREAMS: sequences are more than the cache has room for, which keeps what waits for reduce.cu instead: it gives up first what
// has been read or written of them.
//
// SUMMARY: scan_summary, which finds what each adjoint chunk adds to the gradient of the state before it if that after it
// is zero; of these prefix.cu makes the gradients after each segment, or blocks that join them. This walk is short on
// instructions and bound by its own chain of operations where warps are few: a segment has several such chunks.

// From one order of a lane's states to the next (see order_of).
#define ORDER_STEP (STATES / ORDERS)
// Where a chunk has many tiles, the state before its first is had from memory again: the shared memory that it leaves is that
// of one block more.
#define TILES_NOT_KEPT (TILES > 3 ? 1 : 0)
// Whether it is known here that a row is one tile: it is longer than the usual, or in parts.
#define ROW_IS_TILE (TILE > 32 || PARTS > 1)
// Whether rates are settled when the row's one tile has come, whose way from memory hides theirs. Packed rows take 1% longer so
// (H200).
#define RATES_LATER (ROW_IS_TILE && !SUMMARY && !SEQ_IDX)

#define USE_B !SUMMARY
#define USE_C 1
// Not even if there are no others: a span back of chunks of several tiles takes 854 clocks then, not 840 (H200).
#define ONE_PASS 0

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "block.cuh"
#include "lanes.cuh"
#include "pairs.cuh"
#include "frames.cuh"
#if SUMMARY
#include "adjoints.cuh"
#else
#include "states.cuh"
#include "gradients.cuh"
#endif

#if !SUMMARY
#if TILE_B || TILE_C
// A unit of the dB or dC of a tile's spans: number u of those of dB, then as many of dC.
struct Unit {
  bool of_c;
  int span, place;

  __device__ __forceinline__ Unit(int u, int units) : of_c(!TILE_B || u >= units) {
    const int own = TILE_B && of_c ? u - units : u;
    span = own / UNITS;
    place = own % UNITS;
  }
};
#endif

// Sums dB and dC of the tile that the warps have ready over them, and leaves them to reduce.cu.
__device__ __forceinline__ void sum_warps([[maybe_unused]] const Shared& shared, [[maybe_unused]] const Arguments& args) {
#if TILE_B || TILE_C
  // Where a row is one tile nothing else is done at its end: all of a thread's are on their way at once.
  constexpr int OF_TILE = TILE / SPAN * UNITS;
  constexpr int AT_ONCE = ROW_IS_TILE ? ((TILE_B + TILE_C) * OF_TILE + THREADS - 1) / THREADS : 1;
#if WITHIN_TILES
  const int from = shared.course.ready_from;
#else
  constexpr int from = 0;
#endif
  const int rows = shared.course.ready_rows, units = ROW_IS_TILE ? OF_TILE : (rows + SPAN - 1) / SPAN * UNITS;
  const int all = (TILE_B + TILE_C) * units, frame = (int)blocks_of_channels(args) * SLOT_WIDTH;
#pragma unroll 1
  for (int first = thread_anew(); first < all; first += AT_ONCE * THREADS) {
    Real sums[AT_ONCE][LANE_WIDTH];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      const Unit unit(first + n * THREADS, units);
      if (n > 0 && first + n * THREADS >= all) break;
      const int at = (unit.of_c ? SPAN * SLOT_WIDTH : 0) + unit.place * LANE_WIDTH, k = unit.span % SPANS;
      const Warp* warps = shared.warps + unit.span / SPANS * WARPS_EACH;
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
      const Unit unit(first + n * THREADS, units);
      if (n > 0 && first + n * THREADS >= all) break;
      const int r = unit.span * SPAN + unit.place / LANES;
      Real* parts = (unit.of_c ? args.dc_parts : args.db_parts) + shared.course.ready_at;
      if (r >= from && r < rows) store_reals(parts + (i64)r * frame + unit.place % LANES * LANE_WIDTH, sums[n]);
    }
  }
#endif
}
#endif

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

#if SUMMARY
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_summary(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Warp& warp = shared.warps[threadIdx.x / 32];

  let_next_begin();
  if (threadIdx.x == 0) shared.course.place = find_place(args);
  __syncthreads();
  const Place& place = shared.course.place;
  if (place.row >= args.batch) return;
  const i64 begin = chunk_begin(args, place);
  const int frames = (int)(chunk_end(args, place) - begin);
  if (begin < args.segment) return;  // no segment comes before it

  Thread thread;
  begin_block(thread, shared, args, place);
  begin_adjoints(thread);
  wait_for_kernels_before();
  for (int i = (frames - 1) / PART_FRAMES * PART_FRAMES; i >= 0; i -= PART_FRAMES) {
    const int rows = frames - i < PART_FRAMES ? frames - i : PART_FRAMES;
    const Sequence sequence(args, place, thread, begin + i, rows);
    const IncomingAdjoints incoming(args, sequence, thread);
    const Marks marks = marks_of(args, place, begin + i, rows);
    enter_tile<true>(shared, args, place, marks, begin + i, rows, [] {});
    const auto wanted = [&](int r) { return r >= -i; };
    sequence.prefetch<true>(args, thread, -PART_FRAMES, wanted);
    sequence.prefetch<false>(args, thread, -PART_FRAMES, wanted);
    walk_adjoints(warp, args, sequence, thread, incoming, marks);
  }
  find_thread_anew(thread, shared, place);
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const i64 in_chunk = in_part(args, place.row, args.chunks, place.chunk, place.channel0 + thread.column + p);
#if DECAY_BY_SUM
    const Real sum = sum_lanes(thread.delta_sum[p]);
    if (p < thread.here && thread.lane == 0) args.delta_sums[in_chunk] = sum;
#endif
    if (p >= thread.here) continue;
    store_states(thread.adjoint[p], args.adjoint_ends + in_chunk * SLOTS, SLOTS, thread.lane);
#if !DECAY_BY_SUM
    store_states(thread.product[p], args.decays + in_chunk * SLOTS, SLOTS, thread.lane);
#endif
  }
}
#else

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
  } else if (args.write_final && args.dfinal_state) {
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
    if (!(args.write_final && args.dinitial_state)) return;
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

// The last tile that is walked, and the last of a chunk.
__device__ __forceinline__ u32 last_tile(const Course& course) { return ROW_IS_TILE ? 0 : (u32)((u64)(course.end - 1) / TILE); }
__device__ __forceinline__ int last_of_chunk(const Course& course, u32 chunk) {
  const u32 last = last_tile(course);
  return chunk == last / TILES ? (int)(last % TILES) : TILES - 1;
}

// The state before a chunk.
__device__ __forceinline__ void load_start(PairStates& h, const Thread& thread, const Arguments& args, const Place& place,
                                           u32 chunk) {
  const i64 channel = place.channel0 + thread.column;
  const State* from = nullptr;
  i64 step = args.state;
  if (chunk > 0) {
    const i64 in_chunk = in_part(args, place.row, args.chunks, chunk, channel);
    from = args.chunk_states + in_chunk * args.chunk_states_width + args.chunk_states_first;
    step = args.chunk_states_width;
  } else if (args.write_final && args.initial_state) {
    from = args.initial_state + state_at(args, place.row, channel);
  }
  load_pair(h, thread, args, from, step);
}

#if PARTS > 1
#include "parts.cuh"
#endif

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
    if (args.first_pass) add_channel(args.dd_parts, p, &Warp::dd);
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

// What the block walks; false where there is nothing. Of rows that are cut, the first segments of all come first, and the last, which
// may be short, last: they go where those before them have left room. Else the grid's rows are those that blocks begin with.
__device__ __forceinline__ bool find_course(Course& course, const Arguments& args) {
  Place& place = course.place;
#if CUT
  u32 index = (u32)block_index();
  course.contribution = take(index, blocks_of_channels(args));
  place.row = take(index, (u32)args.batch);
  course.segment = index;
  if (course.segment >= args.segments) return false;
  course.part = place.row * args.segments + course.segment;
#else
  course.contribution = blockIdx.x;
  course.segment = 0;
  course.part = row_of_block();
  place.row = row_of_block() * args.rows_per_block;
  if (place.row >= args.batch) return false;
#endif
  course.row_end = place.row + args.rows_per_block < args.batch ? place.row + args.rows_per_block : args.batch;
#if ROW_IS_TILE
  course.first = 0;
  course.segment_end = course.end = args.seq;
#else
  const i64 begin = course.segment * args.segment;
  const Piece piece(args, course.segment);
  course.segment_end = begin + args.segment < args.seq ? begin + args.segment : args.seq;
  course.first = begin + piece.first;
  course.end = course.first + piece.frames;
#endif
  set_channels(place, args, course.contribution);
  course.tile = last_tile(course);
  course.ready_rows = 0;
  return course.first < course.end;  // of the last segment there may be nothing
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_backward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Course& course = shared.course;
  let_next_begin();
  if (threadIdx.x == 0) shared.walks = find_course(course, args);
  __syncthreads();
  if (!shared.walks) return;

  Thread thread;
  begin_block(thread, shared, args, course.place);
  wait_for_kernels_before();
  for (;;) {
    if (!ROW_IS_TILE) load_adjoints(thread, args, course);
    do {
      find_thread_anew(thread, shared, course.place);
      Warp& warp = shared.warps[thread.warp];
      const u32 number = ROW_IS_TILE ? 0 : course.tile, chunk = number / TILES;
      const int tile = number % TILES, last = last_of_chunk(course, chunk);
      const i64 i0 = (i64)number * TILE;
      PairStates h;
      if (!ROW_IS_TILE && (tile == last || tile < TILES_NOT_KEPT)) load_start(h, thread, args, course.place, chunk);
#if TILES > 1
      if (tile == last) {
        i64 i = i0 - last * TILE;
        Sequence sequence(args, course.place, thread, i, TILE);
#pragma unroll 1
        for (int before = 0; before < last; before++) {
          const First first_span(args, sequence, thread);
          const Marks marks = marks_of(args, course.place, i, TILE);
          enter_tile<false>(shared, args, course.place, marks, i, TILE, [] {});
          sequence.prefetch<true>(args, thread, TILE, [&](int r) { return r < course.end - i; });
          if (before >= TILES_NOT_KEPT) save(states_before(thread, before), h);
          walk_states<false>(warp, args, sequence, thread, h, first_span, marks);
          sequence.advance();
          i += TILE;
        }
      }
#endif
      const int in_tile = course.end - i0 < TILE ? (int)(course.end - i0) : TILE, left = in_tile - thread.part * PART_FRAMES;
      const int rows = left < 0 ? 0 : left < PART_FRAMES ? left : PART_FRAMES;
      const int before_segment = WITHIN_TILES && course.first > i0 ? (int)(course.first - i0) : 0;
      const Sequence sequence(args, course.place, thread, i0 + thread.part * PART_FRAMES, rows);
      const First first_span(args, sequence, thread);
#if PARTS > 1
      const AdjointSources sources(args, sequence, thread);
#endif
      if (ROW_IS_TILE) {
        // After what is waited for first.
        load_adjoints(thread, args, course);
        load_start(h, thread, args, course.place, chunk);
      }
      const Marks of_tile = marks_of(args, course.place, i0, in_tile), marks = of_tile.of_part(thread.part);
      enter_tile<true>(shared, args, course.place, of_tile, i0, in_tile, [&] {
        if (ROW_IS_TILE) return;  // the block walks no other
        sum_warps(shared, args);
        if (thread_anew() == 0) course.tile = number - 1;  // all have read it
      });
      if (RATES_LATER) settle_rates(thread, args);
      // Sums are asked for again when the next tile is entered. Now, so that nothing of this has to be kept for it.
      if (thread_anew() == 0) {
        const i64 contributions = blocks_of_channels(args);
        course.ready_at = course.place.row * args.parts_row + Piece(args, course.segment).parts +
                          ((i0 - course.first) * contributions + course.contribution) * SLOT_WIDTH;
        course.ready_rows = in_tile;
#if WITHIN_TILES
        course.ready_from = before_segment;
#endif
      }
#if PARTS > 1
      find_ends(shared, args, sequence, thread, h, first_span, sources, of_tile);
#endif
#if !ROW_IS_TILE
      // The chunk before this is walked from its first tile on.
      const i64 least = course.first - i0;
      const auto wanted = [&](int r) { return r >= least; };
      // Of states, all of a tile.
      const auto states_wanted = [&](int r) { return WITHIN_TILES ? least < 0 : wanted(r); };
      sequence.prefetch<true>(args, thread, (last - tile * 2) * TILE - (int)args.chunk, states_wanted);
      sequence.prefetch<false>(args, thread, -TILE, wanted);
#endif
#if TILES > 1
      if (tile >= TILES_NOT_KEPT && tile < last) restore(h, states_before(thread, tile));
#endif
      const FirstBack first_back(args, sequence, thread);
      const auto walk = [&](const Marks& marks) {
#if PARTS > 1
        keep_states(thread, h, marks);
#else
        walk_states<true>(warp, args, sequence, thread, h, first_span, marks);
#endif
        walk_back(warp, args, sequence, thread, first_back, marks, before_segment / SPAN);
      };
#if SEQ_IDX
      // Selections at every frame cost a third of all else: most tiles do without. So do frames that there are not, whose marks say
      // that they are skipped.
      const u64 present = rows < 64 ? ((u64)1 << rows) - 1 : ~(u64)0;
      if (((marks.resets | marks.skips) & present) == 0) {
        walk(Marks{0, 0});
      } else
#endif
      {
        walk(marks);
      }
      // The piece may begin within a chunk. Where a row is one tile this is no loop, but ends by a number that the compiler does not
      // know: where it knows, it orders the walk back worse.
    } while ((ROW_IS_TILE ? 0 : (i64)(course.tile + 1) * TILE) > course.first);
    find_thread_anew(thread, shared, course.place);
    store_adjoints(thread, args, course);
    __syncthreads();  // the sums of the last tile are ready, and nobody needs the row
    // The policy gives blocks whose row is one tile no other. Not said of all: without this loop packed ones take longer (H200: 4%).
    if (PARTS > 1 || course.place.row + 1 >= course.row_end) break;
    __syncthreads();
    if (thread_anew() == 0) {
      course.place.row++;
      course.tile = last_tile(course);
    }
    __syncthreads();
  }
  sum_warps(shared, args);
  find_thread_anew(thread, shared, course.place);
#if DA_IN_REGISTERS
  __syncthreads();  // the first spans have been summed
  save(sums_of_da(thread), thread.da);
  if (PARTS > 1) __syncthreads();
#endif
  end_block(thread, shared, args, course, args.sums_go_on && course.end < course.segment_end);
}
#endif
