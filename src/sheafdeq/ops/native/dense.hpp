// A dense layer on many rows with few columns, and the gradient of its weights. Register tiles of nodes.hpp.
//
// Libraries of matrix products are made for large matrices and for the processors of their makers; on others a product of 9,000
// rows with a 48 x 144 matrix takes more than twice as long as with these tiles (docs/kernel.md).
#pragma once

#include "nodes.hpp"

namespace {

using sheafdeq::DensePass;

template <class T> struct DenseKernel {
  static constexpr int W = Lanes<T>::W;
  static constexpr int rows_of_block = 96;  // with their columns they stay in the first-level cache
  static constexpr int flush_every = 10;    // blocks whose products are summed before widening

  // out(r, :) = x(r, :) columns + bias for first <= r < last.
  static void forward(const DensePass<T>& pass, std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; r += rows_of_block) {
      const int rows = static_cast<int>(last - r < rows_of_block ? last - r : rows_of_block);
      const T* x = pass.x + r * pass.x_stride;
      T* out = pass.out + r * pass.out_stride;
      if (pass.bias)
        product<T, Start::bias>(x, pass.x_stride, 1, pass.columns, pass.width, rows, pass.width, pass.depth, pass.bias, out,
                                pass.out_stride);
      else
        product<T, Start::zero>(x, pass.x_stride, 1, pass.columns, pass.width, rows, pass.width, pass.depth, pass.columns, out,
                                pass.out_stride);
    }
  }

  // sums (width, depth) += grad^T x over first <= r < last, and behind them (width) the sums of grad.
  static void gradient(const DensePass<T>& pass, std::int64_t first, std::int64_t last, T* scratch, double* sums) {
    const std::int64_t weights = static_cast<std::int64_t>(pass.width) * pass.depth, count = weights + pass.width;
    for (std::int64_t i = 0; i < count; i++) scratch[i] = T(0);
    auto flush = [&] {
      for (std::int64_t i = 0; i < count; i++) {
        sums[i] += scratch[i];
        scratch[i] = T(0);
      }
    };
    int blocks = 0;
    for (std::int64_t r = first; r < last; r += rows_of_block) {
      const int rows = static_cast<int>(last - r < rows_of_block ? last - r : rows_of_block);
      const T *x = pass.x + r * pass.x_stride, *grad = pass.grad + r * pass.grad_stride;
      product<T, Start::add>(grad, 1, pass.grad_stride, x, pass.x_stride, pass.width, pass.depth, rows, x, scratch, pass.depth);
      for (int i = 0; i < rows; i++)
        for (int k = 0; k < pass.width; k += W)
          store(scratch + weights + k, load(scratch + weights + k) + load(grad + i * pass.grad_stride + k));
      if (++blocks == flush_every) {
        flush();
        blocks = 0;
      }
    }
    flush();
  }
};

}  // namespace
