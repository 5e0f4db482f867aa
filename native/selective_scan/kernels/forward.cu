// The forward scan: h_i = a_i h_{i−1} + g_i B_i x_i, y_i = Σ C_i h_i + D x_i, out = y·silu(z).
//
// One block walks one chunk of one batch row for CHANNELS channels. Where the sequence is cut in several chunks,
// `chunk_states` holds the state before each (prefix.cu), or, where JOINS, what each comes to. Where there are several sweeps
// (two directions, or more states than SWEEP_SLOTS), y gathers in `y_sum` and the last sweep finishes it.
//
// SUMMARY: what prefix.cu wants to know of each chunk, instead of y: the state that it ends with if it begins with
// zero, and the product of its decays, or ΣΔ where DECAY_BY_SUM.
//
// WHOLE_TILES: tiles all of whose frames, channels and states are there are brought and finished by code of their own, without a
// condition for each access.
//
// FINDS_MARKS: rows are packed and one chunk each; the block finds by itself which frames begin a sequence or are skipped.
//
// Two tiles lie in shared memory, the one that is walked and the next, and that after is on its way in registers: one
// barrier a tile. Between them lies the walk: of staged.cuh, or, where channels are few, of time_lanes.cuh.

#define USE_B 1
#define USE_C !SUMMARY
// Of a summary's sweep it is not said whether it is the only one.
#define ONE_SWEEP (!SEVERAL_SWEEPS && !SUMMARY)

#include "number.cuh"
#include "discretize.cuh"
#include "arguments.cuh"
#include "marks.cuh"
#include "rows.cuh"
#include "lanes.cuh"

// Frames that a thread has in registers.
#define SPAN 4
#define SPANS (TILE / SPAN)
// Whether the marks of packed rows come from marks.cu.
#define READS_MARKS (SEQ_IDX && !FINDS_MARKS)
// Marks of a tile that a thread copies, or, where FINDS_MARKS, finds.
#if FINDS_MARKS
#define MARKS_EACH ((TILE + 31) / 32)
#else
#define MARKS_EACH ((TILE + THREADS - 1) / THREADS)
#endif

struct Tile {
  alignas(16) Real delta[CHANNELS][PITCH];
  alignas(16) Real x[CHANNELS][PITCH];  // scaled; after the walk Σ C h
#if TILE_B
  alignas(16) Projection b;
#endif
#if TILE_C
  alignas(16) Projection c;
#endif
#if SEQ_IDX
  alignas(16) u8 marks[TILE];
#endif
};

// Tiles from that which is walked to that which `Incoming` points to.
#define AHEAD 3

// What is on its way to the next tile, and where the tile after that lies.
struct Incoming {
  SequencePatches::Cursor sequence;
  SequencePatches::Raw dt, x;
#if TILE_B
  RowsOfB::Cursor at_b;
  RowsOfB::Raw b;
#endif
#if TILE_C
  RowsOfC::Cursor at_c;
  RowsOfC::Raw c;
#endif
#if FINDS_MARKS
  const int* indices;
  int index[MARKS_EACH];
  int last_index = -1;  // of the frames before these, the last that is not skipped
#elif SEQ_IDX
  const u8* marks;
  u32 mark[MARKS_EACH];
#endif

  __device__ __forceinline__ Incoming(const Arguments& args, const Place& place, i64 i0)
      : sequence(sequence_at(args, place, i0))
#if TILE_B
        , at_b(projection_at<RowsOfB>(args, place, args.groups_b, place.group_b, i0))
#endif
#if TILE_C
        , at_c(projection_at<RowsOfC>(args, place, args.groups_c, place.group_c, i0))
#endif
#if FINDS_MARKS
        , indices(args.seq_idx + place.row * args.seq + frame_at(args, i0))
#elif SEQ_IDX
        , marks(args.marks + place.row * args.seq + i0)
#endif
  {
  }
};

// Parameters of the channels whose elements the thread brings in and finishes. Read where they are needed, they would be waited
// for in every tile.
struct Owned {
#if HAS_DT_BIAS
  Real dt_bias[VECTOR];
#endif
#if HAS_D
  Real d[VECTOR];
#endif

