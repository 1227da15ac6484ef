// Runs every kernel on random graphs with buffers of exactly the promised size, for the sanitizers to watch.
// Built by test_sanitizers.py with -fsanitize=address,undefined for one scalar type (SHEAFDEQ_DRIVER_SCALAR); prints "clean" when it gets
// to the end. With SHEAFDEQ_DRIVER_STEP only the step of one stalk dimension.
#include <cstdio>
#include <memory>
#include <random>

#include "attention.hpp"
#include "dense.hpp"
#include "blocks.hpp"
#include "layout.hpp"
#include "narrow.hpp"
#include "nodes.hpp"

namespace {

std::mt19937 generator(7);

template <class T> struct Buffer {
  explicit Buffer(std::int64_t size) : data(new T[static_cast<std::size_t>(size)]) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (std::int64_t i = 0; i < size; i++) data[i] = static_cast<T>(uniform(generator));
  }
  operator T*() { return data.get(); }
  std::unique_ptr<T[]> data;
};

sheafdeq::Layout random_layout(std::int64_t n, std::int64_t e) {
  std::vector<std::int32_t> source;
  std::vector<std::int64_t> pointer(n + 1, 0);
  for (std::int64_t i = 0; i < e; i++) {
    source.push_back(static_cast<std::int32_t>(generator() % n));
    pointer[generator() % n + 1]++;
  }
  for (std::int64_t v = 0; v < n; v++) pointer[v + 1] += pointer[v];
  return sheafdeq::Layout(std::move(source), std::move(pointer), std::vector<double>(e, 0.5), std::vector<double>(n, 2.0), n);
}

template <class T, class Nodes, class EdgesOfNodes, bool narrow> double step_once(int d, int q, int h, std::int64_t n, std::int64_t e, bool with_edges, int threads) {
  constexpr int W = Lanes<T>::W;
  auto padded = [](int width) { return narrow ? width : (width + W - 1) / W * W; };
  const sheafdeq::Layout layout = random_layout(n, e);
  const sheafdeq::Plan& plan = layout.plan(threads);
  const int hidden = padded(h), channels = padded(q), c = d * q, wide = padded(c);
  const int hidden_row = narrow ? sheafdeq::narrow_row : 2 * hidden, value_row = narrow ? sheafdeq::narrow_row : d * channels;
  const int width = hidden_row + value_row;

  NodePass<T> nodes;
  nodes.d = d, nodes.q = q, nodes.channels = channels, nodes.hidden = hidden;
  Buffer<T> state(n * c), columns(c * 4 * hidden), rows(4 * hidden * wide), bias(2 * hidden), stalk(d * d), mix(q * channels),
      mix_columns(q * channels), source(n * width), target(n * hidden_row);
  nodes.state = state, nodes.first_columns = columns, nodes.first_rows = rows, nodes.bias = bias, nodes.stalk_mixing = stalk;
  nodes.channel_mixing = mix, nodes.channel_mixing_columns = mix_columns;
  nodes.inverse_degree = layout.inverse_degrees(T());
  nodes.source = source, nodes.source_stride = width, nodes.target = target, nodes.target_stride = hidden_row;
  Buffer<T> node_scratch(Nodes::scratch(nodes));
  Nodes::forward(nodes, 0, n, node_scratch);

  EdgePass<T> pass;
  pass.d = d, pass.channels = channels, pass.hidden = hidden, pass.step_channels = q, pass.shift = T(1.3);
  pass.outputs = d * d, pass.row = width;
  pass.source = layout.source.data(), pass.target = layout.target.data(), pass.pointer = layout.pointer.data();
  pass.weight = layout.weights(T()), pass.inverse_degree = layout.inverse_degrees(T());
  pass.source_hidden = source, pass.source_values = pass.own_values = source + hidden_row;
  pass.source_hidden_stride = pass.source_values_stride = pass.own_values_stride = width;
  pass.target_hidden = target, pass.target_hidden_stride = hidden_row;
  Buffer<T> edge_hidden(e * 2 * hidden), edge_grad(e * 2 * hidden);
  if (with_edges) pass.edge_hidden = edge_hidden, pass.edge_hidden_stride = 2 * hidden;
  Buffer<T> maps(2 * d * d * hidden), map_bias(2 * d * d), drive(n * c), out(n * c), tanh(n * c);
  for (int map = 0; map < 2; map++) pass.weight_of_map[map] = maps + map * d * d * hidden, pass.bias_of_map[map] = map_bias + map * d * d;
  pass.drive = drive, pass.step = out, pass.tanh = tanh;
  Buffer<T> scratch(narrow ? narrow_scratch<T>(d, h) : edge_scratch<T>(d, hidden, channels));
  for (int t = 0; t < threads; t++) {
    EdgeShare<T> share;
    share.first = plan.bounds[t], share.last = plan.bounds[t + 1], share.scratch = scratch;
    EdgesOfNodes::forward(pass, share);
  }

  Buffer<T> grad(n * c), source_grad((n + plan.ghosts) * width), target_grad(n * hidden_row), own_grad(n * value_row);
  std::fill_n(source_grad.data.get(), (n + plan.ghosts) * width, T(0));
  pass.step_grad = grad, pass.own_values_grad = own_grad, pass.grad = own_grad;
  pass.own_values_grad_stride = pass.grad_stride = value_row;
  pass.slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
  pass.source_grad = source_grad, pass.source_grad_stride = width;
  pass.target_hidden_grad = target_grad, pass.target_hidden_grad_stride = hidden_row;
  if (with_edges) pass.edge_hidden_grad = edge_grad, pass.edge_hidden_grad_stride = 2 * hidden;
  std::vector<double> edge_sums(2 * d * d * (hidden + 1)), node_sums(Nodes::parameters(nodes));
  for (int t = 0; t < threads; t++) {
    EdgeShare<T> share;
    share.first = plan.bounds[t], share.last = plan.bounds[t + 1], share.scratch = scratch, share.parameter_grad = edge_sums.data();
    EdgesOfNodes::backward(pass, share);
  }
  Buffer<T> state_grad(n * c);
  nodes.source = source_grad, nodes.target = target_grad, nodes.own_grad = own_grad, nodes.own_grad_stride = value_row;
  nodes.state_grad = state_grad;
  Nodes::backward(nodes, 0, n, node_scratch, node_sums.data());
  double total = 0;
  for (std::int64_t i = 0; i < n * c; i++) total += static_cast<double>(state_grad[i]) + static_cast<double>(out[i]);
  return total;
}

