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
    alignas(64) T maps[2 * most_squared * EB];     // raw outputs, then F, then gradients of the raw outputs
    alignas(64) T sizes[2 * most_squared * EB];    // M, then its gradient
    alignas(64) T tangent[2 * most_squared * EB];  // tanh(raw / 2)
    alignas(64) T inverse[2 * EB];                 // 1 / sqrt(|raw|^2 + softening^2)
    alignas(64) T product[most_squared * EB];      // w F_t^T F_s forward, gradient of the block backward
    alignas(64) T square[most_squared * EB];       // F_t^T F_t, upper triangle
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
        const V t = hyperbolic_tangent<T>(splat(T(0.5)) * load(block.maps + i));
        store(block.tangent + i, t);
        store(block.maps + i, t * load(block.sizes + i));
      }
      return;
    }
    const V soft = splat(pass.softening * pass.softening);
    for (int map = 0; map < 2; map++)
      for (int g = 0; g < EB; g += W) {
        T* raw = block.maps + map * dd * EB + g;
        V sum = soft;
        for (int i = 0; i < dd; i++) sum += load(raw + i * EB) * load(raw + i * EB);
        const V inverse = splat(T(1)) / root(sum);
        store(block.inverse + map * EB + g, inverse);
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

  static void forward(const MapPass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), dd = d * d;
    T* columns = share.scratch;
    Block block;
    V diagonal[most_squared];
    T upper[most_squared];
    std::int64_t v = share.first;
    const std::int64_t end = pass.pointer[share.last];
    auto enter = [&] {
      for (; v < share.last && pass.pointer[v + 1] == pass.pointer[v]; v++)
        for (int i = 0; i < dd; i++) pass.diagonal[v * dd + i] = T(i % (d + 1) == 0);
      for (int i = 0; i < dd; i++) diagonal[i] = V{};
    };
    enter();
    for (std::int64_t e0 = pass.pointer[share.first]; e0 < end; e0 += EB) {
      Common::take(pass, e0, end, block);
      const typename Common::Ahead next = Common::reads_after(pass, e0, end);
      for (int quarter = 0; quarter < 4; quarter++) next.request(quarter);
      maps_of<false>(pass, block, e0, nullptr, columns);
      products(pass, block);
      collect_rows(block.product, dd, block.count, pass.blocks + e0 * dd);
      for (int a = 0; a < block.count;) {
        const std::int64_t stop = pass.pointer[v + 1] - e0;
        const int b = stop < block.count ? static_cast<int>(stop) : block.count;
        Edge::add_squares(d, block.square, a, b, diagonal);
        if (stop == b) {
          Edge::sum_lanes(d, diagonal, upper);
          const T factor = pass.sign * pass.inverse_degree[v];
          for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++)
              pass.diagonal[v * dd + i * d + j] = T(i == j) + factor * (i < j ? upper[i * d + j] : upper[j * d + i]);
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
        if (pass.sizes) {
          T *size = block.sizes + map * dd * EB + g, *tangent = block.tangent + map * dd * EB + g;
          Edge::each(dd, [&](int i) {
            const V t = load(tangent + i * EB);
            store(f + i * EB, gradient[i] * load(size + i * EB) * (splat(T(0.5)) - splat(T(0.5)) * t * t));
            store(size + i * EB, gradient[i] * t);
          });
        } else {
          const V inverse = load(block.inverse + map * EB + g);
          V along{};
          Edge::each(dd, [&](int i) { along += gradient[i] * load(f + i * EB); });
          Edge::each(dd, [&](int i) { store(f + i * EB, (gradient[i] - load(f + i * EB) * along) * inverse); });
        }
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
    alignas(64) T curve[most_squared * Edge::pitch];  // written with overrun, as in edges.hpp
    T upper[most_squared];
    std::int64_t v = share.first;
    const std::int64_t end = pass.pointer[share.last];
    auto enter = [&] {
      for (; v < share.last; v++) {
        T* hidden = pass.target_hidden_grad + v * pass.target_hidden_grad_stride;
        for (int i = 0; i < h; i++) hidden[i] = T(0);
        if (pass.pointer[v + 1] == pass.pointer[v]) continue;
        const T factor = pass.sign * pass.inverse_degree[v];
        const T* grad = pass.diagonal_grad + v * dd;
        for (int i = 0; i < d; i++)
          for (int j = i; j < d; j++) upper[i * d + j] = factor * (grad[i * d + j] + grad[j * d + i]);
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
          for (int e = block.count; e < EB; e++) curve[i * Edge::pitch + e] = T(0);
      map_gradients(pass, block, curve);
      for (int quarter = 0; quarter < 4; quarter++) next.request(quarter);
      if (pass.sizes_grad) collect_rows(block.sizes, 2 * dd, block.count, pass.sizes_grad + e0 * 2 * dd);
      if (parameters) {
        for (int i = 0; i < 2 * dd; i++) {
          T* bias = partial_bias + i * W;
          store(bias, load(bias) + (load(block.maps + i * EB) + load(block.maps + i * EB + W)));
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

  // One entry of a matrix in all lanes; its absolute value where no sizes were given.
  template <bool absolute> static SHEAFDEQ_INLINE V entry(T x) {
    return splat(absolute ? (sizeof(T) == 4 ? T(__builtin_fabsf(float(x))) : T(__builtin_fabs(double(x)))) : x);
  }
  // sign(x) y, with sign(0) = 0 as PyTorch has it.
  static SHEAFDEQ_INLINE V signed_by(T x, V y) {
    const V m = splat(x), minus = splat(T(-0.0));
    return m == V{} ? V{} : (V)((I)y ^ ((I)m & (I)minus));
  }

  static SHEAFDEQ_INLINE void ask_for(const T* row, int width) {
    const char* bytes = reinterpret_cast<const char*>(row);
    for (int b = 0; b < width * static_cast<int>(sizeof(T)); b += 64) __builtin_prefetch(bytes + b);
  }

  // row[i] = matrix values[i] summed over the node and its edges, NV vectors of channels at once.
  template <int NV, bool absolute>
  static SHEAFDEQ_INLINE void receive(const ProductPass<T>& pass, std::int64_t v, int c, const T* blocks, const T* diagonal,
                                      std::int64_t last, T* row) {
    const int d = dim(pass), q = pass.parts * pass.channels, width = d * q;
    V sum[most][NV];
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) sum[i][k] = V{};
    auto add = [&](const T* matrix, const T* values) {
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        V y[NV];
        SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) y[k] = load(values + j * q + k * W);
        SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
          const V m = entry<absolute>(matrix[i * d + j]);
          SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) sum[i][k] += m * y[k];
        }
      }
    };
    add(diagonal + v * d * d, pass.values + v * width + c);
    for (std::int64_t e = pass.pointer[v]; e < pass.pointer[v + 1]; e++) {
      if (c == 0 && e + reach < last) ask_for(pass.values + pass.source[e + reach] * static_cast<std::int64_t>(width), width);
      add(blocks + e * d * d, pass.values + pass.source[e] * static_cast<std::int64_t>(width) + c);
    }
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) store(row + i * q + c + k * W, sum[i][k]);
  }

  template <bool absolute>
  static SHEAFDEQ_INLINE void receive_part(const ProductPass<T>& pass, std::int64_t v, int part, const T* blocks,
                                           const T* diagonal, std::int64_t last, T* row) {
    const int begin = part * pass.channels, end = begin + pass.channels;
    int c = begin;
    for (; c + 2 * W <= end; c += 2 * W) receive<2, absolute>(pass, v, c, blocks, diagonal, last, row);
    for (; c < end; c += W) receive<1, absolute>(pass, v, c, blocks, diagonal, last, row);
  }

  // gate(p, g), and its two derivatives.
  static SHEAFDEQ_INLINE V gated(const ProductPass<T>& pass, V p, V g) {
    const V half = splat(T(0.5)), one = splat(T(1));
    const V a = half * (g + p), b = half * (g - p);
    if (pass.gate == Gate::tanh) return hyperbolic_tangent<T>(a) - hyperbolic_tangent<T>(b);
    if (pass.gate == Gate::rational) return p / ((one + a) * (one + b));
    return p / (splat(pass.floor) + g);
  }
  static SHEAFDEQ_INLINE void gate_slopes(const ProductPass<T>& pass, V p, V g, V& by_p, V& by_g) {
    const V half = splat(T(0.5)), one = splat(T(1));
    const V a = half * (g + p), b = half * (g - p);
    if (pass.gate == Gate::tanh) {
      const V x = hyperbolic_tangent<T>(a), y = hyperbolic_tangent<T>(b);
      by_p = half * ((one - x * x) + (one - y * y));
      by_g = half * (y * y - x * x);
    } else if (pass.gate == Gate::rational) {
      const V x = one / (one + a), y = one / (one + b);
      by_p = half * (x * x + y * y);
      by_g = -(p * (one + half * g)) * (x * y) * (x * y);  // half (x^2 - y^2) without cancellation
    } else {
      const V x = one / (splat(pass.floor) + g);
      by_p = x;
      by_g = -p * x * x;
    }
  }

  static void forward(const ProductPass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), q = pass.step_channels, r = pass.parts * pass.channels, width = d * r;
    const std::int64_t last = pass.pointer[share.last];
    for (std::int64_t v = share.first; v < share.last; v++) {
      T* row = pass.product ? pass.product + v * width : share.scratch;
      receive_part<false>(pass, v, 0, pass.blocks, pass.diagonal, last, row);
      if (pass.parts == 2) {
        if (pass.size_diagonal)
          receive_part<false>(pass, v, 1, pass.size_blocks, pass.size_diagonal, last, row);
        else
          receive_part<true>(pass, v, 1, pass.blocks, pass.diagonal, last, row);
      }
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

  // out[i d + j] = grad[i] values[j], lane by lane; summed over the lanes later.
  static SHEAFDEQ_INLINE void inner_products(const ProductPass<T>& pass, const T* grad, const T* values, V* out) {
    constexpr int RI = D == 0 ? 1 : (D <= 3 ? D : 2);
    const int d = dim(pass), r = pass.parts * pass.channels, q = pass.channels;
    for (int i0 = 0; i0 < d; i0 += RI) {
      V sum[RI][most];
      SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) sum[i][j] = V{};
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

  // Lane sums of one matrix gradient: through the signed part and, without sizes, through the absolute values.
  static SHEAFDEQ_INLINE void matrix_gradient(const ProductPass<T>& pass, const T* matrix, const T* grad, const T* values,
                                              V* out, V* sizes_out, V* spare) {
    const int d = dim(pass);
    inner_products(pass, grad, values, out);
    if (pass.parts == 1) return;
    V* second = pass.size_diagonal ? sizes_out : spare;
    inner_products(pass, grad + pass.channels, values + pass.channels, second);
    if (pass.size_diagonal) return;
    SHEAFDEQ_UNROLL for (int i = 0; i < d * d; i++) out[i] += signed_by(matrix[i], second[i]);
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
  template <int NV, bool absolute, bool fresh>
  static SHEAFDEQ_INLINE void send_back(const ProductPass<T>& pass, const T* matrix, const T* grad, int c, T* values) {
    const int d = dim(pass), r = pass.parts * pass.channels;
    V sum[most][NV];
    SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) {
      sum[j][k] = fresh ? V{} : load(values + j * r + c + k * W);
    }
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
      V x[NV];
      SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) x[k] = load(grad + i * r + c + k * W);
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        const V m = entry<absolute>(matrix[i * d + j]);
        SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) sum[j][k] += m * x[k];
      }
    }
    SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) SHEAFDEQ_UNROLL for (int k = 0; k < NV; k++) store(values + j * r + c + k * W, sum[j][k]);
  }
  template <bool absolute, bool fresh>
  static SHEAFDEQ_INLINE void send_part(const ProductPass<T>& pass, int part, const T* matrix, const T* grad, T* values) {
    const int begin = part * pass.channels, end = begin + pass.channels;
    int c = begin;
    for (; c + 2 * W <= end; c += 2 * W) send_back<2, absolute, fresh>(pass, matrix, grad, c, values);
    for (; c < end; c += W) send_back<1, absolute, fresh>(pass, matrix, grad, c, values);
  }
  template <bool fresh>
  static SHEAFDEQ_INLINE void send(const ProductPass<T>& pass, const T* matrix, const T* size, const T* grad, T* values) {
    send_part<false, fresh>(pass, 0, matrix, grad, values);
    if (pass.parts == 1) return;
    if (size)
      send_part<false, fresh>(pass, 1, size, grad, values);
    else
      send_part<true, fresh>(pass, 1, matrix, grad, values);
  }

  // Gradient of the product through the gate, and everything on the diagonal. Rows are written, not added to, so that the
  // edges may add to them afterwards, from whatever thread the plan gives them.
  static void nodes(const ProductPass<T>& pass, std::int64_t first, std::int64_t last) {
    const int d = dim(pass), dd = d * d, q = pass.step_channels, r = pass.parts * pass.channels, width = d * r;
    V lanes[most * most + W], size_lanes[most * most + W], spare[most * most];
    for (std::int64_t v = first; v < last; v++) {
      T* grad = pass.product_grad + v * width;
      if (pass.gate != Gate::none) {
        const T* row = pass.product + v * width;
        for (int i = 0; i < d; i++) {
          int c = 0;
          for (; c < q; c += W) {
            V by_p, by_g;
            gate_slopes(pass, load(row + i * r + c), load(row + i * r + pass.channels + c), by_p, by_g);
            const V x = load_part(pass.step_grad + (v * d + i) * q + c, q - c);
            store(grad + i * r + c, x * by_p);
            store(grad + i * r + pass.channels + c, x * by_g);
          }
        }
      }
      const T *values = pass.values + v * width, *matrix = pass.diagonal + v * dd;
      send<true>(pass, matrix, pass.size_diagonal ? pass.size_diagonal + v * dd : nullptr, grad, pass.values_grad + v * width);
      if (!pass.diagonal_grad) continue;
      matrix_gradient(pass, matrix, grad, values, lanes, size_lanes, spare);
      write_sums(lanes, dd, pass.diagonal_grad + v * dd);
      if (pass.size_diagonal_grad) write_sums(size_lanes, dd, pass.size_diagonal_grad + v * dd);
    }
  }

  static void backward(const ProductPass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), dd = d * d, width = d * pass.parts * pass.channels;
    // Vectors of W edges wait here until their lanes are summed: W edges fill whole vectors of results.
    V* waiting = reinterpret_cast<V*>(share.scratch);
    V* waiting_sizes = waiting + (dd + 1) * W;
    V spare[most * most];
    std::int64_t start = pass.pointer[share.first];  // first edge that waits
    const std::int64_t end = pass.pointer[share.last];
    auto flush = [&](std::int64_t edges) {
      write_sums(waiting, edges * dd, pass.blocks_grad + start * dd);
      if (pass.size_blocks_grad) write_sums(waiting_sizes, edges * dd, pass.size_blocks_grad + start * dd);
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
                          waiting_sizes + place, spare);
          if (e - start == W - 1) flush(W);
        }
        send<false>(pass, matrix, pass.size_diagonal ? pass.size_blocks + e * dd : nullptr, grad,
                    pass.values_grad + pass.slot[e] * static_cast<std::int64_t>(width));
      }
    }
    if (pass.blocks_grad && start < end) flush(end - start);
  }
};

template <class T> std::int64_t block_scratch(int d, int hidden, int row) {
  constexpr std::int64_t W = Lanes<T>::W, EB = 2 * W;
  const std::int64_t dd = static_cast<std::int64_t>(d) * d;
  const std::int64_t maps = 2 * EB * hidden + 2 * dd * (hidden + W), products = 2 * (dd + 1) * W * W;
  return (maps > products ? maps : products) + row;
}

}  // namespace
