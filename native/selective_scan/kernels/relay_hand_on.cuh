// How the relay hands states on, from warp to warp and from block to block: all that these wait for of one another between the first
// tile of a block and its last. A warp waits at its own barrier, a block at its flag.

// Tells a warp that it has been handed the states before its tile. The warp before it does, when it has been told itself: so what was
// handed in the round before has been read.
__device__ __forceinline__ void tell(Shared& shared, int warp) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) shared.handed[warp].arrive();
}

// Waits for the states before a warp's tile.
__device__ __forceinline__ void wait_for_states(Shared& shared, const Step& step, State (&before)[STATES]) {
  shared.handed[step.warp].wait(step.round % 2);
  load_lane(before, shared.warps[step.warp].handed[threadIdx.x % 32]);
}

// Where a thread's states after a tile go: to the next warp. Those after the last tile that the block walks of a strip the thread has back
// from there or, where the next warp may walk another strip, from memory of its own.
__device__ __forceinline__ Real* place_after(Shared& shared, const Step& step, [[maybe_unused]] bool is_last) {
  auto* states = &shared.warps[step.next_warp()].handed;
#if SHARES_STRIPS
  if (is_last) states = &shared.warps[step.warp].after;
#endif
  return (*states)[threadIdx.x % 32];
}

// Hands on the states after a warp's tile. After the last of a strip the next warp is told, too, so that none is ahead of what others have
// been handed.
__device__ __forceinline__ void hand_on(Shared& shared, const Step& step, const State (&after)[STATES]) {
  store_lane(place_after(shared, step, step.number + 1 == step.end), after);
  tell(shared, step.next_warp());
}

#if SHARES_STRIPS
// Where a thread's states lie that are handed on to a block.
__device__ __forceinline__ State* handed_states(const Arguments& args, u32 block) {
  return args.handed_states + (block * 32 + threadIdx.x % 32) * STATES;
}

// Hands states on to the block after this.
__device__ __forceinline__ void hand_on_to_block(const Arguments& args, const State (&states)[STATES]) {
  store_lane(handed_states(args, blockIdx.x + 1), states);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(args.handed + blockIdx.x + 1), "l"(args.token) : "memory");
  }
}

// Waits for the states that the block before this hands on. A flag is the token, a random number of the process, from when they are there
// until they have been read, and no flag is when a kernel has ended: so nothing has to be cleared before one. Blocks begin in the order of
// their numbers, as where CUB's scan waits for one before it.
__device__ __forceinline__ void wait_for_block(const Arguments& args, State (&states)[STATES]) {
  u64* flag = args.handed + blockIdx.x;
  u64 token;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(token) : "l"(flag) : "memory");
  } while (token != args.token);
  load_lane(states, handed_states(args, blockIdx.x));
  __syncwarp();
  if (threadIdx.x % 32 == 0) *flag = 0;
}
#endif
