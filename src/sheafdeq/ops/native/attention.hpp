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

#include "attention_arguments.hpp"
#include "lanes.hpp"

namespace {

using sheafdeq::AttentionPass;
using sheafdeq::EdgeShare;

template <class T> struct AttentionKernel {
  using V = Vec<T>;
  static constexpr int W = Lanes<T>::W;
  static constexpr int EB = 64;

  // Edges e0 <= e < e0 + count of the targets first <= v < last; places beyond the last edge repeat it.
  struct Chunk {
    std::int64_t e0 = 0, first = 0, last = 0;
    int count = 0;
    std::int64_t edge[EB];  // its number where something was given for each edge; -1 for a loop
    std::int32_t source[EB], target[EB], slot[EB];
  };

  // The chunk that starts with edge e0 of target v.
  static void take(const AttentionPass<T>& pass, std::int64_t e0, std::int64_t v, std::int64_t end, Chunk& chunk) {
    std::int64_t stop = pass.pointer[v + 1], last = v + 1;
    if (stop - e0 > EB)
      stop = e0 + EB;
    else
      for (; last < end && pass.pointer[last + 1] - e0 <= EB; last++) stop = pass.pointer[last + 1];
    chunk.e0 = e0;
    chunk.first = v;
    chunk.last = last;
    chunk.count = static_cast<int>(stop - e0);
    const int filled = (chunk.count + W - 1) / W * W;
    for (int i = 0; i < filled; i++) {
      const std::int64_t e = e0 + (i < chunk.count ? i : chunk.count - 1);
      const std::int32_t t = pass.target[e];
      chunk.source[i] = pass.source[e];
      chunk.target[i] = t;
      chunk.edge[i] = !pass.loops ? e : e + 1 == pass.pointer[t + 1] ? -1 : e - t;
      if (pass.slot) chunk.slot[i] = pass.slot[e];
    }
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
        store(out + m * EB + g, sums<T>(r));
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

  // Scores (heads, EB). An additive score is left with its sign in `slopes`, (heads, EB), when those are wanted.
  static void scores(const AttentionPass<T>& pass, const Chunk& chunk, const T* nothing, T* out, T* slopes) {
    const int heads = pass.heads;
    if (pass.additive) {
      for (int i = 0; i < chunk.count; i++) {
        const T *a = pass.query + chunk.target[i] * pass.query_stride, *b = pass.key + chunk.source[i] * pass.key_stride;
        for (int m = 0; m < heads; m++) {
          const T z = a[m] + b[m], slope = z > T(0) ? T(1) : pass.scale;
          out[m * EB + i] = z * slope;
          if (slopes) slopes[m * EB + i] = slope;
        }
      }
    } else {
      products_of(chunk, heads, pass.width / W, false, pass.query, pass.query_stride, pass.key, pass.key_stride, pass.edge_key,
                  pass.edge_key_stride, nothing, out);
      for (int m = 0; m < heads; m++)
        for (int g = 0; g < chunk.count; g += W) store(out + m * EB + g, load(out + m * EB + g) * splat(pass.scale));
    }
    if (!pass.bias && !pass.own_bias) return;
    for (int i = 0; i < chunk.count; i++) {
      const T* bias = chunk.edge[i] < 0 ? pass.own_bias : pass.bias ? pass.bias + chunk.edge[i] * heads : nullptr;
      for (int m = 0; bias && m < heads; m++) out[m * EB + i] += bias[m];
    }
  }

  // exp(x) for x <= 0; what would not be a normal number is zero. NaN stays NaN.
  static SHEAFDEQ_INLINE V decay(V x) {
    const V low = splat(T(sizeof(T) == 4 ? -87 : -708));
    V y = exponential(x < low ? low : x);
    y = x < low ? V{} : y;
    return x != x ? x : y;
  }
  static SHEAFDEQ_NOINLINE void decays(int heads, int count, T* values) {
    for (int m = 0; m < heads; m++)
      for (int g = 0; g < count; g += W) store(values + m * EB + g, decay(load(values + m * EB + g)));
  }

  // acc[j] += the sum over places a <= i < b of weights[head of j][i] (table[source] + more[edge]) in vector column j.
  template <int J>
  static SHEAFDEQ_INLINE void gather(const Chunk& chunk, int a, int b, int j0, int nv, bool shared, const T* weights,
                                     const T* table, std::int64_t stride, const T* more, std::int64_t more_stride, V* acc) {
    const T* w[J];
    int column[J];
    _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) {
      const int m = (j0 + j) / nv;
      w[j] = weights + m * EB;
      column[j] = (shared ? j0 + j - m * nv : j0 + j) * W;
    }
    for (int i = a; i < b; i++) {
      const T* row = table + chunk.source[i] * stride;
      _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) acc[j] += splat(w[j][i]) * load(row + column[j]);
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
      w[j] = weights + m * EB;
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
    T *weights = share.scratch, *nothing = weights + heads * EB, *factor = nothing + zeros(pass);
    for (std::int64_t k = 0; k < zeros(pass); k++) nothing[k] = T(0);
    each_chunk(pass, share, [&](const Chunk& chunk) {
      scores(pass, chunk, nothing, weights, nullptr);
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool first, bool) {
        for (int m = 0; m < heads; m++) {
          T* row = weights + m * EB;
          const T before = first ? -__builtin_inff() : pass.top[v * heads + m];
          T top = before;
          for (int i = a; i < b; i++) top = row[i] > top ? row[i] : top;
          pass.top[v * heads + m] = top;
          const T from = top == T(-__builtin_inff()) ? T(0) : top;
          for (int i = a; i < b; i++) row[i] -= from;
          if (!first) factor[m] = before == top ? T(0) : before - from;  // its logarithm
        }
      });
      decays(heads, chunk.count, weights);
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool first, bool last) {
        T *out = pass.out + v * columns, *sum = pass.inverse + v * heads;
        for (int m = 0; m < heads; m++) {
          const T* row = weights + m * EB;
          T total = 0;
          if (!first) {
            factor[m] = decay(splat(factor[m]))[0];
            total = sum[m] * factor[m];
          }
          for (int i = a; i < b; i++) total += row[i];
          sum[m] = last ? (total == T(0) ? T(0) : T(1) / total) : total;
        }
        each_piece(heads * nv, [&](auto J, int j0) {
          V acc[J];
          for (int j = 0; j < J; j++)
            acc[j] = first ? V{} : load(out + (j0 + j) * W) * splat(factor[(j0 + j) / nv]);
          gather<J>(chunk, a, b, j0, nv, pass.shared_value, weights, pass.value, pass.value_stride, pass.edge_value,
                    pass.edge_value_stride, acc);
          for (int j = 0; j < J; j++) store(out + (j0 + j) * W, last ? acc[j] * splat(sum[(j0 + j) / nv]) : acc[j]);
        });
      });
    });
  }

  static void backward(const AttentionPass<T>& pass, const EdgeShare<T>& share) {
    const int heads = pass.heads, nv = pass.value_width / W, columns = heads * pass.value_width;
    const int kv = pass.additive ? 1 : pass.width / W;
    T *weights = share.scratch, *nothing = weights + heads * EB, *changes = nothing + zeros(pass);
    T *slopes = changes + heads * EB, *delta = slopes + heads * EB;
    for (std::int64_t k = 0; k < zeros(pass); k++) nothing[k] = T(0);
    each_chunk(pass, share, [&](const Chunk& chunk) {
      scores(pass, chunk, nothing, weights, slopes);
      products_of(chunk, heads, nv, pass.shared_value, pass.grad, columns, pass.value, pass.value_stride, pass.edge_value,
                  pass.edge_value_stride, nothing, changes);
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool first, bool) {
        const T *grad = pass.grad + v * columns, *out = pass.out + v * columns;
        for (int m = 0; m < heads; m++) {
          if (first) {  // kept for the rest of a target that is longer than a chunk
            V sum{};
            for (int k = m * nv * W; k < (m + 1) * nv * W; k += W) sum += load(grad + k) * load(out + k);
            T total = 0;
            for (int l = 0; l < W; l++) total += sum[l];
            delta[m] = total;
          }
          const T top = pass.top[v * heads + m], from = top == T(-__builtin_inff()) ? T(0) : top;
          T *row = weights + m * EB, *change = changes + m * EB;
          for (int i = a; i < b; i++) {
            row[i] -= from;
            change[i] -= delta[m];
          }
        }
      });
      decays(heads, chunk.count, weights);
      each_target(pass, chunk, [&](std::int64_t v, int a, int b, bool first, bool) {
        for (int m = 0; m < heads; m++) {
          T *row = weights + m * EB, *change = changes + m * EB;
          const T inverse = pass.inverse[v * heads + m];
          for (int i = a; i < b; i++) {
            row[i] *= inverse;
            change[i] *= row[i];
          }
        }
        if (pass.bias_grad || share.parameter_grad)
          for (int i = a; i < b; i++)
            for (int m = 0; m < heads; m++) {
              const T change = changes[m * EB + i];
              if (chunk.edge[i] >= 0) {
                if (pass.bias_grad) pass.bias_grad[chunk.edge[i] * heads + m] = change;
              } else if (share.parameter_grad) {
                share.parameter_grad[m] += change;
              }
            }
        T* query_grad = pass.query_grad + v * pass.query_grad_stride;
        if (pass.additive) {
          for (int m = 0; m < heads; m++) {
            T total = first ? T(0) : query_grad[m];
            for (int i = a; i < b; i++) {
              const T change = changes[m * EB + i] * slopes[m * EB + i];
              total += change;
              pass.key_grad[chunk.slot[i] * pass.key_grad_stride + m] += change;
            }
            query_grad[m] = total;
          }
        } else {
          for (int m = 0; m < heads; m++)
            for (int i = a; i < b; i++) changes[m * EB + i] *= pass.scale;
          const T* query = pass.query + v * pass.query_stride;
          each_piece(heads * kv, [&](auto J, int j0) {
            V acc[J];
            for (int j = 0; j < J; j++) acc[j] = first ? V{} : load(query_grad + (j0 + j) * W);
            gather<J>(chunk, a, b, j0, kv, false, changes, pass.key, pass.key_stride, pass.edge_key, pass.edge_key_stride, acc);
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
    return 3 * static_cast<std::int64_t>(pass.heads) * EB + zeros(pass) + pass.heads + 64;
  }
};

}  // namespace
