// The functions that Python calls, and the kernels that this CPU supports.
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

// Describes the structures and numbers that the caller must declare alike: see abi.h.
const char* archerfish_abi() {
    static const std::string description = describe_abi();
    return description.c_str();
}

// Starts a team of threads. Returns null if these kernels do not run here or the system cannot start so many threads.
void* archerfish_open(const char* kernels, int num_threads) {
    const KernelTable* table = find(kernels);
    if (table == nullptr || num_threads < 1) return nullptr;
    try {
        return new Runner(num_threads, table);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void archerfish_close(void* runner) { delete static_cast<Runner*>(runner); }

// The functions below report in `error` what exceeds the capacity of the instructions. Nothing was computed then.

void archerfish_run(void* runner, const Instructions* instructions, const StepView* step, BoundsError* error) {
    auto& [team, table] = *static_cast<Runner*>(runner);
    *error = {};
    if (can_run(*step, instructions->capacity, *error)) team.run(*table, *instructions, *step);
}

// Runs the step that is assembled from the chunks. Returns its number of rows.
int64_t archerfish_run_chunks(void* runner, const Instructions* instructions, const StepAssembly* chunks,
                              BoundsError* error) {
    auto& [team, table] = *static_cast<Runner*>(runner);
    *error = {};
    return run_chunks(team, *table, *instructions, *chunks, *error);
}

void archerfish_draft(void* runner, const Drafting* drafting, BoundsError* error) {
    auto& [team, table] = *static_cast<Runner*>(runner);
    *error = {};
    draft(team, *table, *drafting, *error);
}
}
#pragma GCC visibility pop
