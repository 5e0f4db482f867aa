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

// e^(a·delta) of reals. In f32 by ex2.approx, within 2 units in the last place; a·log2(e) does not change
// along a sequence and is taken out of the loops by the compiler.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float binary_exponent(float a, float delta) { return a * 1.4426950408889634f * delta; }
__device__ __forceinline__ float exp_product(float a, float delta) { return power_of_two(binary_exponent(a, delta)); }
__device__ __forceinline__ double exp_product(double a, double delta) { return exp(a * delta); }

__device__ __forceinline__ void sine_cosine(float x, float* s, float* c) { sincosf(x, s, c); }
__device__ __forceinline__ void sine_cosine(double x, double* s, double* c) { sincos(x, s, c); }

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
__device__ __forceinline__ Complex& operator+=(Complex& p, Complex q) { return p = p + q; }

__device__ __forceinline__ Real real_part(Real p) { return p; }
__device__ __forceinline__ Real real_part(Complex p) { return p.re; }
__device__ __forceinline__ Real conjugate(Real p) { return p; }
__device__ __forceinline__ Complex conjugate(Complex p) { return {p.re, -p.im}; }
// |p|² without the root: only compared.
__device__ __forceinline__ Real squared_magnitude(Real p) { return p * p; }
__device__ __forceinline__ Real squared_magnitude(Complex p) { return p.re * p.re + p.im * p.im; }

__device__ __forceinline__ bool is_finite(Real p) { return p - p == (Real)0; }
__device__ __forceinline__ bool is_finite(Complex p) { return is_finite(p.re) && is_finite(p.im); }

__device__ __forceinline__ Complex reciprocal(Complex p) {
  Real scale = reciprocal(squared_magnitude(p));
  return {p.re * scale, -p.im * scale};
}

__device__ __forceinline__ Complex exp_product(Complex a, Real delta) {
  Real magnitude = exp_product(a.re, delta), s, c;
  sine_cosine(a.im * delta, &s, &c);
  return {magnitude * c, magnitude * s};
}

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
