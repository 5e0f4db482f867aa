// What the host hands to every kernel, in one struct; a kernel reads what concerns it. `arguments.rs` mirrors it
// field by field. After it, what every kernel finds its place by.
//
// Time runs in scan order: index i is frame i, or frame seq − 1 − i where `reverse`. A long sequence is cut in
// `chunks` of `chunk` frames; the backward pass also in `segments` of whole tiles, or spans. A sweep covers the states
// first_state … first_state + SWEEP_SLOTS − 1 in one direction; where there are several sweeps, sums over the states are
// carried from sweep to sweep in Real.

struct Arguments {
  // Inputs.
  const Element* x;
  const Element* dt;
  const State* a;
  const Element* b;
  const Element* c;
  const Real* d;
  const Element* z;
  const Real* dt_bias;
  const State* initial_state;
  const int* seq_idx;
  const Element* dy;
  const State* dfinal_state;

  // Outputs.
  Element* y;
  State* final_state;
  Element* dx;
  Element* ddt;
  Element* dz;
  Element* db;
  Element* dc;
  State* da;
  Real* dd;
  Real* ddt_bias;
  State* dinitial_state;

  // Carried from kernel to kernel.
  u8* marks;                 // {batch, seq} in scan order: MARK_RESET, MARK_SKIP; none where FINDS_MARKS
  u8* chunk_resets;          // {batch, chunks}: whether a state is reset in the chunk, where there are several
  u8* adjoint_resets;        // {batch, adjoint_chunks}: the same of these, where there are several
  State* chunk_states;       // {batch, chunks, dim, chunk_states_width}: the state before each chunk; see JOINS
  State* adjoint_ends;       // {batch, adjoint_chunks, dim, SLOTS}: what each adds to the gradient before it; maybe in dx, written later
  State* segment_adjoints;   // {batch, segments, dim, SLOTS}: the state's gradient after what is left of each segment; see JOINS
  State* boundary_states;    // {batch, boundary_count, dim, state}: that the forward pass keeps for the backward pass, if wanted
  Real* delta_sums;          // {batch, chunks, dim}: the sum of Δ over each chunk; of adjoint chunks in ddt, if their ends are in dx
  State* decays;             // {batch, chunks, dim, SWEEP_SLOTS}: the product of a over each, where that is not by ΣΔ; likewise
  Real* y_sum;               // {batch, seq, dim}: y of the sweeps so far; so dx_sum, ddt_sum and dz_sum
  Real* dx_sum;
  Real* ddt_sum;
  Real* dz_sum;
  Real* db_parts;            // {frames of the piece, blocks of channels, SLOTS} for each row and segment: dB, summed over
                             // the channels of a block
  Real* dc_parts;            // the same of C
  Real* db_sum;              // dB of one direction while the other is missing; so dc_sum
  Real* dc_sum;
  State* da_parts;           // {row blocks, segments, dim, SLOTS}; segment_adjoints, maybe, of the piece walked last
  State* db_constant_parts;  // {row blocks, segments, dim, SLOTS}, of constant B
  State* dc_constant_parts;  // the same of constant C
  Real* dd_parts;            // {row blocks, segments, dim}
  Real* ddt_bias_parts;      // the same of dt_bias
  State* db_constant;        // {dim, state}: gradient of constant B, before it is rounded
  State* dc_constant;        // the same of constant C

  // Sizes.
  i64 batch;
  i64 seq;
  i64 dim;
  i64 state;
  i64 groups_b;
  i64 groups_c;
  i64 unit;                 // neighbouring channels that share their b and their c
  i64 units;                // in dim
  i64 blocks_per_unit;      // blocks (of CHANNELS channels) in a unit
  i64 first_block;          // that bulk.cu walks, if those of all rows lie in line: the launch before walks what is before it
  i64 rows_per_block;       // batch rows that one thread block of the backward pass walks in turn
  i64 segment;              // frames of a segment: segments are walked side by side by the backward pass
  i64 segments;             // in a row
  i64 adjoint_chunk;        // frames of which a block walks the adjoints alone: a segment is made of whole ones
  i64 adjoint_chunks;       // in a row
  i64 piece_first;          // the first and the number of the frames that a launch of the backward pass covers of every segment
  i64 piece_frames;         // but the last
  i64 parts_row;            // reals from a row's sums in db_parts and dc_parts to the next row's
  i64 parts_segment;        // the same of segments, but for the last
  i64 last_parts;           // reals from a row's first sums to those of its last segment
  i64 first_state;
  i64 chunk;
  i64 chunks;
  i64 chunk_states_width;   // SWEEP_SLOTS, or state where these are the boundary states of the forward pass
  i64 chunk_states_first;   // 0, or first_state
  i64 boundary_interval;    // frames between states that are kept
  i64 boundary_count;

