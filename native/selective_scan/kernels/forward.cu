// The forward scan: h_i = a_i h_{i−1} + g_i B_i x_i, y_i = Σ C_i h_i + D x_i, out = y·silu(z).
//
// One block walks one chunk of one batch row for CHANNELS channels. Where the sequence is cut in several chunks,
// `boundary_states` holds the state before each (summary.cu, prefix.cu). Where there are several passes (two
// directions, or more states than SLOTS), y gathers in `y_sum` and the last pass finishes it.

#define USE_X 1
#define USE_B 1
#define USE_C 1
#define USE_DY 0
#define USE_Z 1
#define USE_Y 1
#define USE_SLOPE 0

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "tiles.cuh"

struct Shared {
  Tiles tiles;
  alignas(16) Real y[TILE][CHANNELS];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// What a thread keeps over its chunk.
struct Thread {
  int lane, channel_here, count;
  bool active;
  i64 channel;
  State a[STATES], h[STATES];
#if B_CONSTANT
  State b[STATES];
#endif
#if C_CONSTANT
  State c[STATES];
#endif
};

// Walks a frame; gives the thread's part of Σ C h.
__device__ __forceinline__ Real walk_frame(const Tiles& tiles, const Arguments& args, const Place& place, Thread& thread, i64 i0,
                                           int r) {
#if SEQ_IDX
  const u8 mark = args.marks[place.row * args.seq + i0 + r];
  if (mark & MARK_SKIP) return 0;
  if (mark & MARK_RESET) {
#pragma unroll
    for (int s = 0; s < STATES; s++) thread.h[s] = to_state(0);
  }
#endif
  const Real delta = tiles.delta[r][thread.channel_here], x = tiles.x[r][thread.channel_here];
#if B_CONSTANT
  const State(&b)[STATES] = thread.b;
#else
  State b[STATES];
  load_slots(b, tiles.b[r], thread.lane);
#endif
#if C_CONSTANT
  const State(&c)[STATES] = thread.c;
#else
  State c[STATES];
  load_slots(c, tiles.c[r], thread.lane);
#endif
  State y = to_state(0);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if GAIN_IS_DELTA
    thread.h[s] = decay(thread.a[s], delta) * thread.h[s] + b[s] * (delta * x);
#else
    const Coefficients k = discretize(thread.a[s], delta);
    thread.h[s] = k.a * thread.h[s] + k.g * (b[s] * x);
#endif
    y = c[s] * thread.h[s] + y;
  }
  return real_part(y);
}

#if GROUP > 1
static_assert(GROUP % LANES == 0, "every lane gets whole frames of a group");

