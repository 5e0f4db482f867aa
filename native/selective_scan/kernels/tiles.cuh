// A thread block, its threads and its tiles.
//
// A block has CHANNELS neighbouring channels of one batch row, in LANES threads each; a thread holds STATES states
// of its channel in registers, so that a pass covers SLOTS = LANES · STATES states. Time is walked in tiles of
// TILE frames: raw elements are copied to shared memory (asynchronously where the device can), then converted
// once into the type of computation, with everything that happens to an element before the scan.
//
// Ownership: the same thread copies, converts and, after the walk, finishes an element of a tile. So only the
// walk, which reads what others converted, needs barriers: one before and one after it.
//
// A kernel says which tensors it needs by USE_X, USE_B, USE_C, USE_DY, USE_Z before it includes this.

#define THREADS (CHANNELS * LANES)
#define SLOTS (LANES * STATES)
#define SLOT_WIDTH (SLOTS * COMPONENTS)
#define HAS_SLOPE (SOFTPLUS || LIMIT)
#define ALL_LANES 0xffffffffu

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is made of whole warps");
static_assert((LANES & (LANES - 1)) == 0 && LANES <= 32, "a channel lies within a warp");

// Which rows and channels a block works on.
struct Place {
  i64 row, chunk, channel0, unit;
  int channels;
};

__device__ __forceinline__ i64 block_index() { return (i64)blockIdx.y * gridDim.x + blockIdx.x; }

__device__ __forceinline__ void set_channels(Place& place, const Arguments& args, i64 block_in_unit) {
  i64 first = block_in_unit * CHANNELS;
  i64 left = args.unit - first;
  place.channel0 = place.unit * args.unit + first;
  place.channels = left < CHANNELS ? (int)left : CHANNELS;
}

// Neighbouring blocks are neighbours in channels: they share b and c in the cache.
__device__ __forceinline__ Place find_place(const Arguments& args, i64 index) {
  Place place;
  i64 block_in_unit = index % args.blocks_per_unit;
  index /= args.blocks_per_unit;
  i64 units = args.dim / args.unit;
  place.unit = index % units;
  index /= units;
  place.chunk = index % args.chunks;
  place.row = index / args.chunks;
  set_channels(place, args, block_in_unit);
  return place;
}

__device__ __forceinline__ i64 chunk_begin(const Arguments& args, const Place& place) { return place.chunk * args.chunk; }
__device__ __forceinline__ i64 chunk_end(const Arguments& args, const Place& place) {
  i64 end = chunk_begin(args, place) + args.chunk;
  return end < args.seq ? end : args.seq;
}

// The group of channels, out of `groups`, that the block's channels lie in.
__device__ __forceinline__ i64 group_of(const Arguments& args, const Place& place, i64 groups) {
  return place.channel0 / (args.dim / groups);
}

// The frame that scan index i stands for.
__device__ __forceinline__ i64 frame(const Arguments& args, i64 i) { return args.reverse ? args.seq - 1 - i : i; }

// --- States -------------------------------------------------------------------------------------------------

// States are dealt to the lanes in packs of up to 16 bytes, so that the lanes of a channel read neighbouring packs.
constexpr int PACK = sizeof(State) <= 4 && STATES % 4 == 0 ? 4 : sizeof(State) <= 8 && STATES % 2 == 0 ? 2 : 1;

struct alignas(PACK * sizeof(State)) StatePack {
  State states[PACK];
};

__device__ __forceinline__ int slot_of(int lane, int s) { return (s / PACK) * (LANES * PACK) + lane * PACK + s % PACK; }
__device__ __forceinline__ int lane_of(int slot) { return slot / PACK % LANES; }
__device__ __forceinline__ int state_of(int slot) { return slot / (LANES * PACK) * PACK + slot % PACK; }

__device__ __forceinline__ int states_here(const Arguments& args) {
  i64 left = args.state - args.first_state;
  return left < SLOTS ? (int)left : SLOTS;
}

// A row of SLOTS states in shared memory.
__device__ __forceinline__ void load_slots(State (&states)[STATES], const Real* row, int lane) {
  const StatePack* packs = reinterpret_cast<const StatePack*>(row) + lane;
#pragma unroll
  for (int p = 0; p < STATES / PACK; p++) {
    StatePack pack = packs[p * LANES];
#pragma unroll
    for (int k = 0; k < PACK; k++) states[p * PACK + k] = pack.states[k];
  }
}

// The states of this pass from a row in global memory; zero beyond the last.
__device__ __forceinline__ void load_states(State (&states)[STATES], const State* row, int count, int lane) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    int slot = slot_of(lane, s);
    states[s] = row && slot < count ? row[slot] : to_state(0);
  }
}

__device__ __forceinline__ void store_states(const State (&states)[STATES], State* row, int count, int lane) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    int slot = slot_of(lane, s);
    if (slot < count) row[slot] = states[s];
  }
}

