// Checked, immutable edge indices: the only way by which an index reaches a kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory.hpp"

namespace sheafdeq {

// How the edges are shared between a given number of threads.
//
// Thread t owns the targets bounds[t] <= v < bounds[t + 1] and all their incoming edges. Gradients of source
// rows may come from several threads. The thread that reads a row first (in edge order) adds to the row
// itself; every other one adds to a ghost row of its own, and ghosts are added to the rows afterwards in the
// order of the threads. So there are no atomics, and the result depends on the number of threads alone.
struct Plan {
  int threads = 1;
  std::vector<std::int64_t> bounds;         // (threads + 1)
  std::vector<std::int32_t> slot;           // (e) row or m + ghost; empty when there is no ghost
  std::int64_t ghosts = 0;
  std::vector<std::int32_t> ghost_rows;     // rows that have ghosts, ascending
  std::vector<std::int64_t> ghost_pointer;  // ghosts of ghost_rows[i]: m + ghost_pointer[i] and following
};

class Layout {
 public:
  Layout(std::vector<std::int32_t> source_rows, std::vector<std::int64_t> target_pointer, std::vector<double> weights,
         std::vector<double> degrees, std::int64_t number_of_sources)
      : source(std::move(source_rows)), pointer(std::move(target_pointer)), sources(number_of_sources) {
    const auto e = static_cast<std::int64_t>(source.size());
    if (pointer.empty() || pointer.front() != 0 || pointer.back() != e)
      throw std::invalid_argument("the target pointer must start at 0 and end at the number of edges");
    if (!std::is_sorted(pointer.begin(), pointer.end()))
      throw std::invalid_argument("the target pointer must not decrease");
    if (static_cast<std::int64_t>(weights.size()) != e) throw std::invalid_argument("one weight for each edge is needed");
    if (static_cast<std::int64_t>(degrees.size()) != targets())
      throw std::invalid_argument("one degree for each target is needed");
    if (sources < 0 || sources > std::numeric_limits<std::int32_t>::max() ||
        targets() > std::numeric_limits<std::int32_t>::max())
      throw std::invalid_argument("more rows than 32-bit indices can name");
    for (const std::int32_t u : source)
      if (u < 0 || u >= sources)
        throw std::invalid_argument("source row " + std::to_string(u) + " is outside 0.." + std::to_string(sources - 1));
    target.resize(source.size());
    for (std::int64_t v = 0; v < targets(); v++)
      std::fill(target.begin() + pointer[v], target.begin() + pointer[v + 1], static_cast<std::int32_t>(v));
    for (const double degree : degrees)
      if (!(degree > 0)) throw std::invalid_argument("degrees must be positive: clamp them to at least one");
    weight_float.assign(weights.begin(), weights.end());
    inverse_float.resize(degrees.size());
    inverse_double.resize(degrees.size());
    for (std::size_t v = 0; v < degrees.size(); v++) {
      inverse_double[v] = 1.0 / degrees[v];
      inverse_float[v] = 1.0f / static_cast<float>(degrees[v]);
    }
    weight_double = std::move(weights);
  }

  std::int64_t targets() const { return static_cast<std::int64_t>(pointer.size()) - 1; }
  std::int64_t edges() const { return static_cast<std::int64_t>(source.size()); }

  const float* weights(float) const { return weight_float.data(); }
  const double* weights(double) const { return weight_double.data(); }
  const float* inverse_degrees(float) const { return inverse_float.data(); }
  const double* inverse_degrees(double) const { return inverse_double.data(); }

  const Plan& plan(int threads) const {
    const std::lock_guard<std::mutex> guard(lock_);
    std::unique_ptr<Plan>& plan = plans_[threads];
    if (!plan) plan = std::make_unique<Plan>(make_plan(threads));
    return *plan;
  }

  // Memory that lives with the layout. Whoever takes it has it alone until it is returned.
  Memory take_memory(int role, std::size_t bytes) const {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      Memory kept = std::move(memory_[role]);
      if (kept.bytes() >= bytes) return kept;
    }
    return Memory(bytes);
  }
  void return_memory(int role, Memory memory) const {
    const std::lock_guard<std::mutex> guard(lock_);
    if (memory_[role].bytes() < memory.bytes()) memory_[role] = std::move(memory);
  }

  std::vector<std::int32_t> source, target;
  std::vector<std::int64_t> pointer;
  std::int64_t sources;

 private:
  Plan make_plan(int threads) const {
    Plan plan;
    plan.threads = threads;
    // An isolated node costs about as much as a quarter of an edge.
    const std::int64_t n = targets(), e = edges(), total = 4 * e + n;
    plan.bounds.assign(threads + 1, n);
    plan.bounds[0] = 0;
    std::int64_t v = 0;
    for (int t = 1; t < threads; t++) {
      while (v < n && (4 * pointer[v] + v) < total / threads * t) v++;
      plan.bounds[t] = v;
    }
    if (threads == 1) return plan;
    std::vector<std::int16_t> owner(sources, -1);
    std::vector<std::int64_t> remote;  // edges whose source row belongs to another thread
    std::vector<std::int16_t> reader;
    for (int t = 0; t < threads; t++)
      for (std::int64_t i = pointer[plan.bounds[t]]; i < pointer[plan.bounds[t + 1]]; i++) {
        std::int16_t& first = owner[source[i]];
        if (first < 0) first = static_cast<std::int16_t>(t);
        if (first == t) continue;
        remote.push_back(i);
        reader.push_back(static_cast<std::int16_t>(t));
      }
    if (remote.empty()) return plan;
    std::vector<std::int64_t> order(remote.size());
    std::iota(order.begin(), order.end(), 0);
    auto key = [&](std::int64_t i) { return std::make_pair(source[remote[i]], reader[i]); };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return key(a) < key(b); });
    plan.slot = source;
    for (std::size_t i = 0; i < order.size(); i++) {
      const bool fresh = i == 0 || key(order[i]) != key(order[i - 1]);
      if (fresh) {
        const std::int32_t row = source[remote[order[i]]];
        if (plan.ghost_rows.empty() || plan.ghost_rows.back() != row) {
          plan.ghost_rows.push_back(row);
          plan.ghost_pointer.push_back(plan.ghosts);
        }
        plan.ghosts++;
        if (sources + plan.ghosts > std::numeric_limits<std::int32_t>::max())
          throw std::invalid_argument("more gradient rows than 32-bit indices can name");
      }
      plan.slot[remote[order[i]]] = static_cast<std::int32_t>(sources + plan.ghosts - 1);
    }
    plan.ghost_pointer.push_back(plan.ghosts);
    return plan;
  }

  std::vector<float> weight_float, inverse_float;
  std::vector<double> weight_double, inverse_double;
  mutable std::mutex lock_;
  mutable std::map<int, std::unique_ptr<Plan>> plans_;
  mutable std::map<int, Memory> memory_;
};

}  // namespace sheafdeq
