// The marks of a tile of packed rows, which the warp that walks it finds by itself.

#if SEQ_IDX
// Of the frames of a tile, and of as many before them, a thread's each: what their marks are found by.
__device__ __forceinline__ int index_for_marks(const Arguments& args, const Place& place, int number) {
  return index_at(args, row_anew(place), (number - 1) * TILE + thread_anew() % 32);
}

// Whether all frames of a tile go on with the sequence of the frame before it, from what all threads of its warp have of `index_for_marks`:
// so do most, and to ask takes a fifth of what it takes to find their marks.
__device__ __forceinline__ bool goes_on(int index) {
  const int last = __shfl_sync(ALL_LANES, index, TILE - 1);
  return !any_of_warp(threadIdx.x % 32 >= TILE && (index < 0 || index != last));
}
#endif

// The marks of the frames of a tile, a bit each.
struct Marks {
  u32 resets = 0, skips = 0;

  Marks() = default;
#if SEQ_IDX
  // Of those of a tile, from what all threads of its warp have of `index_for_marks`.
  __device__ __forceinline__ Marks(const Arguments& args, const Place& place, int number, int index) {
    const int own = (int)(threadIdx.x % 32) - TILE;
    const u32 taken = __ballot_sync(ALL_LANES, index >= 0);
    int last = -1;
    if (taken >> TILE && !(taken << TILE)) last = index_before<4>(args, row_anew(place), (number - 1) * TILE);
    const u8 mark = mark_in_warp(index, last);
    const u32 bits = own < 0 ? 0 : (mark & MARK_RESET ? 1u << own : 0) | (mark & MARK_SKIP ? 1u << TILE << own : 0);
    const u32 all = __reduce_or_sync(ALL_LANES, bits);
    resets = all % (1u << TILE);
    skips = all >> TILE;
  }
#endif

  // Those of a span, a byte each.
  __device__ __forceinline__ u32 of_span(int span) const {
    const auto bytes_of = [&](u32 bits) { return (bits >> span * SPAN) % (1u << SPAN) * 0x204081u & 0x1010101u; };
    return bytes_of(resets) * MARK_RESET | bytes_of(skips) * MARK_SKIP;
  }
  __device__ __forceinline__ bool any() const { return resets || skips; }
  __device__ __forceinline__ bool skip_all() const { return skips == (1u << TILE) - 1; }
  __device__ __forceinline__ int first_reset() const { return 31 - __clz(resets & -resets); }
};
static_assert(SPAN == 4, "bits of a span become bytes by a product");
