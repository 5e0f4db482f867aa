// Discretization of one state over one frame: h ← a·h + g·(B·x).
//
// With z = AΔ, φ1 = (e^z − 1)/z, φ2 = (φ1 − 1)/z, φ3 = (φ2 − ½)/z:
//   zoh        a = e^z           g = Δ                          (Gu & Dao 2023, "Mamba")
//   zoh_exact  a = e^z           g = Δφ1
//   foh        a = e^z           g = Δ²φ2
//   bilinear   a = (1 + z/2)q    g = Δq, q = 1/(1 − z/2)
//   poly       a = e^z           g = Δφ1 + ½Δ²φ2
//   highorder  a = e^z           g = Δφ1 + Δ²φ2 + ½Δ³φ3
//   rk4        a = e^z           g = Δ(1 + z/2 + z²/6 + z³/24)
// TAYLOR: g is its series in Δ cut after four terms, as models trained with the VisionMamba code have it.
//
// The closed forms lose everything near z = 0 and the series far from it, so they part at |z| = 2; in real f32, where
// threads must not part, both are computed and polynomials reach less far.

#define ZOH 0
#define ZOH_EXACT 1
#define FOH 2
#define BILINEAR 3
#define POLY 4
#define HIGHORDER 5
#define RK4 6

// zoh's gain is Δ for every state: loops take it out of their sums.
#define GAIN_IS_DELTA (METHOD == ZOH)
// Over a chunk, a product of decays is exp(A ΣΔ). Not so where complex: the error of ΣΔ, times |Im A|, would turn the
// phase, so there the product itself is taken.
#define DECAY_BY_SUM (METHOD != BILINEAR && !COMPLEX)
#define NEEDS_PHI (METHOD == ZOH_EXACT || (!TAYLOR && (METHOD == FOH || METHOD == POLY || METHOD == HIGHORDER)))

// A in the rates of decay. An infinite one would make NaN of frames of no Δ, which leave the state as it is; so would one
// that is infinite in the units of the exponential.
__device__ __forceinline__ State finite_rate(State a) {
#if COMPLEX
  return a;
#else
  const Real most = sizeof(Real) == 4 ? (Real)2e38 : (Real)1e308;
  return a < -most ? -most : a;
#endif
}

struct Phi {
  State phi1, phi2, phi3;
};

struct PhiDerivatives {
  State phi1, phi2, phi3;
};

// φ4 = Σ z^k/(k + 4)!, with as many terms as |z| < 2 asks of the type.
__device__ __forceinline__ State phi4_series(State z) {
#if ELEMENT == 1
  State sum = to_state(1.6117375710961184e-24);  // 1/24!
  sum = sum * z + (Real)3.8681701706306841e-23;
  sum = sum * z + (Real)8.8967913924505741e-22;
  sum = sum * z + (Real)1.9572941063391263e-20;
  sum = sum * z + (Real)4.1103176233121648e-19;
  sum = sum * z + (Real)8.2206352466243295e-18;
  sum = sum * z + (Real)1.5619206968586225e-16;
  sum = sum * z + (Real)2.8114572543455206e-15;
  sum = sum * z + (Real)4.7794773323873853e-14;
  sum = sum * z + (Real)7.6471637318198164e-13;
  sum = sum * z + (Real)1.1470745597729725e-11;
  sum = sum * z + (Real)1.6059043836821613e-10;
  sum = sum * z + (Real)2.0876756987868099e-09;
  sum = sum * z + (Real)2.5052108385441720e-08;
  sum = sum * z + (Real)2.7557319223985888e-07;
  sum = sum * z + (Real)2.7557319223985893e-06;
  sum = sum * z + (Real)2.4801587301587302e-05;
#elif REAL_F32
  // Minimax, relative error 1.0e-7.
  State sum = 2.58225615e-8f;
  sum = sum * z + 2.92631213e-7f;
  sum = sum * z + 2.75621502e-6f;
  sum = sum * z + 2.47590890e-5f;
  sum = sum * z + 1.98407848e-4f;
  sum = sum * z + 1.38892237e-3f;
  sum = sum * z + 8.33333668e-3f;
  return sum * z + 4.16666626e-2f;
#else
  State sum = to_state((Real)1.1470745597729725e-11);  // 1/14!
  sum = sum * z + (Real)1.6059043836821613e-10;
  sum = sum * z + (Real)2.0876756987868099e-09;
  sum = sum * z + (Real)2.5052108385441720e-08;
  sum = sum * z + (Real)2.7557319223985888e-07;
  sum = sum * z + (Real)2.7557319223985893e-06;
  sum = sum * z + (Real)2.4801587301587302e-05;
#endif
#if !REAL_F32
  sum = sum * z + (Real)1.9841269841269841e-04;
  sum = sum * z + (Real)1.3888888888888889e-03;
  sum = sum * z + (Real)8.3333333333333333e-03;
  return sum * z + (Real)4.1666666666666667e-02;
#endif
}

