// The way of frames and of states between memory, registers and shared memory, in the backward pass.

// Whether there is an addition to memory of two neighbours: devices have it since 9.0, PTX since 8.1, which is CUDA 12.1's.
#define ADDS_VECTORS \
  (__CUDA_ARCH__ >= 900 && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 1)))

// --- Between memory and registers -----------------------------------------------------------------------------

// Where the elements of a thread's channels lie: those of frame r of a tile, or of the warp's part of it, at origin + r · stride.
struct Sequence {
  i64 origin, stride;
  int rows;  // of the tile that there are

  __device__ __forceinline__ Sequence(const Arguments& args, const Place& place, const Thread& thread, i64 begin, int rows)
      : origin((place.row * args.seq + frame_at(args, begin)) * args.dim + place.channel0 + thread.column),
        stride(args.reverse ? -args.dim : args.dim),
        rows(rows) {}

  // Where the thread's elements of frame r lie.
  __device__ __forceinline__ i64 at(int r) const { return origin + r * stride; }

  __device__ __forceinline__ void advance() { origin += TILE * stride; }

  // Whether the thread owns a frame that there is.
  __device__ __forceinline__ bool owns(const Thread& thread, int r) const {
    return is_owner(thread) && thread.here > 0 && r < rows;
  }

  // What lies there; zero where the thread does not own the frame.
  template <bool ONCE, typename Stored>
  static __device__ __forceinline__ Pack<Stored, PAIR> load(const Stored* tensor, [[maybe_unused]] const Thread& thread, i64 at,
                                                            bool owned) {
    Pack<Stored, PAIR> pair{};
    if (!owned) return pair;
#if VECTOR == PAIR
    pair = load_pack<ONCE>(reinterpret_cast<const Pack<Stored, PAIR>*>(tensor + at));
#else
    pair.put(0, tensor[at]);
    pair.put(1, thread.here > 1 ? tensor[at + 1] : Stored{});
#endif
    return pair;
  }

  template <bool ONCE, typename Stored>
  static __device__ __forceinline__ void store(Stored* tensor, [[maybe_unused]] const Thread& thread, i64 at,
                                               const Real (&values)[PAIR]) {
#if VECTOR == PAIR
    store_vector<ONCE>(tensor + at, values);
#else
    tensor[at] = rounded<Stored>(values[0]);
    if (thread.here > 1) tensor[at + 1] = rounded<Stored>(values[1]);
#endif
  }

  // Adds to what lies there, in the cache, without waiting for it. Each sweep adds once to an element, after those before it
  // have ended: so the order of the sum is fixed.
  static __device__ __forceinline__ void add(Real* sums, [[maybe_unused]] const Thread& thread, i64 at,
                                             const Real (&values)[PAIR]) {
#if VECTOR == PAIR && ELEMENT != 1 && ADDS_VECTORS
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(sums + at), "f"(values[0]), "f"(values[1]) : "memory");
#else
    atomicAdd(sums + at, values[0]);
    if (VECTOR == PAIR || thread.here > 1) atomicAdd(sums + at + 1, values[1]);
#endif
  }

  // Brings the warp's frames of another tile, from frame r0 of this on, nearer while this is walked, those that are wanted(r):
  // what a walk of the states reads first, or the rest.
  template <bool STATES_FIRST, typename Wanted>
  __device__ __forceinline__ void prefetch(const Arguments& args, const Thread& thread, int r0, Wanted wanted) const {
    const auto bring = [](const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); };
#pragma unroll
    for (int first = 0; first < PART_FRAMES; first += 32) {
      const int of_tile = first + thread.place, r = r0 + of_tile;
      if (of_tile >= PART_FRAMES || thread.here == 0 || !wanted(r)) continue;
      if constexpr (STATES_FIRST) {
        bring(args.dt + at(r));
#if !SUMMARY
        bring(args.x + at(r));
#endif
      } else {
        bring(args.dy + at(r));
#if HAS_Z
        bring(args.z + at(r));
#endif
#if SEVERAL_SWEEPS && ELEMENT > 1
        if (args.last_sweep) {
          bring(args.dx_sum + at(r));
          bring(args.ddt_sum + at(r));
#if HAS_Z
          bring(args.dz_sum + at(r));
#endif
        }
#endif
      }
    }
  }
};

