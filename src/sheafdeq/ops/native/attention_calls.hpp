// The calls of softmax attention. Part of module.cpp, which has the helpers.

// Sizes and kind of a pass; `loops`, `additive` and `shared_value` as in AttentionPass.
struct AttentionShape {
  int heads, width, value_width;
  bool additive, shared_value, loops;
};

template <class T>
AttentionPass<T> attention_pass(const Layout& layout, const AttentionShape& shape, T scale, const Matrix<const T>& query,
                                const Matrix<const T>& key, const Matrix<const T>& value,
                                const std::optional<Matrix<const T>>& edge_key,
                                const std::optional<Matrix<const T>>& edge_value,
                                const std::optional<Matrix<const T>>& bias, const std::optional<Row<const T>>& own_bias) {
  const int lanes = chosen->kernels(T()).lanes, heads = shape.heads;
  if (heads < 1 || shape.width < 1 || shape.value_width < 1) refuse("heads and widths", "must be positive");
  if (shape.value_width % lanes || (shape.additive ? shape.width != 1 : shape.width % lanes != 0))
    refuse("widths", "must be multiples of the vector length (of a query and key 1 when additive)");
  AttentionPass<T> pass;
  pass.heads = heads;
  pass.width = shape.width;
  pass.value_width = shape.value_width;
  pass.additive = shape.additive;
  pass.shared_value = shape.shared_value;
  pass.loops = shape.loops;
  pass.scale = scale;
  pass.source = layout.source.data();
  pass.target = layout.target.data();
  pass.pointer = layout.pointer.data();
  const std::int64_t n = layout.targets(), m = layout.sources, e = layout.edges() - (shape.loops ? n : 0);
  if (shape.loops)
    for (std::int64_t v = 0; v < n; v++)
      if (layout.pointer[v + 1] == layout.pointer[v]) refuse("layout", "has a target without its loop");
  pass.query = checked(query, n, heads * shape.width, pass.query_stride, "query");
  pass.key = checked(key, m, heads * shape.width, pass.key_stride, "key");
  pass.value = checked(value, m, (shape.shared_value ? 1 : heads) * shape.value_width, pass.value_stride, "value");
  if (shape.additive && (edge_key || bias || own_bias)) refuse("an additive score", "takes no edge keys and no bias");
  if (edge_key) pass.edge_key = checked(*edge_key, e, heads * shape.width, pass.edge_key_stride, "edge_key");
  if (edge_value) pass.edge_value = checked(*edge_value, e, heads * shape.value_width, pass.edge_value_stride, "edge_value");
  pass.bias = rows_of(bias, e, heads, "bias");
  if (own_bias) {
    if (!shape.loops || static_cast<int>(own_bias->shape(0)) != heads) refuse("own_bias", "has the wrong shape");
    pass.own_bias = own_bias->data();
  }
  return pass;
}

template <class T> void attention_statistics(AttentionPass<T>& pass, const Layout& layout, const Matrix<T>& statistics) {
  const std::int64_t n = layout.targets();
  pass.top = contiguous(statistics, 2 * n, pass.heads, "statistics");
  pass.inverse = pass.top + n * pass.heads;
}

// `statistics` (2 n, heads) keeps the largest scores and then the inverse sums for the backward pass.
template <class T>
void attention_forward(const Layout& layout, int heads, int width, int value_width, bool additive, bool shared_value, bool loops,
                       T scale, Matrix<const T> query, Matrix<const T> key, Matrix<const T> value,
                       std::optional<Matrix<const T>> edge_key, std::optional<Matrix<const T>> edge_value,
                       std::optional<Matrix<const T>> bias, std::optional<Row<const T>> own_bias, Matrix<T> out,
                       Matrix<T> statistics, int requested_threads) {
  AttentionPass<T> pass = attention_pass<T>(layout, {heads, width, value_width, additive, shared_value, loops}, scale, query,
                                            key, value, edge_key, edge_value, bias, own_bias);
  pass.out = contiguous(out, layout.targets(), heads * value_width, "out");
  attention_statistics(pass, layout, statistics);
  const int threads = threads_for(layout, requested_threads);
  nb::gil_scoped_release release;
  const Plan& plan = layout.plan(threads);
  const AttentionFunctions<T>& functions = *chosen->copies(T()).attention;
  over_edges<T>(plan, threads, functions.scratch(pass), nullptr, 0,
                [&](EdgeShare<T>& share) { functions.forward(pass, share); });
}

