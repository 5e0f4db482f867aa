// The backward pass of one direction of the scan.
//
// With λ_i = ∂L/∂h_i, w = 1 (2 where complex) and dy_i the gradient of y before the gate:
//   λ_i = w dy_i conj(C_i) + conj(a_{i+1}) λ_{i+1}
//   da = λ conj(h_{i−1}), dg = λ conj(B x)
//   dA = Σ da conj(∂a/∂A) + dg conj(∂g/∂A), dΔ = Re Σ da conj(∂a/∂Δ) + dg conj(∂g/∂Δ)
//   dB = λ conj(g) x, dC = w dy conj(h), dx = Re Σ λ conj(g B) + D dy, dD = Σ dy x
// The average over both directions is linear: each direction has its own backward pass with half the source.
//
// A warp has PAIR neighbouring channels of each of its CHANNELS_PER_WARP places, LANES lanes of STATES states each, and is
// on its own but for B, C and their gradients, which its block shares (pairs.cuh). It walks a tile forward, span by span
// of SPAN frames, and keeps the state before each span (states.cuh); then back, span by span: forward again from what was
// kept, so that decays and states of the span stay in registers, and back through them (gradients.cuh). Sums over the
// states of a frame end in the lane of that number, which owns the frame: it reads what came with it and writes its
// gradients. dB and dC are summed over the pair in registers, over the warp by exchanges, over the block at the end of the
// tile.
//
// A block walks a piece of one segment of the sequence, of one batch row after another, from the last tile to the first.
// States lie in `chunk_states` every `chunk` frames; where a chunk has several tiles, each warp first walks its states
// alone and keeps each tile's first. A tile may have PARTS, each with warps of its own for all of the block's channels:
// they walk from zero first to find what they begin with (parts.cuh). Every sum is taken in a fixed order: the same
// call gives the same bits. Sums over the blocks, rows and segments are left to reduce.cu.
//
// JOINS: adjoint chunks are few, and a block finds by itself what those after its segment come to.
//
// WITHIN_TILES: segments begin and end within tiles, which are chunks. Of a tile, the block walks all states, and back the frames
// of its segment.
//
// FINDS_MARKS: rows are packed and one chunk each; the block finds by itself which frames begin a sequence or are skipped.
//
// STREAMS: sequences are more than the cache has room for, which keeps what waits for reduce.cu instead: it gives up first what
// has been read or written of them.

#define USE_B 1
#define USE_C 1
// Not even if there are no others: a span back of chunks of several tiles takes 854 clocks then, not 840 (H200).
#define ONE_SWEEP 0

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "marks.cuh"
#include "block.cuh"
#include "lanes.cuh"
#include "pairs.cuh"
#include "frames.cuh"
#include "entry.cuh"
#include "edges.cuh"
#include "states.cuh"
#if PARTS > 1
#include "parts.cuh"
#endif
#include "gradients.cuh"
#include "sums.cuh"

// The last tile that is walked, and the last of a chunk.
__device__ __forceinline__ u32 last_tile(const Course& course) { return ROW_IS_TILE ? 0 : (u32)((u64)(course.end - 1) / TILE); }
__device__ __forceinline__ int last_of_chunk(const Course& course, u32 chunk) {
  const u32 last = last_tile(course);
  return chunk == last / TILES ? (int)(last % TILES) : TILES - 1;
}