template <class T, int D> double once(int d, int q, int h, std::int64_t n, std::int64_t e, bool with_edges, int threads) {
  return step_once<T, NodeKernel<T>, EdgeKernel<T, D>, false>(d, q, h, n, e, with_edges, threads);
}
template <class T, int D> double narrow_once(int q, int h, std::int64_t n, std::int64_t e, bool with_edges, int threads) {
  return step_once<T, NarrowNodes<T>, NarrowEdges<T, D>, true>(D, q, h, n, e, with_edges, threads);
}

#ifndef SHEAFDEQ_DRIVER_STEP
// Generating matrices and multiplying with them, forward and backward.
template <class T, int D> double blocks_once(int d, int q, int h, std::int64_t n, std::int64_t e, bool sizes, int threads) {
  constexpr int W = Lanes<T>::W;
  auto padded = [](int width) { return (width + W - 1) / W * W; };
  const sheafdeq::Layout layout = random_layout(n, e);
  const sheafdeq::Plan& plan = layout.plan(threads);
  const int hidden = padded(h), channels = padded(q), dd = d * d, width = d * 2 * channels;
  const std::int64_t rows = n + plan.ghosts;
  const std::int32_t* slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
  auto each_share = [&](T* scratch, double* sums, auto&& work) {
    for (int t = 0; t < threads; t++) {
      EdgeShare<T> share;
      share.first = plan.bounds[t], share.last = plan.bounds[t + 1], share.scratch = scratch, share.parameter_grad = sums;
      work(share);
    }
  };

  MapPass<T> maps;
  maps.d = d, maps.hidden = maps.row = hidden, maps.outputs = 2 * dd, maps.sign = T(-1), maps.softening = T(1e-3);
  maps.source = layout.source.data(), maps.target = layout.target.data(), maps.pointer = layout.pointer.data();
  maps.weight = layout.weights(T()), maps.inverse_degree = layout.inverse_degrees(T());
  Buffer<T> source(n * hidden), target(n * hidden), edge(e * hidden), weight(2 * dd * hidden), bias(2 * dd), size(e * 2 * dd);
  Buffer<T> blocks(e * dd), diagonal(n * dd), source_grad(rows * hidden), target_grad(n * hidden), edge_grad(e * hidden);
  Buffer<T> size_grad(e * 2 * dd), blocks_grad(e * dd), diagonal_grad(n * dd);
  std::vector<double> sums(2 * dd * (hidden + 1));
  maps.source_hidden = source, maps.target_hidden = target, maps.edge_hidden = edge;
  maps.source_hidden_stride = maps.target_hidden_stride = maps.edge_hidden_stride = hidden;
  for (int map = 0; map < 2; map++) maps.weight_of_map[map] = weight + map * dd * hidden, maps.bias_of_map[map] = bias + map * dd;
  Buffer<T> minus_maps(e * dd), minus_own(n * dd), minus_maps_grad(e * dd), minus_own_grad(n * dd);
  if (sizes) {
    maps.sizes = size, maps.sizes_grad = size_grad, maps.minus_blocks = minus_maps, maps.minus_diagonal = minus_own;
    maps.minus_blocks_grad = minus_maps_grad, maps.minus_diagonal_grad = minus_own_grad;
  }
  maps.blocks = blocks, maps.diagonal = diagonal, maps.blocks_grad = blocks_grad, maps.diagonal_grad = diagonal_grad;
  maps.slot = slot, maps.source_grad = source_grad, maps.target_hidden_grad = target_grad, maps.edge_hidden_grad = edge_grad;
  maps.source_grad_stride = maps.target_hidden_grad_stride = maps.edge_hidden_grad_stride = hidden;
  const std::int64_t need = block_scratch<T>(d, hidden, width);
  // vectors of waiting sums lie in the scratch memory, which the dispatcher aligns
  std::unique_ptr<T, void (*)(void*)> scratch(static_cast<T*>(std::aligned_alloc(64, (need * sizeof(T) + 63) / 64 * 64)), std::free);
  each_share(scratch.get(), nullptr, [&](const EdgeShare<T>& share) { MapKernel<T, D>::forward(maps, share); });
  each_share(scratch.get(), sums.data(), [&](const EdgeShare<T>& share) { MapKernel<T, D>::backward(maps, share); });

  ProductPass<T> pass;
  pass.d = d, pass.channels = channels, pass.parts = 2, pass.gate = sizes ? Gate::tanh : Gate::balance, pass.floor = T(0.01);
  pass.step_channels = q, pass.source = layout.source.data(), pass.pointer = layout.pointer.data(), pass.slot = slot;
  Buffer<T> values(n * width), product(n * width), base(n * d * q), step(n * d * q), step_grad(n * d * q), product_grad(n * width);
  Buffer<T> values_grad(rows * width), minus_blocks(e * dd), minus_diagonal(n * dd), minus_blocks_grad(e * dd), minus_diagonal_grad(n * dd);
  pass.blocks = blocks, pass.diagonal = diagonal, pass.values = values, pass.product = product, pass.base = base, pass.step = step;
  pass.step_grad = step_grad, pass.product_grad = product_grad, pass.values_grad = values_grad;
  pass.blocks_grad = blocks_grad, pass.diagonal_grad = diagonal_grad;
  if (sizes) pass.minus_blocks = minus_blocks, pass.minus_diagonal = minus_diagonal;
  if (sizes) pass.minus_blocks_grad = minus_blocks_grad, pass.minus_diagonal_grad = minus_diagonal_grad;
  each_share(scratch.get(), nullptr, [&](const EdgeShare<T>& share) { ProductKernel<T, D>::forward(pass, share); });
  ProductKernel<T, D>::nodes(pass, 0, n);
  each_share(scratch.get(), nullptr, [&](const EdgeShare<T>& share) { ProductKernel<T, D>::backward(pass, share); });
  double total = 0;
  for (std::int64_t i = 0; i < n * d * q; i++) total += static_cast<double>(step[i]);
  return total;
}