  // Reals in 8 bytes each, as the host has them.
  alignas(8) Real dt_limit_min;
  alignas(8) Real dt_limit_max;
  alignas(8) float scale;   // ½ where bidirectional, else 1
  int reverse;
  int first_sweep;
  int last_sweep;
  int accumulate;           // the sums over time hold the other direction already
  int last_direction;
  int first_direction;      // it alone begins with initial_state and ends in final_state, or with and in their gradients
  int sums_go_on;           // sums over time go on from piece to piece, and reduce.cu has them after the last; else after each

  // Of relay.cu, where its blocks share strips.
  i64 tiles_per_block;
  State* handed_states;      // {blocks, 32, STATES}: what each is handed by the one before it
  u64* handed;               // {blocks}: `token` from when that is there until it has been read
  u64 token;                 // a random number of the process, never 0

  // Of the last segment, which may be shorter than the others: its piece.
  i64 last_piece_first;
  i64 last_piece_frames;
};

// Threads of a block that walk or sum: a carrier's warp (bulk.cu) is beside them.
#define THREADS (WARPS * 32)
#define ALL_LANES 0xffffffffu

static_assert(sizeof(Arguments) == ARGUMENTS_BYTES, "the host has the same fields");

// States of a walk, and their reals.
#define SLOTS (LANES * STATES)
#define SLOT_WIDTH (SLOTS * COMPONENTS)
// What a pass covers: the forward pass walks for ROUNDS times as many states, one round after the other.
#define SWEEP_SLOTS (SLOTS * ROUNDS)
#define SWEEP_WIDTH (SLOT_WIDTH * ROUNDS)

// What is carried over a chunk: what the decays of all its frames leave of it, and what the chunk adds, `end`. A chunk that
// resets forgets what is carried to it. Of zero nothing comes, even where states grow and all decays come to more than a real holds.
__device__ __forceinline__ State over_chunk(State carried, State decay, State end, bool resets) {
  return resets || is_zero(carried) ? end : decay * carried + end;
}

// The kernels of a pass follow one another closely, where the device can (Launcher::launch): each lets the next begin as
// soon as all of its own blocks have, and before it reads what kernels before it write, or writes at all, it waits until
// they have ended. Every kernel waits: so those before the last have ended too.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The host spreads blocks over the grid (Blocks of launch.rs): those of a row over x, rows over y and z; or, where a kernel
// does not go by rows, all over x, and over y what is too much for that. The walk back of rows that are cut takes the grid of rows
// as one line (find_course).
__device__ __forceinline__ i64 row_of_block() { return (i64)blockIdx.z * gridDim.y + blockIdx.y; }
__device__ __forceinline__ u64 block_index() { return (u64)row_of_block() * gridDim.x + blockIdx.x; }

// Divides `index` by `by` and gives what is left. Mostly there is nothing to divide, and a division takes long.
template <typename Index>
__device__ __forceinline__ Index take(Index& index, Index by) {
  Index quotient = 0, rest = index;
  if (by == 1) {
    quotient = index;
    rest = 0;
  } else if (index >= by) {
    quotient = index / by;
    rest = index - quotient * by;
  }
  index = quotient;
  return rest;
}

// What a launch of the backward pass covers of a segment, and where the sums of that lie from its row's on.
struct Piece {
  i64 first, frames, parts;

  __device__ __forceinline__ Piece(const Arguments& args, i64 segment)
      : first(args.piece_first), frames(args.piece_frames), parts(segment * args.parts_segment) {
    if (segment < args.segments - 1) return;
    first = args.last_piece_first;
    frames = args.last_piece_frames;
    parts = args.last_parts;
  }
};

// Of {batch, parts, dim}, whose parts are chunks or segments: where a channel of a part lies.
__device__ __forceinline__ i64 in_part(const Arguments& args, i64 row, i64 parts, i64 part, i64 channel) {
  return (row * parts + part) * args.dim + channel;
}

// The frame that scan index i stands for. A kernel for tiles that the device copies is compiled for a direction, and says so by
// ONE_DIRECTION before it includes this.
__device__ __forceinline__ i64 frame_at(const Arguments& args, i64 i) {
#if ONE_DIRECTION
  return REVERSE ? args.seq - 1 - i : i;
#else
  return args.reverse ? args.seq - 1 - i : i;
#endif
}
