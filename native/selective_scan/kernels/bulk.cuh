// Copies of whole tiles between device memory and shared memory by the device's own engine, from 9.0 on (PTX ISA, "Data movement
// and conversion instructions: tensor copy"): one thread asks, by a tensor map that the host has made (tensor_maps.rs), and no
// thread needs an address, a condition or a register. What lies beyond the tensor is zero where it is brought, and what lies behind
// it is left alone where it is taken away.

// Tiles lie in STAGES places of shared memory, where they are walked by WARPS warps and one thread of a further one, the carrier, asks
// for them.
#define ALL_THREADS (THREADS + 32)
// Whether the projections' elements are made reals for all who walk a tile, by the carrier's warp: each is read by every channel, and
// to take 16 bits apart would cost each of them an operation.
#define WIDENS (ELEMENT > 1)

// An opaque description of a tensor in device memory and of the box of it that is copied: CUtensorMap, as CUDA 13 aligns it.
struct alignas(128) TensorMap {
  u64 opaque[16];
};

// A tile lies as the tensor does, whichever way it is walked: REVERSE, from its last frame to its first.

// The frame with which the tile begins that is walked from scan index i on. Where REVERSE, that of a tile that lacks frames lies before
// the tensor: what is brought of it from there is zero, too, but to take it away is an illegal instruction (H200).
__device__ __forceinline__ int first_frame(const Arguments& args, int i) { return REVERSE ? (int)args.seq - i - TILE : i; }

// Where the frame of a tile lies that is walked after r others.
__device__ __forceinline__ constexpr int in_tile(int r) { return REVERSE ? TILE - 1 - r : r; }

// What scan_bulk and scan_relay are given beside `Arguments`, and what scan_chunks is: of tensor_maps.rs.
struct Maps {
  TensorMap x, dt, b, c, y, z;  // there may be no z
};
struct ChunkMaps {
  TensorMap dt, source, projection;
};

__device__ __forceinline__ u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// A barrier in shared memory: it is passed, time after time, when so many threads have arrived and all bytes that were announced
// have.
struct Barrier {
  u64 state;

  __device__ __forceinline__ void begin(int threads) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)), "r"(threads) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state)) : "memory");
  }
  __device__ __forceinline__ void arrive_announcing(u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)), "r"(bytes) : "memory");
  }
  // Waits until it has been passed `parity` + 1 times, modulo 2.
  __device__ __forceinline__ void wait(u32 parity) {
    u32 passed;
    do {
      asm volatile(
          "{\n.reg .pred passed;\nmbarrier.try_wait.parity.shared::cta.b64 passed, [%1], %2;\nselp.u32 %0, 1, 0, passed;\n}"
          : "=r"(passed)
          : "r"(shared_address(&state)), "r"(parity)
          : "memory");
    } while (!passed);
  }
};

// What this thread has written to shared memory, barriers too, is to be seen by the engine.
__device__ __forceinline__ void show_to_engine() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Brings a box of {channels, frames, rows}, and one of {states, groups, frames, rows}; `barrier` counts its bytes.
__device__ __forceinline__ void bring(void* shared, const TensorMap& map, int channel, int frame, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(channel), "r"(frame), "r"(row), "r"(shared_address(&barrier))
      : "memory");
}
__device__ __forceinline__ void bring(void* shared, const TensorMap& map, int state, int group, int frame, int row,
                                      Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(state), "r"(group), "r"(frame), "r"(row), "r"(shared_address(&barrier))
      : "memory");
}

// Takes a box of {channels, frames, rows} away.
__device__ __forceinline__ void take_away(const TensorMap& map, int channel, int frame, int row, const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\ncp.async.bulk.commit_group;" ::"l"(
          &map),
      "r"(channel), "r"(frame), "r"(row), "r"(shared_address(shared))
      : "memory");
}
// Adds one to what is there, each element once.
__device__ __forceinline__ void add_to(const TensorMap& map, int channel, int frame, int row, const void* shared) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(channel), "r"(frame), "r"(row), "r"(shared_address(shared))
      : "memory");
}
// Waits until what this thread has had taken away has been read, or has arrived.
__device__ __forceinline__ void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_until_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// One of `COUNT` places in turn, and how often, modulo 2, all have been gone through.
template <int COUNT>
struct Turn {
  int place = 0;
  u32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++place < COUNT) return;
    place = 0;
    parity ^= 1;
  }
};