// `query_grad`, `key_grad` and `value_grad` may be columns of one table. Rows beyond the sources are ghosts (Plan). With
// `edge_key_grad` and no `edge_value_grad` the gradients of both are added up when both were given.
template <class T>
void attention_backward(const Layout& layout, int heads, int width, int value_width, bool additive, bool shared_value, bool loops,
                        T scale, Matrix<const T> query, Matrix<const T> key, Matrix<const T> value,
                        std::optional<Matrix<const T>> edge_key, std::optional<Matrix<const T>> edge_value,
                        std::optional<Matrix<const T>> bias, std::optional<Row<const T>> own_bias, Matrix<T> out,
                        Matrix<T> statistics, Matrix<const T> grad, Matrix<T> query_grad, Matrix<T> key_grad,
                        Matrix<T> value_grad, std::optional<Matrix<T>> edge_key_grad, std::optional<Matrix<T>> edge_value_grad,
                        std::optional<Matrix<T>> bias_grad, std::optional<Row<T>> own_bias_grad, int requested_threads) {
  AttentionPass<T> pass = attention_pass<T>(layout, {heads, width, value_width, additive, shared_value, loops}, scale, query,
                                            key, value, edge_key, edge_value, bias, own_bias);
  const std::int64_t n = layout.targets(), m = layout.sources, e = layout.edges() - (loops ? n : 0);
  const int threads = threads_for(layout, requested_threads), value_columns = (shared_value ? 1 : heads) * value_width;
  const Plan& plan = layout.plan(threads);
  pass.out = contiguous(out, n, heads * value_width, "out");
  attention_statistics(pass, layout, statistics);
  pass.grad = contiguous(grad, n, heads * value_width, "grad");
  pass.query_grad = checked(query_grad, n, heads * width, pass.query_grad_stride, "query_grad");
  const std::int64_t rows = m + plan.ghosts;
  pass.key_grad = checked(key_grad, rows, heads * width, pass.key_grad_stride, "key_grad");
  pass.value_grad = checked(value_grad, rows, value_columns, pass.value_grad_stride, "value_grad");
  pass.edge_key_grad = rows_of(edge_key_grad, e, heads * width, "edge_key_grad");
  pass.edge_value_grad = rows_of(edge_value_grad, e, heads * value_width, "edge_value_grad");
  pass.bias_grad = rows_of(bias_grad, e, heads, "bias_grad");
  if ((edge_key_grad && !edge_key) || (edge_value_grad && !edge_value)) refuse("a gradient", "is wanted of what was not given");
  if (own_bias_grad && static_cast<int>(own_bias_grad->shape(0)) != heads) refuse("own_bias_grad", "has the wrong shape");
  T* const own_out = own_bias_grad ? own_bias_grad->data() : nullptr;
  pass.slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
  nb::gil_scoped_release release;
  const FloatMode mode(FloatMode::with_flushing());
  const AttentionFunctions<T>& functions = *chosen->copies(T()).attention;
  std::vector<double> sums(static_cast<std::size_t>(threads) * heads, 0.0);
  auto clear = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; i++) {
      std::memset(pass.key_grad + i * pass.key_grad_stride, 0, sizeof(T) * heads * width);
      std::memset(pass.value_grad + i * pass.value_grad_stride, 0, sizeof(T) * value_columns);
    }
  };
  double* const own_sums = own_out ? sums.data() : nullptr;
  const Pieces* pieces = m == n ? &layout.pieces(threads) : nullptr;
  if (pieces && !pieces->share.empty()) {  // one graph after the other: its rows are cleared just before they are added to
    pass.slot = layout.source.data();
    in_parallel(threads, [&](int t) {
      EdgeShare<T> share;
      share.scratch = aligned_scratch<T>(functions.scratch(pass));
      if (own_sums) share.parameter_grad = own_sums + t * heads;
      for (std::int64_t p = pieces->share[t]; p < pieces->share[t + 1]; p++) {
        share.first = pieces->bounds[p];
        share.last = pieces->bounds[p + 1];
        clear(share.first, share.last);
        functions.backward(pass, share);
      }
    });
    if (own_out) write_sums(sums, threads, heads, own_out);
    return;
  }
  in_parallel(threads, [&](int t) { clear(rows * t / threads, rows * (t + 1) / threads); });
  over_edges<T>(plan, threads, functions.scratch(pass), own_sums, heads,
                [&](EdgeShare<T>& share) { functions.backward(pass, share); });
  add_ghosts(plan, m, pass.key_grad, pass.key_grad_stride, heads * width, threads);
  add_ghosts(plan, m, pass.value_grad, pass.value_grad_stride, value_columns, threads);
  if (own_out) write_sums(sums, threads, heads, own_out);
}
