// The second stage of the sums of the backward pass, in a fixed order: dB and dC of a piece over the blocks of channels, and the
// gradients of the parameters over rows and segments, with the piece that is walked last, or with every piece.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

#define THREADS 256
// Packs that a block sums, each in slices of so many threads.
#define PACK_SLICES 4
#define PACKS_EACH (THREADS / PACK_SLICES)
// Parts that are on their way from memory at a time: each costs its latency.
#define AT_ONCE 16
// Columns of parameters of a block, and slices of rows.
#define COLUMNS 32
#define SLICES (THREADS / COLUMNS)

// VECTOR: neighbouring components that a thread sums, in one access.
#define PACKS (SLOT_WIDTH / VECTOR)

static_assert(SLOT_WIDTH % VECTOR == 0, "components are whole accesses");

struct alignas(VECTOR * sizeof(Real)) Pack {
  Real reals[VECTOR];
};

// Neighbouring components of dB or dC of a group in a frame.
struct Components {
  const Real* parts;  // those of the group's first block of channels
  Real* sums;         // where one direction waits for the other
  Element* target;
  int count;
};

// The components of this index among those of a projection in the piece; false where there is no such frame.
__device__ __forceinline__ bool find_components(const Arguments& args, Components& components, i64 groups, u64 index) {
  const int column = (int)take(index, (u64)PACKS) * VECTOR;
  const i64 group = take(index, (u64)groups), in_piece = take(index, (u64)args.piece_frames);
  const i64 segment = take(index, (u64)args.segments), row = index;
  const i64 in_segment = args.piece_first + in_piece, i = segment * args.segment + in_segment;
  const i64 left = (args.state - args.first_state) * COMPONENTS - column;
  if (in_segment >= args.segment || i >= args.seq || left <= 0) return false;
  const i64 contributions = args.units * args.blocks_per_unit;
  components.parts += row * args.parts_row + segment * args.parts_segment +
                      (in_piece * contributions + group * (contributions / groups)) * SLOT_WIDTH + column;
  const i64 at = (((row * args.seq + frame(args, i)) * groups + group) * args.state + args.first_state) * COMPONENTS + column;
  components.sums += at;
  components.target += at;
  components.count = left < VECTOR ? (int)left : VECTOR;
  return true;
}

// Packs of a piece: those of B, and all.
__device__ __forceinline__ i64 packs_of(const Arguments& args, i64& packs_b) {
  const i64 rows = args.batch * args.segments * args.piece_frames * PACKS;
  packs_b = args.db_parts ? rows * args.groups_b : 0;
  return packs_b + (args.dc_parts ? rows * args.groups_c : 0);
}

