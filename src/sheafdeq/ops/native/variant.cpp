// One copy of the kernels for one instruction set and scalar type. Compiled several times: SHEAFDEQ_VARIANT
// names the copy, SHEAFDEQ_SCALAR its type; with SHEAFDEQ_ANY_DIMENSION it serves stalks beyond the
// specialised sizes, which are 1 to SHEAFDEQ_UNROLLED. It may stand in one unit with block_variant.cpp.
#include "edges.hpp"
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
template <int D> constexpr EdgeFunctions<SHEAFDEQ_SCALAR> edge_functions() {
  return {EdgeKernel<SHEAFDEQ_SCALAR, D>::forward, EdgeKernel<SHEAFDEQ_SCALAR, D>::backward};
}
}  // namespace
extern const Kernels<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME;
const Kernels<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME = {
    Lanes<SHEAFDEQ_SCALAR>::W,
    {
#if SHEAFDEQ_UNROLLED >= 3
        edge_functions<1>(), edge_functions<2>(), edge_functions<3>(),
#endif
#if SHEAFDEQ_UNROLLED >= 4
        edge_functions<4>(),
#endif
    },
    edge_scratch<SHEAFDEQ_SCALAR>,
    NodeKernel<SHEAFDEQ_SCALAR>::forward,
    NodeKernel<SHEAFDEQ_SCALAR>::backward,
    NodeKernel<SHEAFDEQ_SCALAR>::scratch,
    NodeKernel<SHEAFDEQ_SCALAR>::parameters,
};

#endif

}  // namespace sheafdeq

#undef SHEAFDEQ_NAME
