// From what each chunk does to the state at each boundary: a scan over the chunks, in place.
//
// `boundary_states` holds the end state of each chunk from zero; after this, the state before each chunk.
// ADJOINTS: gradients instead, from the last chunk to the first. `adjoint_ends` holds what each adds to the gradient before
// it, and `boundary_adjoints` gets the gradient after each segment, which is made of whole chunks.
// One thread a state; AHEAD chunks are read before they are used, so that their latencies overlap.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

#define PREFIX_THREADS 128
#define AHEAD 16

// What the chunk that is walked next has of this thread's state, and how far from it lies what the one after that has: to
// find places anew for each chunk would take longer than the loads, because there are few threads.
struct Line {
  State* ends;
  i64 ends_step;
#if DECAY_BY_SUM
  const Real* decays;  // ΣΔ of each chunk
#else
  const State* decays;
#endif
  i64 decays_step;
#if SEQ_IDX
  const u8* resets;
#endif
#if ADJOINTS
  State* after;      // the gradient after the segment that is walked
  i64 after_step;
  u32 left;          // its chunks that are yet to be walked
  u32 of_segment;    // chunks of the next segment
#endif
};

// Walks `count` chunks: each takes what was carried to it, and gives on decay · carried + what it held. `together`: chunks of
// a segment.
__device__ __forceinline__ State walk(Line& line, State a, State carried, int count, [[maybe_unused]] u32 together) {
  State held[AHEAD], decays[AHEAD];
  [[maybe_unused]] bool resets[AHEAD];  // the chunk forgets what comes to it
#if !ADJOINTS
  State* boundary = line.ends;
#endif
  // After the last, it is read again: loads on a condition are not all on their way before the first is waited for.
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    held[k] = *line.ends;
    decays[k] = *line.decays;
#if SEQ_IDX
    resets[k] = *line.resets;
#endif
    if (k + 1 < count) {
      line.ends += line.ends_step;
      line.decays += line.decays_step;
#if SEQ_IDX
      line.resets += ADJOINTS ? -1 : 1;
#endif
    }
  }
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
#if DECAY_BY_SUM
    decays[k] = exp_product(a, decays[k]);
#elif ADJOINTS
    decays[k] = conjugate(decays[k]);
#endif
  }
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    if (k >= count) continue;
#if ADJOINTS
    if (line.left == 0) {
      line.after -= line.after_step;
      line.left = line.of_segment;
      line.of_segment = together;
      *line.after = carried;
    }
    line.left--;
#else
    *boundary = carried;
    boundary += line.ends_step;
#endif
#if SEQ_IDX
    carried = resets[k] ? held[k] : decays[k] * carried + held[k];
#else
    carried = decays[k] * carried + held[k];
#endif
  }
  return carried;
}

extern "C" __global__ void __launch_bounds__(PREFIX_THREADS) scan_prefix(const Arguments args) {
  let_next_begin();
  const i64 index = block_index() * PREFIX_THREADS + threadIdx.x;
  const int slot = (int)(index % SLOTS);
  const i64 channel = index / SLOTS % args.dim, row = index / SLOTS / args.dim, n = args.first_state + slot;
  if (row >= args.batch || n >= args.state) return;
  const State a = args.a[channel * args.state + n];
  // Before the chunks of the first segment there is none.
  const u32 together = ADJOINTS ? (u32)args.segment / (u32)args.chunk : 1;
  const i64 count = args.chunks + 1 - together, first = row * args.chunks + (ADJOINTS ? args.chunks - 1 : 0);
  const i64 at = first * args.dim + channel, step = ADJOINTS ? -args.dim : args.dim;

  Line line;
#if ADJOINTS
  const State* given = args.dfinal_state;
  line.ends = args.adjoint_ends + at * SLOTS + slot;
  line.ends_step = step * SLOTS;
  const u32 last = ((u32)args.chunks - 1) / together;
  line.after_step = args.dim * SLOTS;
  line.after = args.boundary_adjoints + ((row * args.segments + last + 1) * args.dim + channel) * SLOTS + slot;
  line.left = 0;
  line.of_segment = (u32)args.chunks - last * together;
#else
  const State* given = args.initial_state;
  line.ends = args.boundary_states + at * args.boundary_width + args.boundary_first + slot;
  line.ends_step = step * args.boundary_width;
#endif
#if DECAY_BY_SUM
  line.decays = args.delta_sums + at;
  line.decays_step = step;
#else
  line.decays = args.decays + at * SLOTS + slot;
  line.decays_step = step * SLOTS;
#endif
#if SEQ_IDX
  line.resets = args.chunk_resets + first;
#endif

  wait_for_kernels_before();
  State carried = args.write_final && given ? given[(row * args.dim + channel) * args.state + n] : to_state(0);
  for (i64 walked = 0; walked < count; walked += AHEAD) {
    const i64 left = count - walked;
    carried = walk(line, a, carried, left < AHEAD ? (int)left : AHEAD, together);
    line.ends += line.ends_step;
    line.decays += line.decays_step;
#if SEQ_IDX
    line.resets += ADJOINTS ? -1 : 1;
#endif
  }
}
