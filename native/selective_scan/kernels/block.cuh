// A thread block: its place in the problem, the states of its threads, and accesses to memory.
//
// A block has CHANNELS neighbouring channels of one batch row. LANES threads hold STATES states each of a channel, so
// that a walk covers SLOTS = LANES · STATES states, and a sweep as many in each of its ROUNDS.
//
// A kernel says by USE_B and USE_C which projections it needs before it includes this, and by ONE_SWEEP whether it takes it that
// there are no others than this sweep.

// Reals of the states of a thread.
#define LANE_WIDTH (STATES * COMPONENTS)

// Whether a thread of the warp says so. That all threads have the same, the compiler knows of a sum over them but not of a vote
// (CUDA 13.0), and what depends on it, loops and their counters, then costs an operation a warp, not one a thread.
__device__ __forceinline__ bool any_of_warp(bool value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_or_sync(ALL_LANES, value) != 0;
#else
  return __any_sync(ALL_LANES, value);
#endif
}

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is made of whole warps");
static_assert((LANES & (LANES - 1)) == 0 && LANES <= 32, "a channel lies within a warp");

// What one sweep alone is: the first, of all states, in the only direction.
__device__ __forceinline__ i64 first_state(const Arguments& args) { return ONE_SWEEP ? 0 : args.first_state; }
__device__ __forceinline__ bool first_direction(const Arguments& args) { return ONE_SWEEP || args.first_direction; }

// Which rows and channels a block works on; CUT: and which of several parts of a row; GROUPED: and which groups of b and c, of which
// one has several. Without these there is nothing to divide: to find its place takes a block a tenth of a short pass, and all that
// comes before it walks a third.
struct Place {
  i64 row, channel0;
#if CUT
  i64 chunk;
#else
  static constexpr i64 chunk = 0;
#endif
  i64 group_b, group_c;
  int channels;
};

#if GROUPED
// The group, out of `groups`, that a unit of channels lies in: the unit itself, unless those of the other projection are
// smaller.
__device__ __forceinline__ u32 group_of(const Arguments& args, u32 unit, i64 groups) {
  if (groups == args.units) return unit;
  return groups > 1 ? unit / ((u32)args.units / (u32)groups) : 0;
}
#endif

// `index`: the block's among those of all channels.
__device__ __forceinline__ void set_channels(Place& place, const Arguments& args, u32 index) {
#if GROUPED
  const i64 first = (i64)take(index, (u32)args.blocks_per_unit) * CHANNELS, left = args.unit - first;
  place.channel0 = index * args.unit + first;
  place.group_b = group_of(args, index, args.groups_b);
  place.group_c = group_of(args, index, args.groups_c);
#else
  place.channel0 = (i64)index * CHANNELS;
  place.group_b = place.group_c = 0;
  const i64 left = args.dim - place.channel0;
#endif
  place.channels = left < CHANNELS ? (int)left : CHANNELS;
}

// Blocks of all channels.
__device__ __forceinline__ u32 blocks_of_channels(const Arguments& args) {
  return (u32)(GROUPED ? args.units * args.blocks_per_unit : args.blocks_per_unit);
}

// Of a row, the block of channels with this number.
__device__ __forceinline__ Place place_of(const Arguments& args, i64 row, u32 block) {
  Place place;
  place.row = row;
  set_channels(place, args, block);
  return place;
}

// Of the grid's rows, which are those of the batch. Neighbouring blocks are neighbours in channels: they share b and c in
// the cache.
__device__ __forceinline__ Place find_place(const Arguments& args) {
#if CUT
  u32 chunk = blockIdx.x;
  const u32 block = take(chunk, blocks_of_channels(args));
  Place place = place_of(args, row_of_block(), block);
  place.chunk = chunk;
  return place;
#else
  return place_of(args, row_of_block(), blockIdx.x);
#endif
}

