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
// The closed forms lose everything near z = 0 and the series far from it, so there are both.

#define ZOH 0
#define ZOH_EXACT 1
#define FOH 2
#define BILINEAR 3
#define POLY 4
#define HIGHORDER 5
#define RK4 6

// Methods whose gain is Δψ(z): of A they know by z alone, and of Δ besides by the input, which has it as a factor.
#define GAIN_BY_Z (METHOD == ZOH || METHOD == BILINEAR || METHOD == RK4)
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

#if NEEDS_PHI
// What the φ methods are made of: E_k = Δ^k φ_k(z), so that E_0 = e^z and
//   A E_k = E_{k−1} − Δ^{k−1}/(k−1)!
//   ∂E_k/∂Δ = E_{k−1}
//   ∂E_k/∂A = ΔE_k − kE_{k+1} = (ΔE_{k−1} − kE_k)/A
// from the recurrence of the φ functions (Hochbruck & Ostermann 2010, "Exponential integrators", section 2). Of two forms the first
// loses nothing near z = 0, the second far from it, and 1/A does not change along a sequence.
struct Integrals {
  State e1, e2, e3, e4;
};

// The highest that is asked for, which near zero is a polynomial: of t = z·log2(e), which the exponential needs anyway, and minimax
// in relative error (Lawson's iteration in f64), or a series as long as the type and |z| < 2 ask for.
#if REAL_F32 && METHOD == ZOH_EXACT
#define HIGHEST 2
__device__ constexpr Real PHI[] = {0.5f,            0.115524732f,    0.020018803f,    0.00277440529f,
                                   0.000320660765f, 3.25213223e-05f, 2.76828973e-06f};  // 8.5e-8
#elif REAL_F32 && METHOD != HIGHORDER
#define HIGHEST 3
__device__ constexpr Real PHI[] = {0.166666672f,    0.0288812108f, 0.00400375715f, 0.000462337484f,
                                   4.58070317e-05f, 4.089924e-06f, 3.0940771e-07f};  // 1.2e-7
#else
#define HIGHEST 4
#if REAL_F32
__device__ constexpr Real PHI[] = {0.0416666679f,   0.00577624794f,  0.000667292508f, 6.60390069e-05f,
                                   5.72554654e-06f, 4.56906577e-07f, 3.11094226e-08f};  // 1.6e-7
#elif ELEMENT == 1
__device__ constexpr Real PHI[] = {
    4.1666666666666667e-02, 8.3333333333333333e-03, 1.3888888888888889e-03, 1.9841269841269841e-04, 2.4801587301587302e-05,
    2.7557319223985893e-06, 2.7557319223985888e-07, 2.5052108385441720e-08, 2.0876756987868099e-09, 1.6059043836821613e-10,
    1.1470745597729725e-11, 7.6471637318198164e-13, 4.7794773323873853e-14, 2.8114572543455206e-15, 1.5619206968586225e-16,
    8.2206352466243295e-18, 4.1103176233121648e-19, 1.9572941063391263e-20, 8.8967913924505741e-22, 3.8681701706306841e-23,
    1.6117375710961184e-24};  // 1/4! to 1/24!
#else
__device__ constexpr Real PHI[] = {4.16666667e-02f, 8.33333333e-03f, 1.38888889e-03f, 1.98412698e-04f,
                                   2.48015873e-05f, 2.75573192e-06f, 2.75573192e-07f, 2.50521084e-08f,
                                   2.08767570e-09f, 1.60590438e-10f, 1.14707456e-11f};  // 1/4! to 1/14!
#endif
#endif

// Whether z is where that holds. In real f32 it reaches so far that derivatives are exact to 2.3e-6 on both sides.
__device__ __forceinline__ bool is_near(State A, Real delta) {
#if REAL_F32
  constexpr Real NEAR = METHOD == ZOH_EXACT ? 1.0f : METHOD == HIGHORDER ? 1.5f : 1.25f;
  return fabsf(binary_exponent(A, delta)) < NEAR * 1.44269504f;
#else
  return squared_magnitude(A * delta) < (Real)4;
#endif
}

// That highest one near zero, and those below it.
__device__ __forceinline__ State highest_near(State A, Real delta) {
#if REAL_F32
  const State phi = polynomial(binary_exponent(A, delta), PHI);
#else
  const State phi = polynomial(A * delta, PHI);
#endif
  const Real square = delta * delta;
  return phi * (HIGHEST == 4 ? square * square : HIGHEST == 3 ? square * delta : square);
}

