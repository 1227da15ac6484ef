// A step with so few channels that a row fills a fraction of a vector: nodes in the lanes of the node part, edges in the lanes of
// the edge part, and no padding of channels or hidden units.
//
// Rows of the tables have `row` = 16 entries: both hidden rows [source generator | target generator] side by side (2h <= 16), values
// with room for a d x d matrix after them (d q + d d <= 16). Rows are gathered for as many edges as a vector has lanes and
// transposed; results are transposed back and added to rows, one addition an edge for messages and F_t^T F_t together.
// The maps themselves (second layer, norms, products, derivatives) are those of EdgeKernel, for the same blocks of edges.
#pragma once

#include "edges.hpp"
#include "nodes.hpp"

namespace {

// Rows of sixteen entries and their columns, W rows at once. Columns lie `pitch` entries apart.
template <class T> struct NarrowRows {
  using V = Vec<T>;
  static constexpr int W = Lanes<T>::W;
  static constexpr int row = sheafdeq::narrow_row;
  static constexpr int parts = row / W;

  // The first `count` columns of W rows; row_of(e) is a row of a table.
  template <class F> static SHEAFDEQ_INLINE void to_columns(F&& row_of, int count, T* columns, int pitch) {
    to_columns_of([&](int e, int p) { return load(row_of(e) + p * W); }, count, columns, pitch);
  }
  // part_of(e, p) is part p of row e, as a vector.
  template <class F> static SHEAFDEQ_INLINE void to_columns_of(F&& part_of, int count, T* columns, int pitch) {
    SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) {
      if (p * W >= count) return;
      V r[W];
      SHEAFDEQ_UNROLL for (int e = 0; e < W; e++) r[e] = part_of(e, p);
      transpose<T>(r);
      SHEAFDEQ_UNROLL for (int j = 0; j < W; j++) {
        if (p * W + j < count) store(columns + (p * W + j) * pitch, r[j]);
      }
    }
  }
  // Part p of W rows from `count` columns, zeros after them.
  static SHEAFDEQ_INLINE void to_rows(const T* columns, int pitch, int count, int p, V* r) {
    SHEAFDEQ_UNROLL for (int j = 0; j < W; j++) r[j] = p * W + j < count ? load(columns + (p * W + j) * pitch) : V{};
    transpose<T>(r);
  }
  // Columns of rows of `width` entries without padding: of the caller's tensors. Rows from `rows` on are zeros.
  template <class F> static SHEAFDEQ_INLINE void given_columns(F&& row_of, int rows, int width, T* columns) {
    to_columns_of([&](int e, int p) { return e < rows && p * W < width ? load_part(row_of(e) + p * W, width - p * W) : V{}; },
                  width, columns, W);
  }
  template <class F> static SHEAFDEQ_INLINE void write_given(const T* columns, int rows, int width, F&& row_of) {
    SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) {
      if (p * W >= width) return;
      V r[W];
      to_rows(columns, W, width, p, r);
      SHEAFDEQ_UNROLL for (int e = 0; e < W; e++) {
        if (e < rows) store_part(row_of(e) + p * W, r[e], width - p * W);
      }
    }
  }
};

