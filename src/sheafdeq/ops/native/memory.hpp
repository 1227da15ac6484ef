// Memory for tables: aligned, and on huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace sheafdeq {

constexpr std::size_t huge_page = std::size_t(1) << 21;

// Rows are gathered from anywhere in a table, so small pages would cost an address translation each. A hint: failure
// changes nothing.
inline void ask_for_huge_pages(void* data, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + huge_page - 1) / huge_page * huge_page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / huge_page * huge_page;
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    const std::size_t alignment = bytes >= huge_page / 8 ? huge_page : 64;
    const std::size_t whole = (bytes + 64 + alignment - 1) / alignment * alignment;
    data_ = std::aligned_alloc(alignment, whole);
    if (!data_) throw std::bad_alloc();
    if (alignment == huge_page) ask_for_huge_pages(data_, whole);
  }
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() { std::free(data_); }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sheafdeq
