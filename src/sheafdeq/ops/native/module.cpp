// Python bindings, choice of the instruction set, and threads. Compiled for the baseline instruction set.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "arguments.hpp"
#include "attention_arguments.hpp"
#include "float_mode.hpp"
#include "layout.hpp"
#include "pool.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif
namespace nb = nanobind;
using namespace sheafdeq;

namespace sheafdeq {
#define SHEAFDEQ_DECLARE(variant)                            \
  extern const Kernels<float> kernels_float_##variant;       \
  extern const Kernels<double> kernels_double_##variant;     \
  extern const EdgeFunctions<float> general_float_##variant; \
  extern const EdgeFunctions<double> general_double_##variant; \
  extern const BlockKernels<float> blocks_float_##variant; \
  extern const BlockKernels<double> blocks_double_##variant; \
  extern const BlockFunctions<float> general_blocks_float_##variant; \
  extern const BlockFunctions<double> general_blocks_double_##variant; \
  extern const AttentionFunctions<float> attention_float_##variant; \
  extern const AttentionFunctions<double> attention_double_##variant;
#ifdef SHEAFDEQ_HAS_BASELINE
SHEAFDEQ_DECLARE(baseline)
#endif
#ifdef SHEAFDEQ_HAS_AVX2
SHEAFDEQ_DECLARE(avx2)
#endif
#ifdef SHEAFDEQ_HAS_AVX512
SHEAFDEQ_DECLARE(avx512)
#endif
}  // namespace sheafdeq

namespace {

// All copies for one scalar type and instruction set.
template <class T> struct Copies {
  const Kernels<T>* step;
  const EdgeFunctions<T>* general;
  const BlockKernels<T>* blocks;
  const BlockFunctions<T>* general_blocks;
  const AttentionFunctions<T>* attention;
};

struct Variant {
  const char* name;
  Copies<float> of_float;
  Copies<double> of_double;
  const Copies<float>& copies(float) const { return of_float; }
  const Copies<double>& copies(double) const { return of_double; }
  template <class T> const Kernels<T>& kernels(T) const { return *copies(T()).step; }
};

#define SHEAFDEQ_COPIES(scalar, variant) \
  {&kernels_##scalar##_##variant, &general_##scalar##_##variant, &blocks_##scalar##_##variant, &general_blocks_##scalar##_##variant, \
   &attention_##scalar##_##variant}
#define SHEAFDEQ_VARIANT_ROW(variant) {#variant, SHEAFDEQ_COPIES(float, variant), SHEAFDEQ_COPIES(double, variant)}

bool supported(const std::string& name) {
  if (name == "baseline") return true;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (name == "avx512")
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
#endif
  return false;
}

const Variant variants[] = {
#ifdef SHEAFDEQ_HAS_AVX512
    SHEAFDEQ_VARIANT_ROW(avx512),
#endif
#ifdef SHEAFDEQ_HAS_AVX2
    SHEAFDEQ_VARIANT_ROW(avx2),
#endif
#ifdef SHEAFDEQ_HAS_BASELINE
    SHEAFDEQ_VARIANT_ROW(baseline),
#endif
};

const Variant* chosen = nullptr;
const Variant* narrow = nullptr;  // with vectors half as long, for narrow rows; `chosen` where there is none or one was named

void choose(const std::string& name) {
  for (const Variant& variant : variants)
    if ((name.empty() || name == variant.name) && supported(variant.name)) {
      chosen = narrow = &variant;
      if (name.empty() && std::string(variant.name) == "avx512" && std::end(variants) - chosen > 1 && std::string(chosen[1].name) == "avx2")
        narrow = chosen + 1;
      return;
    }
  throw nb::value_error(("this machine or build has no kernel for the instruction set '" + name + "'").c_str());
}

constexpr int most_threads = 1024;  // as sheafdeq.threads.MOST_THREADS

template <class T> using Matrix = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;
template <class T> using Row = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const char* name, const char* why) {
  throw nb::value_error((std::string(name) + " " + why).c_str());
}

// A pointer to a matrix whose shape and strides have been checked.
template <class T> T* checked(const Matrix<T>& matrix, std::int64_t rows, std::int64_t columns, std::int64_t& stride,
                              const char* name) {
  if (static_cast<std::int64_t>(matrix.shape(0)) < rows || static_cast<std::int64_t>(matrix.shape(1)) != columns)
    refuse(name, "has the wrong shape");
  if (rows > 0 && columns > 1 && matrix.stride(1) != 1) refuse(name, "must have contiguous rows");
  stride = matrix.shape(0) > 1 ? matrix.stride(0) : columns;
  if (rows > 1 && stride < columns) refuse(name, "has overlapping rows");
  if (rows > 0 && columns > 0 && !matrix.data()) refuse(name, "has no memory of its own: pass a plain tensor");
  return matrix.data();
}

int threads_for(const Layout& layout, int requested) {
  if (requested < 1 || requested > most_threads) refuse("threads", "must be between 1 and 1024");
  // Below a few thousand edges a thread costs more to wake than it saves.
  const std::int64_t useful = 1 + layout.edges() / 4096;
  return static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>({requested, useful, 256})));
}

template <class F> void in_parallel(int threads, F&& work) {
  if (threads == 1) {
    work(0);
    return;
  }
  const FloatMode::Word word = FloatMode::current();  // other threads compute as the calling one does
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads)
#endif
  for (int t = 0; t < threads; t++) {
    const FloatMode mode(word);
    work(t);
  }
}