// A chunk's first frame, and the one after its last.
__device__ __forceinline__ i64 chunk_begin(const Arguments& args, const Place& place) { return place.chunk * args.chunk; }
__device__ __forceinline__ i64 chunk_end(const Arguments& args, const Place& place) {
  if (!CUT) return args.seq;
  const i64 end = chunk_begin(args, place) + args.chunk;
  return end < args.seq ? end : args.seq;
}

// A channel's lanes are thread bits 0 and from CHANNELS_PER_WARP up: then the addresses of a warp, be they of channels or
// of states, repeat at a distance of one or two threads, and an access of 16 bytes to shared memory takes 2 cycles, not 4
// (measured on an H200).
#define CHANNELS_PER_WARP (32 / LANES)

// threadIdx.x as if for the first time: what the compiler has found from it before, addresses above all, it would keep in
// registers all through the walk between.
__device__ __forceinline__ int thread_anew() {
  u32 index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index < (u32)THREADS);
  return (int)index;
}

// The lane of a thread of a warp, and its channel among those of the warp.
__device__ __forceinline__ int lane_of(int place) {
  return LANES == 1 ? 0 : (place & 1) | (place / (2 * CHANNELS_PER_WARP)) << 1;
}
__device__ __forceinline__ int channel_of(int place) { return LANES == 1 ? place : place / 2 % CHANNELS_PER_WARP; }

// The bit of a thread's number that is this bit of its lane.
__device__ __forceinline__ constexpr int thread_bit(int lane_bit) {
  return lane_bit == 1 ? 1 : lane_bit * CHANNELS_PER_WARP;
}

// --- States -------------------------------------------------------------------------------------------------

// Neighbouring lanes of a channel have neighbouring packs of up to 16 bytes.
constexpr int PACK = sizeof(State) <= 4 && STATES % 4 == 0 ? 4 : sizeof(State) <= 8 && STATES % 2 == 0 ? 2 : 1;

__device__ __forceinline__ int slot_of(int lane, int s) { return (s / PACK) * (LANES * PACK) + lane * PACK + s % PACK; }

__device__ __forceinline__ int states_here(const Arguments& args) {
  i64 left = args.state - first_state(args);
  return left < SWEEP_SLOTS ? (int)left : SWEEP_SLOTS;
}

// Where the states of this sweep lie, of a channel in a row of {rows, dim, state}; of those before a chunk, or that it ends with if it
// begins with zero; and of those that are kept before the frame number · boundary_interval of a row.
__device__ __forceinline__ i64 state_at(const Arguments& args, i64 row, i64 channel) {
  return (row * args.dim + channel) * args.state + first_state(args);
}
__device__ __forceinline__ State* chunk_state_at(const Arguments& args, i64 in_chunk) {
  return args.chunk_states + in_chunk * args.chunk_states_width + args.chunk_states_first;
}
__device__ __forceinline__ State* boundary_state_at(const Arguments& args, i64 row, i64 number, i64 channel) {
  return args.boundary_states + state_at(args, row * args.boundary_count + number, channel);
}

// Neighbouring states of a row in global memory that are accessed at once: all of them are there, or none.
template <int COUNT>
struct alignas(COUNT > 1 ? COUNT * sizeof(State) : alignof(State)) StatePack {
  State states[COUNT];
};
static_assert(PACK % VECTOR_STATES == 0 && STATES / ORDERS % VECTOR_STATES == 0,
              "states that are accessed at once are neighbours");

// The states of this sweep from a row in global memory; zero beyond the last. State s of the thread is s ^ order of its lane.
template <int AT_ONCE = VECTOR_STATES>
__device__ __forceinline__ void load_states(State (&states)[STATES], const State* row, int count, int lane, int order = 0) {
#pragma unroll
  for (int first = 0; first < STATES; first += AT_ONCE) {
    const int slot = slot_of(lane, first ^ order);
    StatePack<AT_ONCE> pack{};
    if (row && slot < count) pack = *reinterpret_cast<const StatePack<AT_ONCE>*>(row + slot);
#pragma unroll
    for (int s = 0; s < AT_ONCE; s++) states[first + s] = pack.states[s];
  }
}

