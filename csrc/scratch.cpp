#include "scratch.h"

#include <cstdio>
#include <cstdlib>

namespace archerfish {

void scratch_exhausted(int64_t num_bytes, int64_t num_left) {
    std::fprintf(stderr, "archerfish: a native kernel needs %lld bytes of scratch memory, and %lld are left\n",
                 static_cast<long long>(num_bytes), static_cast<long long>(num_left));
    std::abort();
}

}  // namespace archerfish