__device__ __forceinline__ Integrals integrals_near(State A, Real delta, State highest) {
  const Real square = delta * delta;
  Integrals of{};
#if HIGHEST == 4
  of.e4 = highest;
  of.e3 = A * of.e4 + square * delta * (Real)(1.0 / 6);
#elif HIGHEST == 3
  of.e3 = highest;
#endif
  of.e2 = HIGHEST == 2 ? highest : A * of.e3 + (Real)0.5 * square;
  of.e1 = A * of.e2 + delta;
  return of;
}

#if COMPLEX && METHOD == ZOH_EXACT
// e^z − 1. Where e^z is near 1, after whole turns, the difference would cancel. There it is
//   e^x cos y − 1 = (e^x − 1) − (e^x sin y)²/(e^x + e^x cos y)
// where the square, of a state that grows, may be more than the type holds, and the quotient is not.
__device__ __forceinline__ Complex less_one(Complex A, Real delta, Complex e) {
  const Real of_x = expm1(A.re * delta), near = of_x - e.im * (e.im / ((Real)1 + of_x + e.re));
  return {e.re > (Real)0.5 ? near : e.re - (Real)1, e.im};
}
#endif

// Far from zero, from the decay up; the last is not asked for.
__device__ __forceinline__ Integrals integrals_far([[maybe_unused]] State A, State inverse, Real delta, State e) {
  Integrals of{};
#if COMPLEX && METHOD == ZOH_EXACT
  of.e1 = less_one(A, delta, e) * inverse;
#else
  of.e1 = e * inverse - inverse;
#endif
  of.e2 = (of.e1 - delta) * inverse;
  of.e3 = (of.e2 - (Real)0.5 * delta * delta) * inverse;
  return of;
}

// The gain that a method makes of E_1, E_2 and E_3; of their derivatives it makes its own.
__device__ __forceinline__ State gain_of([[maybe_unused]] State first, [[maybe_unused]] State second,
                                         [[maybe_unused]] State third) {
#if METHOD == ZOH_EXACT
  return first;
#elif METHOD == FOH
  return second;
#elif METHOD == POLY
  return first + (Real)0.5 * second;
#else
  return first + second + (Real)0.5 * third;
#endif
}

__device__ __forceinline__ State gain_near(State A, Real delta, State highest) {
  const Integrals of = integrals_near(A, delta, highest);
  return gain_of(of.e1, of.e2, of.e3);
}
__device__ __forceinline__ State gain_far(State A, State inverse, Real delta, State e) {
  const Integrals of = integrals_far(A, inverse, delta, e);
  return gain_of(of.e1, of.e2, of.e3);
}
#endif

struct Coefficients {
  State a, g;
};

// What the walk back keeps of a frame: of φ methods the whole gain, and the highest integral near zero, which its derivatives need.
#if NEEDS_PHI
struct KeptCoefficients : Coefficients {
  State highest;
};
#else
typedef Coefficients KeptCoefficients;
#endif

// Partial derivatives of a gain with respect to A and Δ.
struct Partials {
  State by_a, by_delta;
};

// Real bilinear: a = 2q − 1 and h ← q(2h + ΔBx) − h, no more operations than zoh's. Complex, where states that turn without
// decaying gather errors, a is the quotient: its error is half as much.
#define BY_TWICE_Q (METHOD == BILINEAR && !COMPLEX)
#define HAS_GAIN (METHOD != ZOH && !BY_TWICE_Q)

#if METHOD == BILINEAR
__device__ __forceinline__ State twice_q(State A, Real delta) { return reciprocal((Real)0.5 - (A * (Real)0.25) * delta); }
#endif

// What Δ alone does to an input, or to what is left of the gain: it is done once for all states of a channel.
__device__ __forceinline__ Real scale_input(Real x, [[maybe_unused]] Real delta) {
#if METHOD == BILINEAR
  return (Real)0.5 * x * delta;
#elif METHOD == FOH && TAYLOR
  return x * delta * delta;
#elif METHOD == ZOH_EXACT && REAL_F32
  return (Real)0.5 * x;
#elif NEEDS_PHI
  return x;
#else
  return x * delta;
#endif
}

#if NEEDS_PHI && REAL_F32
// What is made of A alone: it does not change along a sequence. Where A is so large that it would be infinite, it may be
// anything finite, because no gain matters there: but a Δ of 0 must leave 0. `binary` is that of the exponential.
struct Rate {
  Real binary;
#if METHOD == ZOH_EXACT
  Real of_delta3, of_delta5, of_e;
#elif METHOD == FOH
  Real of_e, of_delta;
#elif METHOD == POLY
  Real of_delta2, of_e, of_delta;
#else
  Real of_delta2, of_delta3, of_e, of_delta, of_square;
#endif
};

