// The second stage of the sums of the backward pass, in a fixed order: dB and dC of a piece over the blocks of channels, and the
// gradients of the parameters over rows and segments, with the piece that is walked last, or with every piece.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

#define THREADS (WARPS * 32)
// PARTS_AT_ONCE: parts that a thread has on their way from memory at a time, each of which costs the latency. Where there are more,
// the host lets SHARERS_OF_MANY threads share the parts of a pack.
// COLUMNS of parameters of a block, and slices of rows.
#define SLICES (THREADS / COLUMNS)
#define ROWS_AT_ONCE 4

// Has a number be found here, before the wait for the kernels before, where it takes no time, and not where it is used.
__device__ __forceinline__ void find_now(int& number) { asm volatile("" : "+r"(number)); }
__device__ __forceinline__ void find_now(i64& number) { asm volatile("" : "+l"(number)); }

// VECTOR: neighbouring components that a thread sums, in one access.
#define PACKS (SLOT_WIDTH / VECTOR)

static_assert(SLOT_WIDTH % VECTOR == 0, "components are whole accesses");

struct alignas(VECTOR * sizeof(Real)) Pack {
  Real reals[VECTOR];
};

// Neighbouring components of dB or dC of a group in a frame.
struct Components {
  i64 parts;   // where those of the group's first block of channels lie
  i64 target;  // where their sum belongs
  int count;
};

// Parts of a component of B or of C: blocks of channels of a group.
__device__ __forceinline__ int parts_of(const Arguments& args, i64 groups) {
  const u32 all = (u32)(args.units * args.blocks_per_unit);
  return (int)(groups > 1 ? all / (u32)groups : all);
}

// The components of this index among those of a projection in the piece; false where there is no such frame.
template <typename Index>
__device__ __forceinline__ bool find_components(const Arguments& args, Components& components, i64 groups, Index index) {
  const int column = (int)take(index, (Index)PACKS) * VECTOR;
  const i64 group = take(index, (Index)groups), in_piece = take(index, (Index)args.piece_frames);
  const i64 segment = take(index, (Index)args.segments), row = index;
  const i64 in_segment = args.piece_first + in_piece, i = segment * args.segment + in_segment;
  const i64 left = (args.state - args.first_state) * COMPONENTS - column;
  if (in_segment >= args.segment || i >= args.seq || left <= 0) return false;
  const i64 contributions = args.units * args.blocks_per_unit;
  components.parts = row * args.parts_row + segment * args.parts_segment +
                     (in_piece * contributions + group * parts_of(args, groups)) * SLOT_WIDTH + column;
  components.target = (((row * args.seq + frame(args, i)) * groups + group) * args.state + args.first_state) * COMPONENTS + column;
  components.count = left < VECTOR ? (int)left : VECTOR;
  return true;
}

// Packs of a piece: those of B, and all.
struct Packs {
  i64 of_b, all;

  __device__ __forceinline__ explicit Packs(const Arguments& args) {
    const i64 rows = args.batch * args.segments * args.piece_frames * PACKS;
    of_b = args.db_parts ? rows * args.groups_b : 0;
    all = of_b + (args.dc_parts ? rows * args.groups_c : 0);
  }
};

// Sums every SHARERS-th of so many parts, from this on.
template <int SHARERS>
__device__ __forceinline__ Pack sum_parts(const Real* parts, int count) {
  Pack sum{};
#pragma unroll 1
  for (; count > 0; count -= PARTS_AT_ONCE * SHARERS, parts += PARTS_AT_ONCE * SHARERS * SLOT_WIDTH) {
    Pack packs[PARTS_AT_ONCE];
#pragma unroll
    for (int k = 0; k < PARTS_AT_ONCE; k++) {
      packs[k] = Pack{};
      if (k * SHARERS < count) packs[k] = *reinterpret_cast<const Pack*>(parts + k * SHARERS * SLOT_WIDTH);
    }
#pragma unroll
    for (int k = 0; k < PARTS_AT_ONCE; k++) {
#pragma unroll
      for (int e = 0; e < VECTOR; e++) sum.reals[e] += packs[k].reals[e];
    }
  }
#pragma unroll
  for (int sharers = SHARERS; sharers > 1; sharers /= 2) {
#pragma unroll
    for (int e = 0; e < VECTOR; e++) sum.reals[e] += __shfl_down_sync(0xffffffffu, sum.reals[e], 16 * sharers / SHARERS);
  }
  return sum;
}

