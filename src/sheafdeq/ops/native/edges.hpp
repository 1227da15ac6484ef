// One pass over the incoming edges of a range of targets, and its derivative.
//
// Edges are taken in blocks of EB = two vectors, in target order and across node boundaries, so that chains
// and hubs are served alike. Within a block:
//   1. the two hidden rows of every edge: gather, add, rectify; transposed so that edges lie in the lanes;
//   2. second layer: one weight broadcast, multiplied into EB edges; no horizontal sum;
//   3. normalisation, F_t^T F_s, F_t^T F_t and their derivatives, edges in the lanes;
//   4. messages row by row over the channels, accumulated in registers while the target stays the same.
// Backward recomputes 1 to 3 and adds two small register-tiled products: gradient of the hidden rows
// (4 edges x 3 vectors over the d^2 rows) and of the second layer (3 rows x 3 vectors over the EB edges).
#pragma once

#include "arguments.hpp"
#include "lanes.hpp"

namespace {

using sheafdeq::EdgePass;
using sheafdeq::EdgeShare;

// What does not depend on the stalk dimension except through the number of map entries: compiled once.
template <class T> struct EdgeBlock {
  using V = Vec<T>;
  static constexpr int W = Lanes<T>::W;
  static constexpr int vectors = 2;
  static constexpr int EB = vectors * W;

  // One block: its edges. The arrays of a full block are read where they are; the last block is
  // copied and filled up with its last edge at weight zero.
  struct Edges {
    alignas(64) T filled_weight[EB];
    std::int32_t filled_source[EB], filled_target[EB], filled_slot[EB];
    const std::int32_t *source, *target, *slot;
    const T* weight;
    int count;
  };

  static SHEAFDEQ_NOINLINE void take(const EdgePass<T>& pass, std::int64_t e0, std::int64_t end, Edges& block) {
    block.source = pass.source + e0;
    block.target = pass.target + e0;
    block.weight = pass.weight + e0;
    block.slot = pass.slot ? pass.slot + e0 : nullptr;
    block.count = EB;
    if (end - e0 >= EB) return;
    block.count = static_cast<int>(end - e0);
    for (int e = 0; e < EB; e++) {
      const int x = e < block.count ? e : block.count - 1;
      block.filled_source[e] = block.source[x];
      block.filled_target[e] = block.target[x];
      block.filled_weight[e] = e < block.count ? block.weight[x] : T(0);
      if (block.slot) block.filled_slot[e] = block.slot[x];
    }
    block.source = block.filled_source;
    block.target = block.filled_target;
    block.weight = block.filled_weight;
    if (block.slot) block.slot = block.filled_slot;
  }

  // Rows of a table that will be wanted soon. They lie anywhere in memory, so the caches are asked for them ahead of time; a
  // quarter of the rows at once, between pieces of arithmetic, because only so many requests can be under way.
  struct Ahead {
    const std::int32_t* index = nullptr;  // (EB) or null
    const T* table = nullptr;
    std::int64_t stride = 0;
    int bytes = 0;
    bool write = false;

    SHEAFDEQ_INLINE void request(int quarter) const {
      if (!index) return;
      for (int e = quarter * (EB / 4); e < (quarter + 1) * (EB / 4); e++) {
        const char* row = reinterpret_cast<const char*>(table + index[e] * stride);
        if (write)
          for (int b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 1);
        else
          for (int b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
      }
    }
  };
  // What the block after this one reads: [A | Y] lie side by side in a step.
  static SHEAFDEQ_INLINE Ahead reads_after(const EdgePass<T>& pass, std::int64_t e0, std::int64_t end) {
    if (e0 + 2 * EB > end) return {};
    return {pass.source + e0 + EB, pass.source_hidden, pass.source_hidden_stride, pass.row * static_cast<int>(sizeof(T)), false};
  }
  // The gradient rows this block adds to.
  static SHEAFDEQ_INLINE Ahead writes_of(const EdgePass<T>& pass, const Edges& block) {
    return {block.slot, pass.source_grad, pass.source_grad_stride, pass.row * static_cast<int>(sizeof(T)), true};
  }

  // Hidden rows of generator `map`, transposed, (h, EB), in `columns`; in the backward pass also (EB, h) in `rows`.
  template <bool with_rows, bool with_edges>
  static SHEAFDEQ_INLINE void hidden_rows(const EdgePass<T>& pass, const Edges& block, std::int64_t e0, int map,
                                          T* __restrict rows, T* __restrict columns) {
    const int h = pass.hidden;
    for (int g = 0; g < EB; g += W) {
      const T *a[W], *b[W], *c[W];
      for (int e = 0; e < W; e++) {
        const int y = g + e < block.count ? g + e : block.count - 1;
        a[e] = pass.source_hidden + block.source[g + e] * pass.source_hidden_stride + map * h;
        b[e] = pass.target_hidden + block.target[g + e] * pass.target_hidden_stride + map * h;
        c[e] = with_edges ? pass.edge_hidden + pass.given_edge(e0 + y) * pass.edge_hidden_stride + map * h : nullptr;
      }
      for (int k = 0; k < h; k += W) {
        V r[W];
        SHEAFDEQ_UNROLL for (int e = 0; e < W; e++) {
          V x = load(a[e] + k) + load(b[e] + k);
          if (with_edges) x += load(c[e] + k);
          r[e] = rectify(x);
          if (with_rows) store(rows + (g + e) * h + k, r[e]);
        }
        transpose<T>(r);
        SHEAFDEQ_UNROLL for (int j = 0; j < W; j++) store(columns + (k + j) * EB + g, r[j]);
      }
    }
  }

  template <bool with_rows>
  static SHEAFDEQ_NOINLINE void hidden_of(const EdgePass<T>& pass, const Edges& block, std::int64_t e0, int map, T* rows,
                                          T* columns) {
    if (pass.edge_hidden)
      hidden_rows<with_rows, true>(pass, block, e0, map, rows, columns);
    else
      hidden_rows<with_rows, false>(pass, block, e0, map, rows, columns);
  }

  // R outputs of the second layer for EB edges.
  template <int R>
  static SHEAFDEQ_INLINE void outputs(const T* __restrict columns, const T* __restrict weight, const T* bias, int h,
                                      T* __restrict out) {
    V sum[R][vectors];
    SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) SHEAFDEQ_UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = splat(bias[r]);
    for (int k = 0; k < h; k++) {
      V x[vectors];
      SHEAFDEQ_UNROLL for (int v = 0; v < vectors; v++) x[v] = load(columns + k * EB + v * W);
      SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) {
        const V w = splat(weight[r * h + k]);
        SHEAFDEQ_UNROLL for (int v = 0; v < vectors; v++) sum[r][v] += w * x[v];
      }
    }
    SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) SHEAFDEQ_UNROLL for (int v = 0; v < vectors; v++) {
      store(out + r * EB + v * W, sum[r][v]);
    }
  }

  static SHEAFDEQ_NOINLINE void second_layer(const EdgePass<T>& pass, const T* columns, int map, T* out) {
    const int count = pass.d * pass.d, h = pass.hidden;
    const T *weight = pass.weight_of_map[map], *bias = pass.bias_of_map[map];
    int i = 0;
    if constexpr (many_registers)
      for (; i + 9 <= count; i += 9) outputs<9>(columns, weight + i * h, bias + i, h, out + i * EB);
    for (; i + 9 <= count || i + 5 == count; i += 5) outputs<5>(columns, weight + i * h, bias + i, h, out + i * EB);
    for (; i + 4 <= count; i += 4) outputs<4>(columns, weight + i * h, bias + i, h, out + i * EB);
    for (; i + 2 <= count; i += 2) outputs<2>(columns, weight + i * h, bias + i, h, out + i * EB);
    for (; i < count; i++) outputs<1>(columns, weight + i * h, bias + i, h, out + i * EB);
  }

  // weight_grad[i] += sum over edges of a[i][e] hidden[e], R rows by KV vectors in registers.
  template <int R, int KV>
  static SHEAFDEQ_INLINE void weight_tile(const T* __restrict a, const T* __restrict rows, int h, T* __restrict out) {
    V sum[R][KV];
    SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) {
      sum[r][v] = load(out + r * h + v * W);
    }
    for (int e = 0; e < EB; e++) {
      V x[KV];
      SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) x[v] = load(rows + e * h + v * W);
      SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) {
        const V y = splat(a[r * EB + e]);
        SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) sum[r][v] += y * x[v];
      }
    }
    SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) {
      store(out + r * h + v * W, sum[r][v]);
    }
  }
  template <int KV>
  static SHEAFDEQ_INLINE void weight_columns(const T* a, const T* rows, int count, int h, T* out) {
    int i = 0;
    if constexpr (many_registers)
      for (; i + 9 <= count; i += 9) weight_tile<9, KV>(a + i * EB, rows, h, out + i * h);
    for (; i + 3 <= count; i += 3) weight_tile<3, KV>(a + i * EB, rows, h, out + i * h);
    for (; i < count; i++) weight_tile<1, KV>(a + i * EB, rows, h, out + i * h);
  }
  static SHEAFDEQ_NOINLINE void weight_gradient(const T* a, const T* rows, int count, int h, T* out) {
    int k = 0;
    for (; k + 3 * W <= h; k += 3 * W) weight_columns<3>(a, rows + k, count, h, out + k);
    if (k + 2 * W <= h) {
      weight_columns<2>(a, rows + k, count, h, out + k);
      k += 2 * W;
    }
    if (k < h) weight_columns<1>(a, rows + k, count, h, out + k);
  }

  // Gradient of four hidden rows, masked by the rectifier, added to source, target and edge.
  template <int KV>
  static SHEAFDEQ_INLINE void hidden_tile(const EdgePass<T>& pass, const Edges& block, std::int64_t e0, int e,
                                          int offset, const T* __restrict a, const T* __restrict weight,
                                           const T* __restrict rows) {
    const int h = pass.hidden, count = pass.outputs;
    V sum[4][KV];
    SHEAFDEQ_UNROLL for (int r = 0; r < 4; r++) SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) sum[r][v] = V{};
    for (int i = 0; i < count; i++) {
      V w[KV];
      SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) w[v] = load(weight + i * h + v * W);
      SHEAFDEQ_UNROLL for (int r = 0; r < 4; r++) {
        const V x = splat(a[i * EB + e + r]);
        SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) sum[r][v] += x * w[v];
      }
    }
    SHEAFDEQ_UNROLL for (int r = 0; r < 4; r++) {
      T* source = pass.source_grad + block.slot[e + r] * pass.source_grad_stride + offset;
      SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) {
        const V x = load(rows + (e + r) * h + v * W);
        sum[r][v] = x <= V{} ? V{} : sum[r][v];
        store(source + v * W, load(source + v * W) + sum[r][v]);
      }
    }
    if (pass.edge_hidden_grad) {
      for (int r = 0; r < 4 && e + r < block.count; r++) {
        T* edge = pass.edge_hidden_grad + pass.given_edge(e0 + e + r) * pass.edge_hidden_grad_stride + offset;
        SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) store(edge + v * W, sum[r][v]);
      }
    }
    if (block.target[e] == block.target[e + 3]) {
      T* target = pass.target_hidden_grad + block.target[e] * pass.target_hidden_grad_stride + offset;
      SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) {
        store(target + v * W, load(target + v * W) + ((sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v])));
      }
    } else {
      SHEAFDEQ_UNROLL for (int r = 0; r < 4; r++) {
        T* target = pass.target_hidden_grad + block.target[e + r] * pass.target_hidden_grad_stride + offset;
        SHEAFDEQ_UNROLL for (int v = 0; v < KV; v++) store(target + v * W, load(target + v * W) + sum[r][v]);
      }
    }
  }
  static SHEAFDEQ_NOINLINE void hidden_gradient(const EdgePass<T>& pass, const Edges& block, std::int64_t e0, int map,
                                                const T* a, const T* rows) {
    const int h = pass.hidden;
    const T* weight = pass.weight_of_map[map];
    for (int e = 0; e < block.count; e += 4) {
      int k = 0;
      for (; k + 3 * W <= h; k += 3 * W) hidden_tile<3>(pass, block, e0, e, map * h + k, a, weight + k, rows + k);
      if (k + 2 * W <= h) {
        hidden_tile<2>(pass, block, e0, e, map * h + k, a, weight + k, rows + k);
        k += 2 * W;
      }
      if (k < h) hidden_tile<1>(pass, block, e0, e, map * h + k, a, weight + k, rows + k);
    }
  }

};