// Memory that stays with its thread, so that a step allocates nothing.
template <class T> T* aligned_scratch(std::int64_t size) {
  thread_local std::vector<T> memory;
  const std::size_t needed = static_cast<std::size_t>(size) + 64 / sizeof(T);
  if (memory.size() < needed) memory.resize(needed);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return reinterpret_cast<T*>((address + 63) / 64 * 64);
}

// Every thread works on its own edges with scratch memory of its own; `sums`, if there are any, are `count` a thread.
template <class T, class F>
void over_edges(const Plan& plan, int threads, std::int64_t scratch, double* sums, std::int64_t count, F&& work) {
  in_parallel(threads, [&](int t) {
    EdgeShare<T> share;
    share.first = plan.bounds[t];
    share.last = plan.bounds[t + 1];
    share.scratch = aligned_scratch<T>(scratch);
    if (sums) share.parameter_grad = sums + t * count;
    work(share);
  });
}

template <class T> void write_sums(const std::vector<double>& sums, int threads, std::int64_t count, T* out) {
  for (std::int64_t i = 0; i < count; i++) {
    double total = 0.0;
    for (int t = 0; t < threads; t++) total += sums[t * count + i];
    out[i] = static_cast<T>(total);
  }
}

template <class T> EdgeFunctions<T> functions_for(int d, const Variant& variant = *chosen) {
  if (d < 1 || d > largest_dimension) throw nb::value_error("the stalk dimension must be between 1 and 16");
  const Copies<T>& copies = variant.copies(T());
  return d <= specialised_dimensions && copies.step->edges[d - 1].forward ? copies.step->edges[d - 1] : *copies.general;
}
template <class T> BlockFunctions<T> block_functions_for(int d) {
  if (d < 1 || d > largest_dimension) throw nb::value_error("the stalk dimension must be between 1 and 16");
  const Copies<T>& copies = chosen->copies(T());
  return d <= specialised_blocks && copies.blocks->of[d - 1].map_forward ? copies.blocks->of[d - 1] : *copies.general_blocks;
}

// Add the ghost rows to the rows they stand for, in the order of the threads that wrote them.
template <class T>
void add_ghosts(const Plan& plan, std::int64_t rows, T* table, std::int64_t stride, std::int64_t width, int threads) {
  const auto shared = static_cast<std::int64_t>(plan.ghost_rows.size());
  if (shared == 0) return;
  in_parallel(threads, [&](int t) {
    for (std::int64_t i = shared * t / threads; i < shared * (t + 1) / threads; i++) {
      T* row = table + plan.ghost_rows[i] * stride;
      for (std::int64_t g = plan.ghost_pointer[i]; g < plan.ghost_pointer[i + 1]; g++) {
        const T* ghost = table + (rows + g) * stride;
        for (std::int64_t k = 0; k < width; k++) row[k] += ghost[k];
      }
    }
  });
}

// ---------------------------------------------------------------------- the edge pass

template <class T>
EdgePass<T> edge_pass(const Layout& layout, int d, int channels, int hidden, const Matrix<const T>& source_hidden,
                      const Matrix<const T>& target_hidden, const std::optional<Matrix<const T>>& edge_hidden,
                      const Matrix<const T>& source_values, const Matrix<const T>& own_values,
                      const Matrix<const T>& source_weight, const Row<const T>& source_bias,
                      const Matrix<const T>& target_weight, const Row<const T>& target_bias) {
  const int lanes = chosen->kernels(T()).lanes;
  if (channels < 1 || hidden < 1 || channels % lanes || hidden % lanes)
    refuse("channels and hidden width", "must be positive multiples of the vector length");
  EdgePass<T> pass;
  pass.d = d;
  pass.channels = channels;
  pass.hidden = hidden;
  pass.outputs = d * d;
  pass.row = 2 * hidden + d * channels;
  pass.source = layout.source.data();
  pass.target = layout.target.data();
  pass.pointer = layout.pointer.data();
  pass.weight = layout.weights(T());
  pass.inverse_degree = layout.inverse_degrees(T());
  const std::int64_t n = layout.targets(), m = layout.sources, e = layout.edges();
  pass.source_hidden = checked(source_hidden, m, 2 * hidden, pass.source_hidden_stride, "source_hidden");
  pass.target_hidden = checked(target_hidden, n, 2 * hidden, pass.target_hidden_stride, "target_hidden");
  if (edge_hidden) pass.edge_hidden = checked(*edge_hidden, e, 2 * hidden, pass.edge_hidden_stride, "edge_hidden");
  pass.source_values = checked(source_values, m, d * channels, pass.source_values_stride, "source_values");
  pass.own_values = checked(own_values, n, d * channels, pass.own_values_stride, "own_values");
  std::int64_t stride = 0;
  pass.weight_of_map[0] = checked(source_weight, d * d, hidden, stride, "second_source_weight");
  if (d > 1 && stride != hidden) refuse("second_source_weight", "must be contiguous");
  pass.weight_of_map[1] = checked(target_weight, d * d, hidden, stride, "second_target_weight");
  if (d > 1 && stride != hidden) refuse("second_target_weight", "must be contiguous");
  if (static_cast<int>(source_bias.shape(0)) != d * d || static_cast<int>(target_bias.shape(0)) != d * d)
    refuse("second-layer bias", "has the wrong shape");
  pass.bias_of_map[0] = source_bias.data();
  pass.bias_of_map[1] = target_bias.data();
  return pass;
}

