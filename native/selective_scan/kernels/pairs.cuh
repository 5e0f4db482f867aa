// What a block of the backward pass has in shared memory, and what a thread has in registers: states of a pair of channels,
// over spans of frames.

// Frames that a thread has in registers, and channels.
#define SPAN 4
#define PAIR 2
#define SPANS (PART_FRAMES / SPAN)
// Spans from that which is walked to that which is read. Two where adjoints are walked alone, or states in few operations: that
// takes less time than a span's way from memory. Two copies of more operations take as long again to compile. A part has two.
#define AHEAD ((TILES > 1 && REAL_F32 && !NEEDS_PHI) || SUMMARY || PARTS > 1 ? 2 : 1)
#define CHANNELS_EACH (CHANNELS_PER_WARP * PAIR)
// Warps that have the same frames, and these: of a tile, they walk one of PARTS parts.
#define WARPS_EACH (WARPS / PARTS)
#define PART_FRAMES (TILE / PARTS)
// Slices of a span's dB or dC: what a lane has of a frame.
#define SLICES (SPAN * LANES)
// Reals of a span of all channels of a warp.
#define FRAMES_REALS (PAIR * CHANNELS_PER_WARP * SPAN)
#define START_REALS (PAIR * 32 * LANE_WIDTH)
#define SUM_REALS (2 * SPAN * SLOT_WIDTH)
#define SPAN_REALS (START_REALS > SUM_REALS ? START_REALS : SUM_REALS)
// From one order of a lane's states to the next (see order_of).
#define ORDER_STEP (STATES / ORDERS)
// Whether it is known here that a row is one tile: it is longer than the usual, or in parts.
#define ROW_IS_TILE (TILE > BACKWARD_TILE || PARTS > 1)
// Whether rates are settled when the row's one tile has come, whose way from memory hides theirs. Packed rows take 1% longer so
// (H200).
#define RATES_LATER (ROW_IS_TILE && !SUMMARY && !SEQ_IDX)
// Whether a thread has its sums of dA in registers, for which elements of 16 bits leave room. Shared memory then has them at the
// end of the block alone, where the first span was.
#define DA_IN_REGISTERS (ELEMENT > 1 && !COMPLEX && METHOD == ZOH && TILE_B && TILE_C)

static_assert(CHANNELS == WARPS_EACH * CHANNELS_EACH, "warps have equally many channels");
static_assert(PART_FRAMES % SPAN == 0 && TILE <= 64, "marks of a tile are a word");
static_assert(!FINDS_MARKS || TILE * TILES <= 64, "marks of a row are a word");
static_assert(SPANS >= AHEAD, "what is read ahead lies in the tile");
static_assert(PARTS == 1 || (TILES == 1 && TILE_B == 1 && TILE_C == 1 && !SUMMARY), "parts are of one tile");
static_assert(PARTS == 1 || SPANS == AHEAD, "all of a part is asked for at once");
static_assert(!WITHIN_TILES || (CUT && TILES == 1 && !SUMMARY), "tiles that segments share are chunks");
static_assert(LANES >= SPAN, "every frame of a span has an owner");
static_assert(STATES <= PACK, "a lane's states are neighbours");
static_assert(ORDERS <= STATES && ORDERS <= CHANNELS_PER_WARP, "orders differ in bits of a state and of a channel");

// A span of the channels of a warp.
typedef Real Frames[PAIR][CHANNELS_PER_WARP][SPAN];

