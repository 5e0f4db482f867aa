// The forward scan of forward.cu where the device's engine for copies can bring tiles, of x, dt, z, B and C as they lie in device
// memory (`Bulk` of policy/forward/plan.rs); it takes y away, too (bulk.cuh).
//
// A block walks one chunk of one batch row for CHANNELS channels. Of its warps, WARPS walk; one thread of a further one, the
// carrier, asks for tiles, STAGES ahead, and has outputs taken away. No barrier is for all: walkers wait for a tile to
// arrive, the carrier for all warps to have walked it. So a walker may be ahead of another by as many tiles as there are.
//
// A channel has four lanes of four states or, as far as channels fill the device evenly with as few threads, two of eight: half as
// many sums over lanes, and half as many reads of Δ and x. A span is a frame for each lane, so that its operands are as many either
// way.
//
// Where nothing is done to elements but the scan, each lane reads those of its channel for itself; else one lane makes and finishes
// each for all (elements.cuh). A lane reads its states of B and C in packs, from what the carrier's warp has made of them where
// elements have 16 bits. Operands are read a span ahead of the walk, over the borders of tiles too, and sums over lanes are taken a
// span late. Exponentials are not computed ahead: that costs a tenth (bench/NOTES.md, as all that is measured).
//
// A tile is unrolled. More code than the 32 KB that a multiprocessor has in its cache would cost a tenth and more, so that of long
// walks has half as many frames, and no two kernels of heavy walks are walked side by side.
//
// Where rows are packed, a tile that goes on with the sequence of the one before is walked like any other, and one that has marks
// span by span, as is a last one that lacks frames. In rows shorter than 65 frames (SHORT_ROW) hardly a tile has none, so sequences
// begin in the unrolled walk, too. The carrier's warp finds the marks. Of several sweeps (of more than SLOTS states, or both ways), all
// but the first add to y.

#define ONE_DIRECTION 1
#define USE_B 1
#define USE_C 1
// Short rows gain 5% by a shorter start; for tiles of 32 frames the compiler then orders the loop over them in another way, which
// takes 1% longer (H200).
#define ONE_SWEEP (!SEVERAL_SWEEPS && TILE < 32)

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "marks.cuh"
#include "block.cuh"
#include "lanes.cuh"
#include "bulk.cuh"
#include "tiles.cuh"

static_assert((LANES == 4 || LANES == 2) && SLOTS == 16 && PACK == 4 && WARPS == 4 && CHANNELS == 128 / LANES,
              "a lane has packs of states");
static_assert(!SHARES || !(CUT || SEVERAL_SWEEPS || SEQ_IDX), "nothing comes before what is walked side by side");

// Whether sequences begin in tiles that are walked whole, too.
#define RESETS (SEQ_IDX && SHORT_ROW)
// Whether states are kept before the walk alone: not asking tile by tile spares 2 to 3% of a window (H200), but foh with options a
// register that it has not.
#define KEEPS_BEFORE (SHORT_ROW && (SEQ_IDX || !HAS_GAIN || !HAS_OWNERS))

static_assert(!HAS_OWNERS || LANES == 4, "elements are made once");

// The frames of a sequence in a tile. Where lanes want the same channel of different frames, which is what they write and what owners
// read, the engine swizzles: of the lines of 128 bytes, r of them has the 16 bytes p at p ^ r % 8, or, with frames of 64 bytes, at
// p ^ r % 4 within each.
#define FRAME_BYTES (CHANNELS * (int)sizeof(Element))
#define SWIZZLED (HAS_OWNERS || FRAME_BYTES == 128)

// What the number of one of eight frames changes of where its elements lie.
__device__ __forceinline__ int swizzle_of(int frame) {
  constexpr int FRAMES = FRAME_BYTES < 128 ? 128 / FRAME_BYTES : 1, PER_PACK = 16 / sizeof(Element);
  return SWIZZLED ? frame / FRAMES * PER_PACK : 0;
}

#define SWIZZLED_BYTES 1024  // places repeat after so many
// As the engine copies it, each tensor's part at a multiple of 128 bytes.
struct Tile {
#if HAS_OWNERS
  alignas(SWIZZLED_BYTES) SequenceTile delta;
  alignas(SWIZZLED_BYTES) SequenceTile x;  // after the walk y: who owns an element has read it before
#if HAS_Z
  alignas(SWIZZLED_BYTES) SequenceTile z;
#endif
#else
  SequenceTile delta, x;
#endif
  Projections<Element> projections;
};
#define TILE_BYTES (TILE * ((2 + HAS_Z) * FRAME_BYTES + 2 * SLOTS * (int)sizeof(Element)))

