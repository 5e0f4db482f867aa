// Numbers: how tensors are stored (Element), what the scan computes in (Real), what a state is (State).
//
// The host compiles a kernel for one problem and says by macros what it is:
//   ELEMENT          0 f32, 1 f64, 2 bf16, 3 f16: x, dt, b, c, z, y and their gradients
//   COMPLEX          whether a, b, c and the states are complex
// Conversions are written in integers or PTX, so that no header of a toolkit is needed.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if ELEMENT == 1
typedef double Real;
#else
typedef float Real;
#endif

// Real f32, where formulas are made of what a multiprocessor does at full rate: no branch, no division.
#define REAL_F32 (ELEMENT != 1 && !COMPLEX)

#if ELEMENT == 0
typedef float Element;
#elif ELEMENT == 1
typedef double Element;
#else
typedef u16 Element;
#endif

__device__ __forceinline__ Real to_real(Element element) {
#if ELEMENT == 2
  return __uint_as_float((u32)element << 16);
#elif ELEMENT == 3
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
  return value;
#else
  return element;
#endif
}

#if ELEMENT > 1
// The lower or the upper of two elements in a word.
__device__ __forceinline__ Real half_of(u32 word, bool upper) {
#if ELEMENT == 2
  return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
#else
  float value;
  if (upper) {
    asm("{ .reg .f16 lower, upper; mov.b32 {lower, upper}, %1; cvt.f32.f16 %0, upper; }" : "=f"(value) : "r"(word));
  } else {
    asm("{ .reg .f16 lower, upper; mov.b32 {lower, upper}, %1; cvt.f32.f16 %0, lower; }" : "=f"(value) : "r"(word));
  }
  return value;
#endif
}
#endif

// Rounds to nearest, ties to even; a NaN stays a NaN.
__device__ __forceinline__ Element to_element(Real value) {
#if ELEMENT == 2 && __CUDA_ARCH__ >= 800
  Element element;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element) : "f"(value));
  return element;
#elif ELEMENT == 2
  u32 bits = __float_as_uint(value);
  u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (Element)(value != value ? (bits >> 16) | 0x40u : rounded);
#elif ELEMENT == 3
  Element element;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element) : "f"(value));
  return element;
#else
  return value;
#endif
}

// 1 / x within one unit in the last place; f32 flushes subnormals.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }

// The same rounded to nearest but for a few; of what is infinite or nearly so, nearly 0.
__device__ __forceinline__ float precise_reciprocal(float x) {
  const float finite = fminf(fmaxf(x, -1e37f), 1e37f), y = reciprocal(finite);
  return fmaf(fmaf(-finite, y, 1.0f), y, y);
}

// e^(a·delta) of reals. In f32 by ex2.approx, within 2 units in the last place; `binary_rate` of a does not change along a sequence.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float binary_rate(float a) { return a * 1.4426950408889634f; }
__device__ __forceinline__ float binary_exponent(float a, float delta) { return binary_rate(a) * delta; }
__device__ __forceinline__ float exp_product(float a, float delta) { return power_of_two(binary_exponent(a, delta)); }
__device__ __forceinline__ double exp_product(double a, double delta) { return exp(a * delta); }

// Neighbouring reals, in one access.
template <int COUNT>
struct alignas(COUNT * sizeof(Real)) Reals {
  Real reals[COUNT];
};

struct Complex {
  Real re, im;
};

__device__ __forceinline__ Complex operator+(Complex p, Complex q) { return {p.re + q.re, p.im + q.im}; }
__device__ __forceinline__ Complex operator-(Complex p, Complex q) { return {p.re - q.re, p.im - q.im}; }
__device__ __forceinline__ Complex operator*(Complex p, Complex q) {
  return {p.re * q.re - p.im * q.im, p.re * q.im + p.im * q.re};
}
__device__ __forceinline__ Complex operator*(Complex p, Real q) { return {p.re * q, p.im * q}; }
__device__ __forceinline__ Complex operator*(Real p, Complex q) { return q * p; }
__device__ __forceinline__ Complex operator+(Complex p, Real q) { return {p.re + q, p.im}; }
__device__ __forceinline__ Complex operator+(Real p, Complex q) { return q + p; }
__device__ __forceinline__ Complex operator-(Complex p, Real q) { return {p.re - q, p.im}; }
__device__ __forceinline__ Complex operator-(Real p, Complex q) { return {p - q.re, -q.im}; }

__device__ __forceinline__ Real real_part(Real p) { return p; }
__device__ __forceinline__ Real real_part(Complex p) { return p.re; }
__device__ __forceinline__ Real conjugate(Real p) { return p; }
__device__ __forceinline__ Complex conjugate(Complex p) { return {p.re, -p.im}; }
// |p|² without the root: only compared.
__device__ __forceinline__ Real squared_magnitude(Real p) { return p * p; }
__device__ __forceinline__ Real squared_magnitude(Complex p) { return p.re * p.re + p.im * p.im; }

__device__ __forceinline__ bool is_zero(Real p) { return p == (Real)0; }
__device__ __forceinline__ bool is_zero(Complex p) { return is_zero(p.re) && is_zero(p.im); }
__device__ __forceinline__ bool is_finite(Real p) { return p - p == (Real)0; }
__device__ __forceinline__ bool is_finite(Complex p) { return is_finite(p.re) && is_finite(p.im); }