// φ1, φ2, φ3 of z, whose exponential is e.
__device__ __forceinline__ Phi phi(State z, State e) {
  if (squared_magnitude(z) < (Real)4) {
    State phi3 = z * phi4_series(z) + (Real)(1.0 / 6);
    State phi2 = z * phi3 + (Real)0.5;
    return {z * phi2 + (Real)1, phi2, phi3};
  }
  State inverse = reciprocal(z);
  State phi1 = (e - (Real)1) * inverse, phi2 = (phi1 - (Real)1) * inverse;
  return {phi1, phi2, (phi2 - (Real)0.5) * inverse};
}

// The same with dφ/dz: φk′ = φk − kφ(k+1) where |z| < 2, else from one another.
__device__ __forceinline__ Phi phi(State z, State e, PhiDerivatives& derivatives) {
  const bool near = squared_magnitude(z) < (Real)4;
  Phi p;
  if (REAL_F32 || near) {
    State phi4 = phi4_series(z);
    p.phi3 = z * phi4 + (Real)(1.0 / 6);
    p.phi2 = z * p.phi3 + (Real)0.5;
    p.phi1 = z * p.phi2 + (Real)1;
    derivatives = {p.phi1 - p.phi2, p.phi2 - (Real)2 * p.phi3, p.phi3 - (Real)3 * phi4};
  }
  if (REAL_F32 || !near) {
    State inverse = reciprocal(z);
    State phi1 = (e - (Real)1) * inverse, phi2 = (phi1 - (Real)1) * inverse, phi3 = (phi2 - (Real)0.5) * inverse;
    State derivative1 = (e - phi1) * inverse, derivative2 = (derivative1 - phi2) * inverse;
    State derivative3 = (derivative2 - phi3) * inverse;
    if (!near) {
      p = {phi1, phi2, phi3};
      derivatives = {derivative1, derivative2, derivative3};
    }
  }
  return p;
}

struct Coefficients {
  State a, g;
};

// Partial derivatives with respect to A and Δ.
struct Partials {
  State a_by_a, a_by_delta, g_by_a, g_by_delta;
};

// Real bilinear: a = 2q − 1 and h ← q(2h + ΔBx) − h, no more operations than zoh's. Complex, where states that turn without
// decaying gather errors, a is the quotient: its error is half as much.
#define BY_TWICE_Q (METHOD == BILINEAR && !COMPLEX)
#define HAS_GAIN (METHOD != ZOH && !BY_TWICE_Q)

#if METHOD == BILINEAR
__device__ __forceinline__ State twice_q(State A, Real delta) { return reciprocal((Real)0.5 - (A * (Real)0.25) * delta); }
#endif

// e^z or its bilinear stand-in: all that a scan of the decays alone needs.
__device__ __forceinline__ State decay(State A, Real delta) {
#if BY_TWICE_Q
  return twice_q(A, delta) - (Real)1;
#elif METHOD == BILINEAR
  State half = (Real)0.5 * delta * A;
  return (half + (Real)1) * reciprocal((Real)1 - half);
#else
  return exp_product(A, delta);
#endif
}

// What Δ alone does to an input, or to what is left of the gain: it is done once for all states of a channel.
__device__ __forceinline__ Real scale_input(Real x, [[maybe_unused]] Real delta) {
#if METHOD == BILINEAR
  return (Real)0.5 * x * delta;
#elif METHOD == FOH && TAYLOR
  return x * delta * delta;
#elif METHOD == ZOH_EXACT && REAL_F32
  return (Real)0.5 * x;
#elif NEEDS_PHI && REAL_F32
  return x;
#else
  return x * delta;
#endif
}

