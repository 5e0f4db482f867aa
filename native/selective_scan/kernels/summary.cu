// What a chunk does to a state that enters it, so that chunks can be scanned side by side.
//
// A chunk of frames 1 … n maps the state before it, h_0, to h_n = P_n h_0 + (the end state from zero), and the
// gradient after it, λ_n, to the gradient before it, conj(P_n) λ_n + Σ conj(P_i) w dy_i conj(C_i), where
// P_i = a_1 ⋯ a_i. Both walk forward in time over the same decays, so one kernel does either or both:
//   WITH_STATES    writes the end state from zero to `boundary_states`
//   WITH_ADJOINTS  writes the sum to `boundary_adjoints`
// Where DECAY_BY_SUM, P_n = exp(A ΣΔ) and ΣΔ is written to `delta_sums`; else P_n to `decays`.
// prefix.cu turns this into the states and gradients at the boundaries.

#define USE_X WITH_STATES
#define USE_B WITH_STATES
#define USE_C WITH_ADJOINTS
#define USE_DY WITH_ADJOINTS
#define USE_Z WITH_ADJOINTS
#define USE_Y 0
#define USE_SLOPE 0

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "tiles.cuh"

#define WITH_PRODUCT (WITH_ADJOINTS || !DECAY_BY_SUM)

struct Shared {
  Tiles tiles;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

extern "C" __global__ void __launch_bounds__(THREADS, 1) scan_summary(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Tiles& tiles = reinterpret_cast<Shared*>(memory)->tiles;

  i64 index = block_index();
  if (index >= args.batch * args.chunks * args.units * args.blocks_per_unit) return;
  const Place place = find_place(args, index);
#if !WITH_ADJOINTS
  if (place.chunk == args.chunks - 1) return;  // nothing comes after it
#endif
  const int lane = threadIdx.x % LANES, channel_here = threadIdx.x / LANES;
  const bool active = channel_here < place.channels;
  const i64 channel = place.channel0 + (active ? channel_here : 0);
  const int count = active ? states_here(args) : 0;
  const i64 begin = chunk_begin(args, place), end = chunk_end(args, place);

  State a[STATES];
  load_states(a, args.a + channel * args.state + args.first_state, count, lane);
#if WITH_STATES
  State h[STATES], b[STATES];
#if B_CONSTANT
  load_constant(b, args.b + (channel * args.state + args.first_state) * COMPONENTS, count, lane);
#endif
#endif
#if WITH_ADJOINTS
  State adjoint[STATES], c[STATES];
#if C_CONSTANT
  load_constant(c, args.c + (channel * args.state + args.first_state) * COMPONENTS, count, lane);
#endif
#endif
#if WITH_PRODUCT
  State product[STATES];
#endif
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if WITH_STATES
    h[s] = to_state(0);
#endif
#if WITH_ADJOINTS
    adjoint[s] = to_state(0);
#endif
#if WITH_PRODUCT
    product[s] = to_state(1);
#endif
  }
  Real delta_sum = 0;
  bool open = true;  // no reset so far: what follows still depends on the state that enters

  copy_tiles<WHOLE>(tiles, args, place, begin, end);
  for (i64 i0 = begin; i0 < end; i0 += TILE) {
    const int rows = (int)(end - i0 < TILE ? end - i0 : TILE);
    convert_tiles<WHOLE>(tiles, args, place, rows);
    __syncthreads();
    if (i0 + TILE < end) copy_tiles<WHOLE>(tiles, args, place, i0 + TILE, end);

#pragma unroll UNROLL
    for (int r = 0; r < rows; r++) {
#if SEQ_IDX
      const u8 mark = args.marks[place.row * args.seq + i0 + r];
      if (mark & MARK_SKIP) continue;
      if (mark & MARK_RESET) {
        open = false;
#if WITH_STATES
#pragma unroll
        for (int s = 0; s < STATES; s++) h[s] = to_state(0);
#endif
      }
#endif
      const Real delta = tiles.delta[r][channel_here];
      delta_sum += delta;
#if WITH_STATES
      const Real x = tiles.x[r][channel_here];
#if !B_CONSTANT
      load_slots(b, tiles.b[r], lane);
#endif
#endif
#if WITH_ADJOINTS
      const Real dy = OUTPUT_WEIGHT * tiles.dy[r][channel_here];
#if !C_CONSTANT
      load_slots(c, tiles.c[r], lane);
#endif
#endif
#pragma unroll
      for (int s = 0; s < STATES; s++) {
#if WITH_STATES && !GAIN_IS_DELTA
        const Coefficients k = discretize(a[s], delta);
        const State e = k.a;
        h[s] = e * h[s] + k.g * (b[s] * x);
#else
        const State e = decay(a[s], delta);
#if WITH_STATES
        h[s] = e * h[s] + b[s] * (delta * x);
#endif
#endif
#if WITH_PRODUCT
        product[s] = e * product[s];
#endif
#if WITH_ADJOINTS
        if (open) adjoint[s] = conjugate(product[s] * c[s]) * dy + adjoint[s];
#endif
      }
    }
    __syncthreads();
  }

  if (!active) return;
  const i64 boundary = (place.row * args.chunks + place.chunk) * args.dim + channel;
#if WITH_STATES
  store_states(h, args.boundary_states + boundary * args.boundary_width + args.boundary_first, count, lane);
#endif
#if WITH_ADJOINTS
  store_states(adjoint, args.boundary_adjoints + boundary * SLOTS, count, lane);
#endif
#if DECAY_BY_SUM
  if (lane == 0) args.delta_sums[boundary] = delta_sum;
#else
  store_states(product, args.decays + boundary * SLOTS, count, lane);
#endif
}