// What belongs to a warp. Where lanes write what others read, __syncwarp lies between.
struct Warp {
  alignas(16) Frames delta[SPANS];  // first: see DISTANCE
#if !SUMMARY
  alignas(16) Frames x[SPANS];
  // The states before each span, [pair][thread]; when it has been walked back, its dB and dC, [b, c][frame][slot].
  alignas(16) Real spans[SPANS][SPAN_REALS];
#if !DA_IN_REGISTERS
  alignas(16) Real da[START_REALS];  // a thread's sums of dA over time: the walk needs the registers
#endif
  // Of the frame that a thread owns: the gradient of y before the gate, and what that of z is y times.
#if HAS_D
  alignas(16) Real dy_before_gate[32][PAIR];
#endif
#if HAS_Z
  alignas(16) Real dz_by_y[32][PAIR];
#endif
  // The sums of dD and of the gradient of dt_bias over the frames that a thread owns.
#if HAS_D
  alignas(16) Real dd[32][PAIR];
  alignas(16) Real d[CHANNELS_PER_WARP][PAIR];
#endif
#if HAS_DT_BIAS
  alignas(16) Real ddt_bias[32][PAIR];
#endif
#if TILES > 1
  alignas(16) Real tiles[TILES - 1 - TILES_NOT_KEPT][START_REALS];  // the states before the tiles of a chunk but the last
#endif
#endif
#if PARTS > 1
  // What the part's frames leave if they begin with zero, of states and of adjoints, and the product of their decays.
  alignas(16) Real ends[START_REALS];
  alignas(16) Real adjoint_ends[START_REALS];
  alignas(16) Real products[START_REALS];
#endif
  alignas(16) Frames dy[SUMMARY || PARTS > 1 ? SPANS : 1];  // w · scale · dy · silu(z)
#if HAS_DT_BIAS
  alignas(16) Real dt_bias[CHANNELS_PER_WARP][PAIR];
#endif
};

// What a block walks. It lies in shared memory, because the walk needs the registers.
struct Course {
  Place place;
  i64 row_end, segment, part;      // the rows from place.row on; the segment of each
  i64 segment_end, first, end;     // scan indices: where the segment ends, and the piece of it
  i64 contribution;                // the number of the block among those of a row
  u32 tile;                        // the tile that is walked next, from the last to the first: TILES are a chunk
  int ready_rows;                  // frames of the tile whose sums of dB and dC the warps have ready; 0 for none
#if WITHIN_TILES
  int ready_from;                  // those before this are another segment's
#endif
  i64 ready_at;                    // where in db_parts and dc_parts they belong
};

// A tile of a projection, in every order in which there are threads that hold their states (see order_of).
struct Rows {
  alignas(16) Real frames[TILE][ORDERS * SLOT_WIDTH];
};

struct Shared {
  Warp warps[WARPS];
#if TILE_B
  Rows b;
#endif
#if TILE_C
  Rows c;
#endif
  Course course;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// Marks of a tile's frames, a bit each, the same in all threads of a block. Frames that are none are skipped.
struct Marks {
  u64 resets, skips;

  // Those of so many frames.
  __device__ __forceinline__ Marks from(int first, int frames) const {
    const u64 own = ~(u64)0 >> (64 - frames);
    return {resets >> first & own, skips >> first & own};
  }
  __device__ __forceinline__ Marks of_part(int part) const { return from(part * PART_FRAMES, PART_FRAMES); }