// Sums over the lanes of a channel. Each exchange halves what a thread holds; gives the first of the GROUP / LANES
// sums that it ends with.
__device__ __forceinline__ int scatter_over_lanes(Real (&y)[GROUP], int lane) {
  int held = GROUP, first = 0;
#pragma unroll
  for (int bit = LANES / 2; bit > 0; bit /= 2) {
    const bool upper = lane & bit;
    held /= 2;
#pragma unroll
    for (int g = 0; g < held; g++) {
      const Real give = upper ? y[g] : y[g + held], keep = upper ? y[g + held] : y[g];
      y[g] = keep + __shfl_xor_sync(ALL_LANES, give, bit);
    }
    if (upper) first += held;
  }
  return first;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_forward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Tiles& tiles = shared.tiles;

  i64 index = block_index();
  if (index >= args.batch * args.chunks * (args.dim / args.unit) * args.blocks_per_unit) return;
  const Place place = find_place(args, index);
  const i64 begin = chunk_begin(args, place), end = chunk_end(args, place);

  Thread thread;
  thread.lane = threadIdx.x % LANES;
  thread.channel_here = threadIdx.x / LANES;
  thread.active = thread.channel_here < place.channels;
  thread.channel = place.channel0 + (thread.active ? thread.channel_here : 0);
  thread.count = thread.active ? states_here(args) : 0;
  const i64 parameters = thread.channel * args.state + args.first_state;
  load_states(thread.a, args.a + parameters, thread.count, thread.lane);
#if B_CONSTANT
  load_constant(thread.b, args.b + parameters * COMPONENTS, thread.count, thread.lane);
#endif
#if C_CONSTANT
  load_constant(thread.c, args.c + parameters * COMPONENTS, thread.count, thread.lane);
#endif
  const State* before = nullptr;
  if (place.chunk > 0) {
    const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + thread.channel;
    before = args.boundary_states + boundary * args.boundary_width + args.boundary_first;
  } else if (args.write_final && args.initial_state) {
    before = args.initial_state + (place.row * args.dim + thread.channel) * args.state + args.first_state;
  }
  load_states(thread.h, before, thread.count, thread.lane);

  copy_tiles<WHOLE>(tiles, args, place, begin, end);
  for (i64 i0 = begin; i0 < end; i0 += TILE) {
    const int rows = (int)(end - i0 < TILE ? end - i0 : TILE);
    convert_tiles<WHOLE>(tiles, args, place, rows);
    __syncthreads();
    if (i0 + TILE < end) copy_tiles<WHOLE>(tiles, args, place, i0 + TILE, end);

    if (args.checkpoints && i0 % args.checkpoint_interval == 0) {
      const i64 number = place.row * args.checkpoint_count + i0 / args.checkpoint_interval;
      State* checkpoint = args.checkpoints + (number * args.dim + thread.channel) * args.state + args.first_state;
      store_states(thread.h, checkpoint, thread.count, thread.lane);
    }
    int r = 0;
#if GROUP > 1
    // GROUP frames at a time: their sums over the states are scattered over the lanes as they are formed.
    for (; r + GROUP <= rows; r += GROUP) {
      Real y[GROUP];
#pragma unroll
      for (int g = 0; g < GROUP; g++) y[g] = walk_frame(tiles, args, place, thread, i0, r + g);
      const int first = scatter_over_lanes(y, thread.lane);
#pragma unroll
      for (int g = 0; g < GROUP / LANES; g++) shared.y[r + first + g][thread.channel_here] = OUTPUT_WEIGHT * y[g];
    }
#endif
    for (; r < rows; r++) {
      const Real y = sum_over_lanes(walk_frame(tiles, args, place, thread, i0, r));
      if (thread.lane == 0) shared.y[r][thread.channel_here] = OUTPUT_WEIGHT * y;
    }
    __syncthreads();

    // The owner of an element of the tile finishes it.
    for_owned<CHANNELS, VECTOR>([&](int r, int column) {
      if (r >= rows || column >= place.channels) return;
      const i64 at = (place.row * args.seq + frame(args, i0 + r)) * args.dim + place.channel0 + column;
      Real y[VECTOR];
      load_reals(y, &shared.y[r][column]);
#if SEQ_IDX
      const bool skip = args.marks[place.row * args.seq + i0 + r] & MARK_SKIP;
#else
      const bool skip = false;
#endif
      if (!args.first_pass) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) y[k] += args.y_sum[at + k];
      }
      if (!args.last_pass) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) args.y_sum[at + k] = y[k];
        return;
      }
#if HAS_D
      Real x[VECTOR];
      load_reals(x, &tiles.x[r][column]);
#endif
#if HAS_Z
      Real gate[VECTOR];
      load_reals(gate, &tiles.gate[r][column]);
#endif
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        y[k] *= (Real)args.scale;
#if HAS_D
        y[k] += args.d[place.channel0 + column + k] * x[k];
#endif
#if HAS_Z
        y[k] *= gate[k];
#endif
        if (skip) y[k] = (Real)0;
      }
      store_elements(args.y + at, y);
    });
  }

  if (args.write_final && args.final_state && place.chunk == args.chunks - 1) {
    State* after = args.final_state + (place.row * args.dim + thread.channel) * args.state + args.first_state;
    store_states(thread.h, after, thread.count, thread.lane);
  }
}