#if NEEDS_PHI && REAL_F32
// What is made of A alone: it does not change along a sequence. Where A is so large that it would be infinite, it may be
// anything finite, because no gain matters there: but a Δ of 0 must leave 0.
struct Rate {
  Real a;
#if METHOD == ZOH_EXACT
  Real of_delta3, of_delta5, of_e;
#elif METHOD == HIGHORDER
  Real of_delta2, of_delta3, of_e, of_delta, of_square;
#else
  Real of_e, of_delta;
#endif
};

__device__ __forceinline__ Rate rate_of(Real A) {
  const Real inverse = precise_reciprocal(A);
#if METHOD == ZOH_EXACT
  const Real square = fminf(A * A, 1e37f), fourth = fminf(square * square, 1e37f);
  return {A, -8.331886e-2f * square, 8.10082e-3f * fourth, 2.0f * inverse};
#elif METHOD == FOH
  return {A, inverse * inverse, inverse};
#elif METHOD == POLY
  return {A, 0.5f * inverse * inverse + inverse, 0.5f * inverse};
#else
  const Real of_delta = (0.5f * inverse) * inverse + inverse;
  return {A, 0.5f * A + 0.5f, fminf(A * A + A + 0.5f, 1e37f), of_delta * inverse + inverse, of_delta, 0.25f * inverse};
#endif
}

// What is left of the gain: `far` from z = 0 by the exponential, `near` it by polynomials in t = z·log2(e), which the
// exponential needs anyway. No thread waits for another, since all compute both. The polynomials are minimax in relative
// error (Lawson's iteration in f64). The largest error of each, where they part, and that of `far` there, which decreases
// from there on, for z < 0 and ex2.approx wrong by 2 units in the last place:
//   zoh_exact  tanh(z/2)/(z/2) in z²  2.6e-7  0.45  5.6e-7
//   foh, poly  φ2                     4.0e-7  0.8   6.5e-7
//   highorder  φ3                     4.4e-7  1.5   6.5e-7
// For z > 0 the error of e^z itself is up to twice as much.
__device__ __forceinline__ Real remaining_gain(const Rate& rate, Real delta, Real e) {
  const Real t = binary_exponent(rate.a, delta), delta2 = delta * delta;
#if METHOD == ZOH_EXACT
  // 2φ1 = (e^z + 1) · tanh(z/2)/(z/2)
  const Real half = (rate.of_delta5 * delta2 + rate.of_delta3) * (delta2 * delta) + delta;
  const Real near = e * half + half, far = e * rate.of_e - rate.of_e;
  constexpr Real FAR = 0.45f * 1.44269504f;
#elif METHOD == FOH || METHOD == POLY
  Real near = 3.18867482e-5f;
  near = near * t + 3.26115807e-4f;
  near = near * t + 2.77546625e-3f;
  near = near * t + 2.00161400e-2f;
  near = near * t + 1.15524389e-1f;
  near = near * t + 5.00000199e-1f;
  near *= delta2;
#if METHOD == POLY
  // Δφ1 + ½Δ²φ2 = Δ + (A + ½)Δ²φ2
  near = near * (rate.a + 0.5f) + delta;
#endif
  const Real far = e * rate.of_e - (delta * rate.of_delta + rate.of_e);
  constexpr Real FAR = 0.8f * 1.44269504f;
#else
  // Δφ1 + Δ²φ2 + ½Δ³φ3 = Δ + ½(A + 1)Δ² + (A² + A + ½)Δ³φ3
  Real near = 3.11061154e-7f;
  near = near * t + 4.14408202e-6f;
  near = near * t + 4.58141435e-5f;
  near = near * t + 4.62125616e-4f;
  near = near * t + 4.00372160e-3f;
  near = near * t + 2.88813669e-2f;
  near = near * t + 1.66666684e-1f;
  near = near * (rate.of_delta3 * (delta2 * delta)) + (rate.of_delta2 * delta2 + delta);
  const Real far = e * rate.of_e - ((rate.of_square * delta + rate.of_delta) * delta + rate.of_e);
  constexpr Real FAR = 1.5f * 1.44269504f;
#endif
  return fabsf(t) >= FAR ? far : near;
}
__device__ __forceinline__ Real remaining_gain(Real A, Real delta, Real e) { return remaining_gain(rate_of(A), delta, e); }
__device__ __forceinline__ Real a_of(const Rate& rate) { return rate.a; }
#else
typedef State Rate;
__device__ __forceinline__ Rate rate_of(State A) { return A; }
__device__ __forceinline__ State a_of(Rate rate) { return rate; }

