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

extern "C" __global__ void __launch_bounds__(THREADS) scan_forward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Tiles& tiles = shared.tiles;

  i64 index = block_index();
  if (index >= args.batch * args.chunks * (args.dim / args.unit) * args.blocks_per_unit) return;
  const Place place = find_place(args, index);
  const int lane = threadIdx.x % LANES, channel_here = threadIdx.x / LANES;
  const bool active = channel_here < place.channels;
  const i64 channel = place.channel0 + (active ? channel_here : 0);
  const int count = active ? states_here(args) : 0;
  const i64 begin = chunk_begin(args, place), end = chunk_end(args, place);

  State a[STATES], h[STATES], b[STATES], c[STATES];
  load_states(a, args.a + channel * args.state + args.first_state, count, lane);
#if B_CONSTANT
  load_constant(b, args.b + (channel * args.state + args.first_state) * COMPONENTS, count, lane);
#endif
#if C_CONSTANT
  load_constant(c, args.c + (channel * args.state + args.first_state) * COMPONENTS, count, lane);
#endif
  if (place.chunk > 0) {
    i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + channel;
    load_states(h, args.boundary_states + boundary * args.boundary_width + args.boundary_first, count, lane);
  } else {
    const State* initial = args.write_final && args.initial_state
        ? args.initial_state + (place.row * args.dim + channel) * args.state + args.first_state : nullptr;
    load_states(h, initial, count, lane);
  }

  copy_tiles<WHOLE>(tiles, args, place, begin, end);
  for (i64 i0 = begin; i0 < end; i0 += TILE) {
    const int rows = (int)(end - i0 < TILE ? end - i0 : TILE);
    convert_tiles<WHOLE>(tiles, args, place, rows);
    __syncthreads();
    if (i0 + TILE < end) copy_tiles<WHOLE>(tiles, args, place, i0 + TILE, end);

    if (args.checkpoints && active && i0 % args.checkpoint_interval == 0) {
      i64 checkpoint = (place.row * args.checkpoint_count + i0 / args.checkpoint_interval) * args.dim + channel;
      store_states(h, args.checkpoints + checkpoint * args.state + args.first_state, count, lane);
    }
#pragma unroll UNROLL
    for (int r = 0; r < rows; r++) {
#if SEQ_IDX
      const u8 mark = args.marks[place.row * args.seq + i0 + r];
      if (mark & MARK_SKIP) continue;
      if (mark & MARK_RESET) {
#pragma unroll
        for (int s = 0; s < STATES; s++) h[s] = to_state(0);
      }
#endif
      const Real delta = tiles.delta[r][channel_here], x = tiles.x[r][channel_here];
#if !B_CONSTANT
      load_slots(b, tiles.b[r], lane);
#endif
#if !C_CONSTANT
      load_slots(c, tiles.c[r], lane);
#endif
      State y = to_state(0);
#pragma unroll
      for (int s = 0; s < STATES; s++) {
#if GAIN_IS_DELTA
        h[s] = decay(a[s], delta) * h[s] + b[s] * (delta * x);
#else
        Coefficients k = discretize(a[s], delta);
        h[s] = k.a * h[s] + k.g * (b[s] * x);
#endif
        y = c[s] * h[s] + y;
      }
      const Real sum = sum_over_lanes(real_part(y));
      if (lane == 0) shared.y[r][channel_here] = OUTPUT_WEIGHT * sum;
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

  if (args.write_final && args.final_state && place.chunk == args.chunks - 1 && active) {
    store_states(h, args.final_state + (place.row * args.dim + channel) * args.state + args.first_state, count, lane);
  }
}