template <class T> struct NarrowNodes {
  using V = Vec<T>;
  using Rows = NarrowRows<T>;
  static constexpr int W = Lanes<T>::W, row = Rows::row;
  static constexpr int flush_every = 64;  // blocks whose parameter gradients are summed before widening

  // out[i] = start[i] + sum_k weight[k stride + i] in[k] for `outputs` columns; `start` null: zero; `add`: to what is there.
  template <int R, bool add>
  static SHEAFDEQ_INLINE void tile(const T* in, int depth, const T* weight, int stride, const T* start, T* out) {
    V sum[R];
    SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) sum[r] = add ? load(out + r * W) : start ? splat(start[r]) : V{};
    for (int k = 0; k < depth; k++) {
      const V x = load(in + k * W);
      SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) sum[r] += splat(weight[k * stride + r]) * x;
    }
    SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) store(out + r * W, sum[r]);
  }
  template <bool add = false>
  static SHEAFDEQ_NOINLINE void combine(const T* in, int depth, const T* weight, int stride, const T* start, int outputs, T* out) {
    int i = 0;
    for (; i + 6 <= outputs; i += 6) tile<6, add>(in, depth, weight + i, stride, start ? start + i : nullptr, out + i * W);
    for (; i + 2 <= outputs; i += 2) tile<2, add>(in, depth, weight + i, stride, start ? start + i : nullptr, out + i * W);
    if (i < outputs) tile<1, add>(in, depth, weight + i, stride, start ? start + i : nullptr, out + i * W);
  }

  // sum[i columns + k] += a[i] b[k], lane by lane, A rows of sums at once.
  template <int A> static SHEAFDEQ_INLINE void outer_tile(const T* a, const T* b, int columns, T* sum) {
    V x[A];
    SHEAFDEQ_UNROLL for (int r = 0; r < A; r++) x[r] = load(a + r * W);
    for (int k = 0; k < columns; k++) {
      const V y = load(b + k * W);
      SHEAFDEQ_UNROLL for (int r = 0; r < A; r++) {
        T* at = sum + (r * columns + k) * W;
        store(at, load(at) + x[r] * y);
      }
    }
  }
  static SHEAFDEQ_NOINLINE void add_outer(const T* a, int rows, const T* b, int columns, T* sum) {
    int i = 0;
    for (; i + 4 <= rows; i += 4) outer_tile<4>(a + i * W, b, columns, sum + i * columns * W);
    for (; i < rows; i++) outer_tile<1>(a + i * W, b, columns, sum + i * columns * W);
  }

  // Columns of the state, and of the state with normalised rows; d reciprocal norms, and 0 where the norm is below the floor, else 1.
  static SHEAFDEQ_INLINE void normalised(const NodePass<T>& pass, std::int64_t v, int nodes, T* x, T* z, T* inverse, T* slope) {
    const int d = pass.d, q = pass.q, c = d * q;
    Rows::given_columns([&](int e) { return pass.state + (pass.node_order ? pass.node_order[v + e] : v + e) * c; }, nodes, c, x);
    const V floor = splat(T(sheafdeq::norm_floor)), one = splat(T(1));
    for (int i = 0; i < d; i++) {
      V square{};
      for (int k = 0; k < q; k++) square += load(x + (i * q + k) * W) * load(x + (i * q + k) * W);
      const V norm = root(square), factor = pass.pre_norm ? one / (norm < floor ? floor : norm) : one;
      store(inverse + i * W, factor);
      store(slope + i * W, pass.pre_norm ? (norm < floor ? V{} : one) : V{});
      for (int k = 0; k < q; k++) store(z + (i * q + k) * W, load(x + (i * q + k) * W) * factor);
    }
  }
  // u = H W_2
  static SHEAFDEQ_INLINE void half_values(const NodePass<T>& pass, const T* x, T* u) {
    for (int i = 0; i < pass.d; i++)
      combine(x + i * pass.q * W, pass.q, pass.channel_mixing, pass.q, nullptr, pass.q, u + i * pass.q * W);
  }
  static SHEAFDEQ_INLINE void write_rows(const T* columns, int count, int nodes, T* table, std::int64_t stride) {
    SHEAFDEQ_UNROLL for (int p = 0; p < Rows::parts; p++) {
      V r[W];
      Rows::to_rows(columns, W, count, p, r);
      SHEAFDEQ_UNROLL for (int e = 0; e < W; e++) {
        if (e < nodes) store(table + e * stride + p * W, r[e]);
      }
    }
  }

  static void forward(const NodePass<T>& pass, std::int64_t first, std::int64_t last, T* scratch) {
    const int d = pass.d, q = pass.q, c = d * q, h2 = 2 * pass.hidden;
    T *x = scratch, *z = x + row * W, *out = z + row * W, *inverse = out + row * W, *slope = inverse + row * W;
    for (std::int64_t v = first; v < last; v += W) {
      const int nodes = last - v < W ? static_cast<int>(last - v) : W;
      T *source = pass.source + v * pass.source_stride, *target = pass.target + v * pass.target_stride;
      normalised(pass, v, nodes, x, z, inverse, slope);
      combine(z, c, pass.first_columns, 2 * h2, nullptr, h2, out);
      write_rows(out, h2, nodes, source, pass.source_stride);
      combine(z, c, pass.first_columns + h2, 2 * h2, pass.bias, h2, out);
      write_rows(out, h2, nodes, target, pass.target_stride);
      half_values(pass, x, z);
      for (int k = 0; k < q; k++)
        for (int i = 0; i < d; i++) {
          V sum{};
          for (int j = 0; j < d; j++) sum += splat(pass.stalk_mixing[i * d + j]) * load(z + (j * q + k) * W);
          store(out + (i * q + k) * W, sum);
        }
      write_rows(out, c, nodes, source + row, pass.source_stride);
    }
  }

  // In the order of NodeKernel, without padding.
  static std::int64_t parameters(const NodePass<T>& pass) {
    return 4LL * pass.hidden * pass.d * pass.q + 2 * pass.hidden + pass.d * pass.d + pass.q * pass.q;
  }
  static std::int64_t scratch(const NodePass<T>& pass) { return (12LL * row + parameters(pass)) * W; }

  // The rows of `own_grad` hold the gradient of the node's product and, after it, the sum of F_t^T F_t over its edges.
  static void backward(const NodePass<T>& pass, std::int64_t first, std::int64_t last, T* scratch, double* parameter_grad) {
    const int d = pass.d, q = pass.q, c = d * q, h2 = 2 * pass.hidden;
    T* at = scratch;
    auto next = [&] { return (at += row * W) - row * W; };
    T *x = next(), *z = next(), *inverse = next(), *slope = next(), *source = next(), *target = next(), *values = next(), *own = next();
    T *z_grad = next(), *half = next(), *half_grad = next(), *out = next();
    T *first_sum = at, *bias_sum = first_sum + 2 * h2 * c * W, *stalk_sum = bias_sum + h2 * W, *channel_sum = stalk_sum + d * d * W;
    const std::int64_t count = parameters(pass);
    for (std::int64_t i = 0; i < count * W; i++) first_sum[i] = T(0);
    auto flush = [&] {
      for (std::int64_t i = 0; parameter_grad && i < count; i++) {
        double total = 0;
        for (int l = 0; l < W; l++) {
          total += first_sum[i * W + l];
          first_sum[i * W + l] = T(0);
        }
        parameter_grad[i] += total;
      }
    };
    int blocks = 0;
    alignas(64) static const T nothing[row] = {};
    for (std::int64_t v = first; v < last; v += W) {
      const int nodes = last - v < W ? static_cast<int>(last - v) : W;
      auto rows_of = [&](const T* table, std::int64_t stride, int width, T* columns) {
        Rows::to_columns([&](int e) { return e < nodes ? table + (v + e) * stride : nothing; }, width, columns, W);
      };
      normalised(pass, v, nodes, x, z, inverse, slope);
      rows_of(pass.source, pass.source_stride, h2, source);
      rows_of(pass.source + row, pass.source_stride, c, values);
      rows_of(pass.target, pass.target_stride, h2, target);
      rows_of(pass.own_grad, pass.own_grad_stride, c + d * d, own);
      // first layer
      combine(source, h2, pass.first_rows, c, nullptr, c, z_grad);
      combine<true>(target, h2, pass.first_rows + h2 * c, c, nullptr, c, z_grad);
      // the gradient of the values: from the edges, and from the node's own product
      const V factor = load_part(pass.inverse_degree + v, nodes);
      for (int i = 0; i < d; i++)
        for (int k = 0; k < q; k++) {
          V sum{};
          for (int j = 0; j < d; j++) sum += load(own + (c + (i < j ? i * d + j : j * d + i)) * W) * load(own + (j * q + k) * W);
          T* value = values + (i * q + k) * W;
          store(value, load(value) + load(own + (i * q + k) * W) - factor * sum);
        }
      for (int k = 0; k < q; k++)
        for (int j = 0; j < d; j++) {
          V sum{};
          for (int i = 0; i < d; i++) sum += splat(pass.stalk_mixing[i * d + j]) * load(values + (i * q + k) * W);
          store(half_grad + (j * q + k) * W, sum);
        }
      if (parameter_grad) {
        add_outer(source, h2, z, c, first_sum);
        add_outer(target, h2, z, c, first_sum + h2 * c * W);
        for (int i = 0; i < h2; i++) store(bias_sum + i * W, load(bias_sum + i * W) + load(target + i * W));
        half_values(pass, x, half);
        for (int i = 0; i < d; i++)
          for (int j = 0; j < d; j++) {
            V sum = load(stalk_sum + (i * d + j) * W);
            for (int k = 0; k < q; k++) sum += load(values + (i * q + k) * W) * load(half + (j * q + k) * W);
            store(stalk_sum + (i * d + j) * W, sum);
          }
        for (int j = 0; j < d; j++) add_outer(x + j * q * W, q, half_grad + j * q * W, q, channel_sum);
      }
      for (int j = 0; j < d; j++)
        combine(half_grad + j * q * W, q, pass.channel_mixing_columns, q, nullptr, q, out + j * q * W);
      // through the normalisation
      for (int i = 0; i < d; i++) {
        V along{};
        for (int k = 0; k < q; k++) along += load(z + (i * q + k) * W) * load(z_grad + (i * q + k) * W);
        along *= load(slope + i * W);
        for (int k = i * q; k < (i + 1) * q; k++)
          store(out + k * W, load(out + k * W) + (load(z_grad + k * W) - load(z + k * W) * along) * load(inverse + i * W));
      }
      Rows::write_given(out, nodes, c, [&](int e) { return pass.state_grad + (pass.node_order ? pass.node_order[v + e] : v + e) * c; });
      if (++blocks == flush_every) {
        flush();
        blocks = 0;
      }
    }
    flush();
  }
};