template <class T>
void edge_forward(const Layout& layout, int d, int channels, int hidden, Matrix<const T> source_hidden,
                  Matrix<const T> target_hidden, std::optional<Matrix<const T>> edge_hidden,
                  Matrix<const T> source_values, Matrix<const T> own_values, Matrix<const T> source_weight,
                  Row<const T> source_bias, Matrix<const T> target_weight, Row<const T> target_bias, Matrix<T> out,
                  int requested_threads) {
  const EdgeFunctions<T> functions = functions_for<T>(d);
  EdgePass<T> pass = edge_pass<T>(layout, d, channels, hidden, source_hidden, target_hidden, edge_hidden, source_values,
                                  own_values, source_weight, source_bias, target_weight, target_bias);
  pass.out = checked(out, layout.targets(), d * channels, pass.out_stride, "out");
  const int threads = threads_for(layout, requested_threads);
  nb::gil_scoped_release release;
  const Plan& plan = layout.plan(threads);
  const std::int64_t size = chosen->kernels(T()).edge_scratch(d, hidden, channels);
  over_edges<T>(plan, threads, size, nullptr, 0, [&](EdgeShare<T>& share) { functions.forward(pass, share); });
}

template <class T>
void edge_backward(const Layout& layout, int d, int channels, int hidden, Matrix<const T> source_hidden,
                   Matrix<const T> target_hidden, std::optional<Matrix<const T>> edge_hidden,
                   Matrix<const T> source_values, Matrix<const T> own_values, Matrix<const T> source_weight,
                   Row<const T> source_bias, Matrix<const T> target_weight, Row<const T> target_bias,
                   Matrix<const T> grad, Matrix<T> source_grad, Matrix<T> target_hidden_grad, Matrix<T> own_values_grad,
                   std::optional<Matrix<T>> edge_hidden_grad, Row<T> parameter_grad, int requested_threads) {
  const EdgeFunctions<T> functions = functions_for<T>(d);
  EdgePass<T> pass = edge_pass<T>(layout, d, channels, hidden, source_hidden, target_hidden, edge_hidden, source_values,
                                  own_values, source_weight, source_bias, target_weight, target_bias);
  const std::int64_t n = layout.targets(), m = layout.sources, width = d * channels;
  const int threads = threads_for(layout, requested_threads);
  const Plan& plan = layout.plan(threads);
  pass.grad = checked(grad, n, width, pass.grad_stride, "grad");
  pass.source_grad = checked(source_grad, m + plan.ghosts, 2 * hidden + width, pass.source_grad_stride, "source_grad");
  pass.target_hidden_grad =
      checked(target_hidden_grad, n, 2 * hidden, pass.target_hidden_grad_stride, "target_hidden_grad");
  pass.own_values_grad = checked(own_values_grad, n, width, pass.own_values_grad_stride, "own_values_grad");
  if (edge_hidden_grad)
    pass.edge_hidden_grad =
        checked(*edge_hidden_grad, layout.edges(), 2 * hidden, pass.edge_hidden_grad_stride, "edge_hidden_grad");
  pass.slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
  const std::int64_t parameters = 2LL * d * d * (hidden + 1);
  if (static_cast<std::int64_t>(parameter_grad.shape(0)) != parameters) refuse("parameter_grad", "has the wrong shape");
  T* parameter_out = parameter_grad.data();

  nb::gil_scoped_release release;
  const FloatMode mode(FloatMode::with_flushing());
  const std::int64_t size = chosen->kernels(T()).edge_scratch(d, hidden, channels);
  std::vector<double> sums(static_cast<std::size_t>(threads * parameters), 0.0);
  const std::int64_t rows = m + plan.ghosts, row_bytes = (2 * hidden + width) * static_cast<std::int64_t>(sizeof(T));
  in_parallel(threads, [&](int t) {
    for (std::int64_t i = rows * t / threads; i < rows * (t + 1) / threads; i++)
      std::memset(pass.source_grad + i * pass.source_grad_stride, 0, row_bytes);
  });
  over_edges<T>(plan, threads, size, sums.data(), parameters,
                [&](EdgeShare<T>& share) { functions.backward(pass, share); });
  add_ghosts(plan, m, pass.source_grad, pass.source_grad_stride, 2 * hidden + width, threads);
  write_sums(sums, threads, parameters, parameter_out);
}

// ---------------------------------------------------------------------- the whole step

// Tables of a call. Up to 64 MB each they stay with the calling thread, larger ones with the layout, for as long as the graph
// lives: handing pages back to the system and getting them again at every step costs more than some of the passes. A call
// takes a table from the layout and puts it back; one that runs at the same time gets a table of its own.
enum Role { source_table, target_table, source_gradient, target_gradient, own_gradient, roles };

template <class T> class Table {
 public:
  Table(const Layout& layout, Role role, std::int64_t size) : layout_(&layout), role_(role) {
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
    if (bytes > (std::size_t(64) << 20)) {
      lent_ = layout.take_memory(role, bytes);
      data_ = static_cast<T*>(lent_.data());
      return;
    }
    thread_local Memory kept[roles];
    if (kept[role].bytes() < bytes) {
      kept[role] = Memory();
      kept[role] = Memory(bytes);
    }
    data_ = static_cast<T*>(kept[role].data());
  }
  Table(Table&& other) = default;
  ~Table() {
    if (lent_.data()) layout_->return_memory(role_, std::move(lent_));
  }
  T* get() const { return data_; }

 private:
  const Layout* layout_;
  Role role_;
  Memory lent_;
  T* data_ = nullptr;
};

