// Tiles of frames for the backward pass and for summaries of chunks.
//
// Time is walked in tiles of TILE frames: raw elements are copied to shared memory (asynchronously where the device
// can), then converted once into the type of computation, with everything that happens to an element before the scan.
//
// Ownership: the same thread copies, converts and, after the walk, finishes an element of a tile. So only the
// walk, which reads what others converted, needs barriers: one before and one after it.

#include "block.cuh"

// Elements an access moves: x, dt, z, y, dy and their gradients; rows of b; rows of c.
static_assert(CHANNELS % VECTOR == 0 && SLOT_WIDTH % VECTOR_B == 0 && SLOT_WIDTH % VECTOR_C == 0, "rows are whole accesses");

// COUNT neighbouring elements, converted; zero where there is nothing.
template <int COUNT>
__device__ __forceinline__ void load_raw(Real (&values)[COUNT], const Element* raw, bool here) {
  const ElementPack<COUNT> pack = *reinterpret_cast<const ElementPack<COUNT>*>(raw);
#pragma unroll
  for (int k = 0; k < COUNT; k++) values[k] = here ? to_real(pack.elements[k]) : (Real)0;
}

struct Tiles {
  alignas(16) Element raw_dt[TILE][CHANNELS];
  alignas(16) Real delta[TILE][CHANNELS];
#if USE_X
  alignas(16) Element raw_x[TILE][CHANNELS];
  alignas(16) Real x[TILE][CHANNELS];
#endif
#if TILE_Z
  alignas(16) Element raw_z[TILE][CHANNELS];
#endif
#if USE_DY
  alignas(16) Element raw_dy[TILE][CHANNELS];
  alignas(16) Real dy[TILE][CHANNELS];  // ∂L/∂(y before the gate), times `scale`
#endif
#if TILE_Z && USE_Y
  alignas(16) Real gate[TILE][CHANNELS];  // silu(z); in the backward pass dy·silu′(z)
#endif
#if USE_SLOPE && HAS_SLOPE
  alignas(16) Real slope[TILE][CHANNELS];  // ∂Δ/∂dt
#endif
#if TILE_B
  alignas(16) Element raw_b[TILE][SLOT_WIDTH];
  alignas(16) Real b[TILE][SLOT_WIDTH];
#endif
#if TILE_C
  alignas(16) Element raw_c[TILE][SLOT_WIDTH];
  alignas(16) Real c[TILE][SLOT_WIDTH];
#endif
};

template <int BYTES>
__device__ __forceinline__ void copy_access(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  if constexpr (BYTES == 16) {
    u32 address = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
    return;
  } else if constexpr (BYTES >= 4) {
    u32 address = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(BYTES) : "memory");
    return;
  }
#endif
  typedef ElementPack<BYTES / sizeof(Element)> Pack;
  *reinterpret_cast<Pack*>(shared) = *reinterpret_cast<const Pack*>(global);
}

__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Calls f(row of the tile, first column) for every access that this thread owns.
template <int WIDTH, int COUNT, typename F>
__device__ __forceinline__ void for_owned(F f) {
  constexpr int PER_ROW = WIDTH / COUNT;
#pragma unroll 2
  for (int k = 0; k < (TILE * PER_ROW + THREADS - 1) / THREADS; k++) {
    int access = k * THREADS + (int)threadIdx.x;
    if (TILE * PER_ROW % THREADS == 0 || access < TILE * PER_ROW) f(access / PER_ROW, access % PER_ROW * COUNT);
  }
}

// Starts copying `rows` rows of `width` elements, `stride` apart.
template <int WIDTH, int COUNT>
__device__ __forceinline__ void copy_rows(Element (*tile)[WIDTH], const Element* first, i64 stride, int rows, int width) {
  for_owned<WIDTH, COUNT>([&](int r, int column) {
    if (r < rows && column < width) {
      copy_access<COUNT * sizeof(Element)>(&tile[r][column], first + r * stride + column);
    }
  });
}

template <int WIDTH, int COUNT>
__device__ __forceinline__ void convert_rows(Real (*tile)[WIDTH], const Element (*raw)[WIDTH], int rows, int width) {
  for_owned<WIDTH, COUNT>([&](int r, int column) {
    Real values[COUNT];
    load_raw(values, &raw[r][column], r < rows && column < width);
    store_reals(&tile[r][column], values);
  });
}

// What a walk over a tile reads: the states alone need x, dt and b.
enum Extent { STATES_ALONE, WHOLE };

