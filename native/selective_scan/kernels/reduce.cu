// The second stage of the sums of the backward pass, in a fixed order.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

#define COLUMNS 32
#define SLICES 8

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
__device__ __forceinline__ bool find_components(const Arguments& args, Components& components, i64 groups, i64 index) {
  const int column = (int)take(index, PACKS) * VECTOR;
  const i64 group = take(index, groups), in_piece = take(index, args.piece_frames), segment = take(index, args.segments);
  const i64 row = index, in_segment = args.piece_first + in_piece, i = segment * args.segment + in_segment;
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

// Sums over the blocks of channels of each group. A warp has 8 packs and sums each in 4 slices; the components of C
// come after those of B.
extern "C" __global__ void __launch_bounds__(256) scan_reduce_projections(const Arguments args) {
  const i64 warp = block_index() * 8 + threadIdx.x / 32;
  const int slice = threadIdx.x % 32 / 8;
  i64 index = warp * 8 + threadIdx.x % 8;
  const i64 rows = args.batch * args.segments * args.piece_frames * PACKS;
  const i64 packs_b = args.db_parts ? rows * args.groups_b : 0;
  const bool of_b = index < packs_b;
  if (!of_b) index -= packs_b;
  const i64 groups = of_b ? args.groups_b : args.groups_c;
  Components components = of_b ? Components{args.db_parts, args.db_sum, args.db, 0} : Components{args.dc_parts, args.dc_sum, args.dc, 0};
  const bool here = components.parts && index < rows * groups && find_components(args, components, groups, index);

  Pack sum{};
  if (here) {
    const int each = (int)(args.units * args.blocks_per_unit / groups);
#pragma unroll 4
    for (int k = slice; k < each; k += 4) {
      const Pack part = *reinterpret_cast<const Pack*>(components.parts + (i64)k * SLOT_WIDTH);
#pragma unroll
      for (int e = 0; e < VECTOR; e++) sum.reals[e] += part.reals[e];
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
__device__ __forceinline__ void reduce_columns(const Arguments& args, const Real* parts, Real* target, i64 width, bool of_states) {
  __shared__ double slices[SLICES][COLUMNS];
  const int x = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
  const i64 rows = (args.batch + args.rows_per_block - 1) / args.rows_per_block * args.segments;
  const i64 column = (i64)blockIdx.x * COLUMNS + x;
  double sum = 0;
  if (column < width) {
    for (i64 row = slice; row < rows; row += SLICES) sum += (double)parts[row * width + column];
  }
  slices[slice][x] = sum;
  __syncthreads();
  if (slice > 0 || column >= width) return;
  for (int k = 1; k < SLICES; k++) sum += slices[k][x];
  i64 at = column;
  if (of_states) {
    const i64 channel = column / SLOT_WIDTH;
    const int here = (int)(column % SLOT_WIDTH);
    if (args.first_state + here / COMPONENTS >= args.state) return;
    at = (channel * args.state + args.first_state) * COMPONENTS + here;
  }
  const bool first = of_states ? !args.accumulate : args.first_pass;
  target[at] = first ? (Real)sum : (Real)((double)target[at] + sum);
}

// blockIdx.y says which parameter.
extern "C" __global__ void __launch_bounds__(COLUMNS * SLICES) scan_reduce_parameters(const Arguments args) {
  const i64 states = args.dim * SLOT_WIDTH;
  switch (blockIdx.y) {
    case 0:
      reduce_columns(args, reinterpret_cast<const Real*>(args.da_parts), reinterpret_cast<Real*>(args.da), states, true);
      break;
    case 1:
      if (args.db_constant_parts)
        reduce_columns(args, reinterpret_cast<const Real*>(args.db_constant_parts), reinterpret_cast<Real*>(args.db_constant), states, true);
      break;
    case 2:
      if (args.dc_constant_parts)
        reduce_columns(args, reinterpret_cast<const Real*>(args.dc_constant_parts), reinterpret_cast<Real*>(args.dc_constant), states, true);
      break;
    case 3:
      if (args.dd_parts && args.first_pass) reduce_columns(args, args.dd_parts, args.dd, args.dim, false);
      break;
    case 4:
      if (args.ddt_bias_parts) reduce_columns(args, args.ddt_bias_parts, args.ddt_bias, args.dim, false);
      break;
  }
}

// Rounds the gradients of constant B and C, once all passes have added to them.
extern "C" __global__ void __launch_bounds__(256) scan_round_constants(const Arguments args) {
  const i64 index = block_index() * 256 + threadIdx.x;
  if (index >= args.dim * args.state * COMPONENTS) return;
  if (args.db_constant) args.db[index] = to_element(reinterpret_cast<const Real*>(args.db_constant)[index]);
  if (args.dc_constant) args.dc[index] = to_element(reinterpret_cast<const Real*>(args.dc_constant)[index]);
}