#if HAS_OWNERS
// A span of a warp as it is walked: pairs of frames of each channel, {Δ, scaled x} of a frame.
typedef Real Made[SPAN / 2][CHANNELS_PER_WARP][2][2];
#else
// A walker that has a tile knows that the outputs of STAGES tiles before have been read, because the carrier waited for that before
// it asked for the tile.
struct alignas(SWIZZLED ? SWIZZLED_BYTES : 128) Outputs {
  SequenceTile y;
};
#endif

// The values and rates of the states of each thread.
typedef Real Pairs[STATES][THREADS][2];

struct Shared {
  Tile tiles[STAGES];
#if HAS_OWNERS
  alignas(16) Made made[WARPS][2];
#else
  Outputs outputs[STAGES];
#endif
#if WIDENS
  Projections<Real> widened[STAGES];
#endif
  Pairs pairs;
#if SEQ_IDX
  alignas(4) u8 marks[STAGES][TILE];  // of each tile
#endif
  Stages stages;
  Place place;  // of the block: the walk needs the registers
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

// Where the outputs of the tile of a stage are stored.
__device__ __forceinline__ SequenceTile& outputs_of(Shared& shared, int stage) {
#if HAS_OWNERS
  return shared.tiles[stage].x;
#else
  return shared.outputs[stage].y;
#endif
}

// The frames of a chunk, in tiles; the last may be a part of one.
struct Frames {
  int begin, count;

  __device__ __forceinline__ int tiles() const { return (count + TILE - 1) / TILE; }
};

// The marks of packed rows, which the carrier's threads find, a frame of a tile each. Those of a tile, or the indices that they are
// found by, are asked for long before they are stored.
struct MarkReader {
#if SEQ_IDX
#if FINDS_MARKS
  const int* next;
  int index, last_index = -1;  // that of the frames before these, the last that is not skipped
#else
  const u8* next;
  u8 mark;
#endif
  int left;  // frames of the chunk from the thread's on

  __device__ __forceinline__ MarkReader(const Arguments& args, const Place& place, const Frames& frames) {
    const int own = (int)(threadIdx.x % 32);
    const i64 first = frames.begin + own;
#if FINDS_MARKS
    next = args.seq_idx + place.row * args.seq + frame_at(args, first);
#else
    next = args.marks + place.row * args.seq + first;
#endif
    left = own < TILE ? frames.count - own : 0;
    ask();
  }

  // Asks for those of a tile. Frames that are missing are skipped.
  __device__ __forceinline__ void ask() {
#if FINDS_MARKS
    index = left > 0 ? *next : -1;
#else
    mark = left > 0 ? *next : MARK_SKIP;
#endif
    next += FINDS_MARKS && REVERSE ? -TILE : TILE;
    left -= TILE;
  }

