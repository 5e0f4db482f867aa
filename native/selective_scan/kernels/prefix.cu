// From what each chunk does to the state at each boundary: a scan over the chunks, in place.
//
// `chunk_states` holds the end state of each chunk from zero; after this, the state before each chunk.
// ADJOINTS: gradients instead, from the last chunk to the first. `adjoint_ends` holds what each adds to the gradient before
// it, and `segment_adjoints` gets the gradient after each segment, which is made of whole chunks.
// One thread a state; AHEAD chunks are read before they are used, so that their latencies overlap.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

#define AHEAD 8

struct Line {
  i64 row, channel;
  int slot;
};

// Where the walk over the adjoints is: the segment, and how many of its chunks are yet to be walked.
struct Position {
  i64 segment;
  u32 left;
};

// Where a chunk has what it keeps of each channel.
__device__ __forceinline__ i64 index_in_chunk(const Arguments& args, const Line& line, i64 chunk) {
  return in_part(args, line.row, args.chunks, chunk, line.channel);
}

// P of a chunk; `reset` where the chunk forgets what enters it.
__device__ __forceinline__ State chunk_decay(const Arguments& args, const Line& line, State a, i64 chunk, bool& reset) {
  const i64 index = index_in_chunk(args, line, chunk);
#if SEQ_IDX
  reset = args.chunk_resets[line.row * args.chunks + chunk];
#else
  reset = false;
#endif
#if DECAY_BY_SUM
  return exp_product(a, args.delta_sums[index]);
#else
  return args.decays[index * SLOTS + line.slot];
#endif
}

// Walks `count` chunks from `chunk` on: each takes what was carried to it, and gives on decay · carried + what it held.
// `together`: chunks of a segment.
__device__ __forceinline__ State walk(const Arguments& args, const Line& line, State a, State carried, i64 chunk, int count,
                                      [[maybe_unused]] u32 together, [[maybe_unused]] Position& position) {
  constexpr int STEP = ADJOINTS ? -1 : 1;
  State held[AHEAD], decays[AHEAD];
  bool resets[AHEAD];
#if ADJOINTS
  const State* ends = args.adjoint_ends + line.slot;
  const int width = SLOTS;
#else
  State* ends = args.chunk_states + args.chunk_states_first + line.slot;
  const i64 width = args.chunk_states_width;
#endif
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    if (k < count) {
      held[k] = ends[index_in_chunk(args, line, chunk + k * STEP) * width];
      decays[k] = chunk_decay(args, line, a, chunk + k * STEP, resets[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    if (k < count) {
#if ADJOINTS
      const bool turn = position.left == 0;
      position.segment -= turn ? 1 : 0;
      position.left = (turn ? together : position.left) - 1;
      if (turn || chunk - k + 1 == args.chunks) {
        const i64 after = in_part(args, line.row, args.segments, position.segment, line.channel);
        args.segment_adjoints[after * SLOTS + line.slot] = carried;
      }
#else
      ends[index_in_chunk(args, line, chunk + k * STEP) * width] = carried;
#endif
      const State decay = ADJOINTS ? conjugate(decays[k]) : decays[k];
      carried = over_chunk(carried, decay, held[k], resets[k]);
    }
  }
  return carried;
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_prefix(const Arguments args) {
  let_next_begin();
  const i64 index = (i64)blockIdx.x * THREADS + threadIdx.x;
  const Line line{row_of_block(), index / SLOTS, (int)(index % SLOTS)};
  const i64 n = args.first_state + line.slot;
  if (line.row >= args.batch || line.channel >= args.dim || n >= args.state) return;
  const State a = finite_rate(args.a[line.channel * args.state + n]);
  wait_for_kernels_before();
  const State* given = ADJOINTS ? args.dfinal_state : args.initial_state;
  State carried = args.first_direction && given ? given[(line.row * args.dim + line.channel) * args.state + n] : to_state(0);
  // Before the chunks of the first segment there is none.
  const u32 together = ADJOINTS ? (u32)args.segment / (u32)args.chunk : 1;
  const i64 count = args.chunks + 1 - together;
  const u32 last = ((u32)args.chunks - 1) / together;
  Position position{last, (u32)args.chunks - last * together};
  for (i64 walked = 0; walked < count; walked += AHEAD) {
    const i64 chunk = ADJOINTS ? args.chunks - 1 - walked : walked, left = count - walked;
    carried = walk(args, line, a, carried, chunk, left < AHEAD ? (int)left : AHEAD, together, position);
  }
}