template <class T, int D> struct EdgeKernel {
  using V = Vec<T>;
  using I = typename Lanes<T>::I;
  using Common = EdgeBlock<T>;
  static constexpr int W = Lanes<T>::W;
  static constexpr int EB = Common::EB;
  static constexpr int most = D ? D : sheafdeq::largest_dimension;
  static constexpr int most_squared = most * most;
  static constexpr int pitch = 2 * EB;    // row length of `curve`, which is written with overrun
  static constexpr int flush_every = 64;  // blocks whose parameter gradients are summed before widening

  // The edges of a block with their maps.
  struct Block : Common::Edges {
    alignas(64) T raw[2][most_squared * EB];   // second-layer outputs of the source and the target maps
    alignas(64) T product[most_squared * EB];  // w F_t^T F_s
    alignas(64) T square[most_squared * EB];   // F_t^T F_t, upper triangle
  };

  static SHEAFDEQ_INLINE int dim(const EdgePass<T>& pass) { return D ? D : pass.d; }

  // Outer loops over map entries: unrolled for small stalks, where everything fits the registers anyway.
  template <class F> static SHEAFDEQ_INLINE void each(int count, F&& body) {
    if constexpr (D != 0 && D <= 3) {
      SHEAFDEQ_UNROLL for (int i = 0; i < count; i++) body(i);
    } else {
      _Pragma("GCC unroll 1") for (int i = 0; i < count; i++) body(i);
    }
  }

  // Frobenius norm and its reciprocal, edges in the lanes.
  static SHEAFDEQ_INLINE V square_of(const T* raw, int count) {
    V sum{};
    for (int i = 0; i < count; i++) {
      const V x = load(raw + i * EB);
      sum += x * x;
    }
    return sum;
  }
  // The norm; maps whose squares overflow are scaled down in place, and `factor` says by how much.
  static SHEAFDEQ_INLINE V norm_of(T* raw, int count, V& factor) {
    V sum = square_of(raw, count);
    factor = splat(T(1));
    if (__builtin_expect(any_lane(sum > splat(largest_square<T>)), 0)) {
      factor = sum > splat(largest_square<T>) ? splat(taming_factor<T>) : factor;
      for (int i = 0; i < count; i++) store(raw + i * EB, load(raw + i * EB) * factor);
      sum = square_of(raw, count);
    }
    return root(sum);
  }
  static SHEAFDEQ_INLINE V guarded(V norm) {
    const V floor = splat(T(sheafdeq::norm_floor));
    return norm < floor ? V{} : splat(T(1)) / norm;  // a vanishing map counts as zero and passes no gradient
  }

  // product = w F_t^T F_s and square = F_t^T F_t from the raw outputs.
  static SHEAFDEQ_NOINLINE void products(const EdgePass<T>& pass, Block& block) {
    const int d = dim(pass);
    for (int g = 0; g < EB; g += W) {
      T *fs = block.raw[0] + g, *ft = block.raw[1] + g;
      V factor;
      const V s = guarded(norm_of(fs, d * d, factor)), t = guarded(norm_of(ft, d * d, factor));
      const V scale = s * t * load(block.weight + g), square = t * t;
      each(d, [&](int i) {
        V column[most];
        SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) column[k] = load(ft + (k * d + i) * EB);
        each(d, [&](int j) {
          V sum{};
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) sum += column[k] * load(fs + (k * d + j) * EB);
          store(block.product + (i * d + j) * EB + g, sum * scale);
          if (j < i) return;
          V gram{};
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) gram += column[k] * load(ft + (k * d + j) * EB);
          store(block.square + (i * d + j) * EB + g, gram * square);
        });
      });
    }
  }

  // row[i] += sum over edges a..b of sum_j matrix[i][j] values(edge)[j], NV vectors of channels at once.
  template <int NV>
  static SHEAFDEQ_INLINE void receive(const EdgePass<T>& pass, const Block& block, int a, int b, int c, T* row) {
    const int d = dim(pass), q = pass.channels;
    V sum[most][NV];
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) {
      sum[i][v] = load(row + i * q + c + v * W);
    }
    for (int e = a; e < b; e++) {
      const T* values = pass.source_values + block.source[e] * pass.source_values_stride + c;
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
        V y[NV];
        SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) y[v] = load(values + j * q + v * W);
        SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
          const V m = splat(block.product[(i * d + j) * EB + e]);
          SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) sum[i][v] += m * y[v];
        }
      }
    }
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) {
      store(row + i * q + c + v * W, sum[i][v]);
    }
  }

  // Lane by lane sums of F_t^T F_t over the edges a..b; the lanes themselves are summed when the node is done.
  static SHEAFDEQ_INLINE void add_squares(int d, const T* square, int a, int b, V* diagonal) {
    const I lane = lane_numbers<T>();
    for (int g = a / W * W; g < b; g += W) {
      const I inside = (lane >= a - g) & (lane < b - g);
      SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int j = i; j < d; j++) {
        diagonal[i * d + j] += (V)((I)load(square + (i * d + j) * EB + g) & inside);
      }
    }
  }
  // Sums over the lanes of the upper triangle of a matrix of vectors.
  static SHEAFDEQ_INLINE void sum_lanes(int d, const V* lanes, T* upper) {
    V pending[W];
    std::int32_t place[W];
    int waiting = 0;
    auto flush = [&] {
      for (int l = waiting; l < W; l++) pending[l] = V{};
      const V total = sums<T>(pending);
      for (int l = 0; l < waiting; l++) upper[place[l]] = total[l];
      waiting = 0;
    };
    SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int j = i; j < d; j++) {
      pending[waiting] = lanes[i * d + j];
      place[waiting++] = i * d + j;
      if (waiting == W) flush();
    }
    if (waiting) flush();
  }

  // out = base + x - factor * S x for the symmetric S of which the upper triangle is given (base may be null,
  // out may be x).
  static SHEAFDEQ_INLINE void apply_diagonal(int d, int q, const T* x, T factor, const T* upper, const T* base, T* out) {
    for (int c = 0; c < q; c += W) {
      V column[most];
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) column[j] = load(x + j * q + c);
      SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
        V sum{};
        SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
          sum += splat(i < j ? upper[i * d + j] : upper[j * d + i]) * column[j];
        }
        V value = column[i] - splat(factor) * sum;
        if (base) value += load(base + i * q + c);
        store(out + i * q + c, value);
      }
    }
  }

  // tanh, shift and drive of one finished row.
  static SHEAFDEQ_NOINLINE void finish(const EdgePass<T>& pass, std::int64_t v, const T* row) {
    const int d = dim(pass), q = pass.step_channels;
    for (int c = 0; c < q; c += W) {
      V t[most];  // first all of them: long chains side by side
      SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) t[i] = hyperbolic_tangent<T>(load(row + i * pass.channels + c));
      SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
        const std::int64_t at = pass.given_node(v) * d * q + i * q + c;
        if (pass.tanh) store_part(pass.tanh + at, t[i], q - c);
        store_part(pass.step + at, t[i] + splat(pass.shift) + load_part(pass.drive + at, q - c), q - c);
      }
    }
  }

  // The gradient that enters a row of `out`, from the gradient of the step.
  static SHEAFDEQ_NOINLINE void start(const EdgePass<T>& pass, std::int64_t v, T* row) {
    const int d = dim(pass), q = pass.step_channels;
    for (int i = 0; i < d; i++) {
      for (int c = 0; c < q; c += W) {
        const std::int64_t at = pass.given_node(v) * d * q + i * q + c;
        const V t = load_part(pass.tanh + at, q - c), g = load_part(pass.step_grad + at, q - c);
        store(row + i * pass.channels + c, g * (splat(T(1)) - t * t));
      }
    }
  }

  static void forward(const EdgePass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), q = pass.channels, width = d * q;
    T* columns = share.scratch;
    T* row_scratch = columns + EB * pass.hidden;
    auto row_of = [&](std::int64_t v) { return pass.step ? row_scratch : pass.out + v * pass.out_stride; };
    Block block;
    V diagonal[most_squared];
    T upper[most_squared];
    std::int64_t v = share.first;
    const std::int64_t end = pass.pointer[share.last];
    auto enter = [&] {  // nodes without edges keep their own values; stop at the next one that has some
      for (; v < share.last; v++) {
        T* row = row_of(v);
        if (pass.pointer[v + 1] > pass.pointer[v]) {
          for (int i = 0; i < width; i++) row[i] = T(0);
          for (int i = 0; i < d * d; i++) diagonal[i] = V{};
          return;
        }
        const T* own = pass.own_values + v * pass.own_values_stride;
        for (int i = 0; i < width; i++) row[i] = own[i];
        if (pass.step) finish(pass, v, row);
      }
    };
    enter();
    for (std::int64_t e0 = pass.pointer[share.first]; e0 < end; e0 += EB) {
      Common::take(pass, e0, end, block);
      const typename Common::Ahead next = Common::reads_after(pass, e0, end);
      for (int map = 0; map < 2; map++) {
        Common::template hidden_of<false>(pass, block, e0, map, nullptr, columns);
        next.request(2 * map);
        Common::second_layer(pass, columns, map, block.raw[map]);
        next.request(2 * map + 1);
      }
      products(pass, block);
      for (int a = 0; a < block.count;) {
        const std::int64_t stop = pass.pointer[v + 1] - e0;
        const int b = stop < block.count ? static_cast<int>(stop) : block.count;
        T* row = row_of(v);
        int c = 0;
        for (; c + 2 * W <= q; c += 2 * W) receive<2>(pass, block, a, b, c, row);
        for (; c < q; c += W) receive<1>(pass, block, a, b, c, row);
        add_squares(d, block.square, a, b, diagonal);
        if (stop == b) {
          const T* own = pass.own_values + v * pass.own_values_stride;
          sum_lanes(d, diagonal, upper);
          apply_diagonal(d, q, own, pass.inverse_degree[v], upper, row, row);
          if (pass.step) finish(pass, v, row);
          v++;
          enter();
        }
        a = b;
      }
    }
  }

  // ------------------------------------------------------------------ backward

  // products[i * d + j][e] = <grad_v[i], values_u[j]> for W edges, first as vectors that are then summed.
  static SHEAFDEQ_NOINLINE void inner_products(const EdgePass<T>& pass, const Block& block, int g, T* out) {
    constexpr int RI = D == 0 ? 1 : (D <= 3 ? D : 2);
    const int d = dim(pass), q = pass.channels;
    for (int i0 = 0; i0 < d; i0 += RI) {
      V part[RI * most][W];
      for (int e = 0; e < W; e++) {
        const T* grad = pass.grad + block.target[g + e] * pass.grad_stride;
        const T* values = pass.source_values + block.source[g + e] * pass.source_values_stride;
        V sum[RI][most];
        SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) sum[i][j] = V{};
        for (int c = 0; c < q; c += W) {
          V x[RI];
          SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) x[i] = i0 + i < d ? load(grad + (i0 + i) * q + c) : V{};
          SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
            const V y = load(values + j * q + c);
            SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) sum[i][j] += x[i] * y;
          }
        }
        SHEAFDEQ_UNROLL for (int i = 0; i < RI; i++) SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
          part[i * d + j][e] = sum[i][j];
        }
      }
      for (int i = 0; i < RI && i0 + i < d; i++)
        for (int j = 0; j < d; j++) store(out + ((i0 + i) * d + j) * EB + g, sums<T>(part[i * d + j]));
    }
  }

  // Gradients of the raw maps from X = <grad_v, values_u> (in `cross`) and Z, the gradient through
  // F_t^T F_t (in `curve`, symmetric, already doubled). Overwrites block.raw by the gradients and fills
  // block.product and block.square as the forward pass does.
  static SHEAFDEQ_NOINLINE void map_gradients(const EdgePass<T>& pass, Block& block, const T* cross, const T* curve) {
    const int d = dim(pass), dd = d * d;
    for (int g = 0; g < EB; g += W) {
      T *raw_s = block.raw[0] + g, *raw_t = block.raw[1] + g;
      V factor_s, factor_t;
      const V inverse_s = guarded(norm_of(raw_s, dd, factor_s)), inverse_t = guarded(norm_of(raw_t, dd, factor_t));
      const V w = load(block.weight + g);
      V fs[most_squared], ft[most_squared], gs[most_squared], gt[most_squared];
      each(dd, [&](int i) {
        fs[i] = load(raw_s + i * EB) * inverse_s;
        ft[i] = load(raw_t + i * EB) * inverse_t;
        gs[i] = gt[i] = V{};
      });
      each(d, [&](int i) {
        each(d, [&](int j) {
          const V x = load(cross + (i * d + j) * EB + g) * w;
          const V z = load(curve + (i < j ? i * d + j : j * d + i) * pitch + g);
          V product{}, square{};
          SHEAFDEQ_UNROLL for (int k = 0; k < d; k++) {
            gt[k * d + i] += x * fs[k * d + j] + z * ft[k * d + j];
            gs[k * d + j] += x * ft[k * d + i];
            product += ft[k * d + i] * fs[k * d + j];
            if (i <= j) square += ft[k * d + i] * ft[k * d + j];
          }
          store(block.product + (i * d + j) * EB + g, product * w);
          if (i <= j) store(block.square + (i * d + j) * EB + g, square);
        });
      });
      V along_s{}, along_t{};
      each(dd, [&](int i) {
        along_s += gs[i] * fs[i];
        along_t += gt[i] * ft[i];
      });
      each(dd, [&](int i) {
        store(raw_s + i * EB, (gs[i] - fs[i] * along_s) * (inverse_s * factor_s));
        store(raw_t + i * EB, (gt[i] - ft[i] * along_t) * (inverse_t * factor_t));
      });
    }
  }

  // values_grad(source)[j] += sum_i product[i][j] grad_v[i]
  template <int NV>
  static SHEAFDEQ_INLINE void send_back(const EdgePass<T>& pass, const Block& block, int a, int b, int c, const T* grad) {
    const int d = dim(pass), q = pass.channels;
    for (int e = a; e < b; e++) {
      T* row = pass.source_grad + block.slot[e] * pass.source_grad_stride + 2 * pass.hidden + c;
      V sum[most][NV];
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) {
        sum[j][v] = load(row + j * q + v * W);
      }
      SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) {
        V x[NV];
        SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) x[v] = load(grad + i * q + c + v * W);
        SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) {
          const V m = splat(block.product[(i * d + j) * EB + e]);
          SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) sum[j][v] += m * x[v];
        }
      }
      SHEAFDEQ_UNROLL for (int j = 0; j < d; j++) SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) {
        store(row + j * q + v * W, sum[j][v]);
      }
    }
  }

  // Z_v = -(1 / deg) (G + G^T) with G[i][j] = <grad_v[i], own_v[j]>, upper triangle.
  static SHEAFDEQ_NOINLINE void curve_of(const EdgePass<T>& pass, std::int64_t v, T* upper) {
    const int d = dim(pass), q = pass.channels;
    const T *grad = pass.grad + v * pass.grad_stride, *own = pass.own_values + v * pass.own_values_stride;
    V lanes[most_squared];
    const V factor = splat(-pass.inverse_degree[v]);
    each(d, [&](int i) {
      each(d, [&](int j) {
        if (j < i) return;
        V sum{};
        for (int c = 0; c < q; c += W)
          sum += load(grad + i * q + c) * load(own + j * q + c) + load(grad + j * q + c) * load(own + i * q + c);
        lanes[i * d + j] = factor * sum;
      });
    });
    sum_lanes(d, lanes, upper);
  }

  static void backward(const EdgePass<T>& pass, const EdgeShare<T>& share) {
    const int d = dim(pass), dd = d * d, q = pass.channels, h = pass.hidden, width = d * q;
    T* columns = share.scratch;
    T* rows[2] = {columns + EB * h, columns + 2 * EB * h};
    T* partial = columns + 3 * EB * h;  // (2, dd, h) then (2, dd, W) for the biases
    T* partial_bias = partial + 2 * dd * h;
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
    // a run of equal targets fills its row of `curve` to the end and beyond; the next run overwrites the rest
    alignas(64) T cross[most_squared * EB], curve[most_squared * pitch];
    V diagonal[most_squared];
    T upper[most_squared], total[most_squared];
    const std::int64_t end = pass.pointer[share.last];
    std::int64_t v = share.first;     // target whose gradient of own values is being accumulated
    std::int64_t ahead = share.first;  // target whose curve is being laid out
    auto enter = [&] {
      for (; v < share.last && pass.pointer[v + 1] == pass.pointer[v]; v++) {
        T* own = pass.own_values_grad + v * pass.own_values_grad_stride;
        T* hidden = pass.target_hidden_grad + v * pass.target_hidden_grad_stride;
        if (pass.step_grad) {
          start(pass, v, own);
        } else {
          const T* grad = pass.grad + v * pass.grad_stride;
          for (int i = 0; i < width; i++) own[i] = grad[i];
        }
        for (int i = 0; i < 2 * h; i++) hidden[i] = T(0);
      }
      for (int i = 0; i < dd; i++) diagonal[i] = V{};
    };
    auto enter_ahead = [&] {
      while (ahead < share.last && pass.pointer[ahead + 1] == pass.pointer[ahead]) ahead++;
      if (ahead == share.last) return;
      if (pass.step_grad) start(pass, ahead, pass.own_values_grad + ahead * pass.own_values_grad_stride);
      curve_of(pass, ahead, upper);
      T* hidden = pass.target_hidden_grad + ahead * pass.target_hidden_grad_stride;
      for (int i = 0; i < 2 * h; i++) hidden[i] = T(0);
    };
    enter();
    enter_ahead();
    int blocks = 0;
    for (std::int64_t e0 = pass.pointer[share.first]; e0 < end; e0 += EB) {
      Common::take(pass, e0, end, block);
      const typename Common::Ahead next = Common::reads_after(pass, e0, end), sums = Common::writes_of(pass, block);
      for (int map = 0; map < 2; map++) {
        Common::template hidden_of<true>(pass, block, e0, map, rows[map], columns);
        sums.request(2 * map);
        Common::second_layer(pass, columns, map, block.raw[map]);
        sums.request(2 * map + 1);
      }
      for (int a = 0; a < block.count;) {
        const std::int64_t stop = pass.pointer[ahead + 1] - e0;
        const int b = stop < block.count ? static_cast<int>(stop) : block.count;
        SHEAFDEQ_UNROLL for (int i = 0; i < d; i++) SHEAFDEQ_UNROLL for (int j = i; j < d; j++) {
          const V z = splat(upper[i * d + j]);
          SHEAFDEQ_UNROLL for (int e = 0; e < EB; e += W) store(curve + (i * d + j) * pitch + a + e, z);
        }
        if (stop == b) {
          ahead++;
          enter_ahead();
        }
        a = b;
      }
      if (block.count < EB)
        for (int i = 0; i < dd; i++)
          for (int e = block.count; e < EB; e++) curve[i * pitch + e] = T(0);
      for (int g = 0; g < EB; g += W) inner_products(pass, block, g, cross);
      map_gradients(pass, block, cross, curve);
      for (int a = 0; a < block.count;) {
        const std::int64_t stop = pass.pointer[v + 1] - e0;
        const int b = stop < block.count ? static_cast<int>(stop) : block.count;
        const T* grad = pass.grad + v * pass.grad_stride;
        int c = 0;
        for (; c + 2 * W <= q; c += 2 * W) send_back<2>(pass, block, a, b, c, grad);
        for (; c < q; c += W) send_back<1>(pass, block, a, b, c, grad);
        add_squares(d, block.square, a, b, diagonal);
        if (stop == b) {
          sum_lanes(d, diagonal, total);
          apply_diagonal(d, q, grad, pass.inverse_degree[v], total, nullptr,
                         pass.own_values_grad + v * pass.own_values_grad_stride);
          v++;
          enter();
        }
        a = b;
      }
      for (int map = 0; map < 2; map++) {
        const T* a = block.raw[map];
        if (parameters) {
          for (int i = 0; i < dd; i++) {
            T* bias = partial_bias + (map * dd + i) * W;
            V sum = load(a + i * EB);
            SHEAFDEQ_UNROLL for (int v = 1; v < Common::vectors; v++) sum += load(a + i * EB + v * W);
            store(bias, load(bias) + sum);
          }
          next.request(2 * map);
          Common::weight_gradient(a, rows[map], dd, h, partial + map * dd * h);
        }
        next.request(2 * map + 1);
        Common::hidden_gradient(pass, block, e0, map, a, rows[map]);
      }
      if (++blocks == flush_every) {
        flush();
        blocks = 0;
      }
    }
    flush();
  }
};

template <class T> std::int64_t edge_scratch(int d, int hidden, int channels) {
  constexpr int W = Lanes<T>::W, EB = EdgeBlock<T>::EB;
  const std::int64_t forward = EB * static_cast<std::int64_t>(hidden) + d * channels;
  const std::int64_t backward = 3 * EB * static_cast<std::int64_t>(hidden) + 2LL * d * d * (hidden + W);
  return forward > backward ? forward : backward;
}

}  // namespace
