// Plain structures that cross the boundary between the dispatcher and the copies of the kernels.
#pragma once

#include <cstdint>

namespace sheafdeq {

// Everything one pass over the edges reads and writes. Rows may lie further apart than they are wide
// (`*_stride`, in elements). `hidden` and `channels` are padded to a multiple of the vector length with
// zeros, which change no result. Indices come from a Layout, which has checked them.
template <class T> struct EdgePass {
  int d = 0;         // stalk dimension
  int channels = 0;  // q, padded
  int hidden = 0;    // h, padded

  const std::int32_t* source = nullptr;   // (e) row of the source tables
  const std::int32_t* target = nullptr;   // (e) non-decreasing
  const std::int64_t* pointer = nullptr;  // (n + 1) incoming edges of each target
  const T* weight = nullptr;              // (e)
  const T* inverse_degree = nullptr;      // (n)

  const T* source_hidden = nullptr;  // (m, 2h): source generator | target generator
  const T* target_hidden = nullptr;  // (n, 2h)
  const T* edge_hidden = nullptr;    // (e, 2h) or null
  const T* source_values = nullptr;  // (m, d q)
  const T* own_values = nullptr;     // (n, d q)
  std::int64_t source_hidden_stride = 0, target_hidden_stride = 0, edge_hidden_stride = 0;
  std::int64_t source_values_stride = 0, own_values_stride = 0;

  const T* weight_of_map[2] = {nullptr, nullptr};  // second layer (d d, h): source maps, target maps
  const T* bias_of_map[2] = {nullptr, nullptr};    // (d d)

  T* out = nullptr;  // forward: (n, d q)
  std::int64_t out_stride = 0;

  // The rest of a step, when `step` is not null: step = tanh(out) + shift + drive, rows of d * `step_channels`
  // without padding; `tanh` keeps tanh(out). `out` is then one row of scratch for each thread.
  int step_channels = 0;
  T shift = 0;
  const T* drive = nullptr;
  T* step = nullptr;
  T* tanh = nullptr;  // written forward; read backward, where grad(out) = step_grad * (1 - tanh^2)
  const T* step_grad = nullptr;

  // backward
  // (n, d q) gradient of `out`; with `step_grad` it is written here row by row (`own_values_grad` lends its rows)
  const T* grad = nullptr;
  std::int64_t grad_stride = 0;
  const std::int32_t* slot = nullptr;  // (e) row of the source gradient that an edge adds to
  T* source_grad = nullptr;            // (m + ghosts, 2h + d q), zero on entry
  std::int64_t source_grad_stride = 0;
  T* target_hidden_grad = nullptr;  // (n, 2h)
  T* own_values_grad = nullptr;     // (n, d q)
  T* edge_hidden_grad = nullptr;    // (e, 2h) or null
  std::int64_t target_hidden_grad_stride = 0, own_values_grad_stride = 0, edge_hidden_grad_stride = 0;
};

// What one thread works on: targets first <= v < last, and memory of its own.
template <class T> struct EdgeShare {
  std::int64_t first = 0, last = 0;
  T* scratch = nullptr;              // `edge_scratch` elements, aligned to 64 bytes
  // backward: 2 (d d) (h + 1) sums for weights and biases, zero on entry; null when they are not wanted
  double* parameter_grad = nullptr;
};

// The node part of a step. `hidden` and `channels` are padded as in EdgePass, `q` is not.
template <class T> struct NodePass {
  int d = 0, q = 0, channels = 0, hidden = 0;
  bool pre_norm = true;
  const T* state = nullptr;                   // (n, d q)
  const T* first_columns = nullptr;           // (d q, 4h): first layers transposed: what reads the source | the target
  const T* first_rows = nullptr;              // (4h, d q padded): the same, not transposed
  const T* bias = nullptr;                    // (2h)
  const T* stalk_mixing = nullptr;            // (d, d)
  const T* channel_mixing = nullptr;          // (q, q padded)
  const T* channel_mixing_columns = nullptr;  // (q, q padded): its transpose
  // forward: tables [A | Y] and B are written; backward: they hold gradients, and Y's is completed by own_grad
  T* source = nullptr;
  T* target = nullptr;
  std::int64_t source_stride = 0, target_stride = 0;
  const T* own_grad = nullptr;
  std::int64_t own_grad_stride = 0;
  T* state_grad = nullptr;  // (n, d q)
};

constexpr int specialised_dimensions = 6;
constexpr int largest_dimension = 16;

// The two passes of one stalk dimension.
template <class T> struct EdgeFunctions {
  void (*forward)(const EdgePass<T>&, const EdgeShare<T>&);
  void (*backward)(const EdgePass<T>&, const EdgeShare<T>&);
};

// The copy of the kernels for one instruction set and scalar type.
template <class T> struct Kernels {
  int lanes;
  EdgeFunctions<T> edges[specialised_dimensions];  // d = 1..6
  std::int64_t (*edge_scratch)(int d, int hidden, int channels);
  void (*node_forward)(const NodePass<T>&, std::int64_t first, std::int64_t last, T* scratch);
  void (*node_backward)(const NodePass<T>&, std::int64_t first, std::int64_t last, T* scratch, double* parameter_grad);
  std::int64_t (*node_scratch)(const NodePass<T>&);
  std::int64_t (*node_parameters)(const NodePass<T>&);
};

}  // namespace sheafdeq
