// A tile as the device's engine brings it (bulk.cuh) and as bulk.cu and relay.cu walk it, in spans of a frame for each lane.

#define SPAN LANES
#define SPANS (TILE / SPAN)

static_assert(TILE % SPAN == 0, "a tile is made of spans");
static_assert(!COMPLEX && ELEMENT != 1 && TILE_B && TILE_C && ROUNDS == 1 && !SUMMARY, "what is copied, and walked once");
static_assert(!SEVERAL_SWEEPS || (ELEMENT == 0 && !HAS_OWNERS), "y does not gather in 16 bits, and elements are finished once");

__device__ __forceinline__ int column_of(int row) { return row; }

#include "spans.cuh"

// Its parts, as they are copied or as they are walked.
template <typename Stored>
struct Projections {
  Stored b[TILE][SLOTS], c[TILE][SLOTS];
};
typedef Element SequenceTile[TILE][CHANNELS];

// Reads a lane's states of a frame, which lies in row `row` of a tile and is frame g of a span.
__device__ __forceinline__ void fetch_frame(const Projections<Real>& tile, int lane, int row, int g, Operands& operands) {
  State b[STATES], c[STATES];
  load_slots(b, tile.b[row], lane);
  load_slots(c, tile.c[row], lane);
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    operands.b[s][g] = b[s];
    operands.c[s][g] = c[s];
  }
}

// Where a span lies, and in it the frame that a lane has of it: by its bits, which the compiler knows to be in the span.
__device__ __forceinline__ int first_of_span(int span) { return (REVERSE ? SPANS - 1 - span : span) * SPAN; }
__device__ __forceinline__ int frame_of_lane(int lane) { return REVERSE ? lane ^ (SPAN - 1) : lane; }

// Brings that which is walked from scan index i on; `barrier` counts its bytes.
template <typename Tile>
__device__ __forceinline__ void bring_tile(Tile& tile, const Arguments& args, const Maps& maps, const Place& place, int row, int i,
                                           Barrier& barrier) {
  const int frame = first_frame(args, i), channel = (int)place.channel0, state = (int)first_state(args);
  bring(tile.delta, maps.dt, channel, frame, row, barrier);
  bring(tile.x, maps.x, channel, frame, row, barrier);
#if HAS_Z
  bring(tile.z, maps.z, channel, frame, row, barrier);
#endif
  bring(tile.projections.b, maps.b, state, (int)place.group_b, frame, row, barrier);
  bring(tile.projections.c, maps.c, state, (int)place.group_c, frame, row, barrier);
}
