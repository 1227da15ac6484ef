// One copy of the kernels for one instruction set and scalar type. Compiled several times: SHEAFDEQ_VARIANT
// names the copy, SHEAFDEQ_SCALAR its type; with SHEAFDEQ_ANY_DIMENSION it serves stalks beyond the
// specialised sizes, which are 1 to SHEAFDEQ_UNROLLED. It may stand in one unit with block_variant.cpp.
#include "dense.hpp"
#include "edges.hpp"
#include "narrow.hpp"
#include "nodes.hpp"

#define SHEAFDEQ_JOIN_(a, b, c) a##b##c
#define SHEAFDEQ_JOIN(a, b, c) SHEAFDEQ_JOIN_(a, b, c)

namespace sheafdeq {

#ifdef SHEAFDEQ_ANY_DIMENSION

#define SHEAFDEQ_NAME SHEAFDEQ_JOIN(general_, SHEAFDEQ_SCALAR, SHEAFDEQ_VARIANT)
extern const EdgeFunctions<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME;
const EdgeFunctions<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME = {EdgeKernel<SHEAFDEQ_SCALAR, 0>::forward,
                                                      EdgeKernel<SHEAFDEQ_SCALAR, 0>::backward};

#else

#define SHEAFDEQ_NAME SHEAFDEQ_JOIN(kernels_, SHEAFDEQ_SCALAR, SHEAFDEQ_VARIANT)
namespace {
template <template <class, int> class Kernel, int D> constexpr EdgeFunctions<SHEAFDEQ_SCALAR> edge_functions() {
  return {Kernel<SHEAFDEQ_SCALAR, D>::forward, Kernel<SHEAFDEQ_SCALAR, D>::backward};
}
template <class Kernel> constexpr NodeFunctions<SHEAFDEQ_SCALAR> node_functions() {
  return {Kernel::forward, Kernel::backward, Kernel::scratch, Kernel::parameters};
}
}  // namespace
extern const Kernels<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME;
const Kernels<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME = {
    Lanes<SHEAFDEQ_SCALAR>::W,
    arithmetic<SHEAFDEQ_SCALAR>,
    {DenseKernel<SHEAFDEQ_SCALAR>::forward, DenseKernel<SHEAFDEQ_SCALAR>::gradient},
    edge_scratch<SHEAFDEQ_SCALAR>,
    node_functions<NodeKernel<SHEAFDEQ_SCALAR>>(),
#if SHEAFDEQ_UNROLLED >= 3
    narrow_scratch<SHEAFDEQ_SCALAR>,
    node_functions<NarrowNodes<SHEAFDEQ_SCALAR>>(),
    {edge_functions<EdgeKernel, 1>(), edge_functions<EdgeKernel, 2>(), edge_functions<EdgeKernel, 3>(),
#if SHEAFDEQ_UNROLLED >= 4
     edge_functions<EdgeKernel, 4>(),
#endif
    },
    {{}, edge_functions<NarrowEdges, 2>(), edge_functions<NarrowEdges, 3>()},
#else
    nullptr, {}, {}, {},
#endif
};

#endif

}  // namespace sheafdeq

#undef SHEAFDEQ_NAME
