// Vectors of a fixed number of bytes, written once for every instruction set.
//
// GCC and Clang vector extensions carry the arithmetic; only max and square root name instructions, because
// the compilers' own choice is slower or not exact about NaN. Everything lives in an anonymous namespace: the
// same source is compiled once for each instruction set, and no symbol may be shared between the copies.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef SHEAFDEQ_VECTOR_BYTES
#define SHEAFDEQ_VECTOR_BYTES 16
#endif

#ifndef SHEAFDEQ_INLINE
#define SHEAFDEQ_INLINE inline __attribute__((always_inline))
#endif
#define SHEAFDEQ_NOINLINE __attribute__((noinline))
// The copy that serves any stalk dimension has no constant trip counts to unroll.
#ifdef SHEAFDEQ_ANY_DIMENSION
#define SHEAFDEQ_UNROLL
#else
#define SHEAFDEQ_UNROLL _Pragma("GCC unroll 36")
#endif

namespace {

constexpr int vector_bytes = SHEAFDEQ_VECTOR_BYTES;

// Vectors that registers hold at once: decides how large tiles of products are.
#if SHEAFDEQ_VECTOR_BYTES == 64 || defined(__aarch64__)
constexpr bool many_registers = true;  // 32
#else
constexpr bool many_registers = false;  // 16
#endif

template <class T> struct Lanes;
template <> struct Lanes<float> {
  typedef float V __attribute__((vector_size(vector_bytes)));
  typedef float Loose __attribute__((vector_size(vector_bytes), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(vector_bytes)));
  typedef std::uint32_t U __attribute__((vector_size(vector_bytes)));
  static constexpr int W = vector_bytes / 4;
  static constexpr int G = 4;  // elements in a group of 128 bits
};
template <> struct Lanes<double> {
  typedef double V __attribute__((vector_size(vector_bytes)));
  typedef double Loose __attribute__((vector_size(vector_bytes), aligned(8), may_alias));
  typedef std::int64_t I __attribute__((vector_size(vector_bytes)));
  typedef std::uint64_t U __attribute__((vector_size(vector_bytes)));
  static constexpr int W = vector_bytes / 8;
  static constexpr int G = 2;
};

template <class T> using Vec = typename Lanes<T>::V;

template <class T> SHEAFDEQ_INLINE Vec<T> load(const T* p) {
  return static_cast<Vec<T>>(*reinterpret_cast<const typename Lanes<T>::Loose*>(p));
}
template <class T, int... L> SHEAFDEQ_INLINE typename Lanes<T>::I lane_numbers_of(std::integer_sequence<int, L...>) {
  return typename Lanes<T>::I{L...};
}
template <class T> SHEAFDEQ_INLINE typename Lanes<T>::I lane_numbers() {
  return lane_numbers_of<T>(std::make_integer_sequence<int, Lanes<T>::W>{});
}
// The first `count` lanes only, in one instruction where there are masks: rows of narrow models are all remainder.
template <class T> SHEAFDEQ_INLINE Vec<T> load_part(const T* p, int count) {
  if (count >= Lanes<T>::W) return static_cast<Vec<T>>(*reinterpret_cast<const typename Lanes<T>::Loose*>(p));
#if SHEAFDEQ_VECTOR_BYTES == 64 && defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), p);
  else
    return (Vec<T>)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1u), p);
#elif SHEAFDEQ_VECTOR_BYTES == 32 && defined(__AVX2__)
  const __m256i mask = (__m256i)(lane_numbers<T>() < count);
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm256_maskload_ps(reinterpret_cast<const float*>(p), mask);
  else
    return (Vec<T>)_mm256_maskload_pd(reinterpret_cast<const double*>(p), mask);
#else
  Vec<T> x{};
  for (int l = 0; l < count; l++) x[l] = p[l];
  return x;
#endif
}
template <class T> SHEAFDEQ_INLINE void store_part(T* p, Vec<T> x, int count) {
  if (count >= Lanes<T>::W) {
    *reinterpret_cast<typename Lanes<T>::Loose*>(p) = x;
    return;
  }
#if SHEAFDEQ_VECTOR_BYTES == 64 && defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1u), (__m512)x);
  else
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << count) - 1u), (__m512d)x);
#elif SHEAFDEQ_VECTOR_BYTES == 32 && defined(__AVX2__)
  const __m256i mask = (__m256i)(lane_numbers<T>() < count);
  if constexpr (sizeof(T) == 4)
    _mm256_maskstore_ps(reinterpret_cast<float*>(p), mask, (__m256)x);
  else
    _mm256_maskstore_pd(reinterpret_cast<double*>(p), mask, (__m256d)x);
