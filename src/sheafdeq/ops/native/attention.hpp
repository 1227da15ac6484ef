// Softmax attention over the incoming edges of a range of targets, and its derivative.
//
// Edges are taken in chunks of whole targets, at most EB edges; a longer target is cut and its softmax carried along (running
// maximum, sum and average, rescaled when the maximum rises). Within a chunk:
//   1. scores: the products of query and key rows are summed over the lanes for a vector of edges at once;
//   2. the largest score of every target is subtracted, and exponentials are taken with edges in the lanes;
//   3. values are averaged row by row over the channels, in registers while the target stays the same.
// Backward repeats 1 and 2 from the kept maxima and sums, and adds the gradients of source rows edge by edge. Nothing of the size
// of the edges is written, except gradients of what was given for each edge.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention_arguments.hpp"
#include "lanes.hpp"

namespace {

using sheafdeq::AttentionPass;
using sheafdeq::EdgeShare;

template <class T> struct AttentionKernel {
  using V = Vec<T>;
  static constexpr int W = Lanes<T>::W;
  static constexpr int EB = 128;
  static constexpr int ES = EB + W;  // entries of a head's row: a target's last vector may be written past its end

  // Edges e0 <= e < e0 + count of the targets first <= v < last; places beyond the last edge repeat it.
  struct Chunk {
    std::int64_t e0 = 0, first = 0, last = 0;
    int count = 0;
    std::int32_t source[EB], target[EB], slot[EB];
    std::int64_t edge[EB];  // its number where something was given for each edge; -1 for a loop. Only if something was
  };

  static SHEAFDEQ_INLINE bool edges_matter(const AttentionPass<T>& pass) {
    return pass.edge_key || pass.edge_value || pass.bias || pass.own_bias;
  }
  static SHEAFDEQ_INLINE void repeat_last(std::int32_t* index, int count) {
    for (int i = count; i % W; i++) index[i] = index[count - 1];
  }

  // The chunk that starts with edge e0 of target v: whole targets as far as they fit, or a part of one.
  static void take(const AttentionPass<T>& pass, std::int64_t e0, std::int64_t v, std::int64_t end, Chunk& chunk) {
    std::int64_t stop = pass.pointer[v + 1], last = v + 1;
    if (stop - e0 > EB)
      stop = e0 + EB;
    else
      for (; last < end && last < v + EB && pass.pointer[last + 1] - e0 <= EB; last++) stop = pass.pointer[last + 1];
    chunk.e0 = e0;
    chunk.first = v;
    chunk.last = last;
    chunk.count = static_cast<int>(stop - e0);
    std::copy(pass.source + e0, pass.source + stop, chunk.source);
    std::copy(pass.target + e0, pass.target + stop, chunk.target);
    if (pass.slot) std::copy(pass.slot + e0, pass.slot + stop, chunk.slot);
    repeat_last(chunk.source, chunk.count);
    repeat_last(chunk.target, chunk.count);
    if (!edges_matter(pass)) return;
    for (int i = 0; i < chunk.count; i++) {
      const std::int64_t e = e0 + i, t = chunk.target[i];
      chunk.edge[i] = !pass.loops ? e : e + 1 == pass.pointer[t + 1] ? -1 : e - t;
    }
    for (int i = chunk.count; i % W; i++) chunk.edge[i] = chunk.edge[chunk.count - 1];
  }

  // out[m][e] = <left[target], right[source] + more[edge]> over `vectors` vectors of head m; NV: their number if not zero.
  template <int NV, bool with_edges>
  static SHEAFDEQ_INLINE void products(const Chunk& chunk, int heads, int vectors, bool shared, const T* left,
                                       std::int64_t left_stride, const T* right, std::int64_t right_stride, const T* more,
                                       std::int64_t more_stride, const T* nothing, T* out) {
    const int nv = NV ? NV : vectors;
    for (int g = 0; g < chunk.count; g += W) {
      const T *a[W], *b[W], *c[W];
      for (int i = 0; i < W; i++) {
        a[i] = left + chunk.target[g + i] * left_stride;
        b[i] = right + chunk.source[g + i] * right_stride;
        c[i] = !with_edges || chunk.edge[g + i] < 0 ? nothing : more + chunk.edge[g + i] * more_stride;
      }
      for (int m = 0; m < heads; m++) {
        const int at = m * nv * W, from = shared ? 0 : at;
        V r[W];
        _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) {
          V sum{};
          for (int k = 0; k < nv * W; k += W) {
            V x = load(b[i] + from + k);
            if (with_edges) x += load(c[i] + at + k);
            sum += load(a[i] + at + k) * x;
          }
          r[i] = sum;
        }
        store(out + m * ES + g, blended_sums<T>(r));
      }
    }
  }
  static SHEAFDEQ_NOINLINE void products_of(const Chunk& chunk, int heads, int vectors, bool shared, const T* left,
                                            std::int64_t left_stride, const T* right, std::int64_t right_stride,
                                            const T* more, std::int64_t more_stride, const T* nothing, T* out) {
    if (more)
      products<0, true>(chunk, heads, vectors, shared, left, left_stride, right, right_stride, more, more_stride, nothing, out);
    else if (vectors == 1)
      products<1, false>(chunk, heads, 1, shared, left, left_stride, right, right_stride, more, more_stride, nothing, out);
    else
      products<0, false>(chunk, heads, vectors, shared, left, left_stride, right, right_stride, more, more_stride, nothing, out);
  }