  __device__ __forceinline__ Owned([[maybe_unused]] const Arguments& args, [[maybe_unused]] const Place& place) {
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
      [[maybe_unused]] const int column = SequencePatches::first_column() + e;
#if HAS_DT_BIAS
      dt_bias[e] = column < place.channels ? args.dt_bias[place.channel0 + column] : (Real)0;
#endif
#if HAS_D
      d[e] = column < place.channels ? args.d[place.channel0 + column] : (Real)0;
#endif
    }
  }
};

// What the owner of an element needs to finish it.
struct Finishing {
#if SEQ_IDX
  u32 marks[SequencePatches::EACH];  // a byte a frame
#endif
#if HAS_D
  SequencePatches::Raw x;
#endif
#if HAS_Z
  SequencePatches::Raw z;
#endif
#if SEVERAL_SWEEPS
  SequencePatches::Packs<Real> sum;  // what earlier sweeps have come to
#endif
};

template <bool WHOLE>
__device__ __forceinline__ void load_tile(Incoming& in, const Arguments& args, int rows) {
  in.sequence.load<WHOLE>(in.dt, args.dt, rows);
  in.sequence.load<WHOLE>(in.x, args.x, rows);
  in.sequence.advance();
#if TILE_B
  in.at_b.load<WHOLE>(in.b, args.b, rows);
  in.at_b.advance();
#endif
#if TILE_C
  in.at_c.load<WHOLE>(in.c, args.c, rows);
  in.at_c.advance();
#endif
#if FINDS_MARKS
  const i64 step = args.reverse ? -1 : 1;
#pragma unroll
  for (int k = 0; k < MARKS_EACH; k++) {
    const int r = k * 32 + (int)threadIdx.x % 32;
    in.index[k] = r < rows ? in.indices[r * step] : -1;
  }
  in.indices += TILE * step;
#elif SEQ_IDX
#pragma unroll
  for (int k = 0; k < MARKS_EACH; k++) {
    const int r = k * THREADS + (int)threadIdx.x;
    in.mark[k] = r < rows ? in.marks[r] : MARK_SKIP;
  }
  in.marks += TILE;
#endif
}

#if FINDS_MARKS
// Finds the marks of a tile, as marks.cu does for rows that are cut in chunks. Every warp does, so that all know whether there is
// one; the first stores them.
__device__ __forceinline__ bool store_marks(Tile& tile, Incoming& in) {
  bool marked = false;
#pragma unroll
  for (int k = 0; k < MARKS_EACH; k++) {
    const int r = k * 32 + (int)threadIdx.x % 32;
    const u8 mark = mark_in_warp(in.index[k], in.last_index);
    if (threadIdx.x < 32 && r < TILE) tile.marks[r] = mark;
    marked = marked || any_of_warp(r < TILE && mark != 0);
  }
  return marked;
}
#elif SEQ_IDX
// Whether there is a mark among those that the thread has stored.
__device__ __forceinline__ bool store_marks(Tile& tile, const Incoming& in) {
  bool marked = false;
#pragma unroll
  for (int k = 0; k < MARKS_EACH; k++) {
    const int r = k * THREADS + (int)threadIdx.x;
    if (r >= TILE) continue;
    tile.marks[r] = (u8)in.mark[k];
    marked = marked || in.mark[k] != 0;
  }
  return marked;
}
#endif

// Whether there is a mark among those that the thread knows.
template <bool WHOLE>
__device__ __forceinline__ bool store_tile(Tile& tile, Incoming& in, [[maybe_unused]] const Owned& owned,
                                           const Arguments& args, const Place& place, int rows) {
  SequencePatches::each([&](int k, int r, int column) {
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
      [[maybe_unused]] Real bias = 0, slope;
#if HAS_DT_BIAS
      bias = owned.dt_bias[e];
#endif
      Real delta[SequencePatches::FRAMES], x[SequencePatches::FRAMES];
#pragma unroll
      for (int f = 0; f < SequencePatches::FRAMES; f++) {
        const bool here = WHOLE || (r + f < rows && column < place.channels);
        delta[f] = here ? step_size(args, in.dt[k][f].real(e), bias, slope) : (Real)0;
        x[f] = scale_input(in.x[k][f].real(e), delta[f]);
      }
      const int row = e * ROW_STEP + column / VECTOR;
      SequencePatches::put(tile.delta, row, r, delta);
      SequencePatches::put(tile.x, row, r, x);
    }
  });
