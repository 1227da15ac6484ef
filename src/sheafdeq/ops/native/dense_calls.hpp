// The calls of dense layers. Part of module.cpp, which has the helpers.

// Below a million multiplications a thread costs more to wake than it saves.
int threads_for_rows(std::int64_t rows, std::int64_t work_of_row, int requested) {
  if (requested < 1 || requested > most_threads) refuse("threads", "must be between 1 and 1024");
  return static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>({requested, 1 + rows * work_of_row / (1 << 20), 256})));
}

void check_lanes(int lanes, int width, const char* name) {
  if (width < 1 || width % lanes) refuse(name, "must have a positive multiple of the vector length as many columns");
}

// out = x columns + bias
template <class T>
void dense_forward(Matrix<const T> x, Matrix<const T> columns, std::optional<Row<const T>> bias, Matrix<T> out,
                   int requested_threads) {
  DensePass<T> pass;
  const std::int64_t rows = x.shape(0);
  pass.depth = static_cast<int>(x.shape(1));
  pass.width = static_cast<int>(out.shape(1));
  check_lanes(chosen->kernels(T()).lanes, pass.width, "out");
  pass.x = checked(x, rows, pass.depth, pass.x_stride, "x");
  pass.columns = contiguous(columns, pass.depth, pass.width, "columns");
  pass.out = checked(out, rows, pass.width, pass.out_stride, "out");
  if (static_cast<std::int64_t>(out.shape(0)) != rows) refuse("out", "has the wrong shape");
  if (bias) {
    if (static_cast<int>(bias->shape(0)) != pass.width) refuse("bias", "has the wrong shape");
    pass.bias = bias->data();
  }
  const int threads = threads_for_rows(rows, static_cast<std::int64_t>(pass.depth) * pass.width, requested_threads);
  nb::gil_scoped_release release;
  in_parallel(threads, [&](int t) {
    chosen->kernels(T()).dense.forward(pass, rows * t / threads, rows * (t + 1) / threads);
  });
}

// weight_grad = grad^T x, bias_grad = the sum of the rows of grad
template <class T>
void dense_gradient(Matrix<const T> x, Matrix<const T> grad, Matrix<T> weight_grad, std::optional<Row<T>> bias_grad,
                    int requested_threads) {
  DensePass<T> pass;
  const std::int64_t rows = x.shape(0);
  pass.depth = static_cast<int>(x.shape(1));
  pass.width = static_cast<int>(grad.shape(1));
  check_lanes(chosen->kernels(T()).lanes, pass.depth, "x");
  check_lanes(chosen->kernels(T()).lanes, pass.width, "grad");
  pass.x = checked(x, rows, pass.depth, pass.x_stride, "x");
  pass.grad = checked(grad, rows, pass.width, pass.grad_stride, "grad");
  T* const weight_out = contiguous(weight_grad, pass.width, pass.depth, "weight_grad");
  if (bias_grad && static_cast<int>(bias_grad->shape(0)) != pass.width) refuse("bias_grad", "has the wrong shape");
  T* const bias_out = bias_grad ? bias_grad->data() : nullptr;
  const std::int64_t weights = static_cast<std::int64_t>(pass.width) * pass.depth, count = weights + pass.width;
  const int threads = threads_for_rows(rows, weights, requested_threads);
  nb::gil_scoped_release release;
  const FloatMode mode(FloatMode::with_flushing());
  std::vector<double> sums(static_cast<std::size_t>(threads) * count, 0.0);
  in_parallel(threads, [&](int t) {
    chosen->kernels(T()).dense.gradient(pass, rows * t / threads, rows * (t + 1) / threads, aligned_scratch<T>(count),
                                        sums.data() + t * count);
  });
  for (std::int64_t i = 0; i < count; i++) {
    double total = 0.0;
    for (int t = 0; t < threads; t++) total += sums[t * count + i];
    if (i < weights)
      weight_out[i] = static_cast<T>(total);
    else if (bias_out)
      bias_out[i - weights] = static_cast<T>(total);
  }
}
