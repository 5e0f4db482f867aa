// What is done to an element of dt and x before it is walked, and to a sum of it before it is stored, by the one lane that owns it.

struct Owner {
#if REVERSE
  int frame;
#endif
#if HAS_DT_BIAS
  Real dt_bias;
#endif
#if HAS_D
  Real d;
#endif

  // Asks for the parameters of the thread's channel.
  __device__ __forceinline__ Owner([[maybe_unused]] const Arguments& args, [[maybe_unused]] const Thread& thread) {
#if REVERSE
    frame = frame_of_lane(thread.lane);
    // Of a number whose bits it does not know, the compiler finds addresses once for all spans of a tile; of a difference it makes other
    // bits, and each address by itself (H200: long against the order of frames 489 µs, and 477 so).
    asm("" : "+r"(frame));
#endif
#if HAS_DT_BIAS
    dt_bias = thread.active ? args.dt_bias[thread.channel] : (Real)0;
#endif
#if HAS_D
    d = thread.active ? args.d[thread.channel] : (Real)0;
#endif
  }
  __device__ __forceinline__ void settle_parameters([[maybe_unused]] const Arguments& args) {
#if HAS_DT_BIAS
    settle(dt_bias, args);
#endif
#if HAS_D
    settle(d, args);
#endif
  }

  // Where its own frame of a span lies in it.
  __device__ __forceinline__ int frame_of([[maybe_unused]] const Thread& thread) const {
#if REVERSE
    return frame;
#else
    return thread.lane;
#endif
  }

  // {Δ, scaled x} of an element.
  __device__ __forceinline__ void make(const Arguments& args, Real dt, Real x, Real (&pair)[2]) const {
    Real bias = 0, slope;
#if HAS_DT_BIAS
    bias = dt_bias;
#endif
    pair[0] = step_size(args, dt, bias, slope);
    pair[1] = scale_input(x, pair[0]);
  }

  // What a sum comes to.
  __device__ __forceinline__ Real finish(Real y, [[maybe_unused]] Real x, [[maybe_unused]] Real z) const {
#if HAS_D
    y += d * x;
#endif
#if HAS_Z
    y *= z * sigmoid(z);
#endif
    return y;
  }
};
