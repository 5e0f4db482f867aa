// Which tiles a block of the relay walks, and a warp of it, in which order.

// Where a block is: at a tile of a strip, of which it walks so many from this one on.
struct Spot {
  int number, left;
#if SHARES_STRIPS
  u32 row, block;  // of channels, among those of the row
#endif

  __device__ __forceinline__ Place place(const Arguments& args) const {
#if SHARES_STRIPS
    return place_of(args, row, block);
#else
    return find_place(args);
#endif
  }
};

// The tiles that a block walks, by their position in the order in which it does: those of a strip, or a piece of those of all.
struct Course {
  int tiles;  // of a strip
#if SHARES_STRIPS
  int count;       // of the piece
  int first;       // the number of the first of these in its strip
  int head, tail;  // those of the strip that the block after goes on with, and of the one that the block before has begun
  u32 row, block;  // of the first
#endif

  __device__ __forceinline__ Course(const Arguments& args) : tiles((int)((args.seq + TILE - 1) / TILE)) {
#if SHARES_STRIPS
    const u32 each = (u32)args.tiles_per_block, begin = blockIdx.x * each;
    const u32 left = (u32)args.batch * blocks_of_channels(args) * (u32)tiles - begin;
    count = (int)(left < each ? left : each);
    u32 strip = begin;
    first = (int)take(strip, (u32)tiles);
    head = first + count;
#pragma unroll 1
    while (head >= tiles) head -= tiles;  // a few strips at most, in less time than a division
    tail = first > 0 ? tiles - first : 0;
    row = strip;
    block = take(row, blocks_of_channels(args));
#endif
  }

#if SHARES_STRIPS
  __device__ __forceinline__ int end() const { return count; }

  __device__ __forceinline__ Spot at(const Arguments& args, int position) const {
    int line = first + position;  // tiles from the beginning of the first strip on
    if (position < head) {
      line += count - head;
    } else if (position < count - tail) {
      line += tail - head;
    } else {
      line -= count - tail;
    }
    Spot spot{0, 0, row, block};
#pragma unroll 1
    for (; line >= tiles; line -= tiles) {
      if (++spot.block == blocks_of_channels(args)) {
        spot.block = 0;
        spot.row++;
      }
    }
    spot.number = line;
    spot.left = position < head ? head - position : tiles - line;
    return spot;
  }
#else
  __device__ __forceinline__ int end() const { return tiles; }

  __device__ __forceinline__ Spot at(const Arguments&, int position) const { return {position, tiles - position}; }
#endif
};

// Where a warp is: the tile of a strip that it walks, in which of its rounds, and up to which the block walks them.
struct Step {
  int warp, round, number, end;

  __device__ __forceinline__ int position() const { return warp + round * WARPS; }
  __device__ __forceinline__ int next_warp() const { return warp + 1 < WARPS ? warp + 1 : 0; }
  __device__ __forceinline__ void advance() {
    round++;
    number += WARPS;
  }
};

// A number that all threads of a warp have: by an exchange, so that the compiler knows it.
__device__ __forceinline__ int of_warp(int number) { return __shfl_sync(ALL_LANES, number, 0); }

// The row of a strip as if for the first time: what the compiler has found from it before, addresses above all, it would keep in registers
// all through the walk of other tiles.
__device__ __forceinline__ u32 row_anew([[maybe_unused]] const Place& place) {
#if SHARES_STRIPS
  u32 row = (u32)place.row;
  asm volatile("" : "+r"(row));
  return row;
#else
  u32 y, z, rows;
  asm volatile("mov.u32 %0, %%ctaid.y;\nmov.u32 %1, %%ctaid.z;\nmov.u32 %2, %%nctaid.y;" : "=r"(y), "=r"(z), "=r"(rows));
  return z * rows + y;
#endif
}