// The address of which `table` is `elements` further: rows are then named by their nodes, whichever the first one is.
template <class T> T* shifted(T* table, std::int64_t elements) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(table) - static_cast<std::uintptr_t>(elements) * sizeof(T));
}

// The functions that serve a step, and the padding they want.
template <class T> struct StepFunctions {
  const Kernels<T>* kernels = nullptr;
  EdgeFunctions<T> edges;
  NodeFunctions<T> nodes;
  bool narrow = false;  // rows of `narrow_row` entries, nothing else padded

  int padded(int width) const {
    const int lanes = narrow ? 1 : kernels->lanes;
    return (width + lanes - 1) / lanes * lanes;
  }
  std::int64_t scratch(const NodePass<T>& pass) const {
    const std::int64_t of_edges =
        narrow ? kernels->narrow_scratch(pass.d, pass.hidden) : kernels->edge_scratch(pass.d, pass.hidden, pass.channels);
    return std::max(of_edges, nodes.scratch(pass));
  }
};

// Rows that would fill a fraction of a vector have kernels of their own. Otherwise vectors that channels fill to less than a half
// cost as much as full ones: half as long ones are taken, unless edges contribute, which were padded for `chosen`, and both pad
// otherwise.
template <class T> StepFunctions<T> step_functions(int d, int q, int h, bool with_edges) {
  StepFunctions<T> found;
  const Kernels<T>& kernels = chosen->kernels(T());
  if (d >= 1 && d <= narrow_dimensions && kernels.narrow_edges[d - 1].forward && 2 * h <= narrow_row && d * q + d * d <= narrow_row) {
    found.kernels = &kernels;
    found.edges = kernels.narrow_edges[d - 1];
    found.nodes = kernels.narrow_nodes;
    found.narrow = true;
    return found;
  }
  const int lanes = kernels.lanes, half = narrow->kernels(T()).lanes;
  const bool alike = (h + lanes - 1) / lanes * lanes == (h + half - 1) / half * half;
  const Variant& variant = q <= half && (alike || !with_edges) ? *narrow : *chosen;
  found.kernels = &variant.kernels(T());
  found.edges = functions_for<T>(d, variant);
  found.nodes = found.kernels->nodes;
  return found;
}

// The parameters of a step in the layout and padding the kernels want, and the shapes that go with them.
template <class T> struct StepParameters {
  int d, q, h, inputs, hidden, channels, wide;
  int hidden_row, value_row;  // entries of a row of both hidden parts, and of a row of values
  Memory memory;
  NodePass<T> nodes;
  EdgePass<T> edges;

  // `parameters`: the ten one after the other, as ops/sheaf_step.py packs them.
  StepParameters(const StepFunctions<T>& functions, const Layout& layout, int d_, int q_, int h_, int inputs_, bool pre_norm,
                 const Row<const T>& parameters)
      : d(d_), q(q_), h(h_), inputs(inputs_) {
    auto padded = [&](int width) { return functions.padded(width); };
    if (q < 1) refuse("channels", "must be positive");
    if (h < 1 || inputs < 2 * d * q) refuse("the first layers", "have the wrong shape");
    hidden = padded(h);
    channels = padded(q);
    const int c = d * q, h4 = 4 * hidden, dd = d * d;
    wide = padded(c);
    hidden_row = functions.narrow ? narrow_row : 2 * hidden;
    value_row = functions.narrow ? narrow_row : d * channels;
    if (static_cast<std::int64_t>(parameters.shape(0)) != count()) refuse("parameters", "have the wrong number");
    const T* next = parameters.data();
    auto take = [&](std::int64_t size) {
      const T* const taken = next;
      next += size;
      return taken;
    };
    const T *first[2], *first_bias[2], *second[2], *second_bias[2];
    for (int map = 0; map < 2; map++) {
      first[map] = take(static_cast<std::int64_t>(h) * inputs);
      first_bias[map] = take(h);
    }
    for (int map = 0; map < 2; map++) {
      second[map] = take(static_cast<std::int64_t>(dd) * h);
      second_bias[map] = take(dd);
    }
    const T *stalk = take(dd), *channel = take(static_cast<std::int64_t>(q) * q);
    const std::int64_t sizes[] = {static_cast<std::int64_t>(c) * h4, static_cast<std::int64_t>(h4) * wide, 2 * hidden, dd,
                                  static_cast<std::int64_t>(q) * channels, static_cast<std::int64_t>(q) * channels,
                                  2LL * dd * hidden};
    std::int64_t offsets[8] = {0};
    for (int i = 0; i < 7; i++) offsets[i + 1] = offsets[i] + (sizes[i] + 15) / 16 * 16;
    memory = Memory(offsets[7] * sizeof(T));
    T* const base = static_cast<T*>(memory.data());
    std::fill_n(base, offsets[7], T(0));
    T *columns = base, *rows = base + offsets[1], *bias = base + offsets[2], *mixing = base + offsets[3];
    T *mix = base + offsets[4], *mix_columns = base + offsets[5], *maps = base + offsets[6];
    for (int side = 0; side < 2; side++)  // 0: what multiplies the source state, 1: the target state
      for (int map = 0; map < 2; map++)
        for (int i = 0; i < h; i++) {
          const T* row = first[map] + static_cast<std::int64_t>(i) * inputs + side * c;
          const int at = (2 * side + map) * hidden + i;
          for (int k = 0; k < c; k++) rows[static_cast<std::int64_t>(at) * wide + k] = row[k];
          for (int k = 0; k < c; k++) columns[static_cast<std::int64_t>(k) * h4 + at] = row[k];
        }
    for (int map = 0; map < 2; map++) {
      std::copy_n(first_bias[map], h, bias + map * hidden);
      for (int i = 0; i < dd; i++)
        std::copy_n(second[map] + static_cast<std::int64_t>(i) * h, h, maps + (static_cast<std::int64_t>(map) * dd + i) * hidden);
    }
    std::copy_n(stalk, dd, mixing);
    for (int i = 0; i < q; i++)
      for (int j = 0; j < q; j++) {
        mix[i * channels + j] = channel[i * q + j];
        mix_columns[j * channels + i] = channel[i * q + j];
      }
    if (!layout.node_order.empty()) {
      nodes.node_order = edges.node_order = layout.node_order.data();
      edges.edge_order = layout.edge_order.data();
    }
    nodes.d = d;
    nodes.q = q;
    nodes.channels = channels;
    nodes.hidden = hidden;
    nodes.pre_norm = pre_norm;
    nodes.first_columns = columns;
    nodes.first_rows = rows;
    nodes.bias = bias;
    nodes.stalk_mixing = mixing;
    nodes.channel_mixing = mix;
    nodes.channel_mixing_columns = mix_columns;
    edges.d = d;
    edges.channels = channels;
    edges.hidden = hidden;
    edges.step_channels = q;
    edges.outputs = dd;
    edges.row = source_width();
    edges.source = layout.source.data();
    edges.target = layout.target.data();
    edges.pointer = layout.pointer.data();
    edges.weight = layout.weights(T());
    edges.inverse_degree = nodes.inverse_degree = layout.inverse_degrees(T());
    for (int map = 0; map < 2; map++) {
      edges.weight_of_map[map] = maps + static_cast<std::int64_t>(map) * dd * hidden;
      edges.bias_of_map[map] = second_bias[map];
    }
  }

  int source_width() const { return hidden_row + value_row; }
  std::int64_t count() const {
    const std::int64_t dd = static_cast<std::int64_t>(d) * d;
    return 2LL * h * (inputs + 1) + 2 * dd * (h + 1) + dd + static_cast<std::int64_t>(q) * q;
  }
};

