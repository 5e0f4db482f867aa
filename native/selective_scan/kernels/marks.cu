// Marks of packed rows, in scan order: where a state is reset and which frames are skipped.
//
// A frame with a negative index is skipped. Any other resets the state if its index differs from that of the last
// frame that was not skipped; the first of a row keeps the initial state. One thread a frame; the last frame
// before the block's own that was not skipped is looked for by the whole block, backwards, so that long stretches
// of padding are read in wide strides.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

__device__ __forceinline__ int index_at(const Arguments& args, i64 row, i64 i) {
  return args.seq_idx[row * args.seq + frame(args, i)];
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_marks(const Arguments args) {
  let_next_begin();
  wait_for_kernels_before();
  __shared__ int found;       // the last position in the block's stretch that is not skipped, −1 for none
  __shared__ int inside[THREADS];  // the same before each frame of the block
  const i64 row = row_of_block(), first = (i64)blockIdx.x * THREADS, i = first + threadIdx.x;
  if (row >= args.batch) return;
  const int t = threadIdx.x;
  const bool here = i < args.seq;
  const int index = here ? index_at(args, row, i) : -1;

  // inside[t]: the greatest position up to t with a non-negative index.
  inside[t] = index >= 0 ? t : -1;
  __syncthreads();
  for (int step = 1; step < THREADS; step *= 2) {
    const int before = t >= step ? inside[t - step] : -1;
    __syncthreads();
    if (before > inside[t]) inside[t] = before;
    __syncthreads();
  }

  // The last frame before the block with a non-negative index.
  i64 last = -1;
  if (inside[THREADS - 1] >= 0) {
    for (i64 from = first - THREADS; from >= 0; from -= THREADS) {
      if (t == 0) found = -1;
      __syncthreads();
      if (index_at(args, row, from + t) >= 0) atomicMax(&found, t);
      __syncthreads();
      const int position = found;
      __syncthreads();
      if (position >= 0) {
        last = from + position;
        break;
      }
    }
  }

  if (!here) return;
  const int neighbour = t > 0 ? inside[t - 1] : -1;
  const i64 previous = neighbour >= 0 ? first + neighbour : last;
  const bool follows = index >= 0 && previous >= 0;
  const u8 mark = mark_of(index, follows ? index_at(args, row, previous) : -1);
  // Many threads, of several blocks, may store these: all store the same, for kernels that begin after this.
  if (mark & MARK_RESET) {
    if (args.chunk_resets) args.chunk_resets[row * args.chunks + i / args.chunk] = 1;
    if (args.adjoint_resets) args.adjoint_resets[row * args.adjoint_chunks + i / args.adjoint_chunk] = 1;
  }
  args.marks[row * args.seq + i] = mark;
}