template <class T, int D> struct NarrowEdges {
  using V = Vec<T>;
  using I = typename Lanes<T>::I;
  using Maps = EdgeKernel<T, D>;
  using Common = EdgeBlock<T>;
  using Rows = NarrowRows<T>;
  static constexpr int W = Lanes<T>::W, EB = Common::EB, row = Rows::row, parts = Rows::parts, pitch = Maps::pitch, dd = D * D;
  static constexpr int flush_every = 64;

  static std::int64_t scratch(int h) { return 4LL * row * EB + static_cast<std::int64_t>(row) * pitch + 2LL * dd * (h + 1) * W + row * W; }

  // Columns of the rectified hidden rows (2h) and of the sources' values (c).
  static SHEAFDEQ_INLINE void gather(const EdgePass<T>& pass, const typename Common::Edges& block, std::int64_t e0, T* hidden, T* values) {
    const int h2 = 2 * pass.hidden, c = D * pass.channels;
    for (int g = 0; g < EB; g += W) {
      auto source = [&](int e) { return pass.source_hidden + block.source[g + e] * pass.source_hidden_stride; };
      auto target = [&](int e) { return pass.target_hidden + block.target[g + e] * pass.target_hidden_stride; };
      if (pass.edge_hidden) {
        Rows::to_columns_of(
            [&](int e, int p) {
              const int x = g + e < block.count ? g + e : block.count - 1;
              const T* edge = pass.edge_hidden + pass.given_edge(e0 + x) * pass.edge_hidden_stride + p * W;
              return rectify(load(source(e) + p * W) + load(target(e) + p * W) + load_part(edge, h2 - p * W));
            },
            h2, hidden + g, EB);
      } else {
        Rows::to_columns_of([&](int e, int p) { return rectify(load(source(e) + p * W) + load(target(e) + p * W)); }, h2, hidden + g, EB);
      }
      Rows::to_columns([&](int e) { return pass.source_values + block.source[g + e] * pass.source_values_stride; }, c, values + g, EB);
    }
  }

  // tanh, shift and drive of W finished nodes, whose rows [messages | F_t^T F_t] are in `rows`.
  static SHEAFDEQ_NOINLINE void finish(const EdgePass<T>& pass, std::int64_t v, int nodes, const T* rows, T* columns) {
    const int q = pass.channels, c = D * q;
    T *sums = columns, *own = sums + row * W, *drive = own + row * W;
    Rows::to_columns([&](int e) { return rows + (e < nodes ? e : 0) * row; }, c + dd, sums, W);
    Rows::to_columns([&](int e) { return pass.own_values + (v + (e < nodes ? e : 0)) * pass.own_values_stride; }, c, own, W);
    Rows::given_columns([&](int e) { return pass.drive + pass.given_node(v + e) * c; }, nodes, c, drive);
    const V factor = load_part(pass.inverse_degree + v, nodes), shift = splat(pass.shift);
    for (int k = 0; k < q; k++) {
      V y[D], t[D];
      SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) y[i] = load(own + (i * q + k) * W);
      SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) {
        V sum{};
        SHEAFDEQ_UNROLL for (int j = 0; j < D; j++) sum += load(sums + (c + (i < j ? i * D + j : j * D + i)) * W) * y[j];
        t[i] = y[i] - factor * sum + load(sums + (i * q + k) * W);
      }
      SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) t[i] = hyperbolic_tangent<T>(t[i]);
      SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) {
        const int at = (i * q + k) * W;
        store(own + at, t[i]);
        store(drive + at, t[i] + shift + load(drive + at));
      }
    }
    if (pass.tanh) Rows::write_given(own, nodes, c, [&](int e) { return pass.tanh + pass.given_node(v + e) * c; });
    Rows::write_given(drive, nodes, c, [&](int e) { return pass.step + pass.given_node(v + e) * c; });
  }

  static void forward(const EdgePass<T>& pass, const EdgeShare<T>& share) {
    const int q = pass.channels, c = D * q;
    T *hidden = share.scratch, *values = hidden + row * EB, *message = values + row * EB, *columns = message + row * EB;
    T* finished = columns + row * pitch;  // (W, row) of the nodes from `begin` on
    typename Maps::Block block;
    for (int i = 0; i < dd * EB; i++) block.square[i] = T(0);
    std::int64_t v = share.first, begin = share.first;
    V sum[parts];
    auto fresh = [&] {
      SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) sum[p] = V{};
    };
    auto close = [&] {  // node v is done
      SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) store(finished + (v - begin) * row + p * W, sum[p]);
      fresh();
      v++;
      if (v - begin < W && v < share.last) return;
      finish(pass, begin, static_cast<int>(v - begin), finished, columns);
      begin = v;
    };
    auto enter = [&] {
      while (v < share.last && pass.pointer[v + 1] == pass.pointer[v]) close();
    };
    fresh();
    enter();
    const std::int64_t end = pass.pointer[share.last];
    for (std::int64_t e0 = pass.pointer[share.first]; e0 < end; e0 += EB) {
      Common::take(pass, e0, end, block);
      gather(pass, block, e0, hidden, values);
      for (int map = 0; map < 2; map++) Common::second_layer(pass, hidden + map * pass.hidden * EB, map, block.raw[map]);
      Maps::products(pass, block);
      for (int g = 0; g < EB; g += W) {
        for (int k = 0; k < q; k++) {
          V y[D];
          SHEAFDEQ_UNROLL for (int j = 0; j < D; j++) y[j] = load(values + (j * q + k) * EB + g);
          SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) {
            V total{};
            SHEAFDEQ_UNROLL for (int j = 0; j < D; j++) total += load(block.product + (i * D + j) * EB + g) * y[j];
            store(message + (i * q + k) * EB + g, total);
          }
        }
        SHEAFDEQ_UNROLL for (int i = 0; i < dd; i++) store(message + (c + i) * EB + g, load(block.square + i * EB + g));
      }
      for (int g = 0; g < block.count; g += W) {
        V rows[parts][W];
        SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) Rows::to_rows(message + g, EB, c + dd, p, rows[p]);
        const int until = block.count - g < W ? block.count - g : W;
        for (int e = 0; e < until; e++) {
          SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) sum[p] += rows[p][e];
          if (pass.pointer[v + 1] == e0 + g + e + 1) {
            close();
            enter();
          }
        }
      }
    }
  }

  // ------------------------------------------------------------------ backward

  // Rows [gradient of the product | Z, the gradient through F_t^T F_t] of W nodes, from the gradient of the step.
  static SHEAFDEQ_NOINLINE void start(const EdgePass<T>& pass, std::int64_t v, int nodes, T* columns) {
    const int q = pass.channels, c = D * q;
    T *grad = columns, *own = grad + row * W, *tanh = own + row * W;
    Rows::given_columns([&](int e) { return pass.step_grad + pass.given_node(v + e) * c; }, nodes, c, grad);
    Rows::given_columns([&](int e) { return pass.tanh + pass.given_node(v + e) * c; }, nodes, c, tanh);
    Rows::to_columns([&](int e) { return pass.own_values + (v + (e < nodes ? e : 0)) * pass.own_values_stride; }, c, own, W);
    for (int k = 0; k < c; k++) {
      const V t = load(tanh + k * W);
      store(grad + k * W, load(grad + k * W) * (splat(T(1)) - t * t));
    }
    const V factor = -load_part(pass.inverse_degree + v, nodes);
    SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) SHEAFDEQ_UNROLL for (int j = 0; j < D; j++) {
      V sum{};
      for (int k = 0; k < q && i <= j; k++)
        sum += load(grad + (i * q + k) * W) * load(own + (j * q + k) * W) + load(grad + (j * q + k) * W) * load(own + (i * q + k) * W);
      store(grad + (c + i * D + j) * W, factor * sum);
    }
    NarrowNodes<T>::write_rows(grad, c + dd, nodes, pass.own_values_grad + v * pass.own_values_grad_stride, pass.own_values_grad_stride);
  }

  // sum[i][k] += sum over the block of a[i] b[k], lane by lane.
  static SHEAFDEQ_NOINLINE void weight_gradient(const T* a, const T* hidden, int h, T* sum) {
    for (int i = 0; i < dd; i++) {
      const V x = load(a + i * EB), y = load(a + i * EB + W);
      T* at = sum + i * h * W;
      for (int k = 0; k < h; k++, at += W) store(at, load(at) + x * load(hidden + k * EB) + y * load(hidden + k * EB + W));
    }
  }

  // Columns of the gradient of the hidden rows of one generator, masked by the rectifier.
  static SHEAFDEQ_NOINLINE void hidden_gradient(const T* a, const T* weight, const T* hidden, int h, T* out) {
    for (int k = 0; k < h; k++) {
      V x{}, y{};
      SHEAFDEQ_UNROLL for (int i = 0; i < dd; i++) {
        const V w = splat(weight[i * h + k]);
        x += w * load(a + i * EB);
        y += w * load(a + i * EB + W);
      }
      store(out + k * EB, load(hidden + k * EB) <= V{} ? V{} : x);
      store(out + k * EB + W, load(hidden + k * EB + W) <= V{} ? V{} : y);
    }
  }

  static void backward(const EdgePass<T>& pass, const EdgeShare<T>& share) {
    const int q = pass.channels, c = D * q, h = pass.hidden, h2 = 2 * h;
    T *hidden = share.scratch, *values = hidden + row * EB, *hidden_grad = values + row * EB, *back = hidden_grad + row * EB;
    T* own = back + row * EB;              // (row, pitch) columns of the targets' rows
    T* partial = own + row * pitch;        // (2, dd, h) sums, lane by lane, then (2, dd) for the biases
    T* partial_bias = partial + 2 * dd * h * W;
    for (std::int64_t v = share.first; v < share.last; v += W)
      start(pass, v, share.last - v < W ? static_cast<int>(share.last - v) : W, own);
    const std::int64_t sums = 2 * dd * (h + 1);
    for (std::int64_t i = 0; i < sums * W; i++) partial[i] = T(0);
    auto flush = [&] {
      for (std::int64_t i = 0; share.parameter_grad && i < sums; i++) {
        double total = 0;
        for (int l = 0; l < W; l++) {
          total += partial[i * W + l];
          partial[i * W + l] = T(0);
        }
        share.parameter_grad[i] += total;
      }
    };
    typename Maps::Block block;
    for (int i = 0; i < dd * EB; i++) block.square[i] = T(0);
    alignas(64) T cross[dd * EB];
    std::int64_t v = share.first;
    V hidden_sum[parts], square_sum[parts];
    const I lane = lane_numbers<T>();
    auto fresh = [&] {
      SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) hidden_sum[p] = square_sum[p] = V{};
    };
    auto close = [&] {  // node v is done: Z makes room for the sum of F_t^T F_t
      T* of_hidden = pass.target_hidden_grad + v * pass.target_hidden_grad_stride;
      T* of_own = pass.own_values_grad + v * pass.own_values_grad_stride;
      SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) {
        store(of_hidden + p * W, hidden_sum[p]);
        store(of_own + p * W, lane < c - p * W ? load(of_own + p * W) : square_sum[p]);
      }
      fresh();
      v++;
    };
    auto enter = [&] {
      while (v < share.last && pass.pointer[v + 1] == pass.pointer[v]) close();
    };
    fresh();
    enter();
    const std::int64_t end = pass.pointer[share.last];
    int blocks = 0;
    for (std::int64_t e0 = pass.pointer[share.first]; e0 < end; e0 += EB) {
      Common::take(pass, e0, end, block);
      gather(pass, block, e0, hidden, values);
      for (int g = 0; g < EB; g += W)
        Rows::to_columns([&](int e) { return pass.grad + block.target[g + e] * pass.grad_stride; }, c + dd, own + g, pitch);
      for (int i = 0; i < dd && block.count < EB; i++)
        for (int e = block.count; e < EB; e++) own[(c + i) * pitch + e] = T(0);
      for (int map = 0; map < 2; map++) Common::second_layer(pass, hidden + map * h * EB, map, block.raw[map]);
      for (int g = 0; g < EB; g += W) {
        V sum[dd];
        SHEAFDEQ_UNROLL for (int i = 0; i < dd; i++) sum[i] = V{};
        for (int k = 0; k < q; k++) {
          V y[D];
          SHEAFDEQ_UNROLL for (int j = 0; j < D; j++) y[j] = load(values + (j * q + k) * EB + g);
          SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) {
            const V x = load(own + (i * q + k) * pitch + g);
            SHEAFDEQ_UNROLL for (int j = 0; j < D; j++) sum[i * D + j] += x * y[j];
          }
        }
        SHEAFDEQ_UNROLL for (int i = 0; i < dd; i++) store(cross + i * EB + g, sum[i]);
      }
      Maps::map_gradients(pass, block, cross, own + c * pitch);
      for (int map = 0; map < 2; map++) {
        const T* a = block.raw[map];
        hidden_gradient(a, pass.weight_of_map[map], hidden + map * h * EB, h, hidden_grad + map * h * EB);
        if (!share.parameter_grad) continue;
        weight_gradient(a, hidden + map * h * EB, h, partial + map * dd * h * W);
        for (int i = 0; i < dd; i++) {
          T* bias = partial_bias + (map * dd + i) * W;
          store(bias, load(bias) + load(a + i * EB) + load(a + i * EB + W));
        }
      }
      for (int g = 0; g < EB; g += W) {
        for (int k = 0; k < q; k++) {
          V x[D];
          SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) x[i] = load(own + (i * q + k) * pitch + g);
          SHEAFDEQ_UNROLL for (int j = 0; j < D; j++) {
            V sum{};
            SHEAFDEQ_UNROLL for (int i = 0; i < D; i++) sum += load(block.product + (i * D + j) * EB + g) * x[i];
            store(back + (j * q + k) * EB + g, sum);
          }
        }
        SHEAFDEQ_UNROLL for (int i = 0; i < dd; i++) store(back + (c + i) * EB + g, load(block.square + i * EB + g));
      }
      for (int g = 0; g < block.count; g += W) {
        V of_hidden[parts][W], of_values[parts][W];
        SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) {
          Rows::to_rows(hidden_grad + g, EB, h2, p, of_hidden[p]);
          Rows::to_rows(back + g, EB, c + dd, p, of_values[p]);
        }
        const int until = block.count - g < W ? block.count - g : W;
        for (int e = 0; e < until; e++) {
          T* source = pass.source_grad + block.slot[g + e] * pass.source_grad_stride;
          SHEAFDEQ_UNROLL for (int p = 0; p < parts; p++) {
            store(source + p * W, load(source + p * W) + of_hidden[p][e]);
            store(source + row + p * W, load(source + row + p * W) + of_values[p][e]);  // what follows the values is not read
            hidden_sum[p] += of_hidden[p][e];
            square_sum[p] += of_values[p][e];
          }
          if (pass.edge_hidden_grad) {
            T* edge = pass.edge_hidden_grad + pass.given_edge(e0 + g + e) * pass.edge_hidden_grad_stride;
            for (int p = 0; p < parts && p * W < h2; p++) store_part(edge + p * W, of_hidden[p][e], h2 - p * W);
          }
          if (pass.pointer[v + 1] == e0 + g + e + 1) {
            close();
            enter();
          }
        }
      }
      if (++blocks == flush_every) {
        flush();
        blocks = 0;
      }
    }
    flush();
  }
};

template <class T> std::int64_t narrow_scratch(int d, int h) {
  return d == 2 ? NarrowEdges<T, 2>::scratch(h) : NarrowEdges<T, 3>::scratch(h);
}

}  // namespace