// What the source of the adjoints is made of in a frame that the thread owns, on its way from memory.
struct IncomingSource {
  Pair dy, z{};

  IncomingSource() = default;
  // Of frame r of a tile.
  __device__ __forceinline__ IncomingSource(const Arguments& args, const Sequence& sequence, const Thread& thread, int r) {
    load(args, thread, sequence.at(r), sequence.owns(thread, r));
  }

  __device__ __forceinline__ void load(const Arguments& args, const Thread& thread, i64 at, bool owned) {
    dy = Sequence::load<STREAMS>(args.dy, thread, at, owned);
#if HAS_Z
    z = Sequence::load<STREAMS>(args.z, thread, at, owned);
#endif
  }
};

// A tile of a projection on its way from memory to the block.
template <int COUNT>
struct Incoming {
  static constexpr int PER_FRAME = SLOT_WIDTH / COUNT, ALL = TILE * PER_FRAME, EACH = (ALL + THREADS - 1) / THREADS;
  ElementPack<COUNT> raw[EACH];

  // Calls f(number, frame, first component) for each access of this thread.
  template <typename F>
  static __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int access = k * THREADS + thread_anew();
      if (ALL % THREADS == 0 || access < ALL) f(k, access / PER_FRAME, access % PER_FRAME * COUNT);
    }
  }

  __device__ __forceinline__ void load(const Element* tensor, const Arguments& args, const Place& place, i64 groups, i64 group,
                                       i64 i0, int rows) {
    const i64 first = (((place.row * args.seq + frame_at(args, i0)) * groups + group) * args.state + args.first_state) * COMPONENTS;
    const i64 width = groups * args.state * COMPONENTS, stride = args.reverse ? -width : width;
    const int count = states_here(args) * COMPONENTS;
    each([&](int k, int r, int column) {
      raw[k] = ElementPack<COUNT>{};
      if (r < rows && column < count) {
        raw[k] = *reinterpret_cast<const ElementPack<COUNT>*>(tensor + first + r * stride + column);
      }
    });
  }

  // What b and c are in frames that are skipped must not reach a sum. Of four orders, every other frame is stored in the next: rows
  // that are stored at a time then lie in all banks, else in a quarter of them.
  __device__ __forceinline__ void store(Rows& rows, const Marks& marks) const {
    // Those of a lane at once, or a part of them; a turn goes by what lies within, and by places.
    constexpr int PART = COUNT < LANE_WIDTH ? COUNT : LANE_WIDTH, NEXT = ORDER_STEP * COMPONENTS;
    each([&](int k, int r, int column) {
      const bool next = ORDERS > 2 && r % 2 != 0;
      Real own[COUNT];
#pragma unroll
      for (int e = 0; e < COUNT; e++) {
        const Real value = NEXT < PART && next ? raw[k].real(e ^ NEXT) : raw[k].real(e);
        own[e] = marks.skip(r) ? (Real)0 : value;
      }
#pragma unroll
      for (int order = 0; order < STATES; order += ORDER_STEP) {
        const int turn = order * COMPONENTS, its_order = next ? order ^ ORDER_STEP : order;
#pragma unroll
        for (int first = 0; first < COUNT; first += PART) {
          Real values[PART];
#pragma unroll
          for (int e = 0; e < PART; e++) values[e] = own[first + (e ^ (turn & (PART - 1)))];
          const int of_lane = (column + first) % LANE_WIDTH ^ (its_order * COMPONENTS & ~(PART - 1));
          store_reals(&rows.frames[r][place_in_row((column + first) / LANE_WIDTH, its_order) + of_lane], values);
        }
      }
    });
  }
};

// --- Between registers and shared memory ------------------------------------------------------------------------

// A span of a channel of the thread's pair: span k of `frames`.
typedef Real Span[SPAN];

__device__ __forceinline__ void load_span(Span& values, const Real* frames, int k, int p) {
  load_reals(values, frames + k * FRAMES_REALS + p * (CHANNELS_PER_WARP * SPAN));
}