// The rate of a slot, once it is waited for. One that is not there has next to none, but not zero: where Δ is infinite, as real rates may
// have it, 0 · ∞ is no number, nor would be the sums over states that it is part of.
__device__ __forceinline__ State rate_of_slot(State a, int slot, int count) { return slot < count ? a : to_state((Real)-1e-10); }

// States of a row of SLOTS that are all there, aligned: of a tile of a projection, of what chunks come to.
__device__ __forceinline__ void load_slots(State (&states)[STATES], const State* row, int lane) {
#pragma unroll
  for (int first = 0; first < STATES; first += PACK) {
    const StatePack<PACK> pack = *reinterpret_cast<const StatePack<PACK>*>(row + slot_of(lane, first));
#pragma unroll
    for (int s = 0; s < PACK; s++) states[first + s] = pack.states[s];
  }
}

template <int AT_ONCE = VECTOR_STATES>
__device__ __forceinline__ void store_states(const State (&states)[STATES], State* row, int count, int lane, int order = 0) {
#pragma unroll
  for (int first = 0; first < STATES; first += AT_ONCE) {
    const int slot = slot_of(lane, first ^ order);
    StatePack<AT_ONCE> pack;
#pragma unroll
    for (int s = 0; s < AT_ONCE; s++) pack.states[s] = states[first + s];
    if (slot < count) *reinterpret_cast<StatePack<AT_ONCE>*>(row + slot) = pack;
  }
}

// A constant projection: {dim, state} elements.
__device__ __forceinline__ State constant_at(const Element* projection, i64 at) {
#if COMPLEX
  return {to_real(projection[2 * at]), to_real(projection[2 * at + 1])};
#else
  return to_real(projection[at]);
#endif
}

__device__ __forceinline__ void load_constant(State (&states)[STATES], const Element* row, int count, int lane, int order = 0) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    int slot = slot_of(lane, s ^ order);
    states[s] = slot < count ? constant_at(row, slot) : to_state(0);
  }
}

// --- Accesses -----------------------------------------------------------------------------------------------

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

// What a real becomes where it is stored: an element, or, as what gathers over several sweeps, itself.
template <typename Stored>
__device__ __forceinline__ Stored rounded(Real value) {
  if constexpr (sizeof(Stored) < sizeof(Real)) {
    return to_element(value);
  } else {
    return value;
  }
}

// COUNT neighbours in memory, elements or reals; all are zero before any is put.
template <typename Stored, int COUNT>
struct alignas(COUNT * sizeof(Stored)) Pack {
  Stored elements[COUNT];

  __device__ __forceinline__ Real real(int k) const { return elements[k]; }
  __device__ __forceinline__ void put(int k, Stored element) { elements[k] = element; }
};

// Elements of 16 bits stay the words that they come as: of halves, each in a register, the compiler takes words apart right
// where they are loaded, and waits for them there.
#if ELEMENT > 1
template <int COUNT>
struct alignas(COUNT * sizeof(Element)) Pack<Element, COUNT> {
  u32 words[COUNT / 2];

  __device__ __forceinline__ Real real(int k) const { return half_of(words[k / 2], k % 2); }
  __device__ __forceinline__ void put(int k, Element element) { words[k / 2] |= (u32)element << k % 2 * 16; }
};

template <>
struct Pack<Element, 1> {
  Element element;

  __device__ __forceinline__ Real real(int) const { return to_real(element); }
  __device__ __forceinline__ void put(int, Element its) { element = its; }
};
#endif

template <int COUNT>
using ElementPack = Pack<Element, COUNT>;