#if TILE_B
  store_projection<RowsOfB, VECTOR_B>(tile.b, in.b);
#endif
#if TILE_C
  store_projection<RowsOfC, VECTOR_C>(tile.c, in.c);
#endif
#if SEQ_IDX
  return store_marks(tile, in);
#else
  return false;
#endif
}

// A barrier, after which all threads know whether one of them knows of a mark.
__device__ __forceinline__ bool meet(bool marked) {
#if READS_MARKS
  return __syncthreads_or(marked);
#else
  __syncthreads();
  return marked;
#endif
}

template <bool WHOLE>
__device__ __forceinline__ void load_finishing(Finishing& finishing, [[maybe_unused]] const Tile& tile,
                                               [[maybe_unused]] const Incoming& in, [[maybe_unused]] const Arguments& args,
                                               [[maybe_unused]] int rows, [[maybe_unused]] bool marked) {
#if SEQ_IDX
  // Now, because the tile's next marks are written by another thread than this.
  SequencePatches::each([&](int k, int r, int) {
    finishing.marks[k] = 0;
#pragma unroll
    for (int f = 0; f < SequencePatches::FRAMES; f++) finishing.marks[k] |= marked ? (u32)tile.marks[r + f] << 8 * f : 0;
  });
#endif
#if HAS_D
  in.sequence.load<WHOLE, AHEAD>(finishing.x, args.x, rows);
#endif
#if HAS_Z
  in.sequence.load<WHOLE, AHEAD>(finishing.z, args.z, rows);
#endif
#if SEVERAL_SWEEPS
  in.sequence.load<false, AHEAD>(finishing.sum, args.y_sum, args.first_sweep ? 0 : rows);
#endif
}

// The owner of an element of a tile finishes it.
template <bool WHOLE>
__device__ __forceinline__ void finish_tile(const Tile& tile, [[maybe_unused]] const Finishing& finishing, const Incoming& in,
                                            [[maybe_unused]] const Owned& owned, const Arguments& args, const Place& place,
                                            int rows) {
  SequencePatches::each([&](int k, int r, int column) {
    Real sums[VECTOR][SequencePatches::FRAMES];
#pragma unroll
    for (int e = 0; e < VECTOR; e++) load_reals(sums[e], &tile.x[e * ROW_STEP + column / VECTOR][r]);
#pragma unroll
    for (int f = 0; f < SequencePatches::FRAMES; f++) {
      if (!WHOLE && (r + f >= rows || column >= place.channels)) continue;
      const i64 at = in.sequence.at[k] + (f - AHEAD * TILE) * in.sequence.stride;
      Real y[VECTOR];
#pragma unroll
      for (int e = 0; e < VECTOR; e++) y[e] = OUTPUT_WEIGHT * sums[e][f];
#if SEVERAL_SWEEPS
#pragma unroll
      for (int e = 0; e < VECTOR; e++) y[e] += finishing.sum[k][f].real(e);
      if (!args.last_sweep) {
        store_vector<false>(args.y_sum + at, y);
        continue;
      }
#pragma unroll
      for (int e = 0; e < VECTOR; e++) y[e] *= args.scale;
#endif
#pragma unroll
      for (int e = 0; e < VECTOR; e++) {
#if HAS_D
        y[e] += owned.d[e] * finishing.x[k][f].real(e);
#endif
#if HAS_Z
        const Real z = finishing.z[k][f].real(e);
        y[e] *= z * sigmoid(z);
#endif
#if SEQ_IDX
        if (finishing.marks[k] >> 8 * f & MARK_SKIP) y[e] = (Real)0;
#endif
      }
      store_vector<false>(args.y + at, y);
    }
  });
}