#else
  for (int l = 0; l < count; l++) p[l] = x[l];
#endif
}
template <class T> SHEAFDEQ_INLINE void store(T* p, Vec<T> x) {
  *reinterpret_cast<typename Lanes<T>::Loose*>(p) = x;
}
template <class T, int... L> SHEAFDEQ_INLINE Vec<T> splat_of(T x, std::integer_sequence<int, L...>) {
  return Vec<T>{((void)L, x)...};
}
template <class T> SHEAFDEQ_INLINE Vec<T> splat(T x) {
  return splat_of<T>(x, std::make_integer_sequence<int, Lanes<T>::W>{});
}

// max(0, x) that hands NaN on: the instruction returns its second operand when either one is NaN.
SHEAFDEQ_INLINE Vec<float> rectify(Vec<float> x) {
#if SHEAFDEQ_VECTOR_BYTES == 64 && defined(__AVX512F__)
  return (Vec<float>)_mm512_max_ps(_mm512_setzero_ps(), (__m512)x);
#elif SHEAFDEQ_VECTOR_BYTES == 32 && defined(__AVX__)
  return (Vec<float>)_mm256_max_ps(_mm256_setzero_ps(), (__m256)x);
#elif SHEAFDEQ_VECTOR_BYTES == 16 && defined(__SSE2__)
  return (Vec<float>)_mm_max_ps(_mm_setzero_ps(), (__m128)x);
#else
  return x < 0 ? Vec<float>{} : x;
#endif
}
SHEAFDEQ_INLINE Vec<double> rectify(Vec<double> x) {
#if SHEAFDEQ_VECTOR_BYTES == 64 && defined(__AVX512F__)
  return (Vec<double>)_mm512_max_pd(_mm512_setzero_pd(), (__m512d)x);
#elif SHEAFDEQ_VECTOR_BYTES == 32 && defined(__AVX__)
  return (Vec<double>)_mm256_max_pd(_mm256_setzero_pd(), (__m256d)x);
#elif SHEAFDEQ_VECTOR_BYTES == 16 && defined(__SSE2__)
  return (Vec<double>)_mm_max_pd(_mm_setzero_pd(), (__m128d)x);
#else
  return x < 0 ? Vec<double>{} : x;
#endif
}

SHEAFDEQ_INLINE Vec<float> root(Vec<float> x) {
#if SHEAFDEQ_VECTOR_BYTES == 64 && defined(__AVX512F__)
  return (Vec<float>)_mm512_sqrt_ps((__m512)x);
#elif SHEAFDEQ_VECTOR_BYTES == 32 && defined(__AVX__)
  return (Vec<float>)_mm256_sqrt_ps((__m256)x);
#elif SHEAFDEQ_VECTOR_BYTES == 16 && defined(__SSE2__)
  return (Vec<float>)_mm_sqrt_ps((__m128)x);
#else
  for (int l = 0; l < Lanes<float>::W; l++) x[l] = __builtin_sqrtf(x[l]);
  return x;
#endif
}
SHEAFDEQ_INLINE Vec<double> root(Vec<double> x) {
#if SHEAFDEQ_VECTOR_BYTES == 64 && defined(__AVX512F__)
  return (Vec<double>)_mm512_sqrt_pd((__m512d)x);
#elif SHEAFDEQ_VECTOR_BYTES == 32 && defined(__AVX__)
  return (Vec<double>)_mm256_sqrt_pd((__m256d)x);
#elif SHEAFDEQ_VECTOR_BYTES == 16 && defined(__SSE2__)
  return (Vec<double>)_mm_sqrt_pd((__m128d)x);
#else
  for (int l = 0; l < Lanes<double>::W; l++) x[l] = __builtin_sqrt(x[l]);
  return x;
#endif
}

