// One copy of the attention kernel for one instruction set and scalar type; compiled several times, as variant.cpp is.
#include "attention.hpp"

#define SHEAFDEQ_JOIN_(a, b, c) a##b##c
#define SHEAFDEQ_JOIN(a, b, c) SHEAFDEQ_JOIN_(a, b, c)
#define SHEAFDEQ_NAME SHEAFDEQ_JOIN(attention_, SHEAFDEQ_SCALAR, SHEAFDEQ_VARIANT)

namespace sheafdeq {

extern const AttentionFunctions<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME;
const AttentionFunctions<SHEAFDEQ_SCALAR> SHEAFDEQ_NAME = {
    AttentionKernel<SHEAFDEQ_SCALAR>::forward, AttentionKernel<SHEAFDEQ_SCALAR>::backward, AttentionKernel<SHEAFDEQ_SCALAR>::scratch};

}  // namespace sheafdeq