// What is left of the gain of a method whose exponential is already known.
__device__ __forceinline__ State remaining_gain(State A, Real delta, [[maybe_unused]] State e) {
#if REAL_F32
  // In units that the exponential needs anyway.
  [[maybe_unused]] const Real z = binary_exponent(A, delta);
  [[maybe_unused]] constexpr Real UNIT = 0.69314718f;
#else
  [[maybe_unused]] const State z = A * delta;
  [[maybe_unused]] constexpr Real UNIT = 1;
#endif
#if METHOD == ZOH
  return to_state(1);
#elif METHOD == ZOH_EXACT
  return phi(z, e).phi1;
#elif METHOD == FOH
#if TAYLOR
  return ((z * (UNIT * UNIT * UNIT / 120) + UNIT * UNIT / 24) * z + UNIT / 6) * z + (Real)0.5;
#else
  return phi(z, e).phi2 * delta;
#endif
#elif METHOD == BILINEAR
  return twice_q(A, delta);
#elif METHOD == POLY
#if TAYLOR
  State second = (Real)0.5 * A + (Real)0.25;
  State third = (A * (Real)(1.0 / 6) + (Real)(1.0 / 12)) * A;
  State fourth = (A * (Real)(1.0 / 24) + (Real)(1.0 / 48)) * A * A;
  return ((fourth * delta + third) * delta + second) * delta + (Real)1;
#else
  Phi p = phi(z, e);
  return p.phi1 + ((Real)0.5 * delta) * p.phi2;
#endif
#elif METHOD == HIGHORDER
#if TAYLOR
  State second = (Real)0.5 * A + (Real)0.5;
  State third = (A * (Real)(1.0 / 6) + (Real)(1.0 / 6)) * A + (Real)(1.0 / 12);
  State fourth = ((A * (Real)(1.0 / 24) + (Real)(1.0 / 24)) * A + (Real)(1.0 / 48)) * A;
  return ((fourth * delta + third) * delta + second) * delta + (Real)1;
#else
  Phi p = phi(z, e);
  return p.phi1 + delta * (p.phi2 + ((Real)0.5 * delta) * p.phi3);
#endif
#elif METHOD == RK4
  return ((z * (UNIT * UNIT * UNIT / 24) + UNIT * UNIT / 6) * z + UNIT / 2) * z + (Real)1;
#endif
}
#endif

__device__ __forceinline__ State gain(State A, Real delta, State e) {
  return remaining_gain(A, delta, e) * scale_input((Real)1, delta);
}

// A frame of a state whose input is scaled: g is what is left of the gain; where BY_TWICE_Q, a is 2q.
__device__ __forceinline__ Coefficients discretize(const Rate& rate, Real delta) {
#if BY_TWICE_Q
  const Real q2 = twice_q(rate, delta);
  return {q2, q2};
#elif METHOD == BILINEAR
  State half = (Real)0.5 * delta * rate, q = reciprocal((Real)1 - half);
  return {(half + (Real)1) * q, (Real)2 * q};
#else
  State e = exp_product(a_of(rate), delta);
  return {e, remaining_gain(rate, delta, e)};
#endif
}

// The state after such a frame, of an input that the gain has met, if there is any.
__device__ __forceinline__ State advance(const Coefficients& k, State h, State input) {
#if BY_TWICE_Q
  return k.a * (input + h) - h;
#else
  return k.a * h + input;
#endif
}

__device__ __forceinline__ State decay_of(const Coefficients& k) {
#if BY_TWICE_Q
  return k.a - (Real)1;
#else
  return k.a;
#endif
}

