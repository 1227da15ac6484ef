// The node part of a step: row normalisation, the first layer of both generators, the values, and their derivatives.
//
// Nodes are taken in blocks small enough for the first-level cache, and every product is a register tile: 8 rows x 3 vectors
// where there are 32 registers, 4 x 3 or 6 x 2 where there are 16. With Z the normalised state and w the stacked first layers,
//   A = Z w_source^T,   B = Z w_target^T + bias,   U = H W_2,   Y_i = sum_j W_1[i][j] U_j.
#pragma once

#include "arguments.hpp"
#include "lanes.hpp"

namespace {

using sheafdeq::NodePass;

// c(r, :) (+)= sum_k a[r * row_step + k * step] b(k, :), R rows by NV vectors.
enum class Start { zero, add, bias };

template <class T, int R, int NV, Start start>
SHEAFDEQ_INLINE void product_tile(const T* __restrict a, std::int64_t row_step, std::int64_t step, const T* __restrict b,
                                  std::int64_t b_stride, int depth, const T* __restrict bias, T* __restrict c,
                                  std::int64_t c_stride) {
  constexpr int W = Lanes<T>::W;
  Vec<T> sum[R][NV];
  SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) {
    if (start == Start::zero) sum[r][v] = Vec<T>{};
    if (start == Start::add) sum[r][v] = load(c + r * c_stride + v * W);
    if (start == Start::bias) sum[r][v] = load(bias + v * W);
  }
  for (int k = 0; k < depth; k++) {
    Vec<T> y[NV];
    SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) y[v] = load(b + k * b_stride + v * W);
    SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) {
      const Vec<T> x = splat(a[r * row_step + k * step]);
      SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) sum[r][v] += x * y[v];
    }
  }
  SHEAFDEQ_UNROLL for (int r = 0; r < R; r++) SHEAFDEQ_UNROLL for (int v = 0; v < NV; v++) {
    store(c + r * c_stride + v * W, sum[r][v]);
  }
}

template <class T, int NV, Start start>
inline void product_columns(const T* a, std::int64_t row_step, std::int64_t step, const T* b, std::int64_t b_stride, int rows,
                            int depth, const T* bias, T* c, std::int64_t c_stride) {
  constexpr int R = many_registers ? 8 : NV == 3 ? 4 : 6;
  int r = 0;
  for (; r + R <= rows; r += R)
    product_tile<T, R, NV, start>(a + r * row_step, row_step, step, b, b_stride, depth, bias, c + r * c_stride, c_stride);
  for (; r + 2 <= rows; r += 2)
    product_tile<T, 2, NV, start>(a + r * row_step, row_step, step, b, b_stride, depth, bias, c + r * c_stride, c_stride);
  if (r < rows)
    product_tile<T, 1, NV, start>(a + r * row_step, row_step, step, b, b_stride, depth, bias, c + r * c_stride, c_stride);
}

// `columns` must be a multiple of the vector length.
template <class T, Start start>
inline void product(const T* a, std::int64_t row_step, std::int64_t step, const T* b, std::int64_t b_stride, int rows,
                    int columns, int depth, const T* bias, T* c, std::int64_t c_stride) {
  constexpr int W = Lanes<T>::W;
  for (int j = 0; j < columns;) {
    const int left = (columns - j) / W;  // vectors; four are taken as two and two
    auto tile = [&](auto vectors) {
      product_columns<T, vectors, start>(a, row_step, step, b + j, b_stride, rows, depth, bias + j, c + j, c_stride);
      j += vectors * W;
    };
    if (left == 3 || left > 4)
      tile(std::integral_constant<int, 3>{});
    else if (left > 1)
      tile(std::integral_constant<int, 2>{});
    else
      tile(std::integral_constant<int, 1>{});
  }
}

// Multiply-adds in registers and nothing else: the rate that no kernel of this instruction set exceeds.
template <class T> double arithmetic(std::int64_t rounds, T& result) {
  constexpr int chains = many_registers ? 24 : 12;
  Vec<T> sum[chains];
  const Vec<T> x = splat(T(1) - result), y = splat(result);
  SHEAFDEQ_UNROLL for (int i = 0; i < chains; i++) sum[i] = splat(T(i));
  for (std::int64_t round = 0; round < rounds; round++) {
    SHEAFDEQ_UNROLL for (int i = 0; i < chains; i++) sum[i] = sum[i] * x + y;
  }
  SHEAFDEQ_UNROLL for (int i = 1; i < chains; i++) sum[0] += sum[i];
  result = sum[0][0];
  return 2.0 * chains * Lanes<T>::W * static_cast<double>(rounds);
}