  // Stores them, and asks for those of the next.
  __device__ __forceinline__ void store(u8 (&marks)[TILE]) {
#if FINDS_MARKS
    const u8 mark = mark_in_warp(index, last_index);
#endif
    if (threadIdx.x % 32 < TILE) marks[threadIdx.x % 32] = mark;
    __syncwarp();
    ask();
  }
#endif
};
static_assert(!SEQ_IDX || TILE <= 32, "a thread of a warp has the mark of one frame of a tile");

// Whether all threads of the carrier's warp have something to do with each tile, and which of them asks.
#define ALL_CARRY (WIDENS || SEQ_IDX)
__device__ __forceinline__ bool asks() { return !(ALL_CARRY || REVERSE) || threadIdx.x == THREADS; }

__device__ __forceinline__ void ask(Shared& shared, const Arguments& args, const Maps& maps, const Place& place,
                                    const Frames& frames, [[maybe_unused]] MarkReader& marks, int number, int stage) {
  Barrier& barrier = shared.stages.brought[stage];
  if (asks()) {
    bring_tile(shared.tiles[stage], args, maps, place, (int)place.row, frames.begin + number * TILE, barrier);
  }
#if SEQ_IDX
  marks.store(shared.marks[stage]);
#endif
  // Until this thread arrives nobody passes, however many of the bytes that it announces have come.
  if (asks()) barrier.arrive_announcing(TILE_BYTES);
}

// Takes away what has come of the tile of a stage, once it has been walked.
__device__ __forceinline__ void fetch_outputs(Shared& shared, const Arguments& args, const Maps& maps, const Place& place,
                                              int frame, const Turn<STAGES>& stage) {
  shared.stages.walked[stage.place].wait(stage.parity);
  const SequenceTile& outputs = outputs_of(shared, stage.place);
  if (SEVERAL_SWEEPS && !args.first_sweep) {
    // To what the sweeps before this have left. Sweeps follow one another, so the bits are the same each time.
    add_to(maps.y, (int)place.channel0, frame, (int)place.row, outputs);
  } else {
    take_away(maps.y, (int)place.channel0, frame, (int)place.row, outputs);
  }
  wait_until_read();
}

// Stores the outputs of a tile that begins before the tensor, by all threads of the carrier's warp.
__device__ __forceinline__ void store_outputs(Shared& shared, const Arguments& args, const Place& place, int frame, int number) {
  const int stage = number % STAGES;
  shared.stages.walked[stage].wait(number / STAGES % 2);
  const SequenceTile& outputs = outputs_of(shared, stage);
  Element* row = args.y + place.row * args.seq * args.dim + place.channel0;
#pragma unroll 1
  for (int r = -frame; r < TILE; r++) {
#pragma unroll 1
    for (int channel = threadIdx.x % 32; channel < place.channels; channel += 32) {
      const Element output = outputs[r][channel ^ swizzle_of(r % 8)];
      Element& at = row[(frame + r) * args.dim + channel];
#if SEVERAL_SWEEPS
      at = args.first_sweep ? output : at + output;
#else
      at = output;
#endif
    }
  }
}

// SHARES: a launch walks some blocks of those of all rows in line, from args.first_block on (Share in policy/forward/plan.rs).
__device__ __forceinline__ Place find_place_in_line(const Arguments& args) {
#if !SHARES
  return find_place(args);
#else
  u32 row = (u32)args.first_block + blockIdx.x;
  const u32 block = take(row, blocks_of_channels(args));
  return place_of(args, row, block);
#endif
}

// Whether the launch before walks other blocks, beside this. It is the first of its pass, so what was enqueued before it has ended,
// and it writes nothing that is read here, or where this writes.
__device__ __forceinline__ bool is_beside(const Arguments& args) { return SHARES && args.first_block > 0; }

// What the carrier does.
__device__ __forceinline__ void carry(Shared& shared, const Arguments& args, const Maps& maps, const Place& place,
                                      const Frames& frames) {
#if SEQ_IDX
  if (!FINDS_MARKS) wait_for_kernels_before();
  MarkReader marks(args, place, frames);
#else
  MarkReader marks;
#endif
  const auto ask_for = [&](int number, int stage) { ask(shared, args, maps, place, frames, marks, number, stage); };
  const auto widen = [&]([[maybe_unused]] int stage) {
#if WIDENS
    widen_projection(shared.widened[stage].b, shared.tiles[stage].projections.b);
    widen_projection(shared.widened[stage].c, shared.tiles[stage].projections.c);
#endif
  };
  const auto first_frame_of = [&](int number) { return first_frame(args, frames.begin + number * TILE); };
  const auto after = [&](int number, const Turn<STAGES>& stage) {
    if (number == 0 && !is_beside(args)) wait_for_kernels_before();  // they may still read what lies where y goes
    const int frame = first_frame_of(number);
    if (asks() && !(REVERSE && frame < 0)) fetch_outputs(shared, args, maps, place, frame, stage);
#if ALL_CARRY
    __syncwarp();
#endif
  };
  if (ALL_CARRY || asks()) carry_tiles(shared.stages, frames.tiles(), ask_for, widen, after);
#if REVERSE
  __syncwarp();
  const int last = frames.tiles() - 1, frame = first_frame_of(last);
  if (frame < 0) {
    if (!is_beside(args)) wait_for_kernels_before();
    store_outputs(shared, args, place, frame, last);
  }
#endif
  if (asks()) wait_until_written();
  if (is_beside(args)) wait_for_kernels_before();  // whoever waits for this waits for them, too
}

// The projections of the tile of a stage, as they are walked.
__device__ __forceinline__ const Projections<Real>& projections_of(const Shared& shared, int stage) {
#if WIDENS
  return shared.widened[stage];
#else
  return shared.tiles[stage].projections;
#endif
}

#include "elements.cuh"

// `counted`: the number of the span, counted on over the border of its tile.
__device__ __forceinline__ void fetch_span(const Shared& shared, int stage, const Thread& thread, const Elements& elements, int span,
                                           int counted, Real (&delta)[SPAN], Operands& operands) {
  const Tile& tile = shared.tiles[stage];
  const Projections<Real>& projections = projections_of(shared, stage);
#pragma unroll
  for (int g = 0; g < SPAN; g++) {
    const int r = span * SPAN + g;
    elements.fetch(tile, thread, r, counted, g, delta, operands.x);
    fetch_frame(projections, thread.lane, in_tile(r), g, operands);
  }
}

// Has the value of each of a thread's states and what Δ is multiplied by for it lie in neighbouring registers, the first of which is
// even: A·Δ and a·h then read registers of different banks, and take a clock instead of two (bench/NOTES.md, "What a walk is dispatched
// in"). The compiler leaves them where a load of both puts them.
__device__ __forceinline__ void pair_registers(Thread& thread, Pairs& pairs) {
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    pairs[s][threadIdx.x][0] = thread.h[s];
    pairs[s][threadIdx.x][1] = factor_of_delta(thread.rate[s]);
  }
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(thread.h[s]), "=f"(factor_of_delta(thread.rate[s]))
                 : "r"(shared_address(pairs[s][threadIdx.x]))
                 : "memory");
  }
}

