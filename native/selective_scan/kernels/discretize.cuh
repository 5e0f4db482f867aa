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
// The closed forms lose everything near z = 0 and the series far from it, so they part at |z| = 2.

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
#else
  State sum = to_state((Real)1.1470745597729725e-11);  // 1/14!
  sum = sum * z + (Real)1.6059043836821613e-10;
  sum = sum * z + (Real)2.0876756987868099e-09;
  sum = sum * z + (Real)2.5052108385441720e-08;
  sum = sum * z + (Real)2.7557319223985888e-07;
  sum = sum * z + (Real)2.7557319223985893e-06;
  sum = sum * z + (Real)2.4801587301587302e-05;
#endif
  sum = sum * z + (Real)1.9841269841269841e-04;
  sum = sum * z + (Real)1.3888888888888889e-03;
  sum = sum * z + (Real)8.3333333333333333e-03;
  return sum * z + (Real)4.1666666666666667e-02;
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
  if (squared_magnitude(z) < (Real)4) {
    State phi4 = phi4_series(z);
    State phi3 = z * phi4 + (Real)(1.0 / 6);
    State phi2 = z * phi3 + (Real)0.5;
    State phi1 = z * phi2 + (Real)1;
    derivatives = {phi1 - phi2, phi2 - (Real)2 * phi3, phi3 - (Real)3 * phi4};
    return {phi1, phi2, phi3};
  }
  State inverse = reciprocal(z);
  State phi1 = (e - (Real)1) * inverse, phi2 = (phi1 - (Real)1) * inverse, phi3 = (phi2 - (Real)0.5) * inverse;
  State derivative1 = (e - phi1) * inverse, derivative2 = (derivative1 - phi2) * inverse;
  derivatives = {derivative1, derivative2, (derivative2 - phi3) * inverse};
  return {phi1, phi2, phi3};
}

struct Coefficients {
  State a, g;
};

// Partial derivatives with respect to A and Δ.
struct Partials {
  State a_by_a, a_by_delta, g_by_a, g_by_delta;
};

// e^z or its bilinear stand-in: all that a scan of the decays alone needs.
__device__ __forceinline__ State decay(State A, Real delta) {
#if METHOD == BILINEAR
  State half = (Real)0.5 * delta * A;
  return (half + (Real)1) * reciprocal((Real)1 - half);
#else
  return exp_product(A, delta);
#endif
}

// The gain of a method whose exponential is already known.
__device__ __forceinline__ State gain(State A, Real delta, State e) {
  [[maybe_unused]] const State z = A * delta;
#if METHOD == ZOH
  return to_state(delta);
#elif METHOD == ZOH_EXACT
  return phi(z, e).phi1 * delta;
#elif METHOD == FOH
#if TAYLOR
  return (((A * (delta * (Real)(1.0 / 120)) + (Real)(1.0 / 24)) * z + (Real)(1.0 / 6)) * z + (Real)0.5) * (delta * delta);
#else
  return phi(z, e).phi2 * (delta * delta);
#endif
#elif METHOD == BILINEAR
  return reciprocal((Real)1 - (Real)0.5 * z) * delta;
#elif METHOD == POLY
#if TAYLOR
  State second = (Real)0.5 * A + (Real)0.25;
  State third = (A * (Real)(1.0 / 6) + (Real)(1.0 / 12)) * A;
  State fourth = (A * (Real)(1.0 / 24) + (Real)(1.0 / 48)) * A * A;
  return (((fourth * delta + third) * delta + second) * delta + (Real)1) * delta;
#else
  Phi p = phi(z, e);
  return (p.phi1 + ((Real)0.5 * delta) * p.phi2) * delta;
#endif
#elif METHOD == HIGHORDER
#if TAYLOR
  State second = (Real)0.5 * A + (Real)0.5;
  State third = (A * (Real)(1.0 / 6) + (Real)(1.0 / 6)) * A + (Real)(1.0 / 12);
  State fourth = ((A * (Real)(1.0 / 24) + (Real)(1.0 / 24)) * A + (Real)(1.0 / 48)) * A;
  return (((fourth * delta + third) * delta + second) * delta + (Real)1) * delta;
#else
  Phi p = phi(z, e);
  return (p.phi1 + delta * (p.phi2 + ((Real)0.5 * delta) * p.phi3)) * delta;
#endif
#elif METHOD == RK4
  return (((z * (Real)(1.0 / 24) + (Real)(1.0 / 6)) * z + (Real)0.5) * z + (Real)1) * delta;
#endif
}

__device__ __forceinline__ Coefficients discretize(State A, Real delta) {
#if METHOD == BILINEAR
  State half = (Real)0.5 * delta * A;
  State q = reciprocal((Real)1 - half);
  return {(half + (Real)1) * q, q * delta};
#else
  State e = exp_product(A, delta);
  return {e, gain(A, delta, e)};
#endif
}

__device__ __forceinline__ Coefficients discretize(State A, Real delta, Partials& partials) {
  [[maybe_unused]] const State z = A * delta;
  [[maybe_unused]] const Real delta2 = delta * delta;
#if METHOD == BILINEAR
  State q = reciprocal((Real)1 - (Real)0.5 * z);
  State q2 = q * q;
  partials = {q2 * delta, A * q2, q2 * ((Real)0.5 * delta2), q2};
  return {((Real)0.5 * z + (Real)1) * q, q * delta};
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