__device__ __forceinline__ Rate rate_of(Real A) {
  const Real binary = binary_rate(A), inverse = precise_reciprocal(A);
#if METHOD == ZOH_EXACT
  const Real square = fminf(A * A, 1e37f), fourth = fminf(square * square, 1e37f);
  return {binary, -8.331886e-2f * square, 8.10082e-3f * fourth, 2.0f * inverse};
#elif METHOD == FOH
  return {binary, inverse * inverse, inverse};
#elif METHOD == POLY
  return {binary, A + 0.5f, 0.5f * inverse * inverse + inverse, 0.5f * inverse};
#else
  const Real of_delta = (0.5f * inverse) * inverse + inverse;
  return {binary,   0.5f * A + 0.5f, fminf(A * A + A + 0.5f, 1e37f), of_delta * inverse + inverse,
          of_delta, 0.25f * inverse};
#endif
}

// What is left of the gain: `far` from z = 0 by the exponential, `near` it by polynomials in t = z·log2(e), which the
// exponential needs anyway. No thread waits for another, since all compute both. The polynomials are minimax in relative
// error (Lawson's iteration in f64). The largest error of `near`, up to where they part, and that of `far` there, which decreases
// from there on, with all that is rounded, for z < 0 and ex2.approx wrong by 2 units in the last place:
//   zoh_exact  tanh(z/2)/(z/2) in z²  4.4e-7  0.45  4.9e-7
//   foh        φ2                     5.8e-7  0.8   5.6e-7
//   poly       φ2                     5.9e-7  0.8   5.3e-7
//   highorder  φ3                     6.1e-7  1.5   3.5e-7
// For z > 0 the error of e^z itself is up to twice as much.
__device__ __forceinline__ Real remaining_gain(const Rate& rate, Real delta, Real e) {
  const Real t = rate.binary * delta, delta2 = delta * delta;
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
  near = near * rate.of_delta2 + delta;
#endif
  const Real far = (e * rate.of_e - rate.of_e) - delta * rate.of_delta;
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
__device__ __forceinline__ Real decay_at(const Rate& rate, Real delta) { return power_of_two(rate.binary * delta); }
__device__ __forceinline__ Real& factor_of_delta(Rate& rate) { return rate.binary; }
#else
#if NEEDS_PHI
// What is made of A alone: it does not change along a sequence.
struct Rate {
  State a, inverse;
};
__device__ __forceinline__ Rate rate_of(State A) { return {A, precise_reciprocal(A)}; }
__device__ __forceinline__ State decay_at(const Rate& rate, Real delta) { return exp_product(rate.a, delta); }

__device__ __forceinline__ State remaining_gain(const Rate& rate, Real delta, State e) {
  if (!is_near(rate.a, delta)) return gain_far(rate.a, rate.inverse, delta, e);
  return gain_near(rate.a, delta, highest_near(rate.a, delta));
}
#else
// A of methods that know it by z alone is kept in the units of the exponential.
typedef State Rate;
__device__ __forceinline__ State& factor_of_delta(Rate& rate) { return rate; }
#if REAL_F32 && (METHOD == ZOH || METHOD == RK4 || METHOD == FOH)
#define Z_UNIT 0.69314718f
__device__ __forceinline__ Rate rate_of(State A) { return binary_rate(A); }
__device__ __forceinline__ State decay_at(Rate rate, Real delta) { return power_of_two(rate * delta); }
#else
#define Z_UNIT ((Real)1)
__device__ __forceinline__ Rate rate_of(State A) { return A; }
__device__ __forceinline__ State decay_at(Rate rate, Real delta) { return exp_product(rate, delta); }
#endif

// What is left of the gain of a method whose exponential is already known.
__device__ __forceinline__ State remaining_gain(Rate A, Real delta, [[maybe_unused]] State e) {
  [[maybe_unused]] const State z = A * delta;
#if METHOD == ZOH
  return to_state(1);
#elif METHOD == FOH
  return ((z * (Z_UNIT * Z_UNIT * Z_UNIT / 120) + Z_UNIT * Z_UNIT / 24) * z + Z_UNIT / 6) * z + (Real)0.5;
#elif METHOD == BILINEAR
  return twice_q(A, delta);
#elif METHOD == POLY
  State second = (Real)0.5 * A + (Real)0.25;
  State third = (A * (Real)(1.0 / 6) + (Real)(1.0 / 12)) * A;
  State fourth = (A * (Real)(1.0 / 24) + (Real)(1.0 / 48)) * A * A;
  return ((fourth * delta + third) * delta + second) * delta + (Real)1;
#elif METHOD == HIGHORDER
  State second = (Real)0.5 * A + (Real)0.5;
  State third = (A * (Real)(1.0 / 6) + (Real)(1.0 / 6)) * A + (Real)(1.0 / 12);
  State fourth = ((A * (Real)(1.0 / 24) + (Real)(1.0 / 24)) * A + (Real)(1.0 / 48)) * A;
  return ((fourth * delta + third) * delta + second) * delta + (Real)1;
#elif METHOD == RK4
  return ((z * (Z_UNIT * Z_UNIT * Z_UNIT / 24) + Z_UNIT * Z_UNIT / 6) * z + Z_UNIT / 2) * z + (Real)1;
#endif
}
#endif
#endif

// A frame of a state whose input is scaled: g is what is left of the gain; where BY_TWICE_Q, a is 2q.
__device__ __forceinline__ Coefficients discretize(const Rate& rate, Real delta) {
#if BY_TWICE_Q
  const Real q2 = twice_q(rate, delta);
  return {q2, q2};
#elif METHOD == BILINEAR
  // (1 + z/2) q = 1 + z q: near 1 a product of two roundings would be as wrong in every frame, the same way.
  const State z = delta * rate, q = reciprocal((Real)1 - (Real)0.5 * z);
  return {z * q + (Real)1, (Real)2 * q};
#else
  State e = decay_at(rate, delta);
  return {e, remaining_gain(rate, delta, e)};
#endif
}

// What all frames whose Δ come to a sum leave of a state, where that is by ΣΔ. Of an infinite rate, too, frames of no Δ leave it as it is.
__device__ __forceinline__ State decay_over(const Rate& rate, Real delta_sum) {
  return delta_sum == 0 ? to_state(1) : decay_at(rate, delta_sum);
}

// The same for the walk back.
__device__ __forceinline__ KeptCoefficients discretize_to_keep(State A, Real delta) {
#if NEEDS_PHI
  const State e = exp_product(A, delta), inverse = precise_reciprocal(A);
  const bool is_far = !is_near(A, delta);
#if REAL_F32
  // Threads must not part.
  const State highest = highest_near(A, delta), far = gain_far(A, inverse, delta, e), near = gain_near(A, delta, highest);
  return {{e, is_far ? far : near}, highest};
#else
  const State highest = is_far ? to_state(0) : highest_near(A, delta);
  return {{e, is_far ? gain_far(A, inverse, delta, e) : gain_near(A, delta, highest)}, highest};
#endif
#else
  return discretize(rate_of(A), delta);
#endif
}
__device__ __forceinline__ Real scale_kept_input(Real x, Real delta) { return NEEDS_PHI ? x : scale_input(x, delta); }

// What a frame brings to a state, of x that is scaled.
__device__ __forceinline__ State input_of([[maybe_unused]] const Coefficients& k, State b, Real x) {
#if HAS_GAIN
  return k.g * (b * x);
#else
  return b * x;
#endif
}

// The state after such a frame, of an input that the gain has met, if there is any; and where the state before it is forgotten.
__device__ __forceinline__ State advance(const Coefficients& k, State h, State input) {
#if BY_TWICE_Q
  return k.a * (input + h) - h;
#else
  return k.a * h + input;
#endif
}
__device__ __forceinline__ State restart([[maybe_unused]] const Coefficients& k, State input) {
#if BY_TWICE_Q
  return k.a * input;
#else
  return input;
#endif
}

__device__ __forceinline__ State decay_of(const Coefficients& k) {
#if BY_TWICE_Q
  return k.a - (Real)1;
#else
  return k.a;
#endif
}

// e^z or its bilinear stand-in: all that a scan of the decays alone needs.
__device__ __forceinline__ State decay(State A, Real delta) {
#if METHOD == BILINEAR
  return decay_of(discretize(A, delta));
#else
  return exp_product(A, delta);
#endif
}

// The adjoint before a frame of that after it: conj(a)λ.
__device__ __forceinline__ State adjoint_before(const Coefficients& k, State lambda) {
#if BY_TWICE_Q
  return k.a * lambda - lambda;
#else
  return conjugate(k.a) * lambda;
#endif
}

// The gradient of a scaled input, but for B: conj(g)λ.
__device__ __forceinline__ State adjoint_of_input([[maybe_unused]] const Coefficients& k, State lambda) {
#if METHOD == ZOH
  return lambda;
#else
  return lambda * conjugate(k.g);
#endif
}

#if GAIN_BY_Z
// The gradient of z is that share of what adjoint_of_z returns.
#define SHARE_OF_Z ((Real)(METHOD == BILINEAR ? 0.25 : 1))

// Of a frame whose adjoint is λ, with the state before it, which a reset forgets, and Bx, scaled.
__device__ __forceinline__ State adjoint_of_z([[maybe_unused]] const Rate& rate, [[maybe_unused]] Real delta, const Coefficients& k,
                                              State lambda, State before, [[maybe_unused]] State input, bool reset) {
#if METHOD == BILINEAR
  // h = 2q(h_{i−1} + ½ΔBx) − h_{i−1}, and ∂2q/∂z = (2q)²/4.
  return adjoint_of_input(k, lambda) * conjugate(k.g * (reset ? input : input + before));
#else
  const State of_decay = reset ? to_state(0) : adjoint_before(k, lambda) * conjugate(before);
#if METHOD == RK4
  const State z = rate * delta;
  const State slope = (z * (Z_UNIT * Z_UNIT / 8) + Z_UNIT / 3) * z + (Real)0.5;
  return lambda * conjugate(slope * input) + of_decay;
#else
  return of_decay;
#endif
#endif
}
#else
__device__ __forceinline__ Partials partials_of_gain(State A, Real delta, const KeptCoefficients& k) {
  [[maybe_unused]] const State z = A * delta;
  [[maybe_unused]] const Real square = delta * delta;
#if NEEDS_PHI
  const auto near = [&] {
    const Integrals of = integrals_near(A, delta, k.highest);
    return Partials{k.g * delta - gain_of(of.e2, (Real)2 * of.e3, (Real)3 * of.e4), gain_of(k.a, of.e1, of.e2)};
  };
  const auto far = [&] {
    const State inverse = precise_reciprocal(A);
    const Integrals of = integrals_far(A, inverse, delta, k.a);
    const State by_delta = gain_of(k.a, of.e1, of.e2);
#if METHOD == ZOH_EXACT
    const State weighted = k.g;
#elif METHOD == FOH
    const State weighted = (Real)2 * k.g;
#else
    const State weighted = gain_of(of.e1, (Real)2 * of.e2, (Real)3 * of.e3);
#endif
    return Partials{(by_delta * delta - weighted) * inverse, by_delta};
  };
#if REAL_F32
  // Threads must not part.
  const Partials of_near = near(), of_far = far();
  const bool is_far = !is_near(A, delta);
  return {is_far ? of_far.by_a : of_near.by_a, is_far ? of_far.by_delta : of_near.by_delta};
#else
  return is_near(A, delta) ? near() : far();
#endif
#elif METHOD == FOH
  return {((z * (Real)(1.0 / 40) + (Real)(1.0 / 12)) * z + (Real)(1.0 / 6)) * (square * delta),
          (((z * (Real)(1.0 / 24) + (Real)(1.0 / 6)) * z + (Real)0.5) * z + (Real)1) * delta};
#elif METHOD == POLY
  State third = A * (Real)(1.0 / 3) + (Real)(1.0 / 12);
  State fourth = (A * (Real)(1.0 / 8) + (Real)(1.0 / 24)) * A;
  State of_cube = (A * (Real)(1.0 / 6) + (Real)(1.0 / 12)) * A * A;
  State of_square = (A * (Real)0.5 + (Real)0.25) * A;
  return {((fourth * delta + third) * delta + (Real)0.5) * square,
          ((of_cube * delta + of_square) * delta + (A + (Real)0.5)) * delta + (Real)1};
#else
  State third = A * (Real)(1.0 / 3) + (Real)(1.0 / 6);
  State fourth = (A * (Real)(1.0 / 8) + (Real)(1.0 / 12)) * A + (Real)(1.0 / 48);
  State of_cube = ((A * (Real)(1.0 / 6) + (Real)(1.0 / 6)) * A + (Real)(1.0 / 12)) * A;
  State of_square = (A * (Real)0.5 + (Real)0.5) * A + (Real)0.25;
  return {((fourth * delta + third) * delta + (Real)0.5) * square,
          ((of_cube * delta + of_square) * delta + (A + (Real)1)) * delta + (Real)1};
#endif
}
#endif