// Sums over the blocks of channels of each group. The components of C come after those of B. Who shares a pack are threads of a
// warp, as far apart as it has packs.
__device__ __forceinline__ void reduce_projections(const Arguments& args, i64 block, const Packs& packs) {
  const bool shared = args.sharers > 1;
  const int apart = shared ? 32 / SHARERS_OF_MANY : 32, lane = threadIdx.x % 32;
  const int sharer = shared ? lane / (32 / SHARERS_OF_MANY) : 0;
  i64 index = (block * (THREADS / 32) + threadIdx.x / 32) * apart + (lane & (apart - 1));
  bool here = index < packs.all;
  const bool of_b = index < packs.of_b;
  if (!of_b) index -= packs.of_b;
  const i64 groups = of_b ? args.groups_b : args.groups_c;
  Components components{};
  if (here) {
    here = packs.all >> 32 ? find_components(args, components, groups, (u64)index)
                           : find_components(args, components, groups, (u32)index);
  }
  int each = here ? parts_of(args, groups) : 0;
  find_now(each);
  find_now(components.parts);
  find_now(components.target);
  wait_for_kernels_before();

  const Real* parts = (of_b ? args.db_parts : args.dc_parts) + components.parts;
  const Pack sum = shared ? sum_parts<SHARERS_OF_MANY>(parts + sharer * SLOT_WIDTH, each - sharer) : sum_parts<1>(parts, each);
  if (!here || sharer > 0) return;
  Real* sums = (of_b ? args.db_sum : args.dc_sum) + components.target;  // where one direction waits for the other
  Element* target = (of_b ? args.db : args.dc) + components.target;
#pragma unroll
  for (int e = 0; e < VECTOR; e++) {
    if (e >= components.count) break;
    Real value = sum.reals[e];
    if (args.accumulate) value += sums[e];
    if (args.last_direction) {
      target[e] = to_element(value);
    } else {
      sums[e] = value;
    }
  }
}

// Sums every SLICES-th of the rows of a column, which are `step` apart, from this one on, the number of which is `row`; in double
// precision. ALL: each has been left by its block; else not those of the last segments, which end before the piece begins.
template <bool ALL>
__device__ __forceinline__ double sum_rows(const Real* from, i64 step, u32 row, i64 left, u32 segments) {
  double sum = 0;
#pragma unroll 1
  for (; left > 0; left -= SLICES * ROWS_AT_ONCE, row += SLICES * ROWS_AT_ONCE) {
    Real values[ROWS_AT_ONCE];
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++, from += step) {
      values[k] = 0;
      if (k * SLICES < left && (ALL || (row + k * SLICES) % segments < segments - 1)) values[k] = *from;
    }
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++) sum += (double)values[k];
  }
  return sum;
}

// Adds to `target` the sum of `parts` over rows and segments. A block has COLUMNS columns and SLICES slices of the
// rows, a thread for each.
__device__ __forceinline__ void reduce_columns(const Arguments& args, i64 block, const Real* parts, Real* target, i64 width,
                                               bool of_states) {
  __shared__ double slices[SLICES][COLUMNS];
  const int x = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
  const i64 column = block * COLUMNS + x;
  // In the slots beyond the last state nobody has left anything.
  const bool here = column < width && (!of_states || args.first_state + (int)(column % SLOT_WIDTH) / COMPONENTS < args.state);
  i64 at = column;
  if (of_states) {
    const i64 channel = column / SLOT_WIDTH;
    at = (channel * args.state + args.first_state) * COMPONENTS + column % SLOT_WIDTH;
  }
  const u32 segments = (u32)args.segments;
  i64 rows = args.batch * segments;
  if (args.rows_per_block > 1) rows = (args.batch + args.rows_per_block - 1) / args.rows_per_block * segments;
  i64 first_part = slice * width + column;
  int all = args.segment * (args.segments - 1) + args.piece_first < args.seq;
  find_now(rows);
  find_now(at);
  find_now(first_part);
  find_now(all);
  wait_for_kernels_before();

  double sum = 0;
  if (here) {
    const Real* from = parts + first_part;
    sum = all ? sum_rows<true>(from, SLICES * width, slice, rows - slice, segments)
              : sum_rows<false>(from, SLICES * width, slice, rows - slice, segments);
  }
  slices[slice][x] = sum;
  __syncthreads();
  if (slice > 0 || !here) return;
  for (int k = 1; k < SLICES; k++) sum += slices[k][x];
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
  if (target) {
    reduce_columns(args, block, (const Real*)parts, (Real*)target, of_states ? states : args.dim, of_states);
  } else {
    wait_for_kernels_before();
  }
}

// The first blocks sum the piece's dB and dC; those after them the parameters. Four blocks a multiprocessor: to have room for more,
// the compiler would make do with registers for half of what is asked for at once.
extern "C" __global__ void __launch_bounds__(THREADS, 4) scan_reduce(const Arguments args) {
  let_next_begin();
  const Packs packs(args);
  const i64 block = block_index(), threads = packs.all * args.sharers, blocks = (threads + THREADS - 1) / THREADS;
  if (block < blocks) {
    reduce_projections(args, block, packs);
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