  // Scores (heads, ES). An additive score is left with its sign in `slopes`, (heads, ES), when those are wanted.
  static void scores(const AttentionPass<T>& pass, const Chunk& chunk, const T* nothing, T* out, T* slopes) {
    const int heads = pass.heads;
    if (pass.additive) {
      for (int i = 0; i < chunk.count; i++) {
        const T *a = pass.query + chunk.target[i] * pass.query_stride, *b = pass.key + chunk.source[i] * pass.key_stride;
        for (int m = 0; m < heads; m++) {
          const T z = a[m] + b[m], slope = z > T(0) ? T(1) : pass.scale;
          out[m * ES + i] = z * slope;
          if (slopes) slopes[m * ES + i] = slope;
        }
      }
    } else {
      products_of(chunk, heads, pass.width / W, false, pass.query, pass.query_stride, pass.key, pass.key_stride, pass.edge_key,
                  pass.edge_key_stride, nothing, out);
      for (int m = 0; m < heads; m++)
        for (int g = 0; g < chunk.count; g += W) store(out + m * ES + g, load(out + m * ES + g) * splat(pass.scale));
    }
    if (!pass.bias && !pass.own_bias) return;
    for (int i = 0; i < chunk.count; i++) {
      const T* bias = chunk.edge[i] < 0 ? pass.own_bias : pass.bias ? pass.bias + chunk.edge[i] * heads : nullptr;
      for (int m = 0; bias && m < heads; m++) out[m * ES + i] += bias[m];
    }
  }

  // exp(x) for x <= 0; what would not be a normal number is zero. NaN stays NaN.
  static SHEAFDEQ_INLINE V decay(V x) {
    const V low = splat(T(sizeof(T) == 4 ? -87 : -708));
    V y = exponential(x < low ? low : x);
    y = x < low ? V{} : y;
    return x != x ? x : y;
  }

  // Entries a <= i < b of a row; up to a vector more is written, which the next target writes again.
  static SHEAFDEQ_INLINE void fill(T* row, int a, int b, T value) {
    const V x = splat(value);
    for (int i = a; i < b; i += W) store(row + i, x);
  }
  template <int S> static SHEAFDEQ_INLINE V larger_of_halves(V x) {
    if constexpr (S > 0) {
      const V y = __builtin_shuffle(x, lane_numbers<T>() ^ typename Lanes<T>::I{} + S);
      return larger_of_halves<S / 2>(x > y ? x : y);
    } else {
      return x;
    }
  }
  // The largest of `top` and of entries a <= i < b; NaN is passed over.
  static SHEAFDEQ_INLINE T largest(const T* row, int a, int b, T top) {
    const V none = splat(T(-__builtin_inff()));
    const auto lane = lane_numbers<T>();
    V most = splat(top);
    for (int i = a; i < b; i += W) {
      V x = load(row + i);
      if (i + W > b) x = lane < b - i ? x : none;
      most = x > most ? x : most;
    }
    return larger_of_halves<W / 2>(most)[0];
  }
  static SHEAFDEQ_INLINE T finite_top(T top) { return top == T(-__builtin_inff()) ? T(0) : top; }