// Tables [A | Y] and B of some nodes.
template <class T> struct NodeTables {
  Table<T> source, target;
  NodeTables(const StepParameters<T>& parameters, const Layout& layout, std::int64_t nodes)
      : source(layout, source_table, nodes * parameters.source_width()),
        target(layout, target_table, nodes * parameters.hidden_row) {}

  // Let the passes see these tables, of which the first row is that of node `first`.
  void show(const StepParameters<T>& parameters, std::int64_t first, NodePass<T>& nodes, EdgePass<T>& edges) const {
    const std::int64_t width = parameters.source_width(), narrow = parameters.hidden_row;
    nodes.source_stride = edges.source_hidden_stride = edges.source_values_stride = edges.own_values_stride = width;
    nodes.target_stride = edges.target_hidden_stride = narrow;
    nodes.source = shifted(source.get(), first * width);
    nodes.target = shifted(target.get(), first * narrow);
    edges.source_hidden = nodes.source;
    edges.source_values = edges.own_values = shifted(source.get(), first * width - narrow);
    edges.target_hidden = nodes.target;
  }
};

// The tables of their gradients, with ghost rows after those of the nodes.
template <class T> struct GradientTables {
  Table<T> source, target, own;
  GradientTables(const StepParameters<T>& parameters, const Layout& layout, std::int64_t nodes, std::int64_t ghosts)
      : source(layout, source_gradient, (nodes + ghosts) * parameters.source_width()),
        target(layout, target_gradient, nodes * parameters.hidden_row),
        own(layout, own_gradient, nodes * parameters.value_row) {}

  void show(const StepParameters<T>& parameters, std::int64_t first, NodePass<T>& nodes, EdgePass<T>& edges) const {
    const std::int64_t width = parameters.source_width(), narrow = parameters.hidden_row, values = parameters.value_row;
    nodes.source_stride = edges.source_grad_stride = width;
    nodes.target_stride = edges.target_hidden_grad_stride = narrow;
    nodes.own_grad_stride = edges.own_values_grad_stride = edges.grad_stride = values;
    nodes.source = edges.source_grad = shifted(source.get(), first * width);
    nodes.target = edges.target_hidden_grad = shifted(target.get(), first * narrow);
    edges.own_values_grad = shifted(own.get(), first * values);
    nodes.own_grad = edges.grad = edges.own_values_grad;
  }
};

template <class T> T* contiguous(const Matrix<T>& matrix, std::int64_t rows, std::int64_t columns, const char* name) {
  std::int64_t stride = 0;
  T* data = checked(matrix, rows, columns, stride, name);
  if (static_cast<std::int64_t>(matrix.shape(0)) != rows) refuse(name, "has the wrong shape");
  if (rows > 1 && stride != columns) refuse(name, "must be contiguous");
  return data;
}

