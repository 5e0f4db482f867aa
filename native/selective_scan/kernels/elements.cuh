// What bulk.cu makes of elements of dt and x before they are walked, and of sums before they are stored.

// Where, in a tile of a sequence, the element lies that the thread owns in a span: that of its channel in the frame that has its
// lane's number. Where the engine swizzles, the lanes of a channel find different banks.
template <typename Its>
__device__ __forceinline__ auto& own(Its& sequence, const Thread& thread, int span) {
  const int lane = frame_of_lane(thread.lane), first = first_of_span(span);
  // Found once for all spans: what they add to it are other bits.
  const int place = lane * CHANNELS + (thread.row ^ swizzle_of(lane));
  return (&sequence[first][0])[place ^ swizzle_of(first % 8)];
}

#if HAS_OWNERS
#include "owners.cuh"

// More is done to elements than the scan. Each is made by the lane that owns it alone: Δ and the scaled input, which all lanes of the
// channel read from memory of their warp; and it finishes y.
//
// These are chains of operations with an exponential or two in each, so they go on while earlier spans are walked: what a span is
// made of is asked for three spans ahead of its walk and made two ahead, and what it is finished with is asked for while it is
// walked and used a span late, with its sums.
struct Elements : Owner {
  // How many spans of the next tile are asked for while the last of a tile are walked.
  static constexpr int AHEAD = 3;
  static_assert(SPANS > AHEAD, "they are of one tile");

  Made* made;        // two spans of the warp
  int turn = 0;      // which of them the first span of a tile has
  Real dt, x;        // as they have come
  struct {
#if HAS_D
    Real x;
#endif
#if HAS_Z
    Real z;
#endif
  } finishing, next_finishing;  // of the span before that which is walked, and of that

  __device__ __forceinline__ Elements(Shared& shared, const Arguments& args, const Thread& thread)
      : Owner(args, thread), made(shared.made[threadIdx.x / 32]), next_finishing() {}

  // Before the first span of whole tiles.
  __device__ __forceinline__ void begin(const Arguments& args, const Tile& tile, const Thread& thread) {
#pragma unroll
    for (int span = 0; span < AHEAD - 1; span++) {
      ask(tile, thread, span);
      make(args, thread, span);
    }
    ask(tile, thread, AHEAD - 1);
    __syncwarp();
  }

  // A frame of a span as it is walked, after r others of its tile; one of an even number together with the next.
  __device__ __forceinline__ void fetch(const Tile&, const Thread&, int, int span, int frame, Real (&delta)[SPAN],
                                        Real (&x)[SPAN]) const {
    if (frame % 2 != 0) return;
    Real pairs[4];
    load_reals(pairs, made[(span ^ turn) % 2][frame / 2][channel_of(threadIdx.x % 32)][0]);
    delta[frame] = pairs[0];
    x[frame] = pairs[1];
    delta[frame + 1] = pairs[2];
    x[frame + 1] = pairs[3];
  }

  // While a span of a whole tile is walked, after the next has been fetched.
  __device__ __forceinline__ void go_on(const Arguments& args, const Tile& tile, const Tile& next, const Thread& thread, int span) {
    make(args, thread, span + AHEAD - 1);
    ask(span + AHEAD < SPANS ? tile : next, thread, (span + AHEAD) % SPANS);
    finishing = next_finishing;
    ask_finishing(tile, thread, span);
  }
  // After it: what was made of others is seen, and what was made of it can be written over.
  __device__ __forceinline__ void end_span() { __syncwarp(); }
  __device__ __forceinline__ void end_tile() { turn ^= SPANS % 2; }
  // After the last.
  __device__ __forceinline__ void end() { finishing = next_finishing; }

  // A span by itself.
  __device__ __forceinline__ void make_alone(const Arguments& args, const Tile& tile, const Thread& thread, int span) {
    __syncwarp();  // what was made before has been read
    ask(tile, thread, span);
    make(args, thread, span);
    ask_finishing(tile, thread, span);
    finishing = next_finishing;
    __syncwarp();
  }

  // What a sum comes to.
  __device__ __forceinline__ Real finish(Real y) const {
    Real its_x = 0, its_z = 0;
#if HAS_D
    its_x = finishing.x;
#endif
#if HAS_Z
    its_z = finishing.z;
#endif
    return Owner::finish(y, its_x, its_z);
  }

 private:
  __device__ __forceinline__ void ask(const Tile& tile, const Thread& thread, int span) {
    dt = to_real(own(tile.delta, thread, span));
    x = to_real(own(tile.x, thread, span));
  }

  __device__ __forceinline__ void make(const Arguments& args, const Thread& thread, int span) {
    Real pair[2];
    Owner::make(args, dt, x, pair);
    store_reals(made[(span ^ turn) % 2][thread.lane / 2][channel_of(threadIdx.x % 32)][thread.lane % 2], pair);
  }

  __device__ __forceinline__ void ask_finishing([[maybe_unused]] const Tile& tile, [[maybe_unused]] const Thread& thread,
                                                [[maybe_unused]] int span) {
#if HAS_D
    next_finishing.x = to_real(own(tile.x, thread, span));
#endif
#if HAS_Z
    next_finishing.z = to_real(own(tile.z, thread, span));
#endif
  }
};
#else
// Nothing is done to elements but the scan: every lane reads Δ and x for itself.
struct Elements {
  static constexpr int AHEAD = 1;

  __device__ __forceinline__ Elements(const Shared&, const Arguments&, const Thread&) {}
  __device__ __forceinline__ void settle_parameters(const Arguments&) {}
  __device__ __forceinline__ void begin(const Arguments&, const Tile&, const Thread&) {}
  __device__ __forceinline__ void fetch(const Tile& tile, const Thread& thread, int r, int, int frame, Real (&delta)[SPAN],
                                        Real (&x)[SPAN]) const {
    delta[frame] = to_real(tile.delta[in_tile(r)][thread.row]);
    x[frame] = to_real(tile.x[in_tile(r)][thread.row]);
  }
  __device__ __forceinline__ void go_on(const Arguments&, const Tile&, const Tile&, const Thread&, int) {}
  __device__ __forceinline__ void end_span() {}
  __device__ __forceinline__ void end_tile() {}
  __device__ __forceinline__ void end() {}
  __device__ __forceinline__ void make_alone(const Arguments&, const Tile&, const Thread&, int) {}
  __device__ __forceinline__ Real finish(Real y) const { return y; }
};
#endif
