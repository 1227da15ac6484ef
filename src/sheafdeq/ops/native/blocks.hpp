// One small matrix on every edge and node: generating them, and multiplying with them.
//
// Matrices are generated edge by edge in the lanes, as in edges.hpp, and stored edge after edge, because a product reads
// one edge at a time: d d broadcasts against the channels of its source. They are kept where they serve several products
// (a level of a cascade iterates on them), and their gradients are of the same small size; nothing has edges x channels.
#pragma once

#include "edges.hpp"

namespace {

using sheafdeq::Gate;
using sheafdeq::MapPass;
using sheafdeq::ProductPass;

template <class T, int D> struct MapKernel {
  using V = Vec<T>;
  using Edge = EdgeKernel<T, D>;
  using Common = EdgeBlock<T>;
  static constexpr int W = Lanes<T>::W, EB = Common::EB, most_squared = Edge::most_squared;

  struct Block : Common::Edges {
    alignas(64) T maps[2 * most_squared * EB];        // raw outputs, then F or F+, then gradients of the raw outputs
    alignas(64) T inverse[2 * EB];                    // 1 / sqrt(|raw|^2 + softening^2)
    alignas(64) T product[most_squared * EB];         // w F_t^T F_s forward, gradient of the block backward
    alignas(64) T square[most_squared * EB];          // F_t^T F_t, upper triangle
    // with sizes
    alignas(64) T minus[2 * most_squared * EB];       // F-
    alignas(64) T sizes[2 * most_squared * EB];       // M, then its gradient
    alignas(64) T share[2][2 * most_squared * EB];    // F+ / M and F- / M
    alignas(64) T minus_product[most_squared * EB];
    alignas(64) T minus_square[most_squared * EB];
  };

  static SHEAFDEQ_INLINE int dim(const MapPass<T>& pass) { return D ? D : pass.d; }

  // (count, EB) from rows of `count` entries: edges into the lanes. Places beyond the last edge repeat it.
  static SHEAFDEQ_INLINE void spread_rows(const T* rows, int count, int edges, T* out) {
    for (int e = 0; e < EB; e++) {
      const T* row = rows + static_cast<std::int64_t>(e < edges ? e : edges - 1) * count;
      for (int i = 0; i < count; i++) out[i * EB + e] = row[i];
    }
  }
  static SHEAFDEQ_INLINE void collect_rows(const T* columns, int count, int edges, T* rows) {
    for (int e = 0; e < edges; e++)
      for (int i = 0; i < count; i++) rows[static_cast<std::int64_t>(e) * count + i] = columns[i * EB + e];
  }

  // Raw outputs and then the maps of a block.
  template <bool with_rows>
  static SHEAFDEQ_INLINE void maps_of(const MapPass<T>& pass, Block& block, std::int64_t e0, T* rows, T* columns) {
    const int d = dim(pass), dd = d * d;
    Common::template hidden_of<with_rows>(pass, block, e0, 0, rows, columns);
    Common::second_layer(pass, columns, 0, block.maps);
    Common::second_layer(pass, columns, 1, block.maps + dd * EB);
    shape(pass, block, e0);
  }
  static SHEAFDEQ_NOINLINE void shape(const MapPass<T>& pass, Block& block, std::int64_t e0) {
    const int d = dim(pass), dd = d * d;
    if (pass.sizes) {
      spread_rows(pass.sizes + e0 * 2 * dd, 2 * dd, block.count, block.sizes);
      for (int i = 0; i < 2 * dd * EB; i += W) {
        V plus, minus;
        const V size = load(block.sizes + i);
        two_shares<T>(load(block.maps + i), plus, minus);
        store(block.share[0] + i, plus);
        store(block.share[1] + i, minus);
        store(block.maps + i, plus * size);
        store(block.minus + i, minus * size);
      }
      return;
    }
    const V soft = splat(pass.softening * pass.softening);
    for (int map = 0; map < 2; map++)
      for (int g = 0; g < EB; g += W) {
        T* raw = block.maps + map * dd * EB + g;
        V sum = soft, factor = splat(T(1));
        for (int i = 0; i < dd; i++) sum += load(raw + i * EB) * load(raw + i * EB);
        if (__builtin_expect(any_lane(sum > splat(largest_square<T>)), 0)) {  // squares overflow: beside them softening is nothing
          factor = sum > splat(largest_square<T>) ? splat(taming_factor<T>) : factor;
          sum = soft * factor * factor;
          for (int i = 0; i < dd; i++) {
            const V x = load(raw + i * EB) * factor;
            store(raw + i * EB, x);
            sum += x * x;
          }
        }
        const V inverse = splat(T(1)) / root(sum);
        store(block.inverse + map * EB + g, inverse * factor);
        for (int i = 0; i < dd; i++) store(raw + i * EB, load(raw + i * EB) * inverse);
      }
  }

  static SHEAFDEQ_NOINLINE void products(const MapPass<T>& pass, Block& block) {
    const int d = dim(pass);
    for (int g = 0; g < EB; g += W) {
      const T *fs = block.maps + g, *ft = fs + d * d * EB;
      const V w = load(block.weight + g);
      Edge::each(d, [&](int i) {
        V column[Edge::most];
        SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) column[k] = load(ft + (k * d + i) * EB);
        Edge::each(d, [&](int j) {
          V sum{};
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) sum += column[k] * load(fs + (k * d + j) * EB);
          store(block.product + (i * d + j) * EB + g, sum * w);
          if (j < i) return;
          V gram{};
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) gram += column[k] * load(ft + (k * d + j) * EB);
          store(block.square + (i * d + j) * EB + g, gram);
        });
      });
    }
  }

  // The same from F+ and F-: `product` and `square` collect what has equal signs, the others what has different ones.
  static SHEAFDEQ_NOINLINE void split_products(const MapPass<T>& pass, Block& block) {
    const int d = dim(pass), dd = d * d;
    for (int g = 0; g < EB; g += W) {
      const T *fs = block.maps + g, *ft = fs + dd * EB, *ms = block.minus + g, *mt = ms + dd * EB;
      const V w = load(block.weight + g);
      Edge::each(d, [&](int i) {
        V column[Edge::most], minus_column[Edge::most];
        SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) {
          column[k] = load(ft + (k * d + i) * EB);
          minus_column[k] = load(mt + (k * d + i) * EB);
        }
        auto pair = [&](const T* plus, const T* minus, int j, V& equal, V& different) {
          equal = different = V{};
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) {
            const V x = load(plus + (k * d + j) * EB), y = load(minus + (k * d + j) * EB);
            equal += column[k] * x + minus_column[k] * y;
            different += column[k] * y + minus_column[k] * x;
          }
        };
        Edge::each(d, [&](int j) {
          V equal, different;
          pair(fs, ms, j, equal, different);
          store(block.product + (i * d + j) * EB + g, equal * w);
          store(block.minus_product + (i * d + j) * EB + g, different * w);
          if (j < i) return;
          pair(ft, mt, j, equal, different);
          store(block.square + (i * d + j) * EB + g, equal);
          store(block.minus_square + (i * d + j) * EB + g, different);
        });
      });
    }
  }

  // (I or 0) + factor * symmetric, from the upper triangle.
  static SHEAFDEQ_INLINE void write_diagonal(int d, bool identity, T factor, const T* upper, T* out) {
    for (int i = 0; i < d; i++)
      for (int j = 0; j < d; j++) out[i * d + j] = T(identity && i == j) + factor * (i < j ? upper[i * d + j] : upper[j * d + i]);
  }

  static void forward(const MapPass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), dd = d * d;
    const bool split = pass.minus_diagonal != nullptr;  // `sizes` of a graph without edges is empty, so it may be null
    T* columns = share.scratch;
    Block block;
    V diagonal[most_squared], minus_diagonal[most_squared];
    T upper[most_squared];
    std::int64_t v = share.first;
    const std::int64_t end = pass.pointer[share.last];
    auto enter = [&] {
      for (; v < share.last && pass.pointer[v + 1] == pass.pointer[v]; v++)
        for (int i = 0; i < dd; i++) {
          pass.diagonal[v * dd + i] = T(i % (d + 1) == 0);
          if (split) pass.minus_diagonal[v * dd + i] = T(0);
        }
      for (int i = 0; i < dd; i++) diagonal[i] = minus_diagonal[i] = V{};
    };
    enter();
    for (std::int64_t e0 = pass.pointer[share.first]; e0 < end; e0 += EB) {
      Common::take(pass, e0, end, block);
      const typename Common::Ahead next = Common::reads_after(pass, e0, end);
      for (int quarter = 0; quarter < 4; quarter++) next.request(quarter);
      maps_of<false>(pass, block, e0, nullptr, columns);
      if (split) {
        split_products(pass, block);
        collect_rows(block.minus_product, dd, block.count, pass.minus_blocks + e0 * dd);
      } else {
        products(pass, block);
      }
      collect_rows(block.product, dd, block.count, pass.blocks + e0 * dd);
      for (int a = 0; a < block.count;) {
        const std::int64_t stop = pass.pointer[v + 1] - e0;
        const int b = stop < block.count ? static_cast<int>(stop) : block.count;
        Edge::add_squares(d, block.square, a, b, diagonal);
        if (split) Edge::add_squares(d, block.minus_square, a, b, minus_diagonal);
        if (stop == b) {
          Edge::sum_lanes(d, diagonal, upper);
          const T factor = pass.sign * pass.inverse_degree[v];
          if (!split) {
            write_diagonal(d, true, factor, upper, pass.diagonal + v * dd);
          } else {  // what is subtracted goes to the other side
            const T size = factor < T(0) ? -factor : factor;
            T *equal = pass.diagonal + v * dd, *different = pass.minus_diagonal + v * dd;
            if (factor < T(0)) std::swap(equal, different);
            write_diagonal(d, equal == pass.diagonal + v * dd, size, upper, equal);
            Edge::sum_lanes(d, minus_diagonal, upper);
            write_diagonal(d, different == pass.diagonal + v * dd, size, upper, different);
          }
          v++;
          enter();
        }
        a = b;
      }
    }
  }

  // From the gradients of the blocks (in `product`) and Z, the gradient through F_t^T F_t (in `curve`, symmetric, already
  // doubled), to those of the raw outputs, which replace the maps, and of the sizes.
  static SHEAFDEQ_NOINLINE void map_gradients(const MapPass<T>& pass, Block& block, const T* curve) {
    const int d = dim(pass), dd = d * d;
    for (int g = 0; g < EB; g += W) {
      T *maps_s = block.maps + g, *maps_t = maps_s + dd * EB;
      const V w = load(block.weight + g);
      V gs[most_squared], gt[most_squared];
      Edge::each(dd, [&](int i) { gs[i] = gt[i] = V{}; });
      Edge::each(d, [&](int i) {
        Edge::each(d, [&](int j) {
          const V x = load(block.product + (i * d + j) * EB + g) * w;
          const V z = load(curve + (i < j ? i * d + j : j * d + i) * Edge::pitch + g);
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) {
            gt[k * d + i] += x * load(maps_s + (k * d + j) * EB) + z * load(maps_t + (k * d + j) * EB);
            gs[k * d + j] += x * load(maps_t + (k * d + i) * EB);
          }
        });
      });
      for (int map = 0; map < 2; map++) {
        T* f = map ? maps_t : maps_s;
        const V* gradient = map ? gt : gs;
        const V inverse = load(block.inverse + map * EB + g);
        V along{};
        Edge::each(dd, [&](int i) { along += gradient[i] * load(f + i * EB); });
        Edge::each(dd, [&](int i) { store(f + i * EB, (gradient[i] - load(f + i * EB) * along) * inverse); });
      }
    }
  }

  // The same with sizes: gradients of the equal and of the different products are in `product` and `minus_product`, those
  // through the diagonal in `curve` and `minus_curve`.
  static SHEAFDEQ_NOINLINE void split_gradients(const MapPass<T>& pass, Block& block, const T* curve, const T* minus_curve) {
    const int d = dim(pass), dd = d * d;
    for (int g = 0; g < EB; g += W) {
      T *plus_s = block.maps + g, *plus_t = plus_s + dd * EB, *minus_s = block.minus + g, *minus_t = minus_s + dd * EB;
      const V w = load(block.weight + g);
      V gs[most_squared], gt[most_squared], hs[most_squared], ht[most_squared];  // of F+, and of F-
      Edge::each(dd, [&](int i) { gs[i] = gt[i] = hs[i] = ht[i] = V{}; });
      Edge::each(d, [&](int i) {
        Edge::each(d, [&](int j) {
          const int at = (i * d + j) * EB + g, turned = (i < j ? i * d + j : j * d + i) * Edge::pitch + g;
          const V x = load(block.product + at) * w, y = load(block.minus_product + at) * w;
          const V z = load(curve + turned), u = load(minus_curve + turned);
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) {
            const int left = (k * d + i) * EB, right = (k * d + j) * EB;
            const V sp = load(plus_s + right), sm = load(minus_s + right), tp = load(plus_t + right), tm = load(minus_t + right);
            gt[k * d + i] += (x * sp + y * sm) + (z * tp + u * tm);
            ht[k * d + i] += (x * sm + y * sp) + (z * tm + u * tp);
            const V lp = load(plus_t + left), lm = load(minus_t + left);
            gs[k * d + j] += x * lp + y * lm;
            hs[k * d + j] += x * lm + y * lp;
          }
        });
      });
      for (int map = 0; map < 2; map++) {
        const V *by_plus = map ? gt : gs, *by_minus = map ? ht : hs;
        const int at = map * dd * EB + g;
        Edge::each(dd, [&](int i) {
          const V p = load(block.share[0] + at + i * EB), m = load(block.share[1] + at + i * EB);
          store(block.maps + at + i * EB, (by_plus[i] - by_minus[i]) * load(block.sizes + at + i * EB) * (p * m));
          store(block.sizes + at + i * EB, by_plus[i] * p + by_minus[i] * m);
        });
      }
    }
  }

  static void backward(const MapPass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), dd = d * d, h = pass.hidden;
    T *columns = share.scratch, *rows = columns + EB * h, *partial = rows + EB * h, *partial_bias = partial + 2 * dd * h;
    const bool parameters = share.parameter_grad != nullptr;
    for (int i = 0; i < 2 * dd * (h + W); i++) partial[i] = T(0);
    auto flush = [&] {
      if (!parameters) return;
      for (int i = 0; i < 2 * dd * h; i++) {
        share.parameter_grad[i] += partial[i];
        partial[i] = T(0);
      }
      for (int i = 0; i < 2 * dd; i++)
        for (int l = 0; l < W; l++) {
          share.parameter_grad[2 * dd * h + i] += partial_bias[i * W + l];
          partial_bias[i * W + l] = T(0);
        }
    };
    Block block;
    const bool split = pass.minus_diagonal_grad != nullptr;
    // written with overrun, as in edges.hpp
    alignas(64) T curve[most_squared * Edge::pitch], minus_curve[most_squared * Edge::pitch];
    T upper[most_squared], minus_upper[most_squared];
    std::int64_t v = share.first;
    const std::int64_t end = pass.pointer[share.last];
    auto enter = [&] {
      for (; v < share.last; v++) {
        T* hidden = pass.target_hidden_grad + v * pass.target_hidden_grad_stride;
        for (int i = 0; i < h; i++) hidden[i] = T(0);
        if (pass.pointer[v + 1] == pass.pointer[v]) continue;
        T factor = pass.sign * pass.inverse_degree[v];
        const T *grad = pass.diagonal_grad + v * dd, *minus_grad = split ? pass.minus_diagonal_grad + v * dd : nullptr;
        if (split && factor < T(0)) {
          factor = -factor;
          std::swap(grad, minus_grad);
        }
        for (int i = 0; i < d; i++)
          for (int j = i; j < d; j++) {
            upper[i * d + j] = factor * (grad[i * d + j] + grad[j * d + i]);
            if (split) minus_upper[i * d + j] = factor * (minus_grad[i * d + j] + minus_grad[j * d + i]);
          }
        return;
      }
    };
    enter();
    int blocks = 0;
    for (std::int64_t e0 = pass.pointer[share.first]; e0 < end; e0 += EB) {
      Common::take(pass, e0, end, block);
      const typename Common::Ahead next = Common::reads_after(pass, e0, end), sums = Common::writes_of(pass, block);
      for (int quarter = 0; quarter < 4; quarter++) sums.request(quarter);
      maps_of<true>(pass, block, e0, rows, columns);
      for (int a = 0; a < block.count;) {
        const std::int64_t stop = pass.pointer[v + 1] - e0;
        const int b = stop < block.count ? static_cast<int>(stop) : block.count;
        for (int i = 0; i < d; i++)
          for (int j = i; j < d; j++) {
            const V z = splat(upper[i * d + j]);
            for (int e = 0; e < EB; e += W) store(curve + (i * d + j) * Edge::pitch + a + e, z);
            if (!split) continue;
            const V u = splat(minus_upper[i * d + j]);
            for (int e = 0; e < EB; e += W) store(minus_curve + (i * d + j) * Edge::pitch + a + e, u);
          }
        if (stop == b) {
          v++;
          enter();
        }
        a = b;
      }
      spread_rows(pass.blocks_grad + e0 * dd, dd, block.count, block.product);  // places beyond the last edge have weight 0
      if (block.count < EB)
        for (int i = 0; i < dd; i++)
          for (int e = block.count; e < EB; e++) curve[i * Edge::pitch + e] = minus_curve[i * Edge::pitch + e] = T(0);
      if (split) {
        spread_rows(pass.minus_blocks_grad + e0 * dd, dd, block.count, block.minus_product);
        split_gradients(pass, block, curve, minus_curve);
      } else {
        map_gradients(pass, block, curve);
      }
      for (int quarter = 0; quarter < 4; quarter++) next.request(quarter);
      if (pass.sizes_grad) collect_rows(block.sizes, 2 * dd, block.count, pass.sizes_grad + e0 * 2 * dd);
      if (parameters) {
        for (int i = 0; i < 2 * dd; i++) {
          T* bias = partial_bias + i * W;
          V sum = load(block.maps + i * EB);
          SHEAFDEQ_UNROLL for (int v = 1; v < Common::vectors; v++) sum += load(block.maps + i * EB + v * W);
          store(bias, load(bias) + sum);
        }
        Common::weight_gradient(block.maps, rows, 2 * dd, h, partial);
      }
      Common::hidden_gradient(pass, block, e0, 0, block.maps, rows);
      if (++blocks == Edge::flush_every) {
        flush();
        blocks = 0;
      }
    }
    flush();
  }
};