// A polynomial with real coefficients, that of the lowest power first. Of a complex number by a recurrence that takes two
// operations a coefficient, not four (Knuth, "The Art of Computer Programming" 2, 4.6.4, (3)).
template <int COUNT>
__device__ __forceinline__ Real polynomial(Real x, const Real (&coefficients)[COUNT]) {
  Real sum = coefficients[COUNT - 1];
#pragma unroll
  for (int k = COUNT - 2; k >= 0; k--) sum = sum * x + coefficients[k];
  return sum;
}
template <int COUNT>
__device__ __forceinline__ Complex polynomial(Complex z, const Real (&coefficients)[COUNT]) {
  const Real twice = z.re + z.re, square = squared_magnitude(z);
  Real before = coefficients[COUNT - 1], sum = before * twice + coefficients[COUNT - 2];
#pragma unroll
  for (int k = COUNT - 3; k > 0; k--) {
    const Real next = sum * twice + (coefficients[k] - before * square);
    before = sum;
    sum = next;
  }
  return {sum * z.re + (coefficients[0] - before * square), sum * z.im};
}

__device__ __forceinline__ Complex reciprocal(Complex p) {
  Real scale = reciprocal(squared_magnitude(p));
  return {p.re * scale, -p.im * scale};
}

// The same with nothing that is squared too large or too small.
__device__ __forceinline__ double precise_reciprocal(double x) { return reciprocal(x); }
__device__ __forceinline__ Complex precise_reciprocal(Complex p) {
  const Real most = fmax(fabs(p.re), fabs(p.im)), inverse = precise_reciprocal(most);
  return reciprocal(p * inverse) * inverse;
}

#if COMPLEX
__device__ __forceinline__ float multiply_add(float x, float y, float z) { return __fmaf_rn(x, y, z); }
__device__ __forceinline__ double multiply_add(double x, double y, double z) { return __fma_rn(x, y, z); }

// x, turned over where a whole number is odd that stands in the lowest bits of `shifted`.
__device__ __forceinline__ float turned_over(float x, float shifted) {
  return __uint_as_float(__float_as_uint(x) ^ __float_as_uint(shifted) << 31);
}
__device__ __forceinline__ double turned_over(double x, double shifted) {
  return __longlong_as_double(__double_as_longlong(x) ^ __double_as_longlong(shifted) << 63);
}

// e^(aΔ). The phase is had in half turns: Im(a)/π, which is kept in two parts, times Δ, less the nearest whole number. All of that
// is exact until only what is left is rounded, so a phase is as good after many turns as before the first.
__device__ __forceinline__ Complex exp_product(Complex a, Real delta) {
  // 1/π and the rest of it; what makes a number whole when it is added; the half turns up to which that is enough; and sin(πr)/r
  // and (cos(πr) − 1)/r² as minimax polynomials of r² for |r| ≤ 0.505, in f32 with each coefficient fitted to those that are rounded before
  // it: a factor of a magnitude that is not 1 would grow with the frames. Beside them is what sin(πr) and cos(πr) are off by.
#if ELEMENT == 1
  constexpr Real INVERSE_PI = 0.3183098861837907, REST = -1.9678676675182487e-17;
  constexpr Real SHIFT = 6755399441055744.0, MOST = 70368744177664.0;
  constexpr Real SINE[] = {3.1415926535897932375,   -5.1677127800499694512,  2.5501640398772861706,
                           -0.59926452931845158116, 0.082145886564822924838, -0.0073704304309294425232,
                           4.662994421397179769e-4, -2.1902530334763138659e-5, 7.6877200231873601246e-7};  // within 5e-19
  constexpr Real COSINE[] = {-4.9348022005446758237, 4.05871212641641077,      -1.3352627688404745625,   0.23533063007962006964,
                             -0.025806888284974559329, 0.0019295540177233653812, -1.0456072598828510466e-4,
                             4.143472183653761602e-6};  // 6e-18
#else
  constexpr Real INVERSE_PI = 0.318309873f, REST = 1.28412766e-8f;
  constexpr Real SHIFT = 12582912.0f, MOST = 131072.0f;
  constexpr Real SINE[] = {3.1415925f, -5.1677022f, 2.54995799f, -0.597628713f, 0.0764445215f};  // within 8e-9
  constexpr Real COSINE[] = {-4.93480206f, 4.05870533f, -1.33516192f, 0.234688058f, -0.0239760354f};  // 2e-9
#endif
  const Real high = a.im * INVERSE_PI, low = a.im * REST + multiply_add(a.im, INVERSE_PI, -high);
  Real shifted = multiply_add(high, delta, SHIFT), whole = shifted - SHIFT;
  Real r = multiply_add(low, delta, multiply_add(high, delta, -whole));
  if (!(fabs(whole) < MOST)) {
    // Whole turns are left out first, of the product and of what it was rounded by.
    const auto within_turn = [](Real halves) { return halves - (Real)2 * rint((Real)0.5 * halves); };
    const Real product = high * delta, rest = multiply_add(low, delta, multiply_add(high, delta, -product));
    const Real left = within_turn(product) + within_turn(rest);
    shifted = left + SHIFT;
    r = left - (shifted - SHIFT);
  }
  const Real square = r * r, magnitude = turned_over(exp_product(a.re, delta), shifted);
  // e^x cos y by what it is less than e^x: near 1 a product of two roundings would be as wrong in every frame, the same way.
  return {multiply_add(magnitude, square * polynomial(square, COSINE), magnitude), magnitude * (r * polynomial(square, SINE))};
}
#endif

#if COMPLEX
typedef Complex State;
#define COMPONENTS 2
// y = 2·Re(Σ C h): a pair of conjugate states is stored as one.
#define OUTPUT_WEIGHT ((Real)2)
__device__ __forceinline__ State to_state(Real re) { return {re, 0}; }
#else
typedef Real State;
#define COMPONENTS 1
#define OUTPUT_WEIGHT ((Real)1)
__device__ __forceinline__ State to_state(Real re) { return re; }
#endif