// What the block walks; false where there is nothing. Of rows that are cut, the first segments of all come first, and the last, which
// may be short, last: they go where those before them have left room. Else the grid's rows are those that blocks begin with.
__device__ __forceinline__ bool find_course(Course& course, const Arguments& args) {
  Place& place = course.place;
#if CUT
  u32 index = (u32)block_index();
  course.contribution = take(index, blocks_of_channels(args));
  place.row = take(index, (u32)args.batch);
  course.segment = index;
  if (course.segment >= args.segments) return false;
  course.part = place.row * args.segments + course.segment;
#else
  course.contribution = blockIdx.x;
  course.segment = 0;
  course.part = row_of_block();
  place.row = row_of_block() * args.rows_per_block;
  if (place.row >= args.batch) return false;
#endif
  course.row_end = place.row + args.rows_per_block < args.batch ? place.row + args.rows_per_block : args.batch;
#if ROW_IS_TILE
  course.first = 0;
  course.segment_end = course.end = args.seq;
#else
  const i64 begin = course.segment * args.segment;
  const Piece piece(args, course.segment);
  course.segment_end = begin + args.segment < args.seq ? begin + args.segment : args.seq;
  course.first = begin + piece.first;
  course.end = course.first + piece.frames;
#endif
  set_channels(place, args, course.contribution);
  course.tile = last_tile(course);
  course.ready_rows = 0;
  return course.first < course.end;  // of the last segment there may be nothing
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_backward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Course& course = shared.course;
  let_next_begin();
  // Not of `shared`, where the walk takes 1 to 2% longer for it (vision, H200): the policy counts it by itself (BESIDE_BYTES).
  __shared__ bool walks;
  if (threadIdx.x == 0) walks = find_course(course, args);
  __syncthreads();
  if (!walks) return;

  Thread thread;
  begin_block(thread, shared, args, course.place);
  wait_for_kernels_before();
  for (;;) {
    if (!ROW_IS_TILE) load_adjoints(thread, args, course);
    do {
      find_thread_anew(thread, shared, course.place);
      Warp& warp = shared.warps[thread.warp];
      const u32 number = ROW_IS_TILE ? 0 : course.tile, chunk = number / TILES;
      const int tile = number % TILES, last = last_of_chunk(course, chunk);
      const i64 i0 = (i64)number * TILE;
      PairStates h;
      if (!ROW_IS_TILE && (tile == last || tile < TILES_NOT_KEPT)) load_start(h, thread, args, course.place, chunk);
#if TILES > 1
      if (tile == last) {
        i64 i = i0 - last * TILE;
        Sequence sequence(args, course.place, thread, i, TILE);
#pragma unroll 1
        for (int before = 0; before < last; before++) {
          const First first_span(args, sequence, thread);
          const Marks marks = marks_of(args, course.place, i, TILE);
          enter_tile<false>(shared, args, course.place, marks, i, TILE, [] {});
          sequence.prefetch<true>(args, thread, TILE, [&](int r) { return r < course.end - i; });
          if (before >= TILES_NOT_KEPT) save(states_before(thread, before), h);
          walk_states<false>(warp, args, sequence, thread, h, first_span, marks);
          sequence.advance();
          i += TILE;
        }
      }
#endif
      const int in_tile = course.end - i0 < TILE ? (int)(course.end - i0) : TILE, left = in_tile - thread.part * PART_FRAMES;
      const int rows = left < 0 ? 0 : left < PART_FRAMES ? left : PART_FRAMES;
      const int before_segment = WITHIN_TILES && course.first > i0 ? (int)(course.first - i0) : 0;
      const Sequence sequence(args, course.place, thread, i0 + thread.part * PART_FRAMES, rows);
      const First first_span(args, sequence, thread);
#if PARTS > 1
      const AdjointSources sources(args, sequence, thread);
#endif
      if (ROW_IS_TILE) {
        // After what is waited for first.
        load_adjoints(thread, args, course);
        load_start(h, thread, args, course.place, chunk);
      }
      const Marks of_tile = marks_of(args, course.place, i0, in_tile), marks = of_tile.of_part(thread.part);
      enter_tile<true>(shared, args, course.place, of_tile, i0, in_tile, [&] {
        if (ROW_IS_TILE) return;  // the block walks no other
        sum_warps(shared, args);
        if (thread_anew() == 0) course.tile = number - 1;  // all have read it
      });
      if (RATES_LATER) settle_rates(thread, args);
      // Sums are asked for again when the next tile is entered. Now, so that nothing of this has to be kept for it.
      if (thread_anew() == 0) {
        const i64 contributions = blocks_of_channels(args);
        course.ready_at = course.place.row * args.parts_row + Piece(args, course.segment).parts +
                          ((i0 - course.first) * contributions + course.contribution) * SLOT_WIDTH;
        course.ready_rows = in_tile;
#if WITHIN_TILES
        course.ready_from = before_segment;
#endif
      }
#if PARTS > 1
      find_ends(shared, args, sequence, thread, h, first_span, sources, of_tile);
#endif
#if !ROW_IS_TILE
      // The chunk before this is walked from its first tile on.
      const i64 least = course.first - i0;
      const auto wanted = [&](int r) { return r >= least; };
      // Of states, all of a tile.
      const auto states_wanted = [&](int r) { return WITHIN_TILES ? least < 0 : wanted(r); };
      sequence.prefetch<true>(args, thread, (last - tile * 2) * TILE - (int)args.chunk, states_wanted);
      sequence.prefetch<false>(args, thread, -TILE, wanted);
#endif
#if TILES > 1
      if (tile >= TILES_NOT_KEPT && tile < last) restore(h, states_before(thread, tile));
#endif
      const IncomingSource last_source(args, sequence, thread, (rows - 1) / SPAN * SPAN + thread.lane);
      const auto walk = [&](const Marks& marks) {
#if PARTS > 1
        keep_states(thread, h, marks);
#else
        walk_states<true>(warp, args, sequence, thread, h, first_span, marks);
#endif
        walk_back(warp, args, sequence, thread, last_source, marks, before_segment / SPAN);
      };
#if SEQ_IDX
      // Selections at every frame cost a third of all else: most tiles do without. So do frames that there are not, whose marks say
      // that they are skipped.
      const u64 present = rows < 64 ? ((u64)1 << rows) - 1 : ~(u64)0;
      if (((marks.resets | marks.skips) & present) == 0) {
        walk(Marks{0, 0});
      } else
#endif
      {
        walk(marks);
      }
      // The piece may begin within a chunk. Where a row is one tile this is no loop, but ends by a number that the compiler does not
      // know: where it knows, it orders the walk back worse.
    } while ((ROW_IS_TILE ? 0 : (i64)(course.tile + 1) * TILE) > course.first);
    find_thread_anew(thread, shared, course.place);
    store_adjoints(thread, args, course);
    __syncthreads();  // the sums of the last tile are ready, and nobody needs the row
    // The policy gives blocks whose row is one tile no other. Not said of all: without this loop packed ones take longer (H200: 4%).
    if (PARTS > 1 || course.place.row + 1 >= course.row_end) break;
    __syncthreads();
    if (thread_anew() == 0) {
      course.place.row++;
      course.tile = last_tile(course);
    }
    __syncthreads();
  }
  sum_warps(shared, args);
  find_thread_anew(thread, shared, course.place);
#if DA_IN_REGISTERS
  __syncthreads();  // the first spans have been summed
  save(sums_of_da(thread), thread.da);
  if (PARTS > 1) __syncthreads();
#endif
  end_block(thread, shared, args, course, args.sums_go_on && course.end < course.segment_end);
}