template <class T>
void step_forward(const Layout& layout, int d, int q, int h, int inputs, bool pre_norm, T shift, Matrix<const T> state,
                  Matrix<const T> drive, Row<const T> packed, std::optional<Matrix<const T>> edge_hidden, Matrix<T> out,
                  std::optional<Matrix<T>> tanh, int requested_threads) {
  const StepFunctions<T> functions = step_functions<T>(d, q, h, edge_hidden.has_value());
  const std::int64_t n = layout.targets();
  if (layout.sources != n) refuse("layout", "must have as many sources as targets");
  StepParameters<T> parameters(functions, layout, d, q, h, inputs, pre_norm, packed);
  parameters.nodes.state = contiguous(state, n, d * q, "state");
  EdgePass<T>& pass = parameters.edges;
  pass.drive = contiguous(drive, n, d * q, "drive");
  pass.step = contiguous(out, n, d * q, "out");
  if (tanh) pass.tanh = contiguous(*tanh, n, d * q, "tanh");
  pass.shift = shift;
  if (edge_hidden)
    pass.edge_hidden = checked(*edge_hidden, layout.edges(), 2 * parameters.hidden, pass.edge_hidden_stride, "edge_hidden");
  const int threads = threads_for(layout, requested_threads);
  nb::gil_scoped_release release;
  const std::int64_t size = functions.scratch(parameters.nodes);
  auto edges_of = [&](const EdgePass<T>& edges, std::int64_t first, std::int64_t last) {
    EdgeShare<T> share;
    share.first = first;
    share.last = last;
    share.scratch = aligned_scratch<T>(size);
    functions.edges.forward(edges, share);
  };
  const Pieces& pieces = layout.pieces(threads);
  if (!pieces.share.empty()) {  // every thread on its own, one piece after the other
    in_parallel(threads, [&](int t) {
      const NodeTables<T> tables(parameters, layout, pieces.largest);
      NodePass<T> nodes = parameters.nodes;
      EdgePass<T> edges = pass;
      for (std::int64_t p = pieces.share[t]; p < pieces.share[t + 1]; p++) {
        std::int64_t ready = pieces.bounds[p];
        tables.show(parameters, ready, nodes, edges);
        for (std::int64_t k = pieces.chunk_of[p]; k < pieces.chunk_of[p + 1]; k++) {
          const Chunk& chunk = pieces.chunks[k];
          functions.nodes.forward(nodes, ready, chunk.ready, aligned_scratch<T>(size));
          ready = chunk.ready;
          edges_of(edges, chunk.first, chunk.last);
        }
      }
    });
    return;
  }
  const Plan& plan = layout.plan(threads);
  const NodeTables<T> tables(parameters, layout, n);
  tables.show(parameters, 0, parameters.nodes, pass);
  in_parallel(threads, [&](int t) {
    functions.nodes.forward(parameters.nodes, n * t / threads, n * (t + 1) / threads, aligned_scratch<T>(size));
  });
  in_parallel(threads, [&](int t) { edges_of(pass, plan.bounds[t], plan.bounds[t + 1]); });
}

