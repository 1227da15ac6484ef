// Numbers below the smallest normal one: some processors take a hundred times as long for an operation on them.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace sheafdeq {

// The control word of floating point arithmetic of a thread, given back when the scope ends.
class FloatMode {
 public:
#if defined(__SSE2__)
  using Word = unsigned int;
  static constexpr Word flushing = 0x8040;  // results to zero, operands as zero
  static Word current() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word flushing = Word(1) << 24;
  static Word current() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = int;
  static constexpr Word flushing = 0;
  static Word current() { return 0; }
  static void set(Word) {}
#endif

  explicit FloatMode(Word word) : before_(current()) {
    if (word != before_) set(word);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;
  ~FloatMode() { set(before_); }

  // Gradients that died out over many contracting steps are smaller than any number of use: zero.
  static Word with_flushing() { return current() | flushing; }

 private:
  Word before_;
};

}  // namespace sheafdeq
