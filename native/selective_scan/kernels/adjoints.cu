// What each adjoint chunk adds to the gradient of the state before it if that after it is zero, where frames come through registers (else
// chunks.cu): of these prefix.cu makes the gradients after each segment, or blocks of backward.cu that join them.
//
// What it shares with backward.cu has less to do here: SUMMARY.
//
// The layout is that of backward.cu. A block walks the adjoints alone of one chunk, of one batch row, from the last tile to the first. This
// walk is short on instructions and bound by its own chain of operations where warps are few: a segment has several such chunks.

#define USE_B 0
#define USE_C 1
#define ONE_SWEEP 0

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "marks.cuh"
#include "block.cuh"
#include "lanes.cuh"
#include "pairs.cuh"
#include "frames.cuh"
#include "entry.cuh"

static_assert(SUMMARY && B_CONSTANT, "adjoints alone do not need b");
static_assert(!ROW_IS_TILE && TILES == 1, "a chunk is walked tile by tile");

// What the walk of the adjoints reads, from the last span of a tile on: it is on its way before the walk begins.
struct IncomingAdjoints {
  Pair dt[AHEAD];
  IncomingSource sources[AHEAD];

  __device__ __forceinline__ IncomingAdjoints(const Arguments& args, const Sequence& sequence, const Thread& thread) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int span = (sequence.rows - 1) / SPAN - k, r = span * SPAN + thread.lane;
      if (span >= 0) load(args, thread, k, sequence.at(r), sequence.owns(thread, r));
    }
  }

  __device__ __forceinline__ void load(const Arguments& args, const Thread& thread, int k, i64 at, bool owned) {
    dt[k] = Sequence::load<STREAMS>(args.dt, thread, at, owned);
    sources[k].load(args, thread, at, owned);
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
        own_dy(values, by_z, incoming.sources[ahead], marks.skip(r));
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
