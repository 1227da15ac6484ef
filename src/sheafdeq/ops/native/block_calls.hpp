// The calls that generate small matrices on edges and multiply with them. Part of module.cpp, which has the helpers.

// Rows of one small matrix each, without gaps; one row for each edge or node.
template <class T> T* rows_of(const std::optional<Matrix<T>>& matrix, std::int64_t rows, std::int64_t columns, const char* name) {
  return matrix ? contiguous(*matrix, rows, columns, name) : nullptr;
}

template <class T>
MapPass<T> map_pass(const Layout& layout, int d, int hidden, T sign, T softening, const Matrix<const T>& source_hidden,
                    const Matrix<const T>& target_hidden, const std::optional<Matrix<const T>>& edge_hidden,
                    const Matrix<const T>& weight, const Row<const T>& bias, const Row<const T>& edge_weight,
                    const std::optional<Matrix<const T>>& sizes) {
  const int lanes = chosen->kernels(T()).lanes, dd = d * d;
  if (hidden < 1 || hidden % lanes) refuse("hidden width", "must be a positive multiple of the vector length");
  MapPass<T> pass;
  pass.d = d;
  pass.hidden = pass.row = hidden;
  pass.outputs = 2 * dd;
  pass.sign = sign;
  pass.softening = softening;
  pass.source = layout.source.data();
  pass.target = layout.target.data();
  pass.pointer = layout.pointer.data();
  pass.inverse_degree = layout.inverse_degrees(T());
  const std::int64_t n = layout.targets(), m = layout.sources, e = layout.edges();
  if (static_cast<std::int64_t>(edge_weight.shape(0)) != e) refuse("edge_weight", "has the wrong shape");
  if (static_cast<int>(bias.shape(0)) != 2 * dd) refuse("bias", "has the wrong shape");
  pass.weight = edge_weight.data();
  pass.source_hidden = checked(source_hidden, m, hidden, pass.source_hidden_stride, "source_hidden");
  pass.target_hidden = checked(target_hidden, n, hidden, pass.target_hidden_stride, "target_hidden");
  if (edge_hidden) pass.edge_hidden = checked(*edge_hidden, e, hidden, pass.edge_hidden_stride, "edge_hidden");
  const T* rows = contiguous(weight, 2 * dd, hidden, "weight");
  for (int map = 0; map < 2; map++) {
    pass.weight_of_map[map] = rows + static_cast<std::int64_t>(map) * dd * hidden;
    pass.bias_of_map[map] = bias.data() + map * dd;
  }
  pass.sizes = rows_of(sizes, e, 2 * dd, "sizes");
  return pass;
}

template <class T>
void map_forward(const Layout& layout, int d, int hidden, T sign, T softening, Matrix<const T> source_hidden,
                 Matrix<const T> target_hidden, std::optional<Matrix<const T>> edge_hidden, Matrix<const T> weight,
                 Row<const T> bias, Row<const T> edge_weight, std::optional<Matrix<const T>> sizes, Matrix<T> blocks,
                 Matrix<T> diagonal, std::optional<Matrix<T>> minus_blocks, std::optional<Matrix<T>> minus_diagonal,
                 int requested_threads) {
  const BlockFunctions<T> functions = block_functions_for<T>(d);
  MapPass<T> pass = map_pass<T>(layout, d, hidden, sign, softening, source_hidden, target_hidden, edge_hidden, weight, bias,
                                edge_weight, sizes);
  pass.blocks = contiguous(blocks, layout.edges(), d * d, "blocks");
  pass.diagonal = contiguous(diagonal, layout.targets(), d * d, "diagonal");
  pass.minus_blocks = rows_of(minus_blocks, layout.edges(), d * d, "minus_blocks");
  pass.minus_diagonal = rows_of(minus_diagonal, layout.targets(), d * d, "minus_diagonal");
  if (sizes.has_value() != minus_blocks.has_value() || sizes.has_value() != minus_diagonal.has_value())
    refuse("minus_blocks and minus_diagonal", "come with sizes, and only with them");
  const int threads = threads_for(layout, requested_threads);
  nb::gil_scoped_release release;
  const Plan& plan = layout.plan(threads);
  const std::int64_t size = chosen->copies(T()).blocks->scratch(d, hidden, 0);
  over_edges<T>(plan, threads, size, nullptr, 0, [&](EdgeShare<T>& share) { functions.map_forward(pass, share); });
}

