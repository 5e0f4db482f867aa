// What threads of the forward scan have of each of several rounds.

// What a thread has of each round, in shared memory.
struct Parked {
  typedef Real Row[ROUNDS][THREADS][LANE_WIDTH];
  alignas(16) Row h, a;
#if SUMMARY && !DECAY_BY_SUM
  alignas(16) Row product;
#endif
#if B_CONSTANT
  alignas(16) Row b;
#endif
#if C_CONSTANT && !SUMMARY
  alignas(16) Row c;
#endif
};

__device__ __forceinline__ void take_rates(Thread& thread, int round) {
  State a[STATES];
  load_lane(a, thread.parked->a[round][threadIdx.x]);
#pragma unroll
  for (int s = 0; s < STATES; s++) thread.rate[s] = rate_of(a[s]);
}

// Takes up what a round has beside its rates and its inputs, or leaves what has changed of it.
__device__ __forceinline__ void take_states(Thread& thread, int round) {
  load_lane(thread.h, thread.parked->h[round][threadIdx.x]);
#if SUMMARY && !DECAY_BY_SUM
  load_lane(thread.product, thread.parked->product[round][threadIdx.x]);
#endif
#if C_CONSTANT && !SUMMARY
  load_lane(thread.c, thread.parked->c[round][threadIdx.x]);
#endif
}
__device__ __forceinline__ void leave_states(const Thread& thread, int round) {
  store_lane(thread.parked->h[round][threadIdx.x], thread.h);
#if SUMMARY && !DECAY_BY_SUM
  store_lane(thread.parked->product[round][threadIdx.x], thread.product);
#endif
}