// Starts copying the frames of scan index i0 and on.
template <Extent EXTENT>
__device__ __forceinline__ void copy_tiles(Tiles& tiles, const Arguments& args, const Place& place, i64 i0, i64 end) {
  const int rows = (int)(end - i0 < TILE ? end - i0 : TILE);
  i64 first = place.row * args.seq + frame(args, i0);
  i64 step = args.reverse ? -1 : 1;
  i64 offset = first * args.dim + place.channel0, stride = step * args.dim;
  copy_rows<CHANNELS, VECTOR>(tiles.raw_dt, args.dt + offset, stride, rows, place.channels);
#if USE_X
  copy_rows<CHANNELS, VECTOR>(tiles.raw_x, args.x + offset, stride, rows, place.channels);
#endif
#if TILE_Z
  if constexpr (EXTENT == WHOLE) copy_rows<CHANNELS, VECTOR>(tiles.raw_z, args.z + offset, stride, rows, place.channels);
#endif
#if USE_DY
  if constexpr (EXTENT == WHOLE) copy_rows<CHANNELS, VECTOR>(tiles.raw_dy, args.dy + offset, stride, rows, place.channels);
#endif
  int width = states_here(args) * COMPONENTS;
#if TILE_B
  i64 row_b = (first * args.groups_b + place.group_b) * args.state + args.first_state;
  copy_rows<SLOT_WIDTH, VECTOR_B>(tiles.raw_b, args.b + row_b * COMPONENTS, step * args.groups_b * args.state * COMPONENTS,
                                  rows, width);
#endif
#if TILE_C
  if constexpr (EXTENT == WHOLE) {
    i64 row_c = (first * args.groups_c + place.group_c) * args.state + args.first_state;
    copy_rows<SLOT_WIDTH, VECTOR_C>(tiles.raw_c, args.c + row_c * COMPONENTS, step * args.groups_c * args.state * COMPONENTS,
                                    rows, width);
  }
#endif
}

// Converts what this thread copied, once that has arrived; zero where there is no frame or no channel.
template <Extent EXTENT>
__device__ __forceinline__ void convert_tiles(Tiles& tiles, const Arguments& args, const Place& place, int rows) {
  wait_for_copies();
  for_owned<CHANNELS, VECTOR>([&](int r, int column) {
    const bool here = r < rows && column < place.channels;
    Real delta[VECTOR];
    load_raw(delta, &tiles.raw_dt[r][column], here);
    [[maybe_unused]] Real slope[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
#if HAS_DT_BIAS
      const Real bias = here ? args.dt_bias[place.channel0 + column + k] : (Real)0;
#else
      const Real bias = 0;
#endif
      delta[k] = here ? step_size(args, delta[k], bias, slope[k]) : (Real)0;
    }
    store_reals(&tiles.delta[r][column], delta);
#if USE_SLOPE && HAS_SLOPE
    if constexpr (EXTENT == WHOLE) store_reals(&tiles.slope[r][column], slope);
#endif
#if USE_X
    Real x[VECTOR];
    load_raw(x, &tiles.raw_x[r][column], here);
    store_reals(&tiles.x[r][column], x);
#endif
    if constexpr (EXTENT == WHOLE) {
#if TILE_Z
      Real gate[VECTOR];
      load_raw(gate, &tiles.raw_z[r][column], here);
#endif
#if USE_DY
      Real dy[VECTOR];
      load_raw(dy, &tiles.raw_dy[r][column], here);
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
#if TILE_Z
        const Real z = gate[k], s = sigmoid(z);
        gate[k] = dy[k] * s * ((Real)1 + z * ((Real)1 - s));
        dy[k] *= z * s;
#endif
        dy[k] *= (Real)args.scale;
      }
      store_reals(&tiles.dy[r][column], dy);
#elif TILE_Z
#pragma unroll
      for (int k = 0; k < VECTOR; k++) gate[k] *= sigmoid(gate[k]);
#endif
#if TILE_Z && USE_Y
      store_reals(&tiles.gate[r][column], gate);
#endif
    }
  });
  int width = states_here(args) * COMPONENTS;
#if TILE_B
  convert_rows<SLOT_WIDTH, VECTOR_B>(tiles.b, tiles.raw_b, rows, width);
#endif
#if TILE_C
  if constexpr (EXTENT == WHOLE) convert_rows<SLOT_WIDTH, VECTOR_C>(tiles.c, tiles.raw_c, rows, width);
#endif
}