  __device__ __forceinline__ bool reset(int r) const { return SEQ_IDX && (resets >> r & 1) != 0; }
  __device__ __forceinline__ bool skip(int r) const { return SEQ_IDX && (skips >> r & 1) != 0; }
};

__device__ __forceinline__ Marks marks_of([[maybe_unused]] const Arguments& args, [[maybe_unused]] const Place& place,
                                          [[maybe_unused]] i64 i0, [[maybe_unused]] int rows) {
#if SEQ_IDX
  Marks marks{0, 0};
  // Where FINDS_MARKS, those of the whole row: it is short.
  constexpr int FRAMES = FINDS_MARKS ? TILE * TILES : TILE;
  [[maybe_unused]] int last_index = -1;
#pragma unroll
  for (int first = 0; first < FRAMES; first += 32) {
    const int r = first + thread_anew() % 32;
#if FINDS_MARKS
    const int mark = mark_in_warp(index_at(args, place.row, r), last_index);
#else
    const int mark = r < rows ? args.marks[place.row * args.seq + i0 + r] : MARK_SKIP;
#endif
    marks.resets |= (u64)__ballot_sync(ALL_LANES, mark & MARK_RESET) << first;
    marks.skips |= (u64)__ballot_sync(ALL_LANES, mark & MARK_SKIP) << first;
  }
  return FINDS_MARKS ? marks.from((int)i0, TILE) : marks;
#else
  return {0, 0};
#endif
}

typedef ElementPack<PAIR> Pair;
typedef State PairStates[PAIR][STATES];

// What a thread is, and what it keeps over its block.
struct Thread {
  int warp, part, place, lane, pair, column;
  int here;  // channels of the pair that there are
  int order;
  // Where it finds in shared memory what is its own: Δ of its pair in the first span, its states before the first span, its
  // states of the first frame of b. Others lie at a distance from these.
  Real *frames, *states, *rows;
  PairStates a, adjoint;
#if SUMMARY
#if DECAY_BY_SUM
  Real delta_sum[PAIR];  // of the frames that the lane owns
#else
  PairStates product;
#endif
#endif
#if !SUMMARY
#if DA_IN_REGISTERS
  PairStates da;
#endif
#if B_CONSTANT
  PairStates b, db;
#endif
#endif
#if C_CONSTANT
  PairStates c;
#if !SUMMARY
  PairStates dc;
#endif
#endif
};

// Reals from the Δ of a warp to another member: offsetof as C has it, because NVRTC has neither its header nor the builtin.
#define DISTANCE(member) ((int)((u64)&((Warp*)nullptr)->member / sizeof(Real)))

// An address in shared memory that is kept as it is: the compiler would find it anew in each span.
template <typename T>
__device__ __forceinline__ T* fixed(T* shared) {
  u32 address = (u32)__cvta_generic_to_shared(shared);
  asm volatile("" : "+r"(address));
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// State s of a lane is s ^ order of its slots, by the channel's place among those of the warp: so an exchange with the
// channel whose order differs in a bit gives away what has that bit, and nobody has to select (sum_channels). The highest
// bits of the place, as many as there are of the order: neighbouring threads of a lane then read the same row.
__device__ __forceinline__ constexpr bool turns(int bit) { return bit * ORDERS >= CHANNELS_PER_WARP; }

__device__ __forceinline__ int order_of(int pair) {
  int order = 0, turned = STATES / 2;
#pragma unroll
  for (int bit = CHANNELS_PER_WARP / 2; bit > 0 && turns(bit); bit /= 2, turned /= 2) order |= pair & bit ? turned : 0;
  return order;
}

// A lane's states in the order of their slots, of those in an order, or the other way round.
__device__ __forceinline__ void turn(State (&turned)[STATES], const State (&states)[STATES], int order) {
#pragma unroll
  for (int s = 0; s < STATES; s++) turned[s] = states[s];
#pragma unroll
  for (int bit = ORDER_STEP; bit < STATES; bit *= 2) {
    const bool exchanged = order & bit;
#pragma unroll
    for (int s = 0; s < STATES; s++) {
      if (s & bit) continue;
      const State low = turned[s], high = turned[s | bit];
      turned[s] = exchanged ? high : low;
      turned[s | bit] = exchanged ? low : high;
    }
  }
}

// Where a lane's states lie in a row, in an order: the threads that access it together find theirs in different banks. Of four
// orders, neighbouring pairs of lanes have theirs half a row of banks apart, because all lanes store one order at a time.
__device__ __forceinline__ int place_in_row(int lane, int order) {
  const int turned = order / ORDER_STEP ^ (ORDERS > 2 ? lane / 2 % 2 * 2 : 0);
  return (lane % 2 + turned * 2 + lane / 2 * (2 * ORDERS)) * LANE_WIDTH;
}

// Whether the thread owns a frame of every span.
__device__ __forceinline__ bool is_owner([[maybe_unused]] const Thread& thread) { return LANES == SPAN || thread.lane < SPAN; }