// Attention, forward and backward: with everything an edge can add, or additive; with loops, or without.
template <class T> double attention_once(int heads, int w, int u, std::int64_t n, std::int64_t e, bool more, int threads) {
  constexpr int W = Lanes<T>::W;
  auto padded = [](int width) { return (width + W - 1) / W * W; };
  const bool additive = !more && w == 1, shared = more && w > 3;
  const int width = additive ? 1 : padded(w), value_width = padded(u);
  std::vector<std::int32_t> source;
  std::vector<std::int64_t> pointer(n + 1, 0);
  std::vector<std::vector<std::int32_t>> into(n);
  for (std::int64_t i = 0; i < e; i++) into[generator() % (i % 2 ? n : 1)].push_back(static_cast<std::int32_t>(generator() % n));
  for (std::int64_t v = 0; v < n; v++) {
    if (more) into[v].push_back(static_cast<std::int32_t>(v));  // its loop, last
    source.insert(source.end(), into[v].begin(), into[v].end());
    pointer[v + 1] = static_cast<std::int64_t>(source.size());
  }
  const std::size_t stored = source.size();
  const sheafdeq::Layout layout(std::move(source), std::move(pointer), std::vector<double>(stored, 1.0), std::vector<double>(n, 1.0), n);
  const sheafdeq::Plan& plan = layout.plan(threads);
  const std::int64_t rows = n + plan.ghosts;
  const int value_columns = (shared ? 1 : heads) * value_width;
  sheafdeq::AttentionPass<T> pass;
  pass.heads = heads, pass.width = width, pass.value_width = value_width, pass.additive = additive, pass.shared_value = shared;
  pass.loops = more, pass.scale = T(0.3);
  pass.source = layout.source.data(), pass.target = layout.target.data(), pass.pointer = layout.pointer.data();
  Buffer<T> query(n * heads * width), key(n * heads * width), value(n * value_columns), edge_key(e * heads * width);
  Buffer<T> edge_value(e * heads * value_width), bias(e * heads), own_bias(heads), out(n * heads * value_width), top(n * heads);
  Buffer<T> inverse(n * heads), grad(n * heads * value_width), query_grad(n * heads * width), key_grad(rows * heads * width);
  Buffer<T> value_grad(rows * value_columns), edge_key_grad(e * heads * width), edge_value_grad(e * heads * value_width), bias_grad(e * heads);
  pass.query = query, pass.key = key, pass.value = value;
  pass.query_stride = pass.key_stride = pass.query_grad_stride = pass.key_grad_stride = heads * width;
  pass.value_stride = pass.value_grad_stride = value_columns;
  if (more) {
    pass.edge_key = edge_key, pass.edge_value = edge_value, pass.bias = bias, pass.own_bias = own_bias;
    pass.edge_key_stride = heads * width, pass.edge_value_stride = heads * value_width;
    pass.edge_key_grad = edge_key_grad, pass.edge_value_grad = edge_value_grad, pass.bias_grad = bias_grad;
  }
  pass.out = out, pass.top = top, pass.inverse = inverse;
  std::vector<double> sums(heads);
  Buffer<T> scratch(AttentionKernel<T>::scratch(pass));
  auto each_share = [&](auto&& work) {
    for (int t = 0; t < threads; t++) {
      EdgeShare<T> share;
      share.first = plan.bounds[t], share.last = plan.bounds[t + 1], share.scratch = scratch;
      share.parameter_grad = more ? sums.data() : nullptr;
      work(share);
    }
  };
  each_share([&](const EdgeShare<T>& share) { AttentionKernel<T>::forward(pass, share); });
  pass.grad = grad, pass.query_grad = query_grad, pass.key_grad = key_grad, pass.value_grad = value_grad;
  pass.slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
  each_share([&](const EdgeShare<T>& share) { AttentionKernel<T>::backward(pass, share); });
  double total = 0;
  for (std::int64_t i = 0; i < n * heads * value_width; i++) total += static_cast<double>(out[i]);
  return total;
}