// `parameter_grad` receives the gradients of the weight (2 d d, hidden) and of the bias (2 d d), one after the other.
template <class T>
void map_backward(const Layout& layout, int d, int hidden, T sign, T softening, Matrix<const T> source_hidden,
                  Matrix<const T> target_hidden, std::optional<Matrix<const T>> edge_hidden, Matrix<const T> weight,
                  Row<const T> bias, Row<const T> edge_weight, std::optional<Matrix<const T>> sizes,
                  Matrix<const T> blocks_grad, Matrix<const T> diagonal_grad, std::optional<Matrix<const T>> minus_blocks_grad,
                  std::optional<Matrix<const T>> minus_diagonal_grad, Matrix<T> source_grad,
                  Matrix<T> target_hidden_grad, std::optional<Matrix<T>> edge_hidden_grad, std::optional<Matrix<T>> sizes_grad,
                  Row<T> parameter_grad, int requested_threads) {
  const BlockFunctions<T> functions = block_functions_for<T>(d);
  MapPass<T> pass = map_pass<T>(layout, d, hidden, sign, softening, source_hidden, target_hidden, edge_hidden, weight, bias,
                                edge_weight, sizes);
  const std::int64_t n = layout.targets(), e = layout.edges(), dd = static_cast<std::int64_t>(d) * d;
  const int threads = threads_for(layout, requested_threads);
  const Plan& plan = layout.plan(threads);
  const std::int64_t rows = layout.sources + plan.ghosts;
  pass.blocks_grad = contiguous(blocks_grad, e, dd, "blocks_grad");
  pass.diagonal_grad = contiguous(diagonal_grad, n, dd, "diagonal_grad");
  pass.minus_blocks_grad = rows_of(minus_blocks_grad, e, dd, "minus_blocks_grad");
  pass.minus_diagonal_grad = rows_of(minus_diagonal_grad, n, dd, "minus_diagonal_grad");
  if (sizes.has_value() != minus_blocks_grad.has_value() || sizes.has_value() != minus_diagonal_grad.has_value())
    refuse("minus_blocks_grad and minus_diagonal_grad", "come with sizes, and only with them");
  pass.source_grad = contiguous(source_grad, rows, hidden, "source_grad");
  pass.source_grad_stride = pass.target_hidden_grad_stride = pass.edge_hidden_grad_stride = hidden;
  pass.target_hidden_grad = contiguous(target_hidden_grad, n, hidden, "target_hidden_grad");
  pass.edge_hidden_grad = rows_of(edge_hidden_grad, e, hidden, "edge_hidden_grad");
  pass.sizes_grad = rows_of(sizes_grad, e, 2 * dd, "sizes_grad");
  pass.slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
  const std::int64_t parameters = 2 * dd * (hidden + 1);
  if (static_cast<std::int64_t>(parameter_grad.shape(0)) != parameters) refuse("parameter_grad", "has the wrong shape");
  T* const parameter_out = parameter_grad.data();
  nb::gil_scoped_release release;
  const FloatMode mode(FloatMode::with_flushing());
  const std::int64_t size = chosen->copies(T()).blocks->scratch(d, hidden, 0);
  std::vector<double> sums(static_cast<std::size_t>(threads * parameters), 0.0);
  in_parallel(threads, [&](int t) {
    std::fill(pass.source_grad + rows * t / threads * hidden, pass.source_grad + rows * (t + 1) / threads * hidden, T(0));
  });
  over_edges<T>(plan, threads, size, sums.data(), parameters,
                [&](EdgeShare<T>& share) { functions.map_backward(pass, share); });
  add_ghosts(plan, layout.sources, pass.source_grad, hidden, hidden, threads);
  write_sums(sums, threads, parameters, parameter_out);
}

template <class T>
ProductPass<T> product_pass(const Layout& layout, int d, int channels, int parts, int gate, T floor,
                            const Matrix<const T>& blocks, const Matrix<const T>& diagonal,
                            const std::optional<Matrix<const T>>& minus_blocks,
                            const std::optional<Matrix<const T>>& minus_diagonal, const Matrix<const T>& values) {
  const int lanes = chosen->kernels(T()).lanes, dd = d * d;
  const std::int64_t n = layout.targets(), e = layout.edges();
  if (layout.sources != n) refuse("layout", "must have as many sources as targets");
  if (channels < 1 || channels % lanes) refuse("channels", "must be a positive multiple of the vector length");
  if (parts < 1 || parts > 2 || gate < 0 || gate > 3 || (gate > 0 && parts != 2)) refuse("parts and gate", "do not fit");
  if (minus_blocks.has_value() != minus_diagonal.has_value() || (minus_blocks && parts != 2)) refuse("minus_blocks and minus_diagonal", "do not fit");
  ProductPass<T> pass;
  pass.d = d;
  pass.channels = channels;
  pass.parts = parts;
  pass.gate = static_cast<Gate>(gate);
  pass.floor = floor;
  pass.source = layout.source.data();
  pass.pointer = layout.pointer.data();
  pass.blocks = contiguous(blocks, e, dd, "blocks");
  pass.diagonal = contiguous(diagonal, n, dd, "diagonal");
  pass.minus_blocks = rows_of(minus_blocks, e, dd, "minus_blocks");
  pass.minus_diagonal = rows_of(minus_diagonal, n, dd, "minus_diagonal");
  pass.values = contiguous(values, n, static_cast<std::int64_t>(d) * parts * channels, "values");
  return pass;
}

