// Marks of packed rows, in scan order: where a state is reset and which frames are skipped.
//
// A frame with a negative index is skipped. Any other resets the state if its index differs from that of the last frame before it that is
// not skipped; the first of a row keeps the initial state. A warp finds the marks of 32 neighbouring frames at a time, of which each thread
// has the index of one.

#define MARK_RESET 1
#define MARK_SKIP 2

// The index of a frame, or −1 where there is none.
template <typename I>
__device__ __forceinline__ int index_at(const Arguments& args, i64 row, I i) {
  return i >= 0 && i < args.seq ? args.seq_idx[row * args.seq + frame_at(args, i)] : -1;
}

// The index of the last frame before this one that is not skipped, or −1. By all threads of a warp, which go back in strides of AT_ONCE
// times 32 frames over long stretches of padding.
template <int AT_ONCE, typename I>
__device__ __forceinline__ int index_before(const Arguments& args, i64 row, I end) {
#pragma unroll 1
  for (; end > 0; end -= AT_ONCE * 32) {
    int indices[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      indices[k] = index_at(args, row, end - (k + 1) * 32 + (int)(threadIdx.x % 32));
    }
    // All are taken up before one is given back: those that were left on their way, the walk would wait for, and with them for the indices
    // of the next tile, every time (a scoreboard; a long row by relay.cu 7%, H200).
    u32 taken[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) taken[k] = __ballot_sync(ALL_LANES, indices[k] >= 0);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (taken[k]) return __shfl_sync(ALL_LANES, indices[k], 31 - __clz(taken[k]));
    }
  }
  return -1;
}

// The mark of a thread's frame. `last_index` is that of the last frame before those of the warp that is not skipped, negative for none, and
// becomes that of the last of these.
__device__ __forceinline__ u8 mark_in_warp(int index, int& last_index) {
  const u32 taken = __ballot_sync(ALL_LANES, index >= 0), before = taken & ((1u << threadIdx.x % 32) - 1);
  // Of the nearest before this that is not skipped, and of the last; anything where there is none.
  const int neighbour = __shfl_sync(ALL_LANES, index, 31 - __clz(before));
  const int last = __shfl_sync(ALL_LANES, index, 31 - __clz(taken));
  const int previous = before ? neighbour : last_index;
  const u8 mark = index < 0 ? MARK_SKIP : previous >= 0 && previous != index ? MARK_RESET : 0;
  if (taken) last_index = last;
  return mark;
}
