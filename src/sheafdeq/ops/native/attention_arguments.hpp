// What a pass of softmax attention reads and writes.
#pragma once

#include "arguments.hpp"

namespace sheafdeq {

// For every target i and head m, with edges k = (j -> i):
//   s_k = scale <q_i, k_j + edge_key_k> + bias_k,  or  leaky(q_i + k_j) with slope `scale` when `additive`,
//   alpha = softmax of s over the edges into i,   out_i = sum of alpha_k (v_j + edge_value_k).
// Widths are padded to a multiple of the vector length with zeros. Rows may lie further apart than they are wide (`*_stride`).
template <class T> struct AttentionPass {
  int heads = 1;
  int width = 0;        // of a head's query and key; 1 when additive
  int value_width = 0;  // of a head's value
  bool additive = false;
  bool shared_value = false;  // all heads average the same values
  // The last edge of every target is a loop that stands for the target itself: it has no entry in what is given for each edge,
  // and `own_bias` in place of `bias`.
  bool loops = false;
  T scale = 1;
  const std::int32_t* source = nullptr;   // (e)
  const std::int32_t* target = nullptr;   // (e) non-decreasing
  const std::int64_t* pointer = nullptr;  // (n + 1)
  const T* query = nullptr;       // (n, heads width)
  const T* key = nullptr;         // (m, heads width)
  const T* value = nullptr;       // (m, heads value_width), or (m, value_width) when shared
  const T* edge_key = nullptr;    // (edges given, heads width) or null
  const T* edge_value = nullptr;  // (edges given, heads value_width) or null
  const T* bias = nullptr;        // (edges given, heads) or null
  const T* own_bias = nullptr;    // (heads) or null
  std::int64_t query_stride = 0, key_stride = 0, value_stride = 0, edge_key_stride = 0, edge_value_stride = 0;
  T* out = nullptr;      // (n, heads value_width), written forward and read backward; zero where there is no edge
  T* top = nullptr;      // (n, heads) the largest score
  T* inverse = nullptr;  // (n, heads) 1 / sum of exp(s - top)
  // backward
  const T* grad = nullptr;             // (n, heads value_width)
  const std::int32_t* slot = nullptr;  // (e) row of the source gradients that an edge adds to
  T* query_grad = nullptr;             // (n, heads width)
  T* key_grad = nullptr;               // (m + ghosts, heads width), zero on entry
  T* value_grad = nullptr;             // (m + ghosts, heads value_width or value_width), zero on entry
  std::int64_t query_grad_stride = 0, key_grad_stride = 0, value_grad_stride = 0;
  T* edge_key_grad = nullptr;    // as the tensors, contiguous, or null
  T* edge_value_grad = nullptr;  // the same memory as edge_key_grad: their sum is written
  T* bias_grad = nullptr;
};

template <class T> struct AttentionFunctions {
  void (*forward)(const AttentionPass<T>&, const EdgeShare<T>&);
  // `parameter_grad` of the share: (heads) sums for `own_bias`
  void (*backward)(const AttentionPass<T>&, const EdgeShare<T>&);
  std::int64_t (*scratch)(const AttentionPass<T>&);
};

}  // namespace sheafdeq