// Whether any lane of a comparison is true.
template <class I> SHEAFDEQ_INLINE bool any_lane(I mask) {
#if SHEAFDEQ_VECTOR_BYTES == 64 && defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif SHEAFDEQ_VECTOR_BYTES == 32 && defined(__AVX__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#elif SHEAFDEQ_VECTOR_BYTES == 16 && defined(__SSE2__)
  return _mm_movemask_ps((__m128)mask) != 0;
#else
  bool any = false;
  for (unsigned l = 0; l < sizeof(I) / sizeof(mask[0]); l++) any = any || mask[l];
  return any;
#endif
}

// Rows whose squares would overflow are first multiplied by a power of two, which changes no bit of what is normalised
// afterwards. A row is touched only beyond `largest_square`, where even the smallest result stays far above the floors.
template <class T> constexpr T largest_square = sizeof(T) == 4 ? T(0x1p100) : T(0x1p1000);
template <class T> constexpr T taming_factor = sizeof(T) == 4 ? T(0x1p-80) : T(0x1p-530);

// ------------------------------------------------------------------ tanh
// x + x z R(z) with z = x^2 for small |x|, 1 - 2 / (exp(2 |x|) + 1) beyond: within 3 units in the last place. Range
// reduction adds 1.5 * 2^mantissa, which rounds to an integer and leaves it in the low bits. NaN stays NaN.

SHEAFDEQ_INLINE Vec<float> exponential(Vec<float> x) {
  using U = Lanes<float>::U;  // lanes that nobody reads may hold anything: they wrap around
  const Vec<float> magic = splat(12582912.0f);
  const Vec<float> shifted = x * splat(1.44269504088896341f) + magic;
  const Vec<float> n = shifted - magic;
  const Vec<float> r = (x - n * splat(0.693359375f)) + n * splat(2.12194440e-4f);
  Vec<float> y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * r * r + r + splat(1.0f);
  return (Vec<float>)((U)y + ((U)shifted << 23));
}
SHEAFDEQ_INLINE Vec<double> exponential(Vec<double> x) {
  using U = Lanes<double>::U;
  const Vec<double> magic = splat(6755399441055744.0);
  const Vec<double> shifted = x * splat(1.4426950408889634073599) + magic;
  const Vec<double> n = shifted - magic;
  const Vec<double> r = (x - n * splat(6.93145751953125e-1)) - n * splat(1.42860682030941723212e-6);
  const Vec<double> z = r * r;
  Vec<double> p = splat(1.26177193074810590878e-4);
  p = p * z + splat(3.02994407707441961300e-2);
  p = (p * z + splat(9.99999999999999999910e-1)) * r;
  Vec<double> s = splat(3.00198505138664455042e-6);
  s = s * z + splat(2.52448340349684104192e-3);
  s = s * z + splat(2.27265548208155028766e-1);
  s = s * z + splat(2.00000000000000000009);
  const Vec<double> y = splat(1.0) + splat(2.0) * (p / (s - p));
  return (Vec<double>)((U)y + ((U)shifted << 52));
}
SHEAFDEQ_INLINE Vec<float> tanh_near(Vec<float> x) {
  const Vec<float> z = x * x;
  Vec<float> p = splat(-5.70498872745e-3f);
  p = p * z + splat(2.06390887954e-2f);
  p = p * z + splat(-5.37397155531e-2f);
  p = p * z + splat(1.33314422036e-1f);
  p = p * z + splat(-3.33332819422e-1f);
  return x + x * (z * p);
}
SHEAFDEQ_INLINE Vec<double> tanh_near(Vec<double> x) {
  const Vec<double> z = x * x;
  Vec<double> p = splat(-9.64399179425052238628e-1);
  p = p * z + splat(-9.92877231001918586564e1);
  p = p * z + splat(-1.61468768441708447952e3);
  Vec<double> s = z + splat(1.12811678491632931402e2);
  s = s * z + splat(2.23548839060100448583e3);
  s = s * z + splat(4.84406305325125486048e3);
  return x + x * (z * (p / s));
}
template <class T> SHEAFDEQ_INLINE Vec<T> hyperbolic_tangent(Vec<T> x) {
  const Vec<T> far = splat(T(sizeof(T) == 4 ? 10 : 22)), one = splat(T(1));
  Vec<T> size = x < Vec<T>{} ? -x : x;
  const Vec<T> clamped = size > far ? far : size;  // NaN stays
  Vec<T> away = one - splat(T(2)) / (exponential(clamped + clamped) + one);
  away = x < Vec<T>{} ? -away : away;
  const Vec<T> y = size < splat(T(0.625)) ? tanh_near(x) : away;
  return x != x ? x : y;
}

