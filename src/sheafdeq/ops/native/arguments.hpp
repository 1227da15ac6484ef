// Plain structures that cross the boundary between the dispatcher and the copies of the kernels.
#pragma once

#include <cstdint>

namespace sheafdeq {

// Rows of the state are divided by at least this, and a generated map of smaller norm counts as zero. Proofs
// depend on it: sheafdeq.ops.native_module holds the same number and refuses an extension with another one.
inline constexpr double norm_floor = 1e-12;

// Steps with few channels (narrow.hpp) have rows of this many entries, and serve stalks of 2 and 3.
inline constexpr int narrow_row = 16;
inline constexpr int narrow_dimensions = 3;

// Everything one pass over the edges reads and writes. Rows may lie further apart than they are wide
// (`*_stride`, in elements). `hidden` and `channels` are padded to a multiple of the vector length with
// zeros, which change no result. Indices come from a Layout, which has checked them.
template <class T> struct EdgePass {
  int d = 0;         // stalk dimension
  int channels = 0;  // q, padded
  int hidden = 0;    // h, padded
  int outputs = 0;   // second-layer outputs that share one hidden row: d d, or 2 d d when both maps do
  int row = 0;       // entries of a row of the source tables and of `source_grad`: hidden parts, then values

  const std::int32_t* source = nullptr;   // (e) row of the source tables
  const std::int32_t* target = nullptr;   // (e) non-decreasing
  const std::int64_t* pointer = nullptr;  // (n + 1) incoming edges of each target
  const T* weight = nullptr;              // (e)
  const T* inverse_degree = nullptr;      // (n)
  // The caller's number of a node and of an edge, for rows of the caller's tensors; null: the same
  const std::int32_t* node_order = nullptr;  // (n)
  const std::int64_t* edge_order = nullptr;  // (e)
  std::int64_t given_node(std::int64_t v) const { return node_order ? node_order[v] : v; }
  std::int64_t given_edge(std::int64_t e) const { return edge_order ? edge_order[e] : e; }

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

// Generating a small matrix for every edge and every node, once for many products:
//   hidden_e = relu(A_u + B_v + E_e) (h),  raw = W hidden_e + b (2 d d: source map | target map),
//   F = raw / sqrt(|raw|^2 + softening^2) for each map, or F = sizes * tanh(raw / 2) when `sizes` is given,
//   block_e = weight_e F_t^T F_s,  diagonal_v = I + (sign / deg_v) sum over its edges of F_t^T F_t.
// With sizes M the result is split: `blocks` = (S + A) / 2 and `minus_blocks` = (S - A) / 2 for A the block of F and S that of
// M, and likewise the diagonals, each a sum of nonnegative terms (F+ = M / (1 + exp(-raw)), F- = M / (1 + exp(raw))).
// Of the EdgePass it has one hidden part, `outputs` = 2 d d, no values, and `weight` of its own.
template <class T> struct MapPass : EdgePass<T> {
  const T* sizes = nullptr;  // (e, 2 d d) or null
  T softening = 0;
  T sign = 0;
  T* blocks = nullptr;          // (e, d d)
  T* diagonal = nullptr;        // (n, d d)
  T* minus_blocks = nullptr;    // with sizes
  T* minus_diagonal = nullptr;
  // backward
  const T* blocks_grad = nullptr;
  const T* diagonal_grad = nullptr;
  const T* minus_blocks_grad = nullptr;
  const T* minus_diagonal_grad = nullptr;
  T* sizes_grad = nullptr;  // (e, 2 d d) or null
};

// How y+ (what excites) and y- (what inhibits) become an update.
enum class Gate : int { none, tanh, rational, balance };

// Products with given matrices. Each of the d rows of a value holds `parts` pieces of `channels` entries. One part is a plain
// product A X. Two parts X+ and X- (nonnegative) give, with A = A+ - A- into its positive and negative entries,
//   y+ = A+ X+ + A- X-,   y- = A+ X- + A- X+,
// sums of nonnegative terms; with `minus_*`, `blocks` and `diagonal` are A+ and `minus_*` are A-.
template <class T> struct ProductPass {
  int d = 0, channels = 0, parts = 1;
  Gate gate = Gate::none;
  T floor = 0;               // of the balance gate
  int step_channels = 0;     // q, not padded, of `base`, `step` and `step_grad`
  const std::int32_t* source = nullptr;
  const std::int64_t* pointer = nullptr;
  const T* blocks = nullptr;         // (e, d d)
  const T* diagonal = nullptr;       // (n, d d)
  const T* minus_blocks = nullptr;   // A-, when `minus_diagonal` is not null
  const T* minus_diagonal = nullptr;
  const T* values = nullptr;  // (n, d parts channels)
  T* product = nullptr;       // (n, d parts channels) written forward, read backward; null forward: not wanted
  const T* base = nullptr;    // with a gate: step = base + gate(y+, y-), (n, d step_channels)
  T* step = nullptr;
  // backward
  const T* step_grad = nullptr;  // with a gate
  T* product_grad = nullptr;     // given, or with a gate computed here
  const std::int32_t* slot = nullptr;
  T* values_grad = nullptr;      // (n + ghosts, d parts channels); ghosts zero on entry
  T* blocks_grad = nullptr;      // these four: null when not wanted
  T* diagonal_grad = nullptr;
  T* minus_blocks_grad = nullptr;
  T* minus_diagonal_grad = nullptr;
};

// The node part of a step. `hidden` and `channels` are padded as in EdgePass, `q` is not.
template <class T> struct NodePass {
  int d = 0, q = 0, channels = 0, hidden = 0;
  bool pre_norm = true;
  const T* state = nullptr;                   // (n, d q)
  const std::int32_t* node_order = nullptr;   // (n) the caller's number of a node, for `state` and `state_grad`; null: the same
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
  const T* inverse_degree = nullptr;  // (n), read where `own_grad` is completed by the node part
};

constexpr int specialised_dimensions = 4;
constexpr int largest_dimension = 16;

// The two passes of one stalk dimension.
template <class T> struct EdgeFunctions {
  void (*forward)(const EdgePass<T>&, const EdgeShare<T>&);
  void (*backward)(const EdgePass<T>&, const EdgeShare<T>&);
};

// Generating matrices and multiplying with them, for one stalk dimension.
template <class T> struct BlockFunctions {
  void (*map_forward)(const MapPass<T>&, const EdgeShare<T>&);
  void (*map_backward)(const MapPass<T>&, const EdgeShare<T>&);
  void (*product_forward)(const ProductPass<T>&, const EdgeShare<T>&);
  void (*product_nodes)(const ProductPass<T>&, std::int64_t first, std::int64_t last);  // backward, before the edges
  void (*product_backward)(const ProductPass<T>&, const EdgeShare<T>&);
};

constexpr int specialised_blocks = 4;

template <class T> struct BlockKernels {
  BlockFunctions<T> of[specialised_blocks];  // d = 1..4; null where the general functions serve
  std::int64_t (*scratch)(int d, int hidden, int row);
};

// The node part of a step.
template <class T> struct NodeFunctions {
  void (*forward)(const NodePass<T>&, std::int64_t first, std::int64_t last, T* scratch);
  void (*backward)(const NodePass<T>&, std::int64_t first, std::int64_t last, T* scratch, double* parameter_grad);
  std::int64_t (*scratch)(const NodePass<T>&);
  std::int64_t (*parameters)(const NodePass<T>&);
};

// A dense layer on rows: out = x columns + bias, and the gradient of its weights from that of its result. `width` and, for the
// gradient, `depth` are multiples of the vector length.
template <class T> struct DensePass {
  int depth = 0, width = 0;
  const T* x = nullptr;        // (rows, depth)
  const T* columns = nullptr;  // (depth, width)
  const T* bias = nullptr;     // (width) or null
  T* out = nullptr;            // (rows, width)
  const T* grad = nullptr;     // (rows, width), for the gradient
  std::int64_t x_stride = 0, out_stride = 0, grad_stride = 0;
};

template <class T> struct DenseFunctions {
  void (*forward)(const DensePass<T>&, std::int64_t first, std::int64_t last);
  // `scratch` and `sums`: width (depth + 1)
  void (*gradient)(const DensePass<T>&, std::int64_t first, std::int64_t last, T* scratch, double* sums);
};

// The copy of the kernels for one instruction set and scalar type.
template <class T> struct Kernels {
  int lanes;
  double (*arithmetic)(std::int64_t rounds, T& result);  // nothing but multiply-adds in registers; how many operations they were
  DenseFunctions<T> dense;
  std::int64_t (*edge_scratch)(int d, int hidden, int channels);
  NodeFunctions<T> nodes;
  std::int64_t (*narrow_scratch)(int d, int hidden);
  NodeFunctions<T> narrow_nodes;
  EdgeFunctions<T> edges[specialised_dimensions];  // d = 1..4; null where the general functions serve
  EdgeFunctions<T> narrow_edges[narrow_dimensions];  // d = 1..3; null where the others serve
};

}  // namespace sheafdeq