// The owner's frame of span k of the pair.
__device__ __forceinline__ void put(Real* frames, const Thread& thread, int k, const Real (&values)[PAIR]) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) frames[k * FRAMES_REALS + p * (CHANNELS_PER_WARP * SPAN) + thread.lane] = values[p];
}

__device__ __forceinline__ void get(Real (&values)[PAIR], const Real* frames, const Thread& thread, int k) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) values[p] = frames[k * FRAMES_REALS + p * (CHANNELS_PER_WARP * SPAN) + thread.lane];
}

// Where the thread's states of a frame of a tile lie, of b or c.
__device__ __forceinline__ const Real* row_of_b(const Thread& thread, int r) { return thread.rows + r * (ORDERS * SLOT_WIDTH); }
__device__ __forceinline__ const Real* row_of_c(const Thread& thread, int r) {
  return row_of_b(thread, r) + (TILE_B ? TILE * ORDERS * SLOT_WIDTH : 0);
}

#if !SUMMARY
// The thread's states of its pair, those of one channel after those of the other.
__device__ __forceinline__ void save(Real* to, const PairStates& h) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) store_lane(to + p * 32 * LANE_WIDTH, h[p]);
}

__device__ __forceinline__ void restore(PairStates& h, const Real* from) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) load_lane(h[p], from + p * 32 * LANE_WIDTH);
}

__device__ __forceinline__ Real* sums_of_da(const Thread& thread) {
#if DA_IN_REGISTERS
  return thread.states;
#else
  return thread.states + (DISTANCE(da) - DISTANCE(spans));
#endif
}

#if TILES > 1
__device__ __forceinline__ Real* states_before(const Thread& thread, int tile) {
  return thread.states + (DISTANCE(tiles) - DISTANCE(spans)) + (tile - TILES_NOT_KEPT) * START_REALS;
}
#endif
#endif

__device__ __forceinline__ void clear(PairStates& states) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
#pragma unroll
    for (int s = 0; s < STATES; s++) states[p][s] = to_state(0);
  }
}

// What Re Σ C h is multiplied by: half where the other direction adds the same again, for which it takes several sweeps.
__device__ __forceinline__ Real output_weight([[maybe_unused]] const Arguments& args) {
#if SEVERAL_SWEEPS
  return OUTPUT_WEIGHT * args.scale;
#else
  return OUTPUT_WEIGHT;
#endif
}

// Δ of the frame that the thread owns; zero where there is none, for which nothing was loaded.
__device__ __forceinline__ void own_delta(Real (&delta)[PAIR], [[maybe_unused]] const Warp& warp, const Arguments& args,
                                          const Thread& thread, const Pair& dt, bool present) {
  Real bias[PAIR] = {0, 0}, slope;
#if HAS_DT_BIAS
  load_reals(bias, warp.dt_bias[thread.pair]);
#endif
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    const Real its = step_size(args, dt.real(p), bias[p], slope);
#if CHANGES_DT || SEQ_IDX
    delta[p] = present && p < thread.here ? its : (Real)0;
#else
    delta[p] = its;
#endif
  }
}

// The gradient of y before the gate, of that frame. `by_z`: its derivative by z.
__device__ __forceinline__ void own_dy(Real (&values)[PAIR], [[maybe_unused]] Real (&by_z)[PAIR], const IncomingSource& incoming,
                                       bool skipped) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) {
    values[p] = skipped ? (Real)0 : incoming.dy.real(p);
#if HAS_Z
    const Real gate = skipped ? (Real)0 : incoming.z.real(p), s = sigmoid(gate);
    by_z[p] = values[p] * (s * ((Real)1 + gate * ((Real)1 - s)));
    values[p] *= gate * s;
#endif
  }
}

// The source of the adjoints in that frame.
__device__ __forceinline__ void put_source(const Thread& thread, const Arguments& args, int k, Real (&values)[PAIR]) {
#pragma unroll
  for (int p = 0; p < PAIR; p++) values[p] *= output_weight(args);
  put(thread.frames + DISTANCE(dy), thread, k, values);
}
