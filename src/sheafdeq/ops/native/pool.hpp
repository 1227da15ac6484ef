// Memory of large tensors that a step returns or saves, kept from one pass to the next.
//
// The C library maps every large allocation anew and gives it back when it is freed: the system then clears each page again, which
// on 10^7 edges took a third of a step. Blocks that are given back wait here instead. Large ones are marked as free to take
// (MADV_FREE): a system short of memory takes their pages without asking, and as long as it does not, the next pass finds
// them mapped.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <utility>

#include "memory.hpp"

namespace sheafdeq {

class Pool {
 public:
  // The smallest waiting block that is large enough and at most a quarter larger, or a new one.
  Memory take(std::size_t bytes) {
    std::list<Memory> dropped;  // freed outside the lock
    const std::lock_guard<std::mutex> guard(lock_);
    auto best = waiting_.end();
    for (auto block = waiting_.begin(); block != waiting_.end(); ++block)
      if (block->bytes() >= bytes && block->bytes() - bytes <= bytes / 4 && (best == waiting_.end() || block->bytes() < best->bytes()))
        best = block;
    if (best != waiting_.end()) {
      Memory found = std::move(*best);
      waiting_.erase(best);
      waiting_bytes_ -= found.bytes();
      lent_bytes_ += found.bytes();
      return found;
    }
    lent_bytes_ += bytes;
    most_lent_ = lent_bytes_ > most_lent_ ? lent_bytes_ : most_lent_;
    // graphs of other sizes leave blocks that fit nobody: together with what is lent no more is kept than was lent at once
    while (!waiting_.empty() && lent_bytes_ + waiting_bytes_ > most_lent_) drop_oldest(dropped);
    return Memory(bytes);
  }

  void give_back(Memory memory) {
#if defined(__linux__) && defined(MADV_FREE)
    if (memory.bytes() >= large) (void)madvise(memory.data(), memory.bytes() / page * page, MADV_FREE);
    const std::lock_guard<std::mutex> guard(lock_);
    lent_bytes_ -= memory.bytes();
    waiting_bytes_ += memory.bytes();
    waiting_.push_back(std::move(memory));
#else
    const std::lock_guard<std::mutex> guard(lock_);
    lent_bytes_ -= memory.bytes();
#endif
  }

  // Forget all blocks that wait; how many bytes they were.
  std::size_t clear() {
    std::list<Memory> dropped;
    const std::lock_guard<std::mutex> guard(lock_);
    const std::size_t bytes = waiting_bytes_;
    while (!waiting_.empty()) drop_oldest(dropped);
    most_lent_ = lent_bytes_;
    return bytes;
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t large = std::size_t(8) << 20;  // smaller blocks are not worth the call

  void drop_oldest(std::list<Memory>& dropped) {
    waiting_bytes_ -= waiting_.front().bytes();
    dropped.splice(dropped.end(), waiting_, waiting_.begin());
  }

  std::mutex lock_;
  std::list<Memory> waiting_;  // oldest first
  std::size_t lent_bytes_ = 0, waiting_bytes_ = 0, most_lent_ = 0;
};

}  // namespace sheafdeq