// Sums over the blocks of channels of each group. A warp has 8 packs and sums each in PACK_SLICES; the components of C come
// after those of B.
__device__ __forceinline__ void reduce_projections(const Arguments& args, i64 block, i64 packs_b) {
  const i64 warp = block * (THREADS / 32) + threadIdx.x / 32;
  const int slice = threadIdx.x % 32 / 8;
  i64 index = warp * 8 + threadIdx.x % 8;
  const i64 rows = args.batch * args.segments * args.piece_frames * PACKS;
  const bool of_b = index < packs_b;
  if (!of_b) index -= packs_b;
  const i64 groups = of_b ? args.groups_b : args.groups_c;
  Components components = of_b ? Components{args.db_parts, args.db_sum, args.db, 0}
                               : Components{args.dc_parts, args.dc_sum, args.dc, 0};
  const bool here = components.parts && index < rows * groups && find_components(args, components, groups, index);
  wait_for_kernels_before();

  Pack sum{};
  if (here) {
    const int each = (int)(args.units * args.blocks_per_unit / groups);
#pragma unroll 1
    for (int first = slice; first < each; first += AT_ONCE * PACK_SLICES) {
      Pack parts[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const int part = first + k * PACK_SLICES;
        parts[k] = Pack{};
        if (part < each) parts[k] = *reinterpret_cast<const Pack*>(components.parts + (i64)part * SLOT_WIDTH);
      }
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
        for (int e = 0; e < VECTOR; e++) sum.reals[e] += parts[k].reals[e];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < VECTOR; e++) {
    sum.reals[e] += __shfl_down_sync(0xffffffffu, sum.reals[e], 16);
    sum.reals[e] += __shfl_down_sync(0xffffffffu, sum.reals[e], 8);
  }
  if (!here || slice > 0) return;
#pragma unroll
  for (int e = 0; e < VECTOR; e++) {
    if (e >= components.count) break;
    Real value = sum.reals[e];
    if (args.accumulate) value += components.sums[e];
    if (args.last_direction) {
      components.target[e] = to_element(value);
    } else {
      components.sums[e] = value;
    }
  }
}

// Adds to `target` the sum of `parts` over rows and segments. A block has COLUMNS columns and SLICES slices of the
// rows, each summed in double precision by a thread of its own.
__device__ __forceinline__ void reduce_columns(const Arguments& args, i64 block, const Real* parts, Real* target, i64 width,
                                               bool of_states) {
  __shared__ double slices[SLICES][COLUMNS];
  const int x = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
  const i64 rows = (args.batch + args.rows_per_block - 1) / args.rows_per_block * args.segments;
  const i64 column = block * COLUMNS + x;
  // In the slots beyond the last state nobody has left anything.
  const bool here = column < width && (!of_states || args.first_state + (int)(column % SLOT_WIDTH) / COMPONENTS < args.state);
  double sum = 0;
  // The last segment may end before the piece begins: then nobody has left anything there.
  const u32 segments = (u32)args.segments;
  const bool all = args.segment * (args.segments - 1) + args.piece_first < args.seq;
  if (here) {
    for (i64 row = slice; row < rows; row += SLICES) {
      if (all || (u32)row % segments < segments - 1) sum += (double)parts[row * width + column];
    }
  }
  slices[slice][x] = sum;
  __syncthreads();
  if (slice > 0 || !here) return;
  for (int k = 1; k < SLICES; k++) sum += slices[k][x];
  i64 at = column;
  if (of_states) {
    const i64 channel = column / SLOT_WIDTH;
    at = (channel * args.state + args.first_state) * COMPONENTS + column % SLOT_WIDTH;
  }
  const bool first_piece = args.sums_go_on || args.piece_first + args.piece_frames >= args.segment;
  const bool first = first_piece && (of_states ? !args.accumulate : args.first_pass);
  target[at] = first ? (Real)sum : (Real)((double)target[at] + sum);
}

__device__ __forceinline__ void reduce_parameters(const Arguments& args, i64 block) {
  const i64 states = args.dim * SLOT_WIDTH, blocks = (states + COLUMNS - 1) / COLUMNS;
  i64 parameter = block;
  block = take(parameter, blocks);
  // They come in this order, those that there are: from no parts, there is nothing to sum.
  const void *parts = nullptr, *target = nullptr;
  bool of_states = true;
  const auto find = [&](const void* its_parts, const void* its_target, bool its_states) {
    if (!its_parts || parameter-- != 0) return;
    parts = its_parts;
    target = its_target;
    of_states = its_states;
  };
  find(args.da_parts, args.da, true);
  find(args.db_constant_parts, args.db_constant, true);
  find(args.dc_constant_parts, args.dc_constant, true);
  find(args.dd_parts, args.first_pass ? args.dd : nullptr, false);
  find(args.ddt_bias_parts, args.ddt_bias, false);
  wait_for_kernels_before();
  if (target) {
    reduce_columns(args, block, (const Real*)parts, (Real*)target, of_states ? states : args.dim, of_states);
  }
}

// The first blocks sum the piece's dB and dC; those after them the parameters.
extern "C" __global__ void __launch_bounds__(THREADS) scan_reduce(const Arguments args) {
  let_next_begin();
  i64 packs_b;
  const i64 block = block_index(), blocks = (packs_of(args, packs_b) + PACKS_EACH - 1) / PACKS_EACH;
  if (block < blocks) {
    reduce_projections(args, block, packs_b);
  } else if (args.piece_first == 0 || !args.sums_go_on) {
    reduce_parameters(args, block - blocks);
  }
}

// Rounds the gradients of constant B and C, once all passes have added to them.
extern "C" __global__ void __launch_bounds__(THREADS) scan_round_constants(const Arguments args) {
  wait_for_kernels_before();
  const i64 index = block_index() * THREADS + threadIdx.x;
  if (index >= args.dim * args.state * COMPONENTS) return;
  if (args.db_constant) args.db[index] = to_element(reinterpret_cast<const Real*>(args.db_constant)[index]);
  if (args.dc_constant) args.dc[index] = to_element(reinterpret_cast<const Real*>(args.dc_constant)[index]);
}