// The barriers of the tiles in shared memory, by stage.
struct Stages {
  Barrier brought[STAGES];  // by the engine
#if WIDENS
  Barrier widened[STAGES];  // by the carrier's warp
#endif
  Barrier walked[STAGES];  // by all warps

  // By one thread, before anybody else sees them.
  __device__ __forceinline__ void begin() {
    for (int stage = 0; stage < STAGES; stage++) {
      brought[stage].begin(1);
#if WIDENS
      widened[stage].begin(1);
#endif
      walked[stage].begin(WARPS);
    }
    show_to_engine();
  }

  // What those do who walk a tile: they wait for it, and tell the carrier that they have walked it. Who has waited for what the
  // engine writes sees it, and nobody else.
  __device__ __forceinline__ void wait(const Turn<STAGES>& stage) {
    brought[stage.place].wait(stage.parity);
#if WIDENS
    widened[stage.place].wait(stage.parity);
#endif
  }
  __device__ __forceinline__ void tell_walked(int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) walked[stage].arrive();
  }
};

// What the carrier does with so many tiles, one after the other: `ask(number, stage)` has one brought, `widen(stage)` makes reals of
// its projections, a tile before it is walked, and `after(number, stage)` takes up that it has been walked.
template <typename Ask, typename Widen, typename After>
__device__ __forceinline__ void carry_tiles([[maybe_unused]] Stages& stages, int tiles, Ask ask, [[maybe_unused]] Widen widen,
                                            After after) {
  for (int number = 0; number < STAGES && number < tiles; number++) {
    ask(number, number);
    // The blocks of a multiprocessor begin at once: all first tiles come before the second of any, or who is last would wait for all.
    if (number == 0) stages.brought[0].wait(0);
  }
#if WIDENS
  Turn<STAGES> next;
  const auto widen_next = [&] {
    stages.brought[next.place].wait(next.parity);
    widen(next.place);
    __syncwarp();
    if (threadIdx.x == THREADS) stages.widened[next.place].arrive();
    next.advance();
  };
  for (int number = 0; number < STAGES - 1 && number < tiles; number++) widen_next();
#endif
  Turn<STAGES> stage;
#pragma unroll 1
  for (int number = 0; number < tiles; number++) {
#if WIDENS
    if (number + STAGES - 1 < tiles) widen_next();
#endif
    after(number, stage);
    if (number + STAGES < tiles) ask(number + STAGES, stage.place);
    stage.advance();
  }
}

#if WIDENS
// Makes reals of a projection's elements.
__device__ __forceinline__ void widen_projection(Real (&reals)[TILE][SLOTS], const Element (&elements)[TILE][SLOTS]) {
#pragma unroll
  for (int first = 0; first < TILE * SLOTS; first += 32 * PACK) {
    const int at = first + (int)(threadIdx.x % 32) * PACK;
    if (at >= TILE * SLOTS) break;
    const ElementPack<PACK> pack = *reinterpret_cast<const ElementPack<PACK>*>(&elements[0][0] + at);
    Real values[PACK];
#pragma unroll
    for (int k = 0; k < PACK; k++) values[k] = pack.real(k);
    store_reals(&reals[0][0] + at, values);
  }
}
#endif

// Where the channel of a thread lies in a tile. Those of a warp are neighbours; with four lanes they are two packs, half a frame
// apart: then no two packs of four frames share banks.
__device__ __forceinline__ int row_of(int index) {
  constexpr int TOGETHER = LANES < 4 ? CHANNELS_PER_WARP : 4, ABREAST = CHANNELS / CHANNELS_PER_WARP;
  const int channel = channel_of(index % 32), warp = ABREAST > 1 ? index / 32 : 0;
  return (warp + channel / TOGETHER * ABREAST) * TOGETHER + channel % TOGETHER;
}