// Whether a tile is walked like one without marks: all of its frames go on with the sequence of those before, or, RESETS, begin one.
__device__ __forceinline__ bool is_unmarked([[maybe_unused]] const Shared& shared, [[maybe_unused]] int stage) {
#if SEQ_IDX
  const u8 mark = shared.marks[stage][threadIdx.x % TILE];
  return !any_of_warp(RESETS ? mark & MARK_SKIP : mark != 0);
#else
  return true;
#endif
}

// The marks of a span, a byte each.
__device__ __forceinline__ u32 marks_of([[maybe_unused]] const Shared& shared, [[maybe_unused]] int stage,
                                        [[maybe_unused]] int span) {
#if SEQ_IDX
  return *reinterpret_cast<const u32*>(&shared.marks[stage][span * SPAN]);
#else
  return 0;
#endif
}

// What a span of operands comes to.
template <bool WHOLE>
__device__ __forceinline__ void walk_fetched(Thread& thread, const Real (&delta)[SPAN], Operands& operands, u32 marks, int rows,
                                             Real (&y)[SPAN]) {
  SpanCoefficients k;
#if !HAS_OWNERS
#pragma unroll
  for (int g = 0; g < SPAN; g++) operands.x[g] = scale_input(operands.x[g], delta[g]);
#endif
  discretize_span(thread, delta, operands, k);
  walk_span<WHOLE>(thread, operands, k, marks, rows, y);
}

// Sums the lanes' parts of a span; every lane puts one frame's, of those that are not marked to be skipped.
__device__ __forceinline__ void put_sums(Shared& shared, [[maybe_unused]] const Arguments& args, int stage, const Thread& thread,
                                         const Elements& elements, int span, u32 marks, Real (&y)[SPAN]) {
  sum_over_lanes(thread.lane, y);
#if SEVERAL_SWEEPS
  y[0] *= args.scale;
#endif
  const Real sum = elements.finish(y[0]);
  own(outputs_of(shared, stage), thread, span) = to_element(marks >> 8 * thread.lane & MARK_SKIP ? (Real)0 : sum);
}

