// The second stage of the sums of the backward pass, in a fixed order.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

#define SLOTS (LANES * STATES)
#define SLOT_WIDTH (SLOTS * COMPONENTS)
#define COLUMNS 32
#define SLICES 8

__device__ __forceinline__ i64 block_index() { return (i64)blockIdx.y * gridDim.x + blockIdx.x; }

// One component of dB or dC of a group in a frame.
struct Component {
  const Real* parts;  // that of the group's first block of channels
  Real* sums;         // where one direction waits for the other
  Element* target;
};

// The component of this index among those of a projection in the piece; false where there is no such frame.
__device__ __forceinline__ bool find_component(const Arguments& args, Component& component, i64 groups, i64 index) {
  const int column = (int)(index % SLOT_WIDTH);
  const i64 group = index / SLOT_WIDTH % groups, row_of_parts = index / SLOT_WIDTH / groups;
  const i64 in_segment = args.piece_first + row_of_parts % args.piece_frames, segments = row_of_parts / args.piece_frames;
  const i64 row = segments / args.segments, i = segments % args.segments * args.segment + in_segment;
  if (in_segment >= args.segment || i >= args.seq || args.first_state + column / COMPONENTS >= args.state) return false;
  const i64 contributions = args.units * args.blocks_per_unit;
  component.parts += (row_of_parts * contributions + group * (contributions / groups)) * SLOT_WIDTH + column;
  const i64 frame = row * args.seq + (args.reverse ? args.seq - 1 - i : i);
  const i64 at = ((frame * groups + group) * args.state + args.first_state) * COMPONENTS + column;
  component.sums += at;
  component.target += at;
  return true;
}

// Sums over the blocks of channels of each group. A warp has 8 components and sums each in 4 slices; the components
// of C come after those of B.
extern "C" __global__ void __launch_bounds__(256) scan_reduce_projections(const Arguments args) {
  const i64 warp = (block_index() * 256 + threadIdx.x) / 32;
  const int slice = threadIdx.x % 32 / 8;
  i64 index = warp * 8 + threadIdx.x % 8;
  const i64 rows = args.batch * args.segments * args.piece_frames * SLOT_WIDTH;
  const i64 components_b = args.db_parts ? rows * args.groups_b : 0;
  const bool of_b = index < components_b;
  if (!of_b) index -= components_b;
  const i64 groups = of_b ? args.groups_b : args.groups_c;
  Component component = of_b ? Component{args.db_parts, args.db_sum, args.db} : Component{args.dc_parts, args.dc_sum, args.dc};
  const bool here = component.parts && index < rows * groups && find_component(args, component, groups, index);

  Real sum = 0;
  if (here) {
    const i64 each = args.units * args.blocks_per_unit / groups;
#pragma unroll 4
    for (i64 k = slice; k < each; k += 4) sum += component.parts[k * SLOT_WIDTH];
  }
  sum += __shfl_down_sync(0xffffffffu, sum, 16);
  sum += __shfl_down_sync(0xffffffffu, sum, 8);
  if (!here || slice > 0) return;
  if (args.accumulate) sum += *component.sums;
  if (args.last_direction) {
    *component.target = to_element(sum);
  } else {
    *component.sums = sum;
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
