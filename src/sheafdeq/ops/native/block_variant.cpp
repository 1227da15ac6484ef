// One copy of the block kernels for one instruction set and scalar type; compiled several times, as variant.cpp is.
#include "blocks.hpp"

#define SHEAFDEQ_JOIN_(a, b, c) a##b##c
#define SHEAFDEQ_JOIN(a, b, c) SHEAFDEQ_JOIN_(a, b, c)

namespace sheafdeq {

namespace {
template <int D> constexpr BlockFunctions<SHEAFDEQ_SCALAR> block_functions() {
  using Map = MapKernel<SHEAFDEQ_SCALAR, D>;
  using Product = ProductKernel<SHEAFDEQ_SCALAR, D>;
  return {Map::forward, Map::backward, Product::forward, Product::nodes, Product::backward};
}
}  // namespace

#ifdef SHEAFDEQ_ANY_DIMENSION

#define SHEAFDEQ_NAME SHEAFDEQ_JOIN(general_blocks_, SHEAFDEQ_SCALAR, SHEAFDEQ_VARIANT)
extern const BlockFunctions<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME;
const BlockFunctions<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME = block_functions<0>();

#else

#define SHEAFDEQ_NAME SHEAFDEQ_JOIN(blocks_, SHEAFDEQ_SCALAR, SHEAFDEQ_VARIANT)
extern const BlockKernels<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME;
const BlockKernels<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME = {
    {
#if SHEAFDEQ_UNROLLED >= 3
        block_functions<1>(), block_functions<2>(), block_functions<3>(),
#endif
#if SHEAFDEQ_UNROLLED >= 4
        block_functions<4>(),
#endif
    },
    block_scratch<SHEAFDEQ_SCALAR>,
};

#endif

}  // namespace sheafdeq

#undef SHEAFDEQ_NAME
