// From what each chunk does to the state at each boundary: a scan over the chunks, in place.
//
// `boundary_states` holds the end state of each chunk from zero; after this, the state before each chunk.
// ADJOINTS: `boundary_adjoints` instead, from the last chunk to the first. It holds what each chunk adds to the gradient
// before it; after this, the gradient after each chunk. There, the chunks are the segments of backward.cu.
// One thread a state; AHEAD chunks are read before they are used, so that their latencies overlap.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

#define PREFIX_THREADS 128
#define AHEAD 8

struct Line {
  i64 row, channel;
  int slot;
};

// P of a chunk; `reset` where the chunk forgets what enters it.
__device__ __forceinline__ State chunk_decay(const Arguments& args, const Line& line, State a, i64 chunk, bool& reset) {
  const i64 boundary = (line.row * args.chunks + chunk) * args.dim + line.channel;
#if SEQ_IDX
  reset = args.chunk_resets[line.row * args.chunks + chunk];
#else
  reset = false;
#endif
#if DECAY_BY_SUM
  return exp_product(a, args.delta_sums[boundary]);
#else
  return args.decays[boundary * SLOTS + line.slot];
#endif
}

// Walks `count` chunks from `chunk` on: each place takes what was carried to it, and gives on decay · carried + what it
// held.
__device__ __forceinline__ State walk(const Arguments& args, const Line& line, State a, State carried, i64 chunk, int count) {
  constexpr int STEP = ADJOINTS ? -1 : 1;
  State held[AHEAD], decays[AHEAD];
  bool resets[AHEAD];
  auto place = [&](i64 k) -> State& {
    const i64 boundary = (line.row * args.chunks + chunk + k * STEP) * args.dim + line.channel;
    return ADJOINTS ? args.boundary_adjoints[boundary * SLOTS + line.slot]
                    : args.boundary_states[boundary * args.boundary_width + args.boundary_first + line.slot];
  };
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    if (k < count) {
      held[k] = place(k);
      decays[k] = chunk_decay(args, line, a, chunk + k * STEP, resets[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    if (k < count) {
      place(k) = carried;
      const State decay = ADJOINTS ? conjugate(decays[k]) : decays[k];
      carried = resets[k] ? held[k] : decay * carried + held[k];
    }
  }
  return carried;
}

extern "C" __global__ void __launch_bounds__(PREFIX_THREADS) scan_prefix(const Arguments args) {
  const i64 index = block_index() * PREFIX_THREADS + threadIdx.x;
  Line line;
  line.slot = (int)(index % SLOTS);
  line.channel = index / SLOTS % args.dim;
  line.row = index / SLOTS / args.dim;
  const i64 n = args.first_state + line.slot;
  if (line.row >= args.batch || n >= args.state) return;
  const State a = args.a[line.channel * args.state + n];
  const State* given = ADJOINTS ? args.dfinal_state : args.initial_state;
  State carried = args.write_final && given ? given[(line.row * args.dim + line.channel) * args.state + n] : to_state(0);
  for (i64 walked = 0; walked < args.chunks; walked += AHEAD) {
    const i64 left = args.chunks - walked;
    carried = walk(args, line, a, carried, ADJOINTS ? left - 1 : walked, left < AHEAD ? (int)left : AHEAD);
  }
}
