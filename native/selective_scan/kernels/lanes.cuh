// What the threads of a walk do with values of their lanes and with values from memory.

// Sums what the lanes of a channel have; those that differ in bits below FIRST have sums of their own.
template <int FIRST = 1>
__device__ __forceinline__ Real sum_lanes(Real value) {
#pragma unroll
  for (int bit = FIRST; bit < LANES; bit *= 2) value += __shfl_xor_sync(ALL_LANES, value, thread_bit(bit));
  return value;
}

// Sums COUNT neighbouring frames over AMONG neighbouring lanes of a channel. Each exchange halves what a thread holds: y[0] … become the
// sums of COUNT / AMONG neighbours, of which the number of the first is returned.
template <int COUNT, int AMONG = LANES>
__device__ __forceinline__ int sum_over_lanes(int lane, Real (&y)[COUNT]) {
  int held = COUNT, first = 0;
#pragma unroll
  for (int bit = AMONG / 2; bit > 0; bit /= 2) {
    const bool upper = lane & bit;
    held /= 2;
#pragma unroll
    for (int g = 0; g < held; g++) {
      const Real give = upper ? y[g] : y[g + held], keep = upper ? y[g + held] : y[g];
      y[g] = keep + __shfl_xor_sync(ALL_LANES, give, thread_bit(bit));
    }
    if (upper) first += held;
  }
  return first;
}

// Takes a value from memory through an operation whose result the compiler cannot know. Else its first use in the loop
// waits, in every turn, for the loads of the turn: they share a scoreboard (12% of the time, on an H200).
__device__ __forceinline__ void settle(float& value, const Arguments& args) {
  value = __uint_as_float(__float_as_uint(value) ^ (u32)(args.reverse & 2));  // `reverse` is 0 or 1
}
__device__ __forceinline__ void settle(double& value, const Arguments& args) {
  value = __longlong_as_double(__double_as_longlong(value) ^ (i64)(args.reverse & 2));
}
__device__ __forceinline__ void settle(Complex& value, const Arguments& args) {
  settle(value.re, args);
  settle(value.im, args);
}
