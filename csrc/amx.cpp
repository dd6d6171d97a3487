// Detects working matrix tiles: asks the CPU and the operating system, and tries them.
#include "amx.h"

#include <cpuid.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

#define ISA amx
#include "amx_tiles.h"

namespace archerfish {
namespace {

#ifndef ARCHERFISH_TILES_IN_SOFTWARE

constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr long XFEATURE_XTILEDATA = 18;

bool has_cpu_flags() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
    return (d & bf16) && (d & tile) && (d & int8);
}

// For all threads of the process, present and future.
bool request_permission() { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0; }

bool multiplies_correctly() {
    using namespace amx;
    alignas(64) int8_t rows[16][64];
    alignas(64) int8_t weights[16][64];
    alignas(64) int32_t sums[16][16];
    for (int i = 0; i < 16 * 64; ++i) {
        rows[i / 64][i % 64] = static_cast<int8_t>(i * 37);
        weights[i / 64][i % 64] = static_cast<int8_t>(i * 101);
    }
    TileShapes shapes;
    for (int tile = 0; tile < 3; ++tile) shapes.set(tile, 16, 64);
    configure_tiles(shapes);
    tile_load<1>(rows, 64);
    tile_load<2>(weights, 64);
    tile_zero<0>();
    tile_dot_int8<0, 1, 2>();
    tile_store<0>(sums, 64);
    release_tiles();
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 16; ++n) {
            int32_t expected = 0;
            for (int k = 0; k < 64; ++k)
                expected += static_cast<int>(rows[m][k]) * static_cast<int>(weights[k / 4][4 * n + k % 4]);
            if (sums[m][n] != expected) return false;
        }
    return true;
}

// Tries tiles in a child process: some virtual machines advertise them and fault at the first instruction.
bool survives_trial() {
    pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        for (int fault : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) signal(fault, SIG_DFL);
        _exit(request_permission() && multiplies_correctly() ? 0 : 1);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#endif

}  // namespace

bool amx_works() {
#ifdef ARCHERFISH_TILES_IN_SOFTWARE
    return true;
#else
    static const bool works = has_cpu_flags() && survives_trial() && request_permission();
    return works;
#endif
}

}  // namespace archerfish
