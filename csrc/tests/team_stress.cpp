// Runs many short programs on teams of many threads, for ThreadSanitizer to find races: units that share plain memory
// from one instruction to the next, instructions of no, one and many units, teams that start and stop, and attention
// whose splits are merged by the thread that finishes last.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../program.h"
#include "../team.h"

namespace archerfish {
namespace avx2 {
extern const KernelTable table;
}

namespace {

constexpr int NUM_THREADS = 6;  // More than CPU cores, so that threads are suspended at any point.
constexpr int NUM_TEAMS = 8;
constexpr int NUM_STEPS = 3000;

void require(bool is_true, const char* what) {
    if (is_true) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

// -- a pipeline of plain memory ---------------------------------------------------------------------------------------

// Every unit of a stage reads all numbers of the stage before.
struct Stage {
    const std::vector<int64_t>* input;
    std::vector<int64_t>* out;
};

int64_t count_stage(const void* arguments, const StepView&) {
    return static_cast<int64_t>(static_cast<const Stage*>(arguments)->out->size());
}

void run_stage(const void* arguments, const StepView& step, int64_t unit, Scratch scratch) {
    const Stage& stage = *static_cast<const Stage*>(arguments);
    auto* sum = scratch.take<int64_t>(1);
    *sum = step.num_rows + unit;
    for (int64_t number : *stage.input) *sum += number % 1009;
    (*stage.out)[unit] = *sum;
}

void run_pipelines(Team& team, const KernelTable& kernels) {
    const std::vector<int> sizes = {5, 1, 0, 40, 3, 1, 17, 2};
    std::vector<std::vector<int64_t>> numbers(sizes.size() + 1, std::vector<int64_t>(3));
    std::vector<Stage> stages(sizes.size());
    std::vector<Instruction> instructions;
    for (size_t i = 0; i < sizes.size(); ++i) {
        numbers[i + 1].resize(sizes[i]);
        stages[i] = {&numbers[i], &numbers[i + 1]};
        instructions.push_back({Operation::add, static_cast<int32_t>(i % 2), &stages[i]});
    }
    Instructions program = {instructions.data(), static_cast<int64_t>(instructions.size()), {}};
    std::vector<int64_t> expected;
    for (int i = 0; i < NUM_STEPS; ++i) {
        std::fill(numbers[0].begin(), numbers[0].end(), i % 2);
        StepView step = {};
        step.num_rows = 7;
        step.num_logits = 3;
        team.run(kernels, program, step);
        if (i < 2) expected.insert(expected.end(), numbers.back().begin(), numbers.back().end());
        size_t size = numbers.back().size();
        require(std::equal(numbers.back().begin(), numbers.back().end(), expected.begin() + (i % 2) * size),
                "a pipeline computed other numbers");
    }
}

// -- attention with splits --------------------------------------------------------------------------------------------

void run_attention(Team& team, std::vector<float>& result) {
    constexpr int64_t dim = 16, block_size = 16, length = 1500, num_blocks = (length + block_size - 1) / block_size;
    std::vector<float> keys(num_blocks * block_size * dim), values(keys.size()), query(2 * dim), out(2 * dim);
    for (size_t i = 0; i < keys.size(); ++i) {
        keys[i] = static_cast<float>(i * 7919 % 101) / 101.0f;
        values[i] = static_cast<float>(i * 104729 % 97) / 97.0f;
    }
    for (size_t i = 0; i < query.size(); ++i) query[i] = static_cast<float>(i) / 32.0f;
    std::vector<float> accumulators(MAX_ATTENTION_SPLITS * dim), max_scores(MAX_ATTENTION_SPLITS);
    std::vector<float> exp_sums(MAX_ATTENTION_SPLITS);
    std::vector<int32_t> num_done(MAX_ATTENTION_SPLITS), block_table(num_blocks);
    for (int64_t block = 0; block < num_blocks; ++block) block_table[block] = static_cast<int32_t>(block);
    AttendArgs arguments = {};
    arguments.out = {out.data(), 2 * dim, dim, 2, dim};
    arguments.queries = {query.data(), 2 * dim, dim, 2, dim};
    arguments.cache = {reinterpret_cast<uint8_t*>(keys.data()),
                       reinterpret_cast<uint8_t*>(values.data()),
                       nullptr,
                       nullptr,
                       CacheFormat::float32,
                       block_size,
                       1,
                       dim,
                       0,
                       num_blocks};
    arguments.splits = {accumulators.data(), max_scores.data(), exp_sums.data(), num_done.data()};
    arguments.scale = 0.25f;
    Instruction instruction = {Operation::attend, 0, &arguments};
    Instructions program = {&instruction, 1, {}};
    int32_t query_starts[] = {0, 1}, ends[] = {length};
    const int32_t* tables[] = {block_table.data()};
    StepView step = {};
    step.num_rows = 1;
    step.num_kv_groups = 1;
    step.num_chunks = 1;
    step.query_starts = query_starts;
    step.ends = ends;
    step.tables = tables;
    step.table_width = num_blocks;
    for (int i = 0; i < NUM_STEPS / 10; ++i) {
        team.run(avx2::table, program, step);
        if (result.empty()) result = out;
        require(std::memcmp(result.data(), out.data(), out.size() * sizeof(float)) == 0,
                "attention computed other bits");
    }
}

}  // namespace
}  // namespace archerfish

int main() {
    using namespace archerfish;
    KernelTable kernels = {};
    kernels.set(Operation::add, {count_stage, run_stage});
    std::vector<float> result;
    for (int num_threads : {1, NUM_THREADS})
        for (int i = 0; i < NUM_TEAMS; ++i) {
            Team team(num_threads);
            run_pipelines(team, kernels);
            run_attention(team, result);
        }
    {
        Team idle(NUM_THREADS);
    }
    std::puts("no races, and the same numbers every time");
}