template <class T>
void product_forward(const Layout& layout, int d, int channels, int parts, int gate, T floor, Matrix<const T> blocks,
                     Matrix<const T> diagonal, std::optional<Matrix<const T>> minus_blocks,
                     std::optional<Matrix<const T>> minus_diagonal, Matrix<const T> values, std::optional<Matrix<const T>> base,
                     std::optional<Matrix<T>> product, std::optional<Matrix<T>> step, int requested_threads) {
  const BlockFunctions<T> functions = block_functions_for<T>(d);
  ProductPass<T> pass =
      product_pass<T>(layout, d, channels, parts, gate, floor, blocks, diagonal, minus_blocks, minus_diagonal, values);
  const std::int64_t n = layout.targets();
  const int width = d * parts * channels;
  pass.product = rows_of(product, n, width, "product");
  if (gate ? !base || !step : !product) refuse("product_forward", "needs a place for its result");
  if (gate) {
    const std::int64_t columns = static_cast<std::int64_t>(step->shape(1));
    if (columns % d || columns > d * channels || columns <= d * (channels - chosen->kernels(T()).lanes))
      refuse("step", "has the wrong shape");
    pass.step_channels = static_cast<int>(columns / d);
    pass.base = contiguous(*base, n, columns, "base");
    pass.step = contiguous(*step, n, columns, "step");
  }
  const int threads = threads_for(layout, requested_threads);
  nb::gil_scoped_release release;
  const Plan& plan = layout.plan(threads);
  const std::int64_t size = chosen->copies(T()).blocks->scratch(d, 0, width);
  over_edges<T>(plan, threads, size, nullptr, 0, [&](EdgeShare<T>& share) { functions.product_forward(pass, share); });
}

// `product` is what forward wrote and `grad` the gradient of `step` (with a gate), else `grad` is that of `product`.
template <class T>
void product_backward(const Layout& layout, int d, int channels, int parts, int gate, T floor, Matrix<const T> blocks,
                      Matrix<const T> diagonal, std::optional<Matrix<const T>> minus_blocks,
                      std::optional<Matrix<const T>> minus_diagonal, Matrix<const T> values,
                      std::optional<Matrix<const T>> product, Matrix<const T> grad, Matrix<T> values_grad,
                      std::optional<Matrix<T>> blocks_grad, std::optional<Matrix<T>> diagonal_grad,
                      std::optional<Matrix<T>> minus_blocks_grad, std::optional<Matrix<T>> minus_diagonal_grad,
                      int requested_threads) {
  const BlockFunctions<T> functions = block_functions_for<T>(d);
  ProductPass<T> pass =
      product_pass<T>(layout, d, channels, parts, gate, floor, blocks, diagonal, minus_blocks, minus_diagonal, values);
  const std::int64_t n = layout.targets(), e = layout.edges(), dd = static_cast<std::int64_t>(d) * d;
  const int width = d * parts * channels, threads = threads_for(layout, requested_threads);
  const Plan& plan = layout.plan(threads);
  if (gate) {
    if (!product) refuse("product", "is needed");
    const std::int64_t columns = static_cast<std::int64_t>(grad.shape(1));
    if (columns % d || columns > d * channels || columns <= d * (channels - chosen->kernels(T()).lanes))
      refuse("grad", "has the wrong shape");
    pass.step_channels = static_cast<int>(columns / d);
    pass.step_grad = contiguous(grad, n, columns, "grad");
    pass.product = const_cast<T*>(rows_of(product, n, width, "product"));  // read only in this direction
  } else {
    pass.product_grad = const_cast<T*>(contiguous(grad, n, width, "grad"));  // read only without a gate
  }
  pass.values_grad = contiguous(values_grad, n + plan.ghosts, width, "values_grad");
  pass.blocks_grad = rows_of(blocks_grad, e, dd, "blocks_grad");
  pass.diagonal_grad = rows_of(diagonal_grad, n, dd, "diagonal_grad");
  pass.minus_blocks_grad = rows_of(minus_blocks_grad, e, dd, "minus_blocks_grad");
  pass.minus_diagonal_grad = rows_of(minus_diagonal_grad, n, dd, "minus_diagonal_grad");
  if (minus_blocks_grad && !blocks_grad) refuse("minus_blocks_grad", "comes with blocks_grad");
  if (minus_diagonal_grad && !diagonal_grad) refuse("minus_diagonal_grad", "comes with diagonal_grad");
  pass.slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
  nb::gil_scoped_release release;
  const FloatMode mode(FloatMode::with_flushing());
  std::optional<Table<T>> through_gate;
  if (gate) {
    through_gate.emplace(layout, source_gradient, n * width);
    pass.product_grad = through_gate->get();
  }
  const std::int64_t size = chosen->copies(T()).blocks->scratch(d, 0, width);
  in_parallel(threads, [&](int t) {
    functions.product_nodes(pass, n * t / threads, n * (t + 1) / threads);
    T* const ghosts = pass.values_grad + n * width;
    std::fill(ghosts + plan.ghosts * t / threads * width, ghosts + plan.ghosts * (t + 1) / threads * width, T(0));
  });
  over_edges<T>(plan, threads, size, nullptr, 0, [&](EdgeShare<T>& share) { functions.product_backward(pass, share); });
  add_ghosts(plan, n, pass.values_grad, width, width, threads);
}