// `parameter_grad`, when given, receives the gradients of the ten parameters one after the other, without padding.
template <class T>
void step_backward(const Layout& layout, int d, int q, int h, int inputs, bool pre_norm, Matrix<const T> state,
                   Matrix<const T> tanh, Row<const T> packed, std::optional<Matrix<const T>> edge_hidden, Matrix<const T> grad,
                   Matrix<T> state_grad, std::optional<Matrix<T>> edge_hidden_grad, std::optional<Row<T>> parameter_grad,
                   int requested_threads) {
  const StepFunctions<T> functions = step_functions<T>(d, q, h, edge_hidden.has_value());
  const std::int64_t n = layout.targets();
  if (layout.sources != n) refuse("layout", "must have as many sources as targets");
  StepParameters<T> parameters(functions, layout, d, q, h, inputs, pre_norm, packed);
  const int hidden = parameters.hidden, channels = parameters.channels, width = parameters.source_width(), c = d * q;
  const int wide = parameters.wide, dd = d * d;
  parameters.nodes.state = contiguous(state, n, c, "state");
  EdgePass<T>& pass = parameters.edges;
  pass.tanh = const_cast<T*>(contiguous(tanh, n, c, "tanh"));  // read only in this direction
  pass.step_grad = contiguous(grad, n, c, "grad");
  T* const state_out = contiguous(state_grad, n, c, "state_grad");
  if (edge_hidden)
    pass.edge_hidden = checked(*edge_hidden, layout.edges(), 2 * hidden, pass.edge_hidden_stride, "edge_hidden");
  if (edge_hidden_grad)
    pass.edge_hidden_grad =
        checked(*edge_hidden_grad, layout.edges(), 2 * hidden, pass.edge_hidden_grad_stride, "edge_hidden_grad");
  if (parameter_grad && static_cast<std::int64_t>(parameter_grad->shape(0)) != parameters.count())
    refuse("parameter_grad", "has the wrong shape");
  T* const parameter_out = parameter_grad ? parameter_grad->data() : nullptr;

  const int threads = threads_for(layout, requested_threads);
  nb::gil_scoped_release release;
  const FloatMode mode(FloatMode::with_flushing());
  const std::int64_t edge_count = 2LL * dd * (hidden + 1), node_count = functions.nodes.parameters(parameters.nodes);
  const std::int64_t count = edge_count + node_count;
  std::vector<double> sums(parameter_out ? static_cast<std::size_t>(threads * count) : 0, 0.0);
  const std::int64_t size = functions.scratch(parameters.nodes);
  NodePass<T> nodes = parameters.nodes;  // of the gradients
  nodes.state_grad = state_out;
  auto edges_of = [&](const EdgePass<T>& edges, int t, std::int64_t first, std::int64_t last) {
    EdgeShare<T> share;
    share.first = first;
    share.last = last;
    share.scratch = aligned_scratch<T>(size);
    share.parameter_grad = parameter_out ? sums.data() + t * count : nullptr;
    functions.edges.backward(edges, share);
  };
  auto nodes_of = [&](const NodePass<T>& grads, int t, std::int64_t first, std::int64_t last) {
    functions.nodes.backward(grads, first, last, aligned_scratch<T>(size),
                          parameter_out ? sums.data() + t * count + edge_count : nullptr);
  };
  auto clear = [&](const Table<T>& table, std::int64_t first, std::int64_t last) {
    std::memset(table.get() + first * width, 0, static_cast<std::size_t>((last - first) * width) * sizeof(T));
  };
  const Pieces& pieces = layout.pieces(threads);
  if (!pieces.share.empty()) {  // every thread on its own, one piece after the other
    pass.slot = layout.source.data();
    in_parallel(threads, [&](int t) {
      const NodeTables<T> tables(parameters, layout, pieces.largest);
      const GradientTables<T> gradients(parameters, layout, pieces.largest, 0);
      NodePass<T> again = parameters.nodes, grads = nodes;
      EdgePass<T> edges = pass;
      for (std::int64_t p = pieces.share[t]; p < pieces.share[t + 1]; p++) {
        const std::int64_t first = pieces.bounds[p];
        std::int64_t ready = first, done = first;
        tables.show(parameters, first, again, edges);
        gradients.show(parameters, first, grads, edges);
        for (std::int64_t k = pieces.chunk_of[p]; k < pieces.chunk_of[p + 1]; k++) {
          const Chunk& chunk = pieces.chunks[k];
          functions.nodes.forward(again, ready, chunk.ready, aligned_scratch<T>(size));
          clear(gradients.source, ready - first, chunk.ready - first);
          ready = chunk.ready;
          edges_of(edges, t, chunk.first, chunk.last);
          if (chunk.done > done) nodes_of(grads, t, done, chunk.done);
          done = std::max(done, chunk.done);
        }
      }
    });
  } else {
    const Plan& plan = layout.plan(threads);
    const std::int64_t rows = n + plan.ghosts;
    const NodeTables<T> tables(parameters, layout, n);
    const GradientTables<T> gradients(parameters, layout, n, plan.ghosts);
    tables.show(parameters, 0, parameters.nodes, pass);
    gradients.show(parameters, 0, nodes, pass);
    pass.slot = plan.slot.empty() ? layout.source.data() : plan.slot.data();
    in_parallel(threads, [&](int t) {
      functions.nodes.forward(parameters.nodes, n * t / threads, n * (t + 1) / threads, aligned_scratch<T>(size));
      clear(gradients.source, rows * t / threads, rows * (t + 1) / threads);
    });
    in_parallel(threads, [&](int t) { edges_of(pass, t, plan.bounds[t], plan.bounds[t + 1]); });
    add_ghosts(plan, n, gradients.source.get(), width, width, threads);
    in_parallel(threads, [&](int t) { nodes_of(nodes, t, n * t / threads, n * (t + 1) / threads); });
  }
  if (!parameter_out) return;
  for (int t = 1; t < threads; t++)
    for (std::int64_t i = 0; i < count; i++) sums[i] += sums[t * count + i];
  const double *second = sums.data(), *second_bias = second + 2LL * dd * hidden, *first = sums.data() + edge_count;
  const double *first_bias = first + 4LL * hidden * wide, *stalk = first_bias + 2 * hidden, *channel = stalk + dd;
  T* out = parameter_out;
  for (int map = 0; map < 2; map++) {
    for (int i = 0; i < h; i++, out += inputs) {
      std::fill_n(out, inputs, T(0));
      for (int side = 0; side < 2; side++)
        for (int k = 0; k < c; k++)
          out[side * c + k] = static_cast<T>(first[static_cast<std::int64_t>((2 * side + map) * hidden + i) * wide + k]);
    }
    for (int i = 0; i < h; i++) *out++ = static_cast<T>(first_bias[map * hidden + i]);
  }
  for (int map = 0; map < 2; map++) {
    for (int i = 0; i < dd; i++)
      for (int k = 0; k < h; k++) *out++ = static_cast<T>(second[static_cast<std::int64_t>(map * dd + i) * hidden + k]);
    for (int i = 0; i < dd; i++) *out++ = static_cast<T>(second_bias[map * dd + i]);
  }
  for (int i = 0; i < dd; i++) *out++ = static_cast<T>(stalk[i]);
  for (int i = 0; i < q; i++)
    for (int j = 0; j < q; j++) *out++ = static_cast<T>(channel[i * channels + j]);
}

// ---------------------------------------------------------------------- given matrices

#include "block_calls.hpp"

// ---------------------------------------------------------------------- attention

#include "attention_calls.hpp"

// ---------------------------------------------------------------------- dense layers

#include "dense_calls.hpp"

// ---------------------------------------------------------------------- bindings