// A dense layer and the gradient of its weights, rows beside each other or apart.
template <class T> double dense_once(std::int64_t rows, int depth, int vectors, bool more) {
  constexpr int W = Lanes<T>::W;
  const int width = vectors * W, apart = more ? 3 : 0;
  sheafdeq::DensePass<T> pass;
  pass.depth = depth, pass.width = width;
  pass.x_stride = depth + apart, pass.out_stride = pass.grad_stride = width + apart;
  Buffer<T> x(rows * pass.x_stride), columns(depth * width), bias(width), out(rows * pass.out_stride), grad(rows * pass.grad_stride);
  pass.x = x, pass.columns = columns, pass.out = out, pass.grad = grad;
  if (more) pass.bias = bias;
  DenseKernel<T>::forward(pass, 0, rows);
  double total = 0;
  for (std::int64_t r = 0; r < rows; r++) total += static_cast<double>(out[r * pass.out_stride]);
  if (depth % W) return total;
  Buffer<T> scratch(width * (depth + 1));
  std::vector<double> sums(width * (depth + 1));
  DenseKernel<T>::gradient(pass, 0, rows, scratch, sums.data());
  for (const double sum : sums) total += sum;
  return total;
}
#endif

template <class T> double all() {
  double total = 0;
  for (const std::int64_t e : {0, 1, 5, 16, 17, 200})
    for (const bool more : {false, true})
      for (const int threads : {1, 3}) {
        total += once<T, 3>(3, 5, 7, 53, e, more, threads);
#ifndef SHEAFDEQ_DRIVER_STEP
        total += narrow_once<T, 3>(2, 6, 53, e, more, threads);
        total += narrow_once<T, 2>(3, 8, 9, e, more, threads);
        total += once<T, 0>(7, 2, 9, 6, e, more, threads);
        total += once<T, 0>(1, 3, 5, 9, e, more, threads);
        total += blocks_once<T, 3>(3, 5, 7, 53, e, more, threads);
        total += blocks_once<T, 0>(7, 2, 9, 6, e, more, threads);
        total += attention_once<T>(3, 1, 5, 53, e, more, threads);
        total += attention_once<T>(1, 9, 2, 6, e, more, threads);
        total += dense_once<T>(e, 48, 1 + static_cast<int>(e % 7), more);
        total += dense_once<T>(e, 5, 4, more);
#endif
      }
  return total;
}

}  // namespace

int main() {
  std::printf("%.17g clean\n", all<SHEAFDEQ_DRIVER_SCALAR>());
  return 0;
}