// 1 / (1 + exp(-x)) and 1 / (1 + exp(x)), both to full relative precision (the smaller one is not one minus the larger).
template <class T> SHEAFDEQ_INLINE void two_shares(Vec<T> x, Vec<T>& plus, Vec<T>& minus) {
  const Vec<T> far = splat(T(sizeof(T) == 4 ? 87 : 700)), one = splat(T(1));
  Vec<T> size = x < Vec<T>{} ? -x : x;
  const Vec<T> clamped = size > far ? far : size;
  const Vec<T> small = exponential(-clamped), large = one / (one + small), rest = small * large;
  plus = x < Vec<T>{} ? rest : large;
  minus = x < Vec<T>{} ? large : rest;
  plus = x != x ? x : plus;
  minus = x != x ? x : minus;
}

// ------------------------------------------------------------------ shuffles
// Lane l of `low_blocks<S>` is a[l] where bit S of l is clear, else b[l - S]; of `high_blocks<S>` a[l + S]
// or b[l]. With S at least a 128-bit group these are single instructions.

template <class T, int S, int... L>
SHEAFDEQ_INLINE Vec<T> low_blocks_of(Vec<T> a, Vec<T> b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, ((L & S) ? Lanes<T>::W + L - S : L)...);
}
template <class T, int S, int... L>
SHEAFDEQ_INLINE Vec<T> high_blocks_of(Vec<T> a, Vec<T> b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, ((L & S) ? Lanes<T>::W + L : L + S)...);
}
template <class T, int S> SHEAFDEQ_INLINE Vec<T> low_blocks(Vec<T> a, Vec<T> b) {
  return low_blocks_of<T, S>(a, b, std::make_integer_sequence<int, Lanes<T>::W>{});
}
template <class T, int S> SHEAFDEQ_INLINE Vec<T> high_blocks(Vec<T> a, Vec<T> b) {
  return high_blocks_of<T, S>(a, b, std::make_integer_sequence<int, Lanes<T>::W>{});
}

// Within each 128-bit group: low half of a interleaved with low half of b, and the same for the high halves.
template <class T, int... L>
SHEAFDEQ_INLINE Vec<T> interleave_low_of(Vec<T> a, Vec<T> b, std::integer_sequence<int, L...>) {
  constexpr int G = Lanes<T>::G;
  return __builtin_shufflevector(a, b, (L / G * G + L % G / 2 + (L % 2 ? Lanes<T>::W : 0))...);
}
template <class T, int... L>
SHEAFDEQ_INLINE Vec<T> interleave_high_of(Vec<T> a, Vec<T> b, std::integer_sequence<int, L...>) {
  constexpr int G = Lanes<T>::G;
  return __builtin_shufflevector(a, b, (L / G * G + G / 2 + L % G / 2 + (L % 2 ? Lanes<T>::W : 0))...);
}
template <class T> SHEAFDEQ_INLINE Vec<T> interleave_low(Vec<T> a, Vec<T> b) {
  return interleave_low_of<T>(a, b, std::make_integer_sequence<int, Lanes<T>::W>{});
}
template <class T> SHEAFDEQ_INLINE Vec<T> interleave_high(Vec<T> a, Vec<T> b) {
  return interleave_high_of<T>(a, b, std::make_integer_sequence<int, Lanes<T>::W>{});
}

template <class T, int S> SHEAFDEQ_INLINE void swap_blocks(Vec<T>* rows) {
  constexpr int W = Lanes<T>::W;
  if constexpr (S < W) {
    SHEAFDEQ_UNROLL for (int i = 0; i < W; i++) {
      if (i & S) continue;
      const Vec<T> a = rows[i], b = rows[i + S];
      rows[i] = low_blocks<T, S>(a, b);
      rows[i + S] = high_blocks<T, S>(a, b);
    }
    swap_blocks<T, 2 * S>(rows);
  }
}