// COUNT neighbouring reals of shared memory, in accesses of up to 16 bytes: without conflicts over its banks.
template <int COUNT>
__device__ __forceinline__ void load_reals(Real (&values)[COUNT], const Real* shared) {
  constexpr int AT_ONCE = COUNT * sizeof(Real) <= 16 ? COUNT : 16 / sizeof(Real);
#pragma unroll
  for (int p = 0; p < COUNT / AT_ONCE; p++) {
    const Reals<AT_ONCE> pack = reinterpret_cast<const Reals<AT_ONCE>*>(shared)[p];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) values[p * AT_ONCE + k] = pack.reals[k];
  }
}

template <int COUNT>
__device__ __forceinline__ void store_reals(Real* shared, const Real (&values)[COUNT]) {
  constexpr int AT_ONCE = COUNT * sizeof(Real) <= 16 ? COUNT : 16 / sizeof(Real);
#pragma unroll
  for (int p = 0; p < COUNT / AT_ONCE; p++) {
    Reals<AT_ONCE> pack;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) pack.reals[k] = values[p * AT_ONCE + k];
    reinterpret_cast<Reals<AT_ONCE>*>(shared)[p] = pack;
  }
}

// Neighbouring states, as they lie in shared memory.
__device__ __forceinline__ void load_lane(State (&states)[STATES], const Real* from) {
  Real reals[LANE_WIDTH];
  load_reals(reals, from);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if COMPLEX
    states[s] = {reals[2 * s], reals[2 * s + 1]};
#else
    states[s] = reals[s];
#endif
  }
}

__device__ __forceinline__ void store_lane(Real* to, const State (&states)[STATES]) {
  Real reals[LANE_WIDTH];
#pragma unroll
  for (int s = 0; s < STATES; s++) {
#if COMPLEX
    reals[2 * s] = states[s].re;
    reals[2 * s + 1] = states[s].im;
#else
    reals[s] = states[s];
#endif
  }
  store_reals(to, reals);
}

// What is accessed at once, in words.
template <int BYTES>
struct Words;
template <>
struct Words<4> {
  typedef u32 Type;
};
template <>
struct Words<8> {
  typedef uint2 Type;
};
template <>
struct Words<16> {
  typedef uint4 Type;
};

// Loads a pack. ONCE, here and below: nobody accesses this soon again, so that the cache gives it up first (.cs of PTX). That is
// measured: of what a chunk of several tiles has read, it reads some again.
template <bool ONCE, typename Loaded>
__device__ __forceinline__ Loaded load_pack(const Loaded* global) {
  if constexpr (!ONCE) return *global;
  typedef typename Words<sizeof(Loaded)>::Type Type;
  const Type words = __ldcs(reinterpret_cast<const Type*>(global));
  return *reinterpret_cast<const Loaded*>(&words);
}

// Stores BYTES, 16 at a time. In PTX, because the compiler takes a store of a pack apart where a branch is near.
template <bool ONCE, int BYTES>
__device__ __forceinline__ void store_bytes(void* global, const void* bytes) {
  if constexpr (BYTES > 16) {
    store_bytes<ONCE, 16>(global, bytes);
    store_bytes<ONCE, BYTES - 16>(static_cast<char*>(global) + 16, static_cast<const char*>(bytes) + 16);
  } else if constexpr (ONCE) {
    typedef typename Words<BYTES>::Type Type;
    __stcs(static_cast<Type*>(global), *static_cast<const Type*>(bytes));
  } else if constexpr (BYTES == 16) {
    const uint4 v = *static_cast<const uint4*>(bytes);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
  } else if constexpr (BYTES == 8) {
    const uint2 v = *static_cast<const uint2*>(bytes);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(global), "r"(v.x), "r"(v.y) : "memory");
  } else if constexpr (BYTES == 4) {
    *static_cast<u32*>(global) = *static_cast<const u32*>(bytes);
  } else {
    *static_cast<u16*>(global) = *static_cast<const u16*>(bytes);
  }
}