template <class To, class From> std::vector<To> copied(const Row<const From>& row) {
  return std::vector<To>(row.data(), row.data() + row.shape(0));
}

// Never destroyed: tensors may outlive everything else when the interpreter ends.
Pool& pool() {
  static Pool* const kept = new Pool;
  return *kept;
}

// A tensor on memory of the pool, not initialised.
template <class T> nb::ndarray<nb::pytorch, T, nb::ndim<2>, nb::device::cpu> large_tensor(std::size_t rows, std::size_t columns) {
  auto lent = std::make_unique<Memory>(pool().take(rows * columns * sizeof(T)));
  const nb::capsule owner(lent.get(), [](void* memory) noexcept {
    const std::unique_ptr<Memory> given(static_cast<Memory*>(memory));
    pool().give_back(std::move(*given));
  });
  return {lent.release()->data(), {rows, columns}, owner};
}

template <class T> void bind(nb::module_& module, const std::string& suffix) {
  module.def(("edge_forward_" + suffix).c_str(), &edge_forward<T>);
  module.def(("edge_backward_" + suffix).c_str(), &edge_backward<T>);
  module.def(("step_forward_" + suffix).c_str(), &step_forward<T>);
  module.def(("step_backward_" + suffix).c_str(), &step_backward<T>);
  module.def(("map_forward_" + suffix).c_str(), &map_forward<T>);
  module.def(("map_backward_" + suffix).c_str(), &map_backward<T>);
  module.def(("product_forward_" + suffix).c_str(), &product_forward<T>);
  module.def(("product_backward_" + suffix).c_str(), &product_backward<T>);
  module.def(("attention_forward_" + suffix).c_str(), &attention_forward<T>);
  module.def(("attention_backward_" + suffix).c_str(), &attention_backward<T>);
  module.def(("dense_forward_" + suffix).c_str(), &dense_forward<T>);
  module.def(("dense_gradient_" + suffix).c_str(), &dense_gradient<T>);
  module.def(("step_padding_" + suffix).c_str(), [](int d, int q, int h) {  // of each half of what the edges contribute
    const StepFunctions<T> functions = step_functions<T>(d, q, h, true);
    return functions.padded(h);
  });
  module.def(("arithmetic_" + suffix).c_str(), [](std::int64_t rounds) {
    T result = T(1e-3);
    const double operations = chosen->kernels(T()).arithmetic(rounds, result);
    return std::make_pair(operations, static_cast<double>(result));
  });
  module.def(("large_" + suffix).c_str(), &large_tensor<T>);
  module.def(("lanes_" + suffix).c_str(), [] { return chosen->kernels(T()).lanes; });
}

}  // namespace

NB_MODULE(_native, module) {
  const char* wanted = std::getenv("SHEAFDEQ_INSTRUCTION_SET");
  choose(wanted ? wanted : "");
  nb::set_leak_warnings(false);  // layouts live as long as their graphs, which may be until the interpreter ends

  nb::class_<Layout>(module, "Layout")
      .def("__init__",
           [](Layout* self, Row<const std::int64_t> source, Row<const std::int64_t> pointer, Row<const double> weight,
              Row<const double> degree, std::int64_t sources) {
             for (std::size_t i = 0; i < source.shape(0); i++)
               if (source.data()[i] < 0 || source.data()[i] >= sources || source.data()[i] > 0x7fffffff)
                 refuse("source", "holds a row that does not exist");
             new (self) Layout(copied<std::int32_t>(source), copied<std::int64_t>(pointer), copied<double>(weight),
                               copied<double>(degree), sources);
           })
      .def("reorder",
           [](Layout& self, Row<const std::int64_t> nodes, Row<const std::int64_t> edges) {
             for (std::size_t i = 0; i < nodes.shape(0); i++)
               if (nodes.data()[i] < 0 || nodes.data()[i] >= self.targets()) refuse("nodes", "holds a row that does not exist");
             self.reorder(copied<std::int32_t>(nodes), copied<std::int64_t>(edges));
           })
      .def("pieces", [](const Layout& self, int threads) {
             const Pieces& pieces = self.pieces(threads_for(self, threads));
             return pieces.share.empty() ? std::size_t(0) : pieces.bounds.size() - 1;
           })
      .def("largest_piece", [](const Layout& self) { return self.pieces(1).largest; })
      .def("chunks", [](const Layout& self, int threads) {
             const Pieces& pieces = self.pieces(threads_for(self, threads));
             return pieces.share.empty() ? std::size_t(0) : pieces.chunks.size();
           })
      .def("ghosts", [](const Layout& self, int threads) { return self.plan(threads_for(self, threads)).ghosts; })
      .def("threads", [](const Layout& self, int threads) { return threads_for(self, threads); });

  module.attr("norm_floor") = sheafdeq::norm_floor;
  module.attr("interface") = 7;  // raised when a call changes; sheafdeq.ops.native_module asks for it
  bind<float>(module, "float");
  bind<double>(module, "double");
  module.def("release_memory", [] { return pool().clear(); });
  module.def("choose_instruction_set", [](const std::string& name) { choose(name); });
  module.def("instruction_set", [] { return std::string(chosen->name); });
  module.def("instruction_sets", [] {
    nb::list names;
    for (const Variant& variant : variants)
      if (supported(variant.name)) names.append(variant.name);
    return names;
  });
  module.def("has_openmp", [] {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
  });
  module.def("compiler", [] { return std::string(SHEAFDEQ_COMPILER); });
}
