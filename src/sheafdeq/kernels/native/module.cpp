// Python bindings, choice of the instruction set, and threads. Compiled for the baseline instruction set.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "arguments.hpp"
#include "layout.hpp"

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
  extern const EdgeFunctions<double> general_double_##variant;
SHEAFDEQ_DECLARE(baseline)
#ifdef SHEAFDEQ_X86
SHEAFDEQ_DECLARE(avx2)
SHEAFDEQ_DECLARE(avx512)
#endif
}  // namespace sheafdeq

namespace {

struct Variant {
  const char* name;
  const Kernels<float>* kernels_float;
  const Kernels<double>* kernels_double;
  const EdgeFunctions<float>* general_float;
  const EdgeFunctions<double>* general_double;
  const Kernels<float>& kernels(float) const { return *kernels_float; }
  const Kernels<double>& kernels(double) const { return *kernels_double; }
  const EdgeFunctions<float>& general(float) const { return *general_float; }
  const EdgeFunctions<double>& general(double) const { return *general_double; }
};

#define SHEAFDEQ_VARIANT_ROW(variant)                                                                            \
  {#variant, &kernels_float_##variant, &kernels_double_##variant, &general_float_##variant, &general_double_##variant}

bool supported(const std::string& name) {
  if (name == "baseline") return true;
#ifdef SHEAFDEQ_X86
  __builtin_cpu_init();
  if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (name == "avx512")
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
#endif
  return false;
}

const Variant variants[] = {
#ifdef SHEAFDEQ_X86
    SHEAFDEQ_VARIANT_ROW(avx512), SHEAFDEQ_VARIANT_ROW(avx2),
#endif
    SHEAFDEQ_VARIANT_ROW(baseline)};

const Variant* chosen = nullptr;

void choose(const std::string& name) {
  for (const Variant& variant : variants)
    if ((name.empty() || name == variant.name) && supported(variant.name)) {
      chosen = &variant;
      return;
    }
  throw nb::value_error(("this machine or build has no kernel for the instruction set '" + name + "'").c_str());
}

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
  return matrix.data();
}

int threads_for(const Layout& layout, int requested) {
  // Below a few thousand edges a thread costs more to wake than it saves.
  const std::int64_t useful = 1 + layout.edges() / 4096;
  return static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>({requested, useful, 256})));
}

template <class F> void in_parallel(int threads, F&& work) {
  if (threads == 1) {
    work(0);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads)
#endif
  for (int t = 0; t < threads; t++) work(t);
}

// Memory that stays with its thread, so that a step allocates nothing.
template <class T> T* aligned_scratch(std::int64_t size) {
  thread_local std::vector<T> memory;
  const std::size_t needed = static_cast<std::size_t>(size) + 64 / sizeof(T);
  if (memory.size() < needed) memory.resize(needed);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return reinterpret_cast<T*>((address + 63) / 64 * 64);
}

template <class T> EdgeFunctions<T> functions_for(int d) {
  if (d < 1 || d > largest_dimension) throw nb::value_error("the stalk dimension must be between 1 and 16");
  return d <= specialised_dimensions ? chosen->kernels(T()).edges[d - 1] : chosen->general(T());
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
  const std::int64_t size = chosen->kernels(T()).edge_scratch(d, hidden);
  in_parallel(threads, [&](int t) {
    EdgeShare<T> share;
    share.first = plan.bounds[t];
    share.last = plan.bounds[t + 1];
    share.scratch = aligned_scratch<T>(size);
    functions.forward(pass, share);
  });
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
  const std::int64_t size = chosen->kernels(T()).edge_scratch(d, hidden);
  std::vector<double> sums(static_cast<std::size_t>(threads * parameters), 0.0);
  const std::int64_t rows = m + plan.ghosts, row_bytes = (2 * hidden + width) * static_cast<std::int64_t>(sizeof(T));
  in_parallel(threads, [&](int t) {
    for (std::int64_t i = rows * t / threads; i < rows * (t + 1) / threads; i++)
      std::memset(pass.source_grad + i * pass.source_grad_stride, 0, row_bytes);
  });
  in_parallel(threads, [&](int t) {
    EdgeShare<T> share;
    share.first = plan.bounds[t];
    share.last = plan.bounds[t + 1];
    share.scratch = aligned_scratch<T>(size);
    share.parameter_grad = sums.data() + t * parameters;
    functions.backward(pass, share);
  });
  const auto shared = static_cast<std::int64_t>(plan.ghost_rows.size());
  if (shared > 0)
    in_parallel(threads, [&](int t) {
      for (std::int64_t i = shared * t / threads; i < shared * (t + 1) / threads; i++) {
        T* row = pass.source_grad + plan.ghost_rows[i] * pass.source_grad_stride;
        for (std::int64_t g = plan.ghost_pointer[i]; g < plan.ghost_pointer[i + 1]; g++) {
          const T* ghost = pass.source_grad + (m + g) * pass.source_grad_stride;
          for (std::int64_t k = 0; k < 2 * hidden + width; k++) row[k] += ghost[k];
        }
      }
    });
  for (std::int64_t i = 0; i < parameters; i++) {
    double total = 0.0;
    for (int t = 0; t < threads; t++) total += sums[t * parameters + i];
    parameter_out[i] = static_cast<T>(total);
  }
}

// ---------------------------------------------------------------------- bindings

template <class To, class From> std::vector<To> copied(const Row<const From>& row) {
  return std::vector<To>(row.data(), row.data() + row.shape(0));
}

template <class T> void bind(nb::module_& module, const std::string& suffix) {
  module.def(("edge_forward_" + suffix).c_str(), &edge_forward<T>);
  module.def(("edge_backward_" + suffix).c_str(), &edge_backward<T>);
  module.def(("lanes_" + suffix).c_str(), [] { return chosen->kernels(T()).lanes; });
}

}  // namespace

NB_MODULE(_native, module) {
  const char* wanted = std::getenv("SHEAFDEQ_INSTRUCTION_SET");
  choose(wanted ? wanted : "");

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
      .def("ghosts", [](const Layout& self, int threads) { return self.plan(threads_for(self, threads)).ghosts; })
      .def("threads", [](const Layout& self, int threads) { return threads_for(self, threads); });

  bind<float>(module, "float");
  bind<double>(module, "double");
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