// Stores VECTOR neighbours of a sequence at once.
template <bool ONCE, typename Stored>
__device__ __forceinline__ void store_vector(Stored* target, const Real (&values)[VECTOR]) {
  Pack<Stored, VECTOR> pack{};
#pragma unroll
  for (int k = 0; k < VECTOR; k++) pack.put(k, rounded<Stored>(values[k]));
  store_bytes<ONCE, VECTOR * sizeof(Stored)>(target, &pack);
}

// --- Step sizes ---------------------------------------------------------------------------------------------

// Whether something is done to dt before it is Δ.
#define CHANGES_DT (HAS_DT_BIAS || DT_SOFTPLUS || DT_LIMIT)
// Whether more is done to elements than the scan (`changes_elements` of the policy): where tiles are copied, one lane of a channel then
// owns each (owners.cuh).
#define HAS_OWNERS (CHANGES_DT || HAS_D || HAS_Z)

#if ELEMENT == 1
__device__ __forceinline__ Real softplus(Real x) { return x > (Real)20 ? x : log1p(exp(x)); }
__device__ __forceinline__ Real sigmoid(Real x) { return (Real)1 / ((Real)1 + exp(-x)); }
// Beyond what it makes of 20, Δ was left as it is.
__device__ __forceinline__ Real slope_of_softplus(Real delta) { return delta > (Real)20.000000002061154 ? (Real)1 : -expm1(-delta); }
#else
// max(x, 0) + log1p(u), u = e^−|x|, within 5e-7 (x > −40): beyond 20 that is x. u must be right where it is all there
// is: what rounding takes from the exponent is put back to first order. log1p(u)/u is a minimax polynomial, relative error
// 3.3e-8.
__device__ __forceinline__ Real softplus(Real x) {
  const Real exponent = fabsf(x) * -1.44269504f, power = power_of_two(exponent);
  const Real lost = fminf(fmaf(exponent, -0.69314718f, -fabsf(x)), 1.0f);  // what is infinite takes 1 of 0
  const Real u = power * lost + power;
  Real sum = 5.364824552e-3f;
  sum = sum * u - 3.006579168e-2f;
  sum = sum * u + 7.920453697e-2f;
  sum = sum * u - 1.375380307e-1f;
  sum = sum * u + 1.915365458e-1f;
  sum = sum * u - 2.485716343e-1f;
  sum = sum * u + 3.332132399e-1f;
  sum = sum * u - 4.999964833e-1f;
  sum = sum * u + 1.0f;
  return u * sum + fmaxf(x, 0.0f);
}
__device__ __forceinline__ Real sigmoid(Real x) { return reciprocal(1.0f + power_of_two(x * -1.44269504f)); }
// Where it is Δ: 1 − e^−Δ, within 4e-7; a minimax polynomial where the difference would lose what counts.
__device__ __forceinline__ Real slope_of_softplus(Real delta) {
  Real near = 6.7788055e-3f;
  near = near * delta - 4.10100855e-2f;
  near = near * delta + 1.66551486e-1f;
  near = near * delta - 4.99992967e-1f;
  near = near * delta + 9.9999994e-1f;
  const Real far = 1.0f - power_of_two(delta * -1.44269504f);
  return delta < 0.5f ? near * delta : far;
}
#endif

// Δ of an element of dt, and ∂Δ/∂dt. A NaN passes through the limit.
__device__ __forceinline__ Real step_size(const Arguments& args, Real dt, [[maybe_unused]] Real bias, Real& slope) {
  Real delta = dt;
#if HAS_DT_BIAS
  delta += bias;
#endif
  slope = (Real)1;
#if DT_SOFTPLUS
  slope = delta > (Real)20 ? (Real)1 : sigmoid(delta);
  delta = softplus(delta);
#endif
#if DT_LIMIT
  const bool below = delta < args.dt_limit_min, above = delta > args.dt_limit_max;
  slope = below || above ? (Real)0 : slope;
  delta = below ? args.dt_limit_min : above ? args.dt_limit_max : delta;
#endif
  return delta;
}