// Transpose W rows of W lanes in place.
template <class T> SHEAFDEQ_INLINE void transpose(Vec<T>* rows) {
  constexpr int W = Lanes<T>::W, G = Lanes<T>::G;
  SHEAFDEQ_UNROLL for (int i = 0; i < W; i += G) {
    Vec<T>* r = rows + i;
    if constexpr (G == 2) {
      const Vec<T> a = r[0], b = r[1];
      r[0] = interleave_low<T>(a, b);
      r[1] = interleave_high<T>(a, b);
    } else {
      const Vec<T> a = interleave_low<T>(r[0], r[1]), b = interleave_high<T>(r[0], r[1]);
      const Vec<T> c = interleave_low<T>(r[2], r[3]), e = interleave_high<T>(r[2], r[3]);
      r[0] = low_blocks<T, 2>(a, c);
      r[1] = high_blocks<T, 2>(a, c);
      r[2] = low_blocks<T, 2>(b, e);
      r[3] = high_blocks<T, 2>(b, e);
    }
  }
  swap_blocks<T, G>(rows);
}

template <class T, int S> SHEAFDEQ_INLINE void add_blocks(Vec<T>* rows) {
  constexpr int W = Lanes<T>::W;
  if constexpr (S < W) {
    SHEAFDEQ_UNROLL for (int i = 0; i < W / S / 2; i++) {
      const Vec<T> a = rows[2 * i], b = rows[2 * i + 1];
      rows[i] = low_blocks<T, S>(a, b) + high_blocks<T, S>(a, b);
    }
    add_blocks<T, 2 * S>(rows);
  }
}

// Lane l of the result is the sum over the lanes of rows[l].
template <class T> SHEAFDEQ_INLINE Vec<T> sums(const Vec<T>* rows) {
  constexpr int W = Lanes<T>::W, G = Lanes<T>::G;
  Vec<T> part[W / G];
  SHEAFDEQ_UNROLL for (int i = 0; i < W / G; i++) {
    const Vec<T>* r = rows + i * G;
    const Vec<T> a = interleave_low<T>(r[0], r[1]) + interleave_high<T>(r[0], r[1]);
    if constexpr (G == 2) {
      part[i] = a;
    } else {
      const Vec<T> b = interleave_low<T>(r[2], r[3]) + interleave_high<T>(r[2], r[3]);
      part[i] = low_blocks<T, 2>(a, b) + high_blocks<T, 2>(a, b);
    }
  }
  add_blocks<T, G>(part);
  return part[0];
}

// Lanes whose number has the bit S from b, the others from a; and the lanes S away from those.
template <class T, int S, int... L>
SHEAFDEQ_INLINE Vec<T> own_lanes_of(Vec<T> a, Vec<T> b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, ((L & S) ? Lanes<T>::W + L : L)...);
}
template <class T, int S, int... L>
SHEAFDEQ_INLINE Vec<T> other_lanes_of(Vec<T> a, Vec<T> b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, ((L & S) ? Lanes<T>::W + L - S : L + S)...);
}

// Halve the number of rows again and again: lane l of a pair's row is the sum of lanes l and l ^ S of the one that bit S of l
// names. One of the two operands of the sum is a blend, which many processors do on more ports than a shuffle.
template <class T, int S> SHEAFDEQ_INLINE void add_pairs(Vec<T>* rows) {
  constexpr int W = Lanes<T>::W;
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  if constexpr (S < W) {
    SHEAFDEQ_UNROLL for (int i = 0; i < W / S / 2; i++) {
      const Vec<T> a = rows[2 * i], b = rows[2 * i + 1];
      rows[i] = own_lanes_of<T, S>(a, b, lanes) + other_lanes_of<T, S>(a, b, lanes);
    }
    add_pairs<T, 2 * S>(rows);
  }
}

// As `sums`. In the edge kernel of a step, which is short of registers, the other one is faster.
template <class T> SHEAFDEQ_INLINE Vec<T> blended_sums(const Vec<T>* rows) {
  constexpr int W = Lanes<T>::W;
  Vec<T> part[W];
  SHEAFDEQ_UNROLL for (int i = 0; i < W; i++) part[i] = rows[i];
  add_pairs<T, 1>(part);
  return part[0];
}

}  // namespace
