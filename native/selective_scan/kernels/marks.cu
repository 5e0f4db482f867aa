// The marks of packed rows (marks.cuh) for kernels that do not find them by themselves, and which chunks reset the state.
//
// One thread a frame. A warp that has frames which count looks by itself for the last one before them. Each stretch of padding is gone over
// by one warp alone, the first behind it: so is that of a row all of whose frames are padding but the first and the last.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "marks.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) scan_marks(const Arguments args) {
  let_next_begin();
  wait_for_kernels_before();
  const i64 row = row_of_block(), i = (i64)blockIdx.x * THREADS + threadIdx.x;
  if (row >= args.batch) return;
  const int index = index_at(args, row, i);
  int last_index = -1;
  // Wider steps over long padding would take as long each, but from 10.0 on what they find lies in local memory (NVRTC 13.0).
  constexpr int AT_ONCE = 2;
  if (__any_sync(ALL_LANES, index >= 0)) last_index = index_before<AT_ONCE>(args, row, i - threadIdx.x % 32);
  const u8 mark = mark_in_warp(index, last_index);
  if (i >= args.seq) return;
  // Many threads, of several blocks, may store these: all store the same, for kernels that begin after this.
  if (mark & MARK_RESET) {
    if (args.chunk_resets) args.chunk_resets[row * args.chunks + i / args.chunk] = 1;
    if (args.adjoint_resets) args.adjoint_resets[row * args.adjoint_chunks + i / args.adjoint_chunk] = 1;
  }
  args.marks[row * args.seq + i] = mark;
}
