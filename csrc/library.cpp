// The functions Python calls, and the choice of kernels for the CPU at hand.
#include <cpuid.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#ifdef ARCHERFISH_TILES
#include "amx.h"
#endif
#include "assembly.h"
#include "bounds.h"
#include "drafting.h"
#include "program.h"
#include "team.h"

namespace archerfish {
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
#ifdef ARCHERFISH_TILES
namespace amx {
extern const KernelTable table;
}
#endif

namespace {

struct Choice {
    const char* name;
    const KernelTable* table;
    bool runs;
};

std::vector<Choice> choices() {
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    return {
#ifdef ARCHERFISH_TILES
        {"amx", &amx::table, avx512 && amx_works()},
#endif
        {"avx512", &avx512::table, avx512},
        {"avx2", &avx2::table, avx2},
    };
}

const KernelTable* find(const char* name) {
    for (const Choice& choice : choices())
        if (choice.runs && std::strcmp(choice.name, name) == 0) return choice.table;
    return nullptr;
}

struct Runner {
    Runner(int num_threads, const KernelTable* kernels) : team(num_threads), table(kernels) {}

    Team team;
    const KernelTable* table;
};

}  // namespace
}  // namespace archerfish

using namespace archerfish;

#pragma GCC visibility push(default)
extern "C" {

// Names of the kernels that run on this CPU, fastest first, separated by spaces.
const char* archerfish_kernels() {
    static const std::string names = [] {
        std::string all;
        for (const Choice& choice : choices())
            if (choice.runs) all += (all.empty() ? "" : " ") + std::string(choice.name);
        return all;
    }();
    return names.c_str();
}

// What the caller has to declare as program.h does: see abi.h.
const char* archerfish_abi() {
    static const std::string description = describe_abi();
    return description.c_str();
}

// Null if no such kernels run here, or if there cannot be so many threads.
void* archerfish_open(const char* kernels, int num_threads) {
    const KernelTable* table = find(kernels);
    if (table == nullptr || num_threads < 1) return nullptr;
    try {
        return new Runner(num_threads, table);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void archerfish_close(void* runner) { delete (Runner*)runner; }

// Each of these says in `refusal` whether it was run: where something exceeds what its instructions were built for,
// nothing was computed.

void archerfish_run(void* runner, const Instructions* instructions, const Step* step, Refusal* refusal) {
    auto* chosen = (Runner*)runner;
    *refusal = {};
    if (can_run(*step, instructions->capacity, *refusal)) chosen->team.run(*chosen->table, *instructions, *step);
}

// The step that the chunks come to. Returns its number of rows.
int64_t archerfish_run_chunks(void* runner, const Instructions* instructions, const Assembly* chunks,
                              Refusal* refusal) {
    auto* chosen = (Runner*)runner;
    *refusal = {};
    return run_chunks(chosen->team, *chosen->table, *instructions, *chunks, *refusal);
}

void archerfish_draft(void* runner, const Drafting* drafting, Refusal* refusal) {
    auto* chosen = (Runner*)runner;
    *refusal = {};
    draft(chosen->team, *chosen->table, *drafting, *refusal);
}
}
#pragma GCC visibility pop
