// Checked, immutable edge indices: the only way by which an index reaches a kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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

// Targets that belong together: no edge leads from one piece to another. A step takes one piece after the other, so that its
// tables are as large as the largest piece and stay in the caches, however many graphs lie side by side.
//
// A large piece is taken in chunks of targets where its edges are short (a chain, a grid, anything in a good order): the nodes
// that a chunk reads first are prepared just before it, and nodes that no later chunk reads are finished just after it.
struct Chunk {
  std::int64_t first = 0, last = 0;  // targets
  std::int64_t ready = 0;            // rows of the nodes before this one must be there
  std::int64_t done = 0;             // gradients of the nodes before this one are complete
};
struct Pieces {
  std::vector<std::int64_t> bounds;  // piece p has the nodes bounds[p] <= v < bounds[p + 1]
  std::vector<Chunk> chunks;         // of all pieces, one after the other
  std::vector<std::int64_t> chunk_of;  // piece p has the chunks chunk_of[p] and following
  std::vector<std::int64_t> share;   // thread t has the pieces share[t] <= p < share[t + 1]; empty: threads would idle
  std::int64_t largest = 0;          // nodes of the largest one
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

  // Say that position v of this layout is the caller's node nodes[v], and position i its edge edges[i]. Only a step reads rows
  // of the caller by these numbers.
  void reorder(std::vector<std::int32_t> nodes, std::vector<std::int64_t> order_of_edges) {
    check_order(nodes, targets(), "node");
    check_order(order_of_edges, edges(), "edge");
    if (sources != targets()) throw std::invalid_argument("only a layout of a whole graph can be reordered");
    node_order = std::move(nodes);
    edge_order = std::move(order_of_edges);
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

  // Small graphs are taken together up to this many nodes: their tables then fit the second-level cache.
  static constexpr std::int64_t piece_nodes = 512;

  // Of a layout with as many sources as targets.
  const Pieces& pieces(int threads) const {
    const std::lock_guard<std::mutex> guard(lock_);
    std::unique_ptr<Pieces>& pieces = pieces_[threads];
    if (!pieces) pieces = std::make_unique<Pieces>(make_pieces(threads));
    return *pieces;
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

  std::vector<std::int32_t> node_order;  // empty: as the caller numbers them
  std::vector<std::int64_t> edge_order;
  std::vector<std::int32_t> source, target;
  std::vector<std::int64_t> pointer;
  std::int64_t sources;

 private:
  template <class I> static void check_order(const std::vector<I>& order, std::int64_t count, const std::string& what) {
    if (static_cast<std::int64_t>(order.size()) != count) throw std::invalid_argument("one " + what + " for each position is needed");
    std::vector<bool> seen(static_cast<std::size_t>(count), false);
    for (const I i : order) {
      if (i < 0 || i >= count || seen[i]) throw std::invalid_argument("every " + what + " must have one position");
      seen[i] = true;
    }
  }

  // Nodes are prepared and finished in whole blocks of the node kernel, counted from the first node of the piece.
  static constexpr std::int64_t node_block = 48;

  void add_chunks(std::int64_t first, std::int64_t last, std::vector<Chunk>& chunks) const {
    const std::int64_t count = (last - first + piece_nodes - 1) / piece_nodes;
    std::vector<Chunk> made(static_cast<std::size_t>(count));
    std::int64_t ready = first, widest = 0;
    for (std::int64_t k = 0; k < count; k++) {
      Chunk& chunk = made[k];
      chunk.first = first + k * piece_nodes;
      chunk.last = std::min(last, chunk.first + piece_nodes);
      ready = std::max(ready, chunk.last);
      for (std::int64_t i = pointer[chunk.first]; i < pointer[chunk.last]; i++) ready = std::max<std::int64_t>(ready, source[i] + 1);
      chunk.ready = std::min(last, first + (ready - first + node_block - 1) / node_block * node_block);
    }
    std::int64_t done = last;
    for (std::int64_t k = count - 1; k >= 0; k--) {
      Chunk& chunk = made[k];
      chunk.done = k + 1 == count ? last : first + (std::min(done, chunk.last) - first) / node_block * node_block;
      for (std::int64_t i = pointer[chunk.first]; i < pointer[chunk.last]; i++) done = std::min<std::int64_t>(done, source[i]);
    }
    for (std::int64_t k = 0; k < count; k++) widest = std::max(widest, made[k].ready - (k ? made[k - 1].done : first));
    if (2 * widest > last - first) made.assign(1, Chunk{first, last, last, last});  // edges reach across the piece
    chunks.insert(chunks.end(), made.begin(), made.end());
  }

  Pieces make_pieces(int threads) const {
    Pieces pieces;
    const std::int64_t n = targets(), e = edges();
    // reach[v]: the last node that an edge joins to a node up to v
    std::vector<std::int32_t> reach(static_cast<std::size_t>(n), 0);
    for (std::int64_t v = 0; v < n; v++)
      for (std::int64_t i = pointer[v]; i < pointer[v + 1]; i++) {
        const std::int64_t u = source[i];
        std::int32_t& last = reach[std::min(u, v)];
        last = std::max(last, static_cast<std::int32_t>(std::max(u, v)));
      }
    pieces.bounds.push_back(0);
    std::int64_t last = 0, cut = 0;  // `cut`: where the piece may end
    for (std::int64_t v = 0; v < n; v++) {
      last = std::max(last, static_cast<std::int64_t>(reach[v]));
      if (last > v) continue;
      if (v + 1 - pieces.bounds.back() > piece_nodes && cut > pieces.bounds.back()) pieces.bounds.push_back(cut);
      cut = v + 1;
    }
    if (pieces.bounds.back() < n) pieces.bounds.push_back(n);
    const auto count = static_cast<std::int64_t>(pieces.bounds.size()) - 1;
    for (std::int64_t p = 0; p < count; p++) {
      pieces.largest = std::max(pieces.largest, pieces.bounds[p + 1] - pieces.bounds[p]);
      pieces.chunk_of.push_back(static_cast<std::int64_t>(pieces.chunks.size()));
      add_chunks(pieces.bounds[p], pieces.bounds[p + 1], pieces.chunks);
    }
    pieces.chunk_of.push_back(static_cast<std::int64_t>(pieces.chunks.size()));
    // A node costs about as much as eight edges, mostly for its products.
    auto work = [&](std::int64_t p) { return pointer[pieces.bounds[p]] + 8 * pieces.bounds[p]; };
    const std::int64_t total = e + 8 * n;
    std::vector<std::int64_t> share(static_cast<std::size_t>(threads) + 1, count);
    share[0] = 0;
    std::int64_t p = 0, most = 0;
    for (int t = 1; t < threads; t++) {
      const std::int64_t until = total / threads * t;
      while (p < count && std::abs(work(p + 1) - until) <= std::abs(work(p) - until)) p++;
      share[t] = p;
    }
    for (int t = 0; t < threads; t++) most = std::max(most, work(share[t + 1]) - work(share[t]));
    if (most <= total / threads + total / threads / 8) pieces.share = std::move(share);
    return pieces;
  }

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
  mutable std::map<int, std::unique_ptr<Pieces>> pieces_;
  mutable std::map<int, Memory> memory_;
};

}  // namespace sheafdeq
