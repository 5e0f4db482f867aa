// The second stage of the sums of the backward pass, in a fixed order: dB and dC of a piece over the blocks of channels, and the
// gradients of the parameters over rows and segments, with the piece that is walked last, or with every piece.

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"

// PARTS_AT_ONCE: parts that a thread has on their way from memory at a time; more would cost the latency once more.
// SHARERS: threads that share the parts of a pack, where there are more.
// ROW_THREADS: threads of a block over a row of parameters. The others have other slices of the rows.
#define SLICES (THREADS / ROW_THREADS)
#define ROWS_AT_ONCE 4

// Has a number be found here, before the wait for the kernels before, where it takes no time, and not where it is used.
__device__ __forceinline__ void find_now(int& number) { asm volatile("" : "+r"(number)); }
__device__ __forceinline__ void find_now(i64& number) { asm volatile("" : "+l"(number)); }

// VECTOR: neighbouring components that a thread sums, in one access.
#define PACKS (SLOT_WIDTH / VECTOR)

static_assert(SLOT_WIDTH % VECTOR == 0, "components are whole accesses");

typedef Reals<VECTOR> Pack;

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

// Frames of the largest piece of a segment.
__device__ __forceinline__ i64 frames_of_pieces(const Arguments& args) {
  return args.last_piece_frames > args.piece_frames ? args.last_piece_frames : args.piece_frames;
}

// The components of this index among those of a projection in the pieces; false where there is no such frame.
template <typename Index>
__device__ __forceinline__ bool find_components(const Arguments& args, Components& components, i64 groups, Index index) {
  const int column = (int)take(index, (Index)PACKS) * VECTOR;
  const i64 group = take(index, (Index)groups), in_piece = take(index, (Index)frames_of_pieces(args));
  const i64 segment = take(index, (Index)args.segments), row = index;
  const Piece piece(args, segment);
  const i64 i = segment * args.segment + piece.first + in_piece;
  const i64 left = (args.state - args.first_state) * COMPONENTS - column;
  if (in_piece >= piece.frames || left <= 0) return false;
  const i64 contributions = args.units * args.blocks_per_unit;
  components.parts = row * args.parts_row + piece.parts +
                     (in_piece * contributions + group * parts_of(args, groups)) * SLOT_WIDTH + column;
  components.target = (((row * args.seq + frame_at(args, i)) * groups + group) * args.state + args.first_state) * COMPONENTS + column;
  components.count = left < VECTOR ? (int)left : VECTOR;
  return true;
}

// Packs of a piece: those of B, and all.
struct Packs {
  i64 of_b, all;

  __device__ __forceinline__ explicit Packs(const Arguments& args) {
    const i64 rows = args.batch * args.segments * frames_of_pieces(args) * PACKS;
    of_b = args.db_parts ? rows * args.groups_b : 0;
    all = of_b + (args.dc_parts ? rows * args.groups_c : 0);
  }
};

// Sums so many parts from a thread's first on, every SHARERS-th; then over the threads that share them.
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
  for (int apart = 16; apart >= 32 / SHARERS; apart /= 2) {
#pragma unroll
    for (int e = 0; e < VECTOR; e++) sum.reals[e] += __shfl_down_sync(ALL_LANES, sum.reals[e], apart);
  }
  return sum;
}

// Sums over the blocks of channels of each group. The components of C come after those of B. Who shares a pack are threads of a
// warp, as far apart as it has packs.
__device__ __forceinline__ void reduce_projections(const Arguments& args, i64 block, const Packs& packs) {
  constexpr int APART = 32 / SHARERS;
  const int lane = threadIdx.x % 32, sharer = lane / APART;
  i64 index = (block * (THREADS / 32) + threadIdx.x / 32) * APART + lane % APART;
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
  const Pack sum = sum_parts(parts + sharer * SLOT_WIDTH, each - sharer);
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

// Sums COUNT neighbouring columns of every SLICES-th row, in double precision, from row number `row` on, which lies at `from`; the rows
// that are summed are `step` apart. ALL: each has been left by its block; else not those of the last segments, of which the launch
// has covered nothing.
template <bool ALL, int COUNT>
__device__ __forceinline__ void sum_rows(double (&sums)[COUNT], const Real* from, i64 step, u32 row, i64 left, u32 segments) {
#pragma unroll 1
  for (; left > 0; left -= SLICES * ROWS_AT_ONCE, row += SLICES * ROWS_AT_ONCE) {
    Reals<COUNT> values[ROWS_AT_ONCE];
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++, from += step) {
      values[k] = Reals<COUNT>{};
      if (k * SLICES < left && (ALL || (row + k * SLICES) % segments < segments - 1)) {
        values[k] = *reinterpret_cast<const Reals<COUNT>*>(from);
      }
    }
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++) {
#pragma unroll
      for (int e = 0; e < COUNT; e++) sums[e] += (double)values[k].reals[e];
    }
  }
}

// What the slices of a column come to: of one column of each thread at a time, because every byte would keep blocks of the next piece
// from a multiprocessor (with 8 KB for four columns at once mamba-130m with all options in bf16 took 861 µs, not 838, on an H200).
typedef double Slices[SLICES][ROW_THREADS];