// Tells the carrier that the warp has walked the tile of a stage.
__device__ __forceinline__ void tell_walked(Shared& shared, int stage) {
  show_to_engine();
  shared.stages.tell_walked(stage);
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    scan_bulk(const Arguments args, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  let_next_begin();
  const Place place = find_place_in_line(args);
  if (place.row >= args.batch) return;
  const i64 begin = chunk_begin(args, place);
  const Frames frames{(int)begin, (int)(chunk_end(args, place) - begin)};
  if (threadIdx.x == THREADS) {
    shared.stages.begin();
    shared.place = place;
  }
  __syncthreads();
  if (threadIdx.x >= THREADS) {
    if (ALL_CARRY || REVERSE || threadIdx.x == THREADS) carry(shared, args, maps, place, frames);
    return;
  }

  if (!is_beside(args)) wait_for_kernels_before();
  Thread thread;
#if HAS_OWNERS
  find_thread(thread, place);  // here, too, so that all that a thread begins with is on its way at once
#endif
  Elements elements(shared, args, thread);
  begin_thread(thread, args, place);
  elements.settle_parameters(args);
  Kept kept(args, begin, frames.count);
  pair_registers(thread, shared.pairs);
  if (KEEPS_BEFORE && kept.at == 0) keep(thread, args, shared.place, kept);
  const int tiles = frames.tiles(), last_rows = frames.count - (tiles - 1) * TILE;
  // Where few frames are missing, the last tile is walked like the others, if they leave the states as they are: what the engine
  // brings of them is zero. Where dt is not Δ they do not, unless nobody wants the states.
  const bool leaves_states = CHANGES_DT ? !args.final_state : thread.finite;
  const int whole = last_rows == TILE || (last_rows >= WHOLE_FROM && leaves_states) ? tiles : tiles - 1;

  Turn<STAGES> stage;
  Real delta[SPAN], last[SPAN];
  Operands operands;
  int before = 0;  // the stage of the tile before
  int number = 0;
  do {
    // Tiles that are whole.
    shared.stages.wait(stage);
    const int first = number;
    bool unmarked = is_unmarked(shared, stage.place);
    // What is read beside the marks is not waited for; what is made would be made again.
    if (!HAS_OWNERS || unmarked) {
      elements.begin(args, shared.tiles[stage.place], thread);
      fetch_span(shared, stage.place, thread, elements, 0, 0, delta, operands);
      elements.end_span();
    }
#pragma unroll 1
    for (; number < whole && unmarked; number++) {
      if (!KEEPS_BEFORE && number * TILE == kept.at) keep(thread, args, shared.place, kept);
      Turn<STAGES> next = stage;
      next.advance();
#pragma unroll
      for (int span = 0; span < SPANS; span++) {
        Real next_delta[SPAN], y[SPAN];
        Operands next_operands;
        const u32 marks = RESETS ? marks_of(shared, stage.place, span) : 0;
        const bool goes_on = span == SPANS - 1;
        if (span == SPANS - Elements::AHEAD && number + 1 < tiles) shared.stages.wait(next);
        // After the last tile there is nothing to be fetched; what is there is not used.
        if (goes_on) unmarked = is_unmarked(shared, next.place);
        fetch_span(shared, goes_on ? next.place : stage.place, thread, elements, (span + 1) % SPANS, span + 1,
                   next_delta, next_operands);
        elements.go_on(args, shared.tiles[stage.place], shared.tiles[next.place], thread, span);
        walk_fetched<true>(thread, delta, operands, marks, SPAN, y);
        if (span > 0) {
          put_sums(shared, args, stage.place, thread, elements, span - 1, 0, last);
        } else if (number > first) {
          put_sums(shared, args, before, thread, elements, SPANS - 1, 0, last);
          tell_walked(shared, before);
        }
#pragma unroll
        for (int g = 0; g < SPAN; g++) {
          last[g] = y[g];
          delta[g] = next_delta[g];
        }
        operands = next_operands;
        elements.end_span();
      }
      elements.end_tile();
      before = stage.place;
      stage = next;
    }
    // What follows is a tile that lacks frames, or has marks. Without marks it can only be the last, and is asked for by `whole`: by
    // `number`, which says the same then, the compiler finds another order for the loop before, which takes 1.7% longer (H200).
    const int other = SEQ_IDX ? number : whole;
    if (other > first) {
      elements.end();
      put_sums(shared, args, before, thread, elements, SPANS - 1, 0, last);
      tell_walked(shared, before);
    }
    if (other < tiles) {
      if (!KEEPS_BEFORE && other * TILE == kept.at) keep(thread, args, shared.place, kept);
      const int rows = SEQ_IDX && number < tiles - 1 ? TILE : last_rows;
#pragma unroll 1
      for (int span = 0; span * SPAN < rows; span++) {
        Real y[SPAN];
        const u32 marks = marks_of(shared, stage.place, span);
        elements.make_alone(args, shared.tiles[stage.place], thread, span);
        fetch_span(shared, stage.place, thread, elements, span, span, delta, operands);
        walk_fetched<false>(thread, delta, operands, marks, rows - span * SPAN, y);
        put_sums(shared, args, stage.place, thread, elements, span, marks, y);
      }
      tell_walked(shared, stage.place);
      stage.advance();
      number++;
    }
  } while (SEQ_IDX && number < tiles);
  end_thread(thread, args, shared.place);
}