// A constant projection: {dim, state} elements, held in registers.
__device__ __forceinline__ void load_constant(State (&states)[STATES], const Element* row, int count, int lane) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    int slot = slot_of(lane, s);
#if COMPLEX
    states[s] = slot < count ? State{to_real(row[2 * slot]), to_real(row[2 * slot + 1])} : to_state(0);
#else
    states[s] = slot < count ? to_real(row[slot]) : to_state(0);
#endif
  }
}

__device__ __forceinline__ Real sum_over_lanes(Real value) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

// --- Tiles --------------------------------------------------------------------------------------------------

// Elements an access moves: x, dt, z, y, dy and their gradients; rows of b; rows of c.
static_assert(CHANNELS % VECTOR == 0 && SLOT_WIDTH % VECTOR_B == 0 && SLOT_WIDTH % VECTOR_C == 0, "rows are whole accesses");

template <int COUNT>
struct alignas(COUNT * sizeof(Element)) ElementPack {
  Element elements[COUNT];
};

// COUNT neighbouring reals of shared memory, in accesses of up to 16 bytes: without conflicts over its banks.
template <int COUNT>
__device__ __forceinline__ void load_reals(Real (&values)[COUNT], const Real* shared) {
  constexpr int AT_ONCE = COUNT * sizeof(Real) <= 16 ? COUNT : 16 / sizeof(Real);
  struct alignas(AT_ONCE * sizeof(Real)) Reals {
    Real reals[AT_ONCE];
  };
#pragma unroll
  for (int p = 0; p < COUNT / AT_ONCE; p++) {
    const Reals pack = reinterpret_cast<const Reals*>(shared)[p];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) values[p * AT_ONCE + k] = pack.reals[k];
  }
}

template <int COUNT>
__device__ __forceinline__ void store_reals(Real* shared, const Real (&values)[COUNT]) {
  constexpr int AT_ONCE = COUNT * sizeof(Real) <= 16 ? COUNT : 16 / sizeof(Real);
  struct alignas(AT_ONCE * sizeof(Real)) Reals {
    Real reals[AT_ONCE];
  };
#pragma unroll
  for (int p = 0; p < COUNT / AT_ONCE; p++) {
    Reals pack;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) pack.reals[k] = values[p * AT_ONCE + k];
    reinterpret_cast<Reals*>(shared)[p] = pack;
  }
}

// COUNT neighbouring elements, converted; zero where there is nothing.
template <int COUNT>
__device__ __forceinline__ void load_raw(Real (&values)[COUNT], const Element* raw, bool here) {
  const ElementPack<COUNT> pack = *reinterpret_cast<const ElementPack<COUNT>*>(raw);
#pragma unroll
  for (int k = 0; k < COUNT; k++) values[k] = here ? to_real(pack.elements[k]) : (Real)0;
}

#if USE_B && !B_CONSTANT
#define TILE_B 1
#else
#define TILE_B 0
#endif
#if USE_C && !C_CONSTANT
#define TILE_C 1
#else
#define TILE_C 0
#endif
#if USE_Z && HAS_Z
#define TILE_Z 1
#else
#define TILE_Z 0
#endif

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
  i64 row_b = (first * args.groups_b + group_of(args, place, args.groups_b)) * args.state + args.first_state;
  copy_rows<SLOT_WIDTH, VECTOR_B>(tiles.raw_b, args.b + row_b * COMPONENTS, step * args.groups_b * args.state * COMPONENTS,
                                  rows, width);
#endif
#if TILE_C
  if constexpr (EXTENT == WHOLE) {
    i64 row_c = (first * args.groups_c + group_of(args, place, args.groups_c)) * args.state + args.first_state;
    copy_rows<SLOT_WIDTH, VECTOR_C>(tiles.raw_c, args.c + row_c * COMPONENTS, step * args.groups_c * args.state * COMPONENTS,
                                    rows, width);
  }
#endif
}

__device__ __forceinline__ Real softplus(Real x) { return x > (Real)20 ? x : log1p(exp(x)); }
__device__ __forceinline__ Real sigmoid(Real x) { return (Real)1 / ((Real)1 + exp(-x)); }

// Δ of an element of dt, and ∂Δ/∂dt. A NaN passes through the limit.
__device__ __forceinline__ Real step_size(const Arguments& args, Real dt, Real bias, Real& slope) {
  Real delta = dt + bias;
  slope = (Real)1;
#if SOFTPLUS
  slope = delta > (Real)20 ? (Real)1 : sigmoid(delta);
  delta = softplus(delta);
#endif
#if LIMIT
  if (delta < (Real)args.limit_min) {
    delta = (Real)args.limit_min;
    slope = (Real)0;
  } else if (delta > (Real)args.limit_max) {
    delta = (Real)args.limit_max;
    slope = (Real)0;
  }
#endif
  return delta;
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

// Stores VECTOR elements of a sequence at once.
__device__ __forceinline__ void store_elements(Element* target, const Real (&values)[VECTOR]) {
  ElementPack<VECTOR> pack;
#pragma unroll
  for (int k = 0; k < VECTOR; k++) pack.elements[k] = to_element(values[k]);
  *reinterpret_cast<ElementPack<VECTOR>*>(target) = pack;
}