// Adds to `target` the sum of `parts` over rows and segments: of dim parameters, or of the states of as many channels. A thread has
// COUNT neighbouring columns of a slice of the rows, and then one of these, if it has the slice of its number, of all slices.
template <bool OF_STATES, int COUNT>
__device__ __forceinline__ void reduce_columns(const Arguments& args, Slices& slices, i64 block, const Real* parts, Real* target) {
  static_assert(COUNT <= SLICES, "a slice for each column of a thread");
  const int thread = threadIdx.x % ROW_THREADS, slice = threadIdx.x / ROW_THREADS;
  const i64 width = OF_STATES ? args.dim * SLOT_WIDTH : args.dim;
  const i64 first = (block * ROW_THREADS + thread) * COUNT, own = first + slice;
  i64 at = own;
  // In the slots beyond the last state nobody has left anything: what is read there goes nowhere.
  bool is_there = slice < COUNT && own < width;
  if (OF_STATES) {
    const int component = (int)(own % SLOT_WIDTH);
    at = (own / SLOT_WIDTH * args.state + args.first_state) * COMPONENTS + component;
    is_there = is_there && args.first_state + component / COMPONENTS < args.state;
  }
  const u32 segments = (u32)args.segments;
  i64 rows = args.batch * segments;
  if (args.rows_per_block > 1) rows = (args.batch + args.rows_per_block - 1) / args.rows_per_block * segments;
  i64 first_part = slice * width + first;
  int all = args.sums_go_on || args.last_piece_frames > 0;
  find_now(rows);
  find_now(at);
  find_now(first_part);
  find_now(all);
  wait_for_kernels_before();

  double sums[COUNT] = {};
  if (first < width) {
    const Real* from = parts + first_part;
    if (all) {
      sum_rows<true>(sums, from, SLICES * width, slice, rows - slice, segments);
    } else {
      sum_rows<false>(sums, from, SLICES * width, slice, rows - slice, segments);
    }
  }
  double sum = 0;
#pragma unroll
  for (int e = 0; e < COUNT; e++) {
    if (e > 0) __syncthreads();  // the column before has been summed
    slices[slice][thread] = sums[e];
    __syncthreads();
    if (slice != e) continue;
    for (int k = 0; k < SLICES; k++) sum += slices[k][thread];
  }
  if (!is_there) return;
  const bool first_piece = args.sums_go_on || args.piece_first + args.piece_frames >= args.segment;
  const bool is_first = first_piece && (OF_STATES ? !args.accumulate : args.first_sweep);
  target[at] = is_first ? (Real)sum : (Real)((double)target[at] + sum);
}

// Blocks of so many columns, where threads have `count` each.
__device__ __forceinline__ i64 blocks_of(i64 columns, int count) { return (columns + ROW_THREADS * count - 1) / (ROW_THREADS * count); }

__device__ __forceinline__ void reduce_parameters(const Arguments& args, i64 block) {
  __shared__ Slices slices;
  const i64 of_states = blocks_of(args.dim * SLOT_WIDTH, VECTOR), of_channels = blocks_of(args.dim, 1);
  // They come in this order, those that there are: from no parts, there is nothing to sum.
  const void *parts = nullptr, *target = nullptr;
  bool is_found = false, has_states = true;
  const auto find = [&](const void* its_parts, const void* its_target, bool its_states) {
    const i64 blocks = its_states ? of_states : of_channels;
    if (!its_parts || is_found) return;
    is_found = block < blocks;
    if (!is_found) {
      block -= blocks;
      return;
    }
    parts = its_parts;
    target = its_target;
    has_states = its_states;
  };
  find(args.da_parts, args.da, true);
  find(args.db_constant_parts, args.db_constant, true);
  find(args.dc_constant_parts, args.dc_constant, true);
  find(args.dd_parts, args.first_sweep ? args.dd : nullptr, false);
  find(args.ddt_bias_parts, args.ddt_bias, false);
  if (!target) {
    wait_for_kernels_before();
  } else if (has_states) {
    reduce_columns<true, VECTOR>(args, slices, block, (const Real*)parts, (Real*)target);
  } else {
    reduce_columns<false, 1>(args, slices, block, (const Real*)parts, (Real*)target);
  }
}

// The first blocks sum the piece's dB and dC; those after them the parameters. To have room for more blocks a multiprocessor than
// MIN_BLOCKS, the compiler would make do with registers for half of what is asked for at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_reduce(const Arguments args) {
  let_next_begin();
  const Packs packs(args);
  const i64 block = block_index(), threads = packs.all * SHARERS, blocks = (threads + THREADS - 1) / THREADS;
  if (block < blocks) {
    reduce_projections(args, block, packs);
  } else if (args.piece_first == 0 || !args.sums_go_on) {
    reduce_parameters(args, block - blocks);
  }
}

// Rounds the gradients of constant B and C, once all sweeps have added to them.
extern "C" __global__ void __launch_bounds__(THREADS) scan_round_constants(const Arguments args) {
  wait_for_kernels_before();
  const i64 index = block_index() * THREADS + threadIdx.x;
  if (index >= args.dim * args.state * COMPONENTS) return;
  if (args.db_constant) args.db[index] = to_element(reinterpret_cast<const Real*>(args.db_constant)[index]);
  if (args.dc_constant) args.dc[index] = to_element(reinterpret_cast<const Real*>(args.dc_constant)[index]);
}