  // acc[j] += the sum over places a <= i < b of weights[head of j][i] (table[source] + more[edge]) in vector column j.
  // With totals, total[j] += the sum of the weights.
  template <int J, bool with_totals>
  static SHEAFDEQ_INLINE void gather(const Chunk& chunk, int a, int b, int j0, int nv, bool shared, const T* weights,
                                     const T* table, std::int64_t stride, const T* more, std::int64_t more_stride, V* acc,
                                     V* total) {
    const T* w[J];
    int column[J];
    _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) {
      const int m = (j0 + j) / nv;
      w[j] = weights + m * ES;
      column[j] = (shared ? j0 + j - m * nv : j0 + j) * W;
    }
    for (int i = a; i < b; i++) {
      const T* row = table + chunk.source[i] * stride;
      _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) {
        const V x = splat(w[j][i]);
        acc[j] += x * load(row + column[j]);
        if (with_totals) total[j] += x;
      }
    }
    if (!more) return;
    for (int i = a; i < b; i++) {
      if (chunk.edge[i] < 0) continue;
      const T* row = more + chunk.edge[i] * more_stride + j0 * W;
      _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) acc[j] += splat(w[j][i]) * load(row + j * W);
    }
  }

  // Rows table[slot] += weights * row, where the row of the target stays in registers; the same for edges, written or added.
  template <int J>
  static SHEAFDEQ_INLINE void scatter(const Chunk& chunk, int a, int b, int j0, int nv, bool shared, const T* weights,
                                      const T* row, T* table, std::int64_t stride, T* more, std::int64_t more_stride, bool add) {
    const T* w[J];
    int column[J];
    V x[J];
    _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) {
      const int m = (j0 + j) / nv;
      w[j] = weights + m * ES;
      column[j] = (shared ? j0 + j - m * nv : j0 + j) * W;
      x[j] = load(row + (j0 + j) * W);
    }
    for (int i = a; i < b; i++) {
      T* to = table + chunk.slot[i] * stride;
      _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) store(to + column[j], load(to + column[j]) + splat(w[j][i]) * x[j]);
    }
    if (!more) return;
    for (int i = a; i < b; i++) {
      if (chunk.edge[i] < 0) continue;
      T* to = more + chunk.edge[i] * more_stride + j0 * W;
      _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) {
        const V y = splat(w[j][i]) * x[j];
        store(to + j * W, add ? load(to + j * W) + y : y);
      }
    }
  }

  // Calls work(number of vectors, first vector) for three, two or one vectors at a time.
  template <class F> static SHEAFDEQ_INLINE void each_piece(int vectors, F&& work) {
    int j = 0;
    for (; j + 3 <= vectors; j += 3) work(std::integral_constant<int, 3>{}, j);
    if (j + 2 <= vectors) {
      work(std::integral_constant<int, 2>{}, j);
      j += 2;
    }
    if (j < vectors) work(std::integral_constant<int, 1>{}, j);
  }

  // Calls work(target, a, b, whether these are its first edges, whether its last); targets without edges: a = b.
  template <class F> static SHEAFDEQ_INLINE void each_target(const AttentionPass<T>& pass, const Chunk& chunk, F&& work) {
    for (std::int64_t v = chunk.first; v < chunk.last; v++) {
      const std::int64_t from = pass.pointer[v] - chunk.e0, to = pass.pointer[v + 1] - chunk.e0;
      work(v, from < 0 ? 0 : static_cast<int>(from), to < chunk.count ? static_cast<int>(to) : chunk.count, from >= 0,
           to <= chunk.count);
    }
  }
  template <class F> static SHEAFDEQ_INLINE void each_chunk(const AttentionPass<T>& pass, const EdgeShare<T>& share, F&& work) {
    Chunk chunk;
    std::int64_t v = share.first, e = pass.pointer[share.first];
    while (v < share.last) {
      take(pass, e, v, share.last, chunk);
      work(chunk);
      e = chunk.e0 + chunk.count;
      v = e == pass.pointer[chunk.last] ? chunk.last : chunk.last - 1;
    }
  }

  static void forward(const AttentionPass<T>& pass, const EdgeShare<T>& share) {
    const int heads = pass.heads, nv = pass.value_width / W, columns = heads * pass.value_width;
    T *weights = share.scratch, *tops = weights + heads * ES, *nothing = tops + heads * ES, *factor = nothing + zeros(pass);
    for (std::int64_t k = 0; k < zeros(pass); k++) nothing[k] = T(0);
    each_chunk(pass, share, [&](const Chunk& chunk) {
      scores(pass, chunk, nothing, weights, nullptr);
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool first, bool) {
        for (int m = 0; m < heads; m++) {
          const T before = first ? T(-__builtin_inff()) : pass.top[v * heads + m];
          const T top = largest(weights + m * ES, a, b, before);
          pass.top[v * heads + m] = top;
          fill(tops + m * ES, a, b, finite_top(top));
          if (!first) factor[m] = before == top ? T(0) : before - finite_top(top);  // its logarithm
        }
      });
      for (int m = 0; m < heads; m++)
        for (int g = m * ES; g < m * ES + chunk.count; g += W) store(weights + g, decay(load(weights + g) - load(tops + g)));
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool first, bool last) {
        T *out = pass.out + v * columns, *sum = pass.inverse + v * heads;
        for (int m = 0; !first && m < heads; m++) {
          factor[m] = decay(splat(factor[m]))[0];
          sum[m] *= factor[m];
        }
        each_piece(heads * nv, [&](auto J, int j0) {
          V acc[J], total[J];
          for (int j = 0; j < J; j++) {
            const int m = (j0 + j) / nv;
            acc[j] = first ? V{} : load(out + (j0 + j) * W) * splat(factor[m]);
            total[j] = first ? V{} : splat(sum[m]);
          }
          gather<J, true>(chunk, a, b, j0, nv, pass.shared_value, weights, pass.value, pass.value_stride, pass.edge_value,
                          pass.edge_value_stride, acc, total);
          for (int j = 0; j < J; j++) {
            if (last) {
              const V some = total[j] == V{} ? splat(T(1)) : total[j];
              acc[j] = acc[j] / some;
            }
            store(out + (j0 + j) * W, acc[j]);
            // behind the last vector of a head: every vector of it starts from the same sum
            if ((j0 + j + 1) % nv == 0) sum[(j0 + j) / nv] = !last ? total[j][0] : total[j][0] == T(0) ? T(0) : T(1) / total[j][0];
          }
        });
      });
    });
  }

  static void backward(const AttentionPass<T>& pass, const EdgeShare<T>& share) {
    const int heads = pass.heads, nv = pass.value_width / W, columns = heads * pass.value_width;
    const int kv = pass.additive ? 1 : pass.width / W;
    T *weights = share.scratch, *tops = weights + heads * ES, *nothing = tops + heads * ES, *changes = nothing + zeros(pass);
    T *slopes = changes + heads * ES, *inverses = slopes + heads * ES, *deltas = inverses + heads * ES;
    T* delta = deltas + heads * ES;  // (heads, ES) by target of the chunk
    for (std::int64_t k = 0; k < zeros(pass); k++) nothing[k] = T(0);
    Chunk targets;  // each target of a chunk as an edge to itself
    each_chunk(pass, share, [&](const Chunk& chunk) {
      targets.count = static_cast<int>(chunk.last - chunk.first);
      for (int i = 0; i < targets.count; i++) targets.source[i] = targets.target[i] = static_cast<std::int32_t>(chunk.first + i);
      repeat_last(targets.source, targets.count);
      repeat_last(targets.target, targets.count);
      products_of(targets, heads, nv, false, pass.grad, columns, pass.out, columns, nullptr, 0, nothing, delta);
      scores(pass, chunk, nothing, weights, slopes);
      products_of(chunk, heads, nv, pass.shared_value, pass.grad, columns, pass.value, pass.value_stride, pass.edge_value,
                  pass.edge_value_stride, nothing, changes);
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool, bool) {
        for (int m = 0; m < heads; m++) {
          fill(tops + m * ES, a, b, finite_top(pass.top[v * heads + m]));
          fill(inverses + m * ES, a, b, pass.inverse[v * heads + m]);
          fill(deltas + m * ES, a, b, delta[m * ES + (v - chunk.first)]);
        }
      });
      for (int m = 0; m < heads; m++)
        for (int g = m * ES; g < m * ES + chunk.count; g += W) {
          const V weight = decay(load(weights + g) - load(tops + g)) * load(inverses + g);
          store(weights + g, weight);
          store(changes + g, weight * (load(changes + g) - load(deltas + g)));
        }
      if (pass.bias_grad || share.parameter_grad)
        for (int i = 0; i < chunk.count; i++)
          for (int m = 0; m < heads; m++) {
            const T change = changes[m * ES + i];
            if (chunk.edge[i] >= 0) {
              if (pass.bias_grad) pass.bias_grad[chunk.edge[i] * heads + m] = change;
            } else if (share.parameter_grad) {
              share.parameter_grad[m] += change;
            }
          }
      for (int m = 0; m < heads; m++)
        for (int g = m * ES; g < m * ES + chunk.count; g += W)
          store(changes + g, load(changes + g) * (pass.additive ? load(slopes + g) : splat(pass.scale)));
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool first, bool) {
        T* query_grad = pass.query_grad + v * pass.query_grad_stride;
        if (pass.additive) {
          for (int m = 0; m < heads; m++) {
            T total = first ? T(0) : query_grad[m];
            for (int i = a; i < b; i++) {
              total += changes[m * ES + i];
              pass.key_grad[chunk.slot[i] * pass.key_grad_stride + m] += changes[m * ES + i];
            }
            query_grad[m] = total;
          }
        } else {
          const T* query = pass.query + v * pass.query_stride;
          each_piece(heads * kv, [&](auto J, int j0) {
            V acc[J];
            for (int j = 0; j < J; j++) acc[j] = first ? V{} : load(query_grad + (j0 + j) * W);
            gather<J, false>(chunk, a, b, j0, kv, false, changes, pass.key, pass.key_stride, pass.edge_key,
                             pass.edge_key_stride, acc, nullptr);
            for (int j = 0; j < J; j++) store(query_grad + (j0 + j) * W, acc[j]);
            scatter<J>(chunk, a, b, j0, kv, false, changes, query, pass.key_grad, pass.key_grad_stride, pass.edge_key_grad,
                       heads * pass.width, false);
          });
        }
        const T* grad = pass.grad + v * columns;
        each_piece(heads * nv, [&](auto J, int j0) {
          scatter<J>(chunk, a, b, j0, nv, pass.shared_value, weights, grad, pass.value_grad, pass.value_grad_stride,
                     pass.edge_value_grad, columns, pass.edge_value_grad == pass.edge_key_grad);
        });
      });
    });
  }

  // Entries of a row of zeros, read in place of the edge row of a loop.
  static std::int64_t zeros(const AttentionPass<T>& pass) {
    return pass.heads * static_cast<std::int64_t>(pass.width > pass.value_width ? pass.width : pass.value_width);
  }
  static std::int64_t scratch(const AttentionPass<T>& pass) {
    return 7 * static_cast<std::int64_t>(pass.heads) * ES + zeros(pass) + pass.heads;
  }
};

}  // namespace