template <class T, int D> struct ProductKernel {
  using V = Vec<T>;
  using I = typename Lanes<T>::I;
  static constexpr int W = Lanes<T>::W;
  static constexpr int most = D ? D : sheafdeq::largest_dimension;
  static constexpr int reach = 8;  // edges between asking for a row and reading it

  static SHEAFDEQ_INLINE int dim(const ProductPass<T>& pass) { return D ? D : pass.d; }

  static SHEAFDEQ_INLINE void ask_for(const T* row, int width) {
    const char* bytes = reinterpret_cast<const char*>(row);
    for (int b = 0; b < width * static_cast<int>(sizeof(T)); b += 64) __builtin_prefetch(bytes + b);
  }

  // Calls add(matrix, minus, values) for the node itself and for every edge into it; minus is null without `minus_*`.
  template <class F>
  static SHEAFDEQ_INLINE void each_message(const ProductPass<T>& pass, std::int64_t v, bool ahead, std::int64_t last, F&& add) {
    const int d = dim(pass), dd = d * d, width = d * pass.parts * pass.channels;
    add(pass.diagonal + v * dd, pass.minus_diagonal ? pass.minus_diagonal + v * dd : nullptr, pass.values + v * width);
    for (std::int64_t e = pass.pointer[v]; e < pass.pointer[v + 1]; e++) {
      if (ahead && e + reach < last) ask_for(pass.values + pass.source[e + reach] * static_cast<std::int64_t>(width), width);
      add(pass.blocks + e * dd, pass.minus_blocks ? pass.minus_blocks + e * dd : nullptr,
          pass.values + pass.source[e] * static_cast<std::int64_t>(width));
    }
  }

  // row[i] = matrix values[i] summed over the node and its edges, NV vectors of channels at once.
  template <int NV>
  static SHEAFDEQ_INLINE void receive(const ProductPass<T>& pass, std::int64_t v, int c, std::int64_t last, T* row) {
    const int d = dim(pass), q = pass.channels;
    V sum[most][NV];
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) sum[i][k] = V{};
    each_message(pass, v, c == 0, last, [&](const T* matrix, const T*, const T* values) {
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        V y[NV];
        SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) y[k] = load(values + j * q + c + k * W);
        SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
          const V m = splat(matrix[i * d + j]);
          SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) sum[i][k] += m * y[k];
        }
      }
    });
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) store(row + i * q + c + k * W, sum[i][k]);
  }

  // What one entry of a matrix adds to both parts. Its own are given, or those of an entry of A, of which one is zero.
  template <bool pair>
  static SHEAFDEQ_INLINE void add_entry(const T* matrix, const T* other, int at, V x, V y, V& plus, V& minus) {
    const V entry = splat(matrix[at]), m = pair ? entry : rectify(entry), o = pair ? splat(other[at]) : rectify(-entry);
    plus += m * x + o * y;
    minus += m * y + o * x;
  }

  // The two parts y+ and y- of a row.
  template <bool pair>
  static SHEAFDEQ_INLINE void receive_parts(const ProductPass<T>& pass, std::int64_t v, int c, std::int64_t last, T* row) {
    const int d = dim(pass), q = pass.channels, r = 2 * q;
    V plus[most], minus[most];
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) plus[i] = minus[i] = V{};
    each_message(pass, v, c == 0, last, [&](const T* matrix, const T* other, const T* values) {
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        const V x = load(values + j * r + c), y = load(values + j * r + q + c);
        SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) add_entry<pair>(matrix, other, i * d + j, x, y, plus[i], minus[i]);
      }
    });
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
      store(row + i * r + c, plus[i]);
      store(row + i * r + q + c, minus[i]);
    }
  }

  static SHEAFDEQ_INLINE void receive_all(const ProductPass<T>& pass, std::int64_t v, std::int64_t last, T* row) {
    const int q = pass.channels;
    int c = 0;
    if (pass.parts == 1) {
      for (; c + 2 * W <= q; c += 2 * W) receive<2>(pass, v, c, last, row);
      for (; c < q; c += W) receive<1>(pass, v, c, last, row);
    } else if (pass.minus_diagonal) {
      for (; c < q; c += W) receive_parts<true>(pass, v, c, last, row);
    } else {
      for (; c < q; c += W) receive_parts<false>(pass, v, c, last, row);
    }
  }

  // gate(y+, y-), and its two derivatives. Infinite parts (an overflow in the sums) count as very large ones.
  static SHEAFDEQ_INLINE V bounded(V x) {
    const V most_of = splat(sizeof(T) == 4 ? T(0x1p125) : T(0x1p1021));
    return x > most_of ? most_of : x;
  }
  static SHEAFDEQ_INLINE V gated(const ProductPass<T>& pass, V a, V b) {
    const V one = splat(T(1));
    if (pass.gate == Gate::tanh) return hyperbolic_tangent<T>(a) - hyperbolic_tangent<T>(b);
    a = bounded(a);
    b = bounded(b);
    if (pass.gate == Gate::rational) return ((a - b) / (one + a)) / (one + b);
    return (a - b) / (splat(pass.floor) + a + b);
  }
  static SHEAFDEQ_INLINE void gate_slopes(const ProductPass<T>& pass, V a, V b, V& by_a, V& by_b) {
    const V one = splat(T(1)), two = splat(T(2)), floor = splat(pass.floor);
    if (pass.gate == Gate::tanh) {
      const V x = hyperbolic_tangent<T>(a), y = hyperbolic_tangent<T>(b);
      by_a = one - x * x;
      by_b = y * y - one;
    } else if (pass.gate == Gate::rational) {
      const V x = one / (one + a), y = one / (one + b);
      by_a = x * x;
      by_b = -(y * y);
    } else {
      a = bounded(a);
      b = bounded(b);
      const V x = one / (floor + a + b);
      by_a = (floor + two * b) * x * x;
      by_b = -((floor + two * a) * x) * x;
    }
  }

  static void forward(const ProductPass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), q = pass.step_channels, r = pass.parts * pass.channels, width = d * r;
    const std::int64_t last = pass.pointer[share.last];
    for (std::int64_t v = share.first; v < share.last; v++) {
      T* row = pass.product ? pass.product + v * width : share.scratch;
      receive_all(pass, v, last, row);
      if (pass.gate == Gate::none) continue;
      for (int i = 0; i < d; i++)
        for (int c = 0; c < q; c += W) {
          const std::int64_t at = (v * d + i) * q + c;
          const V value = gated(pass, load(row + i * r + c), load(row + i * r + pass.channels + c));
          store_part(pass.step + at, value + load_part(pass.base + at, q - c), q - c);
        }
    }
  }

  // ------------------------------------------------------------------ backward

  // out[i d + j] (+)= grad[i] values[j], lane by lane; summed over the lanes later.
  template <bool fresh>
  static SHEAFDEQ_INLINE void inner_products(const ProductPass<T>& pass, const T* grad, const T* values, V* out) {
    constexpr int RI = D == 0 ? 1 : (D <= 3 ? D : 2);
    const int d = dim(pass), r = pass.parts * pass.channels, q = pass.channels;
    for (int i0 = 0; i0 < d; i0 += RI) {
      V sum[RI][most];
      SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        sum[i][j] = fresh ? V{} : out[(i0 + i) * d + j];
      }
      for (int c = 0; c < q; c += W) {
        V x[RI];
        SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) x[i] = load(grad + (i0 + i) * r + c);
        SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
          const V y = load(values + j * r + c);
          SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) sum[i][j] += x[i] * y;
        }
      }
      SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) out[(i0 + i) * d + j] = sum[i][j];
    }
  }

  // Gradient of the entries of A, split by their signs, lane by lane: with P = <g+, x+> + <g-, x-> and M = <g+, x-> + <g-, x+> it is P
  // where the entry is positive, -M where it is negative and (P - M) / 2 at zero, as |x| has it in PyTorch. That is
  //   (<g+ - g-, x+ - x-> + sign <g+ + g-, x+ + x->) / 2,
  // half as many products.
  static SHEAFDEQ_INLINE void signed_gradient(const ProductPass<T>& pass, const T* matrix, const T* grad, const T* values, V* out) {
    constexpr int RI = D == 0 ? 1 : (D <= 3 ? D : 2);
    const int d = dim(pass), q = pass.channels, r = 2 * q;
    const V half = splat(T(0.5));
    for (int i0 = 0; i0 < d; i0 += RI) {
      V difference[RI][most], total[RI][most];
      SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) difference[i][j] = total[i][j] = V{};
      for (int c = 0; c < q; c += W) {
        V x[RI], y[RI];
        SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) {
          const V plus = load(grad + (i0 + i) * r + c), minus = load(grad + (i0 + i) * r + q + c);
          x[i] = half * (plus - minus);
          y[i] = half * (plus + minus);
        }
        SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
          const V plus = load(values + j * r + c), minus = load(values + j * r + q + c), u = plus - minus, w = plus + minus;
          SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) {
            difference[i][j] += x[i] * u;
            total[i][j] += y[i] * w;
          }
        }
      }
      SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        const T entry = matrix[(i0 + i) * d + j];
        const T sign = static_cast<T>((entry > T(0)) - (entry < T(0)));
        out[(i0 + i) * d + j] = difference[i][j] + splat(sign) * total[i][j];
      }
    }
  }

  // Lane sums of one matrix gradient: of A, or of A+ and of A- (in `minus_out`).
  static SHEAFDEQ_INLINE void matrix_gradient(const ProductPass<T>& pass, const T* matrix, const T* grad, const T* values,
                                              V* out, V* minus_out) {
    const int q = pass.channels;
    if (pass.parts == 2 && !pass.minus_diagonal) return signed_gradient(pass, matrix, grad, values, out);
    inner_products<true>(pass, grad, values, out);
    if (pass.parts == 1) return;
    inner_products<false>(pass, grad + q, values + q, out);
    inner_products<true>(pass, grad, values + q, minus_out);
    inner_products<false>(pass, grad + q, values, minus_out);
  }

  // Sums over the lanes of `count` vectors; the last ones may be fewer than W.
  static SHEAFDEQ_INLINE void write_sums(V* vectors, std::int64_t count, T* out) {
    std::int64_t i = 0;
    for (; i + W <= count; i += W) store(out + i, sums<T>(vectors + i));
    if (i == count) return;
    for (std::int64_t l = count; l < i + W; l++) vectors[l] = V{};
    store_part(out + i, sums<T>(vectors + i), static_cast<int>(count - i));
  }

  // values[j] += sum_i matrix[i][j] grad[i], or = when `fresh`.
  template <int NV, bool fresh>
  static SHEAFDEQ_INLINE void send_back(const ProductPass<T>& pass, const T* matrix, const T* grad, int c, T* values) {
    const int d = dim(pass), q = pass.channels;
    V sum[most][NV];
    SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) {
      sum[j][k] = fresh ? V{} : load(values + j * q + c + k * W);
    }
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
      V x[NV];
      SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) x[k] = load(grad + i * q + c + k * W);
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        const V m = splat(matrix[i * d + j]);
        SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) sum[j][k] += m * x[k];
      }
    }
    SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) store(values + j * q + c + k * W, sum[j][k]);
  }
  // The same for two parts: X+ and X- get what y+ and y- hand back.
  template <bool pair, bool fresh>
  static SHEAFDEQ_INLINE void send_parts(const ProductPass<T>& pass, const T* matrix, const T* other, const T* grad, int c,
                                         T* values) {
    const int d = dim(pass), q = pass.channels, r = 2 * q;
    V plus[most], minus[most];
    SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
      plus[j] = fresh ? V{} : load(values + j * r + c);
      minus[j] = fresh ? V{} : load(values + j * r + q + c);
    }
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
      const V x = load(grad + i * r + c), y = load(grad + i * r + q + c);
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) add_entry<pair>(matrix, other, i * d + j, x, y, plus[j], minus[j]);
    }
    SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
      store(values + j * r + c, plus[j]);
      store(values + j * r + q + c, minus[j]);
    }
  }
  template <bool fresh>
  static SHEAFDEQ_INLINE void send(const ProductPass<T>& pass, const T* matrix, const T* other, const T* grad, T* values) {
    const int q = pass.channels;
    int c = 0;
    if (pass.parts == 1) {
      for (; c + 2 * W <= q; c += 2 * W) send_back<2, fresh>(pass, matrix, grad, c, values);
      for (; c < q; c += W) send_back<1, fresh>(pass, matrix, grad, c, values);
    } else if (other) {
      for (; c < q; c += W) send_parts<true, fresh>(pass, matrix, other, grad, c, values);
    } else {
      for (; c < q; c += W) send_parts<false, fresh>(pass, matrix, other, grad, c, values);
    }
  }

  // Gradient of the product through the gate, and everything on the diagonal. Rows are written, not added to, so that the
  // edges may add to them afterwards, from whatever thread the plan gives them.
  static void nodes(const ProductPass<T>& pass, std::int64_t first, std::int64_t last) {
    const int d = dim(pass), dd = d * d, q = pass.step_channels, r = pass.parts * pass.channels, width = d * r;
    V lanes[most * most + W], minus_lanes[most * most + W];
    for (std::int64_t v = first; v < last; v++) {
      T* grad = pass.product_grad + v * width;
      if (pass.gate != Gate::none) {
        const T* row = pass.product + v * width;
        for (int i = 0; i < d; i++) {
          int c = 0;
          for (; c < q; c += W) {
            V by_plus, by_minus;
            gate_slopes(pass, load(row + i * r + c), load(row + i * r + pass.channels + c), by_plus, by_minus);
            const V x = load_part(pass.step_grad + (v * d + i) * q + c, q - c);
            store(grad + i * r + c, x * by_plus);
            store(grad + i * r + pass.channels + c, x * by_minus);
          }
        }
      }
      const T *values = pass.values + v * width, *matrix = pass.diagonal + v * dd;
      send<true>(pass, matrix, pass.minus_diagonal ? pass.minus_diagonal + v * dd : nullptr, grad, pass.values_grad + v * width);
      if (!pass.diagonal_grad) continue;
      matrix_gradient(pass, matrix, grad, values, lanes, minus_lanes);
      write_sums(lanes, dd, pass.diagonal_grad + v * dd);
      if (pass.minus_diagonal_grad) write_sums(minus_lanes, dd, pass.minus_diagonal_grad + v * dd);
    }
  }

  static void backward(const ProductPass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), dd = d * d, width = d * pass.parts * pass.channels;
    // Vectors of W edges wait here until their lanes are summed: W edges fill whole vectors of results.
    V* waiting = reinterpret_cast<V*>(share.scratch);
    V* waiting_minus = waiting + (dd + 1) * W;
    std::int64_t start = pass.pointer[share.first];  // first edge that waits
    const std::int64_t end = pass.pointer[share.last];
    auto flush = [&](std::int64_t edges) {
      write_sums(waiting, edges * dd, pass.blocks_grad + start * dd);
      if (pass.minus_blocks_grad) write_sums(waiting_minus, edges * dd, pass.minus_blocks_grad + start * dd);
      start += edges;
    };
    for (std::int64_t v = share.first; v < share.last; v++) {
      const T* grad = pass.product_grad + v * width;
      for (std::int64_t e = pass.pointer[v]; e < pass.pointer[v + 1]; e++) {
        if (e + reach < end) {
          ask_for(pass.values + pass.source[e + reach] * static_cast<std::int64_t>(width), width);
          ask_for(pass.values_grad + pass.slot[e + reach] * static_cast<std::int64_t>(width), width);
        }
        const T* matrix = pass.blocks + e * dd;
        if (pass.blocks_grad) {
          const std::int64_t place = (e - start) * dd;
          matrix_gradient(pass, matrix, grad, pass.values + pass.source[e] * static_cast<std::int64_t>(width), waiting + place,
                          waiting_minus + place);
          if (e - start == W - 1) flush(W);
        }
        send<false>(pass, matrix, pass.minus_diagonal ? pass.minus_blocks + e * dd : nullptr, grad,
                    pass.values_grad + pass.slot[e] * static_cast<std::int64_t>(width));
      }
    }
    if (pass.blocks_grad && start < end) flush(end - start);
  }
};

template <class T> std::int64_t block_scratch(int d, int hidden, int row) {
  constexpr std::int64_t W = Lanes<T>::W, EB = EdgeBlock<T>::EB;
  const std::int64_t dd = static_cast<std::int64_t>(d) * d;
  const std::int64_t maps = 2 * EB * hidden + 2 * dd * (hidden + W), products = 2 * (dd + 1) * W * W;
  return (maps > products ? maps : products) + row;
}

}  // namespace