__device__ __forceinline__ Coefficients discretize(State A, Real delta, Partials& partials) {
  [[maybe_unused]] const State z = A * delta;
  [[maybe_unused]] const Real delta2 = delta * delta;
#if METHOD == BILINEAR
  State q = (Real)0.5 * twice_q(A, delta);
  State q2 = q * q;
  partials = {q2 * delta, A * q2, q2 * ((Real)0.5 * delta2), q2};
  return {decay(A, delta), q * delta};
#else
  State e = exp_product(A, delta);
  partials.a_by_a = e * delta;
  partials.a_by_delta = A * e;
#if METHOD == ZOH
  partials.g_by_a = to_state(0);
  partials.g_by_delta = to_state(1);
  return {e, to_state(delta)};
#elif NEEDS_PHI
  PhiDerivatives d;
  Phi p = phi(z, e, d);
#if METHOD == ZOH_EXACT
  partials.g_by_a = d.phi1 * delta2;
  partials.g_by_delta = e;
  return {e, p.phi1 * delta};
#elif METHOD == FOH
  partials.g_by_a = d.phi2 * (delta2 * delta);
  partials.g_by_delta = p.phi1 * delta;
  return {e, p.phi2 * delta2};
#elif METHOD == POLY
  partials.g_by_a = (d.phi1 + ((Real)0.5 * delta) * d.phi2) * delta2;
  partials.g_by_delta = e + p.phi1 * ((Real)0.5 * delta);
  return {e, (p.phi1 + ((Real)0.5 * delta) * p.phi2) * delta};
#else
  partials.g_by_a = (d.phi1 + delta * (d.phi2 + ((Real)0.5 * delta) * d.phi3)) * delta2;
  partials.g_by_delta = e + delta * (p.phi1 + ((Real)0.5 * delta) * p.phi2);
  return {e, (p.phi1 + delta * (p.phi2 + ((Real)0.5 * delta) * p.phi3)) * delta};
#endif
#elif METHOD == FOH
  partials.g_by_a = ((z * (Real)(1.0 / 40) + (Real)(1.0 / 12)) * z + (Real)(1.0 / 6)) * (delta2 * delta);
  partials.g_by_delta = (((z * (Real)(1.0 / 24) + (Real)(1.0 / 6)) * z + (Real)0.5) * z + (Real)1) * delta;
  return {e, gain(A, delta, e)};
#elif METHOD == POLY
  State third = A * (Real)(1.0 / 3) + (Real)(1.0 / 12);
  State fourth = (A * (Real)(1.0 / 8) + (Real)(1.0 / 24)) * A;
  partials.g_by_a = ((fourth * delta + third) * delta + (Real)0.5) * delta2;
  State cubic = (A * (Real)(1.0 / 6) + (Real)(1.0 / 12)) * A * A;
  State square = (A * (Real)0.5 + (Real)0.25) * A;
  partials.g_by_delta = ((cubic * delta + square) * delta + (A + (Real)0.5)) * delta + (Real)1;
  return {e, gain(A, delta, e)};
#elif METHOD == HIGHORDER
  State third = A * (Real)(1.0 / 3) + (Real)(1.0 / 6);
  State fourth = (A * (Real)(1.0 / 8) + (Real)(1.0 / 12)) * A + (Real)(1.0 / 48);
  partials.g_by_a = ((fourth * delta + third) * delta + (Real)0.5) * delta2;
  State cubic = ((A * (Real)(1.0 / 6) + (Real)(1.0 / 6)) * A + (Real)(1.0 / 12)) * A;
  State square = (A * (Real)0.5 + (Real)0.5) * A + (Real)0.25;
  partials.g_by_delta = ((cubic * delta + square) * delta + (A + (Real)1)) * delta + (Real)1;
  return {e, gain(A, delta, e)};
#else
  partials.g_by_a = ((z * (Real)(1.0 / 8) + (Real)(1.0 / 3)) * z + (Real)0.5) * delta2;
  partials.g_by_delta = ((z * (Real)(1.0 / 6) + (Real)0.5) * z + (Real)1) * z + (Real)1;
  return {e, gain(A, delta, e)};
#endif
#endif
}