template <class T> struct NodeKernel {
  static constexpr int W = Lanes<T>::W;
  static constexpr int NB = 48;          // nodes in a block
  static constexpr int flush_every = 16;  // blocks whose parameter gradients are summed before widening

  static int padded(int width) { return (width + W - 1) / W * W; }

  // sum[r] = <x_r, y_r> of rows of q entries that lie q apart. W rows are summed over the lanes at once.
  static void row_products(const T* x, const T* y, int q, int rows, T* sum) {
    if (q % W == 0) {
      auto product_of = [&](int r) {
        Vec<T> sum = load(x + r * q) * load(y + r * q);
        for (int k = W; k < q; k += W) sum += load(x + r * q + k) * load(y + r * q + k);
        return sum;
      };
      Vec<T> part[W];
      int r = 0;
      for (; r + W <= rows; r += W) {
        SHEAFDEQ_UNROLL for (int l = 0; l < W; l++) part[l] = product_of(r + l);
        store(sum + r, sums<T>(part));
      }
      if (r == rows) return;
      for (int l = 0; l < W; l++) part[l] = r + l < rows ? product_of(r + l) : Vec<T>{};
      store_part(sum + r, sums<T>(part), rows - r);
      return;
    }
    for (int r = 0; r < rows; r++) {
      T total = 0;
      for (int k = 0; k < q; k++) total += x[r * q + k] * y[r * q + k];
      sum[r] = total;
    }
  }

  // Z, the reciprocal norms, and 0 where the norm is below the floor, else 1. `inverse` and `slope` have room for whole vectors.
  static void normalise(const NodePass<T>& pass, const T* state, int rows, T* out, T* inverse, T* slope) {
    const int q = pass.q;
    const Vec<T> floor = splat(T(sheafdeq::norm_floor)), one = splat(T(1));
    row_products(state, state, q, rows, inverse);
    for (int r = 0; r < rows; r += W) {
      const Vec<T> norm = root(load(inverse + r));
      store(inverse + r, one / (norm < floor ? floor : norm));
      store(slope + r, norm < floor ? Vec<T>{} : one);
    }
    for (int r = 0; r < rows; r++) scale(state + static_cast<std::int64_t>(r) * q, inverse[r], q, out + static_cast<std::int64_t>(r) * q);
  }
  static SHEAFDEQ_INLINE void scale(const T* x, T factor, int q, T* out) {
    int k = 0;
    for (; k + W <= q; k += W) store(out + k, load(x + k) * splat(factor));
    for (; k < q; k++) out[k] = x[k] * factor;
  }

  // Rows of the state from node `v` on; gathered into `given` when the caller numbers nodes otherwise.
  static const T* rows_of(const NodePass<T>& pass, std::int64_t v, int nodes, T* given) {
    const std::int64_t c = static_cast<std::int64_t>(pass.d) * pass.q;
    if (!pass.node_order) return pass.state + v * c;
    for (int r = 0; r < nodes; r++) {
      const T* row = pass.state + pass.node_order[v + r] * c;
      for (std::int64_t k = 0; k < c; k++) given[r * c + k] = row[k];
    }
    return given;
  }

  // U = H W_2 for a block, channels padded.
  static void half_values(const NodePass<T>& pass, const T* state, int nodes, T* out) {
    const int q = pass.q, p = pass.channels;
    product<T, Start::zero>(state, q, 1, pass.channel_mixing, p, nodes * pass.d, p, q, pass.channel_mixing, out, p);
  }

  static void forward(const NodePass<T>& pass, std::int64_t first, std::int64_t last, T* scratch) {
    const int d = pass.d, q = pass.q, p = pass.channels, c = d * q, h2 = 2 * pass.hidden;
    T *normal = scratch, *half = normal + NB * c, *inverse = half + NB * d * p, *slope = inverse + NB * d + W;
    T* given = slope + NB * d + W;
    for (std::int64_t v = first; v < last; v += NB) {
      const int nodes = last - v < NB ? static_cast<int>(last - v) : NB;
      const T* state = rows_of(pass, v, nodes, given);
      const T* z = state;
      if (pass.pre_norm) {
        normalise(pass, state, nodes * d, normal, inverse, slope);
        z = normal;
      }
      T *source = pass.source + v * pass.source_stride, *target = pass.target + v * pass.target_stride;
      product<T, Start::zero>(z, c, 1, pass.first_columns, 2 * h2, nodes, h2, c, pass.bias, source, pass.source_stride);
      product<T, Start::bias>(z, c, 1, pass.first_columns + h2, 2 * h2, nodes, h2, c, pass.bias, target, pass.target_stride);
      half_values(pass, state, nodes, half);
      for (int r = 0; r < nodes; r++) {
        const T* u = half + r * d * p;
        T* y = source + r * pass.source_stride + h2;
        for (int k = 0; k < p; k += W)
          for (int i = 0; i < d; i++) {
            Vec<T> sum{};
            for (int j = 0; j < d; j++) sum += splat(pass.stalk_mixing[i * d + j]) * load(u + j * p + k);
            store(y + i * p + k, sum);
          }
      }
    }
  }

  // Gradients of the parameters (when `parameter_grad` is not null), in its order:
  // first layers (2 x 2h, c padded), bias (2h), stalk mixing (d, d), channel mixing (q, q padded).
  static std::int64_t parameters(const NodePass<T>& pass) {
    const std::int64_t h2 = 2 * pass.hidden;
    return 2 * h2 * padded(pass.d * pass.q) + h2 + pass.d * pass.d + pass.q * pass.channels;
  }

  static void backward(const NodePass<T>& pass, std::int64_t first, std::int64_t last, T* scratch, double* parameter_grad) {
    const int d = pass.d, q = pass.q, p = pass.channels, c = d * q, h2 = 2 * pass.hidden, wide = padded(c);
    T* normal = scratch;             // (NB, wide) Z
    T* z_grad = normal + NB * wide;  // (NB, wide)
    T* inverse = z_grad + NB * wide; // (NB d), each with room for whole vectors
    T* slope = inverse + NB * d + W;
    T* along = slope + NB * d + W;       // <gradient of Z, Z> row by row
    T* given = along + NB * d + W;       // (NB, c) rows of the state, when they do not lie one after the other
    T* half = given + NB * c;            // (NB, d p) U, then its gradient
    T* half_grad = half + NB * d * p;    // (NB, d p)
    T* state_grad = half_grad + NB * d * p;  // (NB d, p)
    T* sums = state_grad + NB * d * p;
    const std::int64_t count = parameters(pass);
    T *first_sum = sums, *bias_sum = sums + 2 * h2 * wide, *stalk_sum = bias_sum + h2, *channel_sum = stalk_sum + d * d;
    for (std::int64_t i = 0; i < count; i++) sums[i] = T(0);
    auto flush = [&] {
      for (std::int64_t i = 0; parameter_grad && i < count; i++) {
        parameter_grad[i] += sums[i];
        sums[i] = T(0);
      }
    };
    int blocks = 0;
    for (std::int64_t v = first; v < last; v += NB) {
      const int nodes = last - v < NB ? static_cast<int>(last - v) : NB;
      const T* state = rows_of(pass, v, nodes, given);
      T *source = pass.source + v * pass.source_stride, *target = pass.target + v * pass.target_stride;
      // Z with padded rows, so that products over c columns may run in whole vectors
      if (pass.pre_norm) {
        T* rows = wide == c ? normal : z_grad;
        normalise(pass, state, nodes * d, rows, inverse, slope);
        if (wide != c) spread(rows, nodes, c, normal, wide);
      } else {
        spread(state, nodes, c, normal, wide);
      }
      // first layer
      product<T, Start::zero>(source, pass.source_stride, 1, pass.first_rows, wide, nodes, wide, h2, normal, z_grad, wide);
      product<T, Start::add>(target, pass.target_stride, 1, pass.first_rows + h2 * wide, wide, nodes, wide, h2, normal, z_grad,
                             wide);
      if (parameter_grad) {
        product<T, Start::add>(source, 1, pass.source_stride, normal, wide, h2, wide, nodes, normal, first_sum, wide);
        product<T, Start::add>(target, 1, pass.target_stride, normal, wide, h2, wide, nodes, normal, first_sum + h2 * wide,
                               wide);
        for (int r = 0; r < nodes; r++)
          for (int k = 0; k < h2; k += W) store(bias_sum + k, load(bias_sum + k) + load(target + r * pass.target_stride + k));
        half_values(pass, state, nodes, half);
      }
      // values
      for (int r = 0; r < nodes; r++) {
        const T* own = pass.own_grad + (v + r) * pass.own_grad_stride;
        T* y = source + r * pass.source_stride + h2;
        for (int k = 0; k < d * p; k += W) store(y + k, load(y + k) + load(own + k));
        for (int k = 0; k < p; k += W)
          for (int j = 0; j < d; j++) {
            Vec<T> sum{};
            for (int i = 0; i < d; i++) sum += splat(pass.stalk_mixing[i * d + j]) * load(y + i * p + k);
            store(half_grad + (r * d + j) * p + k, sum);
          }
      }
      if (parameter_grad) stalk_gradient(d, p, nodes, source + h2, pass.source_stride, half, stalk_sum);
      if (parameter_grad) product<T, Start::add>(state, 1, q, half_grad, p, q, p, nodes * d, half, channel_sum, p);
      product<T, Start::zero>(half_grad, p, 1, pass.channel_mixing_columns, p, nodes * d, p, q, half, state_grad, p);
      // through the normalisation
      if (pass.pre_norm && wide == c) row_products(normal, z_grad, q, nodes * d, along);
      for (int r = 0; r < nodes; r++) {
        const T *z = normal + r * wide, *g = z_grad + r * wide, *u = state_grad + r * d * p;
        if (pass.pre_norm && wide != c) row_products(z, g, q, d, along + r * d);
        for (int i = 0; i < d; i++) {
          const int row = r * d + i;
          const T turn = pass.pre_norm ? along[row] * slope[row] : T(0), factor = pass.pre_norm ? inverse[row] : T(1);
          const T *zi = z + i * q, *gi = g + i * q, *ui = u + i * p;
          T* out = pass.state_grad + (pass.node_order ? pass.node_order[v + r] : v + r) * c + i * q;
          int k = 0;
          for (; k + W <= q; k += W)
            store(out + k, load(ui + k) + (load(gi + k) - load(zi + k) * splat(turn)) * splat(factor));
          for (; k < q; k++) out[k] = ui[k] + (gi[k] - zi[k] * turn) * factor;
        }
      }
      if (++blocks == flush_every) {
        flush();
        blocks = 0;
      }
    }
    flush();
  }

  // stalk_sum[i][j] += sum over nodes of <Y gradient_i, U_j>, a row of the sum in registers.
  static void stalk_gradient(int d, int p, int nodes, const T* y, std::int64_t stride, const T* half, T* stalk_sum) {
    constexpr int tile = 4;
    for (int i = 0; i < d; i++)
      for (int j0 = 0; j0 < d; j0 += tile) {
        Vec<T> sum[tile];
        for (int j = 0; j < tile; j++) sum[j] = Vec<T>{};
        for (int r = 0; r < nodes; r++)
          for (int k = 0; k < p; k += W) {
            const Vec<T> x = load(y + r * stride + i * p + k);
            SHEAFDEQ_UNROLL for (int j = 0; j < tile; j++) {
              if (j0 + j < d) sum[j] += x * load(half + (r * d + j0 + j) * p + k);
            }
          }
        for (int j = 0; j < tile && j0 + j < d; j++) {
          T total = 0;
          for (int l = 0; l < W; l++) total += sum[j][l];
          stalk_sum[i * d + j0 + j] += total;
        }
      }
  }

  static void spread(const T* from, int rows, int width, T* to, int stride) {
    for (int r = 0; r < rows; r++) {
      for (int k = 0; k < width; k++) to[r * stride + k] = from[r * width + k];
      for (int k = width; k < stride; k++) to[r * stride + k] = T(0);
    }
  }

  static std::int64_t scratch(const NodePass<T>& pass) {
    const std::int64_t wide = padded(pass.d * pass.q), values = pass.d * pass.channels;
    return NB * (3 * wide + 3 * pass.d + 3 * values) + 3 * W + parameters(pass);
  }
};

}  // namespace
