// Tiles of frames as rows in shared memory: one row a channel, and one a component of b and of c, with TILE frames.
//
// A thread that walks its channel reads four frames at a time, in one access of 16 bytes where Real is f32. In device
// memory it is channels that are neighbours. So a thread takes patches of FRAMES frames × VECTOR channels through its
// registers, where turning them over costs nothing, and everything that happens to an element before the scan happens
// there. The same thread takes the same patches of a tile in and out, so only the walk needs a barrier.
//
// Banks: PITCH is an odd number of 16 bytes, so eight neighbouring rows lie on all banks. Channels k apart from a
// patch's first lie CHANNELS / VECTOR · k rows apart from it, so the threads of a warp write neighbouring rows too.

#include "block.cuh"

// Rows from a channel of a patch to the next.
#define ROW_STEP (CHANNELS / VECTOR)
#define PER_16_BYTES ((int)(16 / sizeof(Real)))
#define PITCH (TILE / PER_16_BYTES % 2 ? TILE : TILE + PER_16_BYTES)

static_assert(CHANNELS % VECTOR == 0 && SWEEP_WIDTH % VECTOR_B == 0 && SWEEP_WIDTH % VECTOR_C == 0, "rows are whole accesses");

// The row of a thread's channel.
__device__ __forceinline__ int row_of(int index) { return index / 32 * CHANNELS_PER_WARP + channel_of(index % 32); }

__device__ __forceinline__ int column_of(int row) { return row % ROW_STEP * VECTOR + row / ROW_STEP; }

// How WIDTH rows are dealt to the threads, COUNT at a time.
template <int WIDTH, int COUNT>
struct Patches {
  static constexpr int PER_FRAME = WIDTH / COUNT;
  static constexpr int SHARE = TILE * PER_FRAME / THREADS;
  static constexpr int MOST = 4 < PER_16_BYTES ? 4 : PER_16_BYTES;
  static constexpr int FRAMES = SHARE >= 4 && MOST >= 4 ? 4 : SHARE >= 2 && MOST >= 2 ? 2 : 1;
  static constexpr int ALL = TILE / FRAMES * PER_FRAME;
  static constexpr int EACH = (ALL + THREADS - 1) / THREADS;
  template <typename Stored>
  using Packs = Pack<Stored, COUNT>[EACH][FRAMES];
  typedef Packs<Element> Raw;

  // The first column of all patches of the thread, where these are the same.
  static __device__ __forceinline__ int first_column() {
    static_assert(EACH == 1 || THREADS % PER_FRAME == 0, "a thread stays with its columns");
    return (int)threadIdx.x % PER_FRAME * COUNT;
  }

  // Calls f(number, first frame, first column) for each patch of this thread.
  template <typename F>
  static __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int patch = k * THREADS + (int)threadIdx.x;
      if (ALL % THREADS == 0 || patch < ALL) f(k, patch / PER_FRAME * FRAMES, patch % PER_FRAME * COUNT);
    }
  }

  // Where the thread's patches of a tile lie in a tensor: carried from tile to tile, since products of 64 bits cost more
  // than all else that is done to an element.
  struct Cursor {
    i64 at[EACH], stride;
    int width;

    // `first`: the first column of the tile's first frame; frames are `stride` elements apart.
    __device__ __forceinline__ Cursor(i64 first, i64 stride, int width) : stride(stride), width(width) {
      each([&](int k, int r, int column) { at[k] = first + r * stride + column; });
    }

    __device__ __forceinline__ void advance() {
#pragma unroll
      for (int k = 0; k < EACH; k++) at[k] += TILE * stride;
    }

    // Reads the first `rows` frames of the tile BEHIND tiles before; zero where there is nothing. WHOLE: there is all.
    template <bool WHOLE, int BEHIND = 0, typename Stored>
    __device__ __forceinline__ void load(Packs<Stored>& raw, const Stored* tensor, int rows) const {
      typedef Pack<Stored, COUNT> Packed;
      each([&](int k, int r, int column) {
#pragma unroll
        for (int f = 0; f < FRAMES; f++) {
          if (!WHOLE) raw[k][f] = Packed{};
          if (WHOLE || (r + f < rows && column < width)) {
            raw[k][f] = *reinterpret_cast<const Packed*>(tensor + at[k] + (f - BEHIND * TILE) * stride);
          }
        }
      });
    }
  };

  // Writes `values` of element e of a patch to its row.
  static __device__ __forceinline__ void put(Real (*rows)[PITCH], int row, int r, const Real (&values)[FRAMES]) {
    store_reals(&rows[row][r], values);
  }
};

typedef Patches<CHANNELS, VECTOR> SequencePatches;
typedef Patches<SWEEP_WIDTH, VECTOR_B> RowsOfB;
typedef Patches<SWEEP_WIDTH, VECTOR_C> RowsOfC;

// A tile of a projection.
#if TIME_LANES > 1
// Frame by frame: a thread reads its states of a frame at once. A time lane has neighbouring frames; the padding puts what
// eight threads read, two lanes of four time lanes, on all banks.
#define OWN_FRAMES (TILE / TIME_LANES)
typedef Real Projection[TIME_LANES][OWN_FRAMES * SLOT_WIDTH + 2 * PER_16_BYTES];

template <typename P, int COUNT>
__device__ __forceinline__ void store_projection(Projection& tile, const typename P::Raw& raw) {
  P::each([&](int k, int r, int column) {
#pragma unroll
    for (int f = 0; f < P::FRAMES; f++) {
      Real values[COUNT];
#pragma unroll
      for (int e = 0; e < COUNT; e++) values[e] = raw[k][f].real(e);
      store_reals(&tile[(r + f) / OWN_FRAMES][(r + f) % OWN_FRAMES * SLOT_WIDTH + column], values);
    }
  });
}
#else
// Turned over: component `column` of a frame lies in the row of that number.
typedef Real Projection[SWEEP_WIDTH][PITCH];

template <typename P, int COUNT>
__device__ __forceinline__ void store_projection(Projection& tile, const typename P::Raw& raw) {
  P::each([&](int k, int r, int column) {
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
      Real values[P::FRAMES];
#pragma unroll
      for (int f = 0; f < P::FRAMES; f++) values[f] = raw[k][f].real(e);
      P::put(tile, column + e, r, values);
    }
  });
}
#endif

// Cursors at the frame of scan index i0.
__device__ __forceinline__ SequencePatches::Cursor sequence_at(const Arguments& args, const Place& place, i64 i0) {
  const i64 first = (place.row * args.seq + frame_at(args, i0)) * args.dim + place.channel0;
  return {first, args.reverse ? -args.dim : args.dim, place.channels};
}

template <typename P>
__device__ __forceinline__ typename P::Cursor projection_at(const Arguments& args, const Place& place, i64 groups, i64 group,
                                                            i64 i0) {
  const i64 first = ((place.row * args.seq + frame_at(args, i0)) * groups + group) * args.state + first_state(args);
  const i64 stride = groups * args.state * COMPONENTS;
  return {first * COMPONENTS, args.reverse ? -stride : stride, states_here(args) * COMPONENTS};
}