// Around the walk of a tile, which begins with frame i: the tile before it, which was in `other`, is finished, that after it is
// stored there, and the next is asked for. rows_at(i): the frames of the tile that begins with i. WHOLE: they are all whole.
// Whether the thread has stored a mark.
template <bool WHOLE, typename Rows>
__device__ __forceinline__ bool bring(const Tile& tile, Tile& other, Finishing& finishing, Incoming& incoming,
                                      const Owned& owned, const Arguments& args, const Place& place, Rows rows_at, int i,
                                      bool marked) {
  if (!SUMMARY && i > 0) finish_tile<WHOLE>(other, finishing, incoming, owned, args, place, TILE);
  // All loads of a tile share a scoreboard, and whoever waits for one of them waits for those that were asked for since. So what
  // has come is taken before more is asked for, with a barrier between, over which the compiler moves no loads.
  const bool stored_mark = store_tile<WHOLE>(other, incoming, owned, args, place, rows_at(i + TILE));
  __syncwarp();
  load_tile<WHOLE>(incoming, args, rows_at(i + 2 * TILE));
  load_finishing<WHOLE>(finishing, tile, incoming, args, rows_at(i), marked);
  return stored_mark;
}

// Sums neighbouring frames over the lanes of a channel and puts the sums at `row`, where their x was.
template <int COUNT>
__device__ __forceinline__ void store_sums([[maybe_unused]] Real* row, [[maybe_unused]] int lane,
                                           [[maybe_unused]] Real (&y)[COUNT]) {
#if !SUMMARY
  const int first = sum_over_lanes(lane, y);
  Real sums[COUNT / LANES];
#pragma unroll
  for (int g = 0; g < COUNT / LANES; g++) sums[g] = y[g];
  __syncwarp();  // the lanes of the channel have read the x that goes
  store_reals(row + first, sums);
#endif
}

#if TIME_LANES > 1
#include "time_lanes.cuh"
#else
#include "spans.cuh"
#include "staged.cuh"
#endif

struct Shared {
  Tile tiles[2];
  Place place;  // of the block: the walk needs the registers
#if ROUNDS > 1
  Parked parked;
#endif
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the policy has counted the shared memory");

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) scan_forward(const Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  let_next_begin();
  const Place place = find_place(args);
  if (place.row >= args.batch) return;
#if SUMMARY
  if (place.chunk == args.chunks - 1) return;  // nothing comes after it
#endif
  if (threadIdx.x == 0) shared.place = place;
  const i64 begin = chunk_begin(args, place);
  const int frames = (int)(chunk_end(args, place) - begin);
  const auto rows_at = [&](int i) { return frames - i < TILE ? frames - i : TILE; };
  const bool complete = WHOLE_TILES && place.channels == CHANNELS && states_here(args) == SWEEP_SLOTS;
  Incoming incoming(args, place, begin);
  if (READS_MARKS) wait_for_kernels_before();
  load_tile<false>(incoming, args, rows_at(0));
  const Owned owned(args, place);
  if (!READS_MARKS) wait_for_kernels_before();
  Thread thread;
#if ROUNDS > 1
  thread.parked = &shared.parked;
#endif
  begin_thread(thread, args, place);
  bool stored_mark = store_tile<false>(shared.tiles[0], incoming, owned, args, place, rows_at(0));
  load_tile<false>(incoming, args, rows_at(TILE));

  Kept kept(args, begin, frames);
  Finishing finishing;
  int walked = 0;
  for (int i = 0; i < frames; i += TILE, walked ^= 1) {
    Tile &tile = shared.tiles[walked], &other = shared.tiles[walked ^ 1];
    const int rows = rows_at(i);
    const bool marked = meet(stored_mark);  // the tile is whole; the one before it has been walked by all
    if (complete && i + 3 * TILE <= frames) {
      stored_mark = bring<true>(tile, other, finishing, incoming, owned, args, place, rows_at, i, marked);
    } else {
      stored_mark = bring<false>(tile, other, finishing, incoming, owned, args, place, rows_at, i, marked);
    }
    walk(tile, thread, args, shared.place, kept, i, rows, marked);
  }
  __syncthreads();
  const int last = rows_at((frames - 1) / TILE * TILE);
  if (!SUMMARY) finish_tile<false>(shared.tiles[walked ^ 1], finishing, incoming, owned, args, place, last);
  end_thread(thread, args, shared.place);
}
