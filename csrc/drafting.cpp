#include "drafting.h"

#include <chrono>
#include <cstring>
#include <numeric>

#include "assembly.h"
#include "bounds.h"

namespace archerfish {
namespace {

// What a pass made of a chunk's last token is what the next one takes beside the guess.
void hand_on(const Pass& pass, int64_t chunk, const Rows& given, int64_t place) {
    int64_t last = pass.assembly->query_starts[chunk + 1] - 1;
    std::memcpy(given.data + place * given.stride, pass.states.data + last * pass.states.stride,
                given.width * sizeof(float));
}

// Keeps the guesses of a pass, and makes the next one's chunks of those that want more. These never move backward, so
// they may overwrite the pass's own, as they do where both have one room.
void go_on(const Drafting& drafting, const Pass& pass, int64_t* tokens, int64_t num_made) {
    const Assembly& before = *pass.assembly;
    Assembly& next = *drafting.further.assembly;
    int64_t num_kept = 0;
    for (int64_t c = 0; c < before.num_chunks; ++c) {
        int64_t whose = drafting.chunks[c], token = drafting.drawn[c];
        tokens[whose] = token;
        if (drafting.counts[whose] == num_made) continue;
        int64_t row = before.chunks[c].row, position = before.chunks[c].start + before.chunks[c].length;
        before.row_tokens[row * before.tokens_per_row + position] = (int32_t)token;
        if (drafting.further.given.data) hand_on(pass, c, drafting.further.given, num_kept);
        next.chunks[num_kept] = {row, position, 1, 1};
        drafting.chunks[num_kept] = whose;
        drafting.rows[num_kept] = drafting.rows[c];
        ++drafting.rows[num_kept].position;
        ++num_kept;
    }
    next.num_chunks = num_kept;
}

}  // namespace

void draft(Team& team, const KernelTable& kernels, const Drafting& drafting, Refusal& refusal) {
    using Clock = std::chrono::steady_clock;
    if (!can_draft(drafting, refusal)) return;
    int64_t width = drafting.first.assembly->num_chunks;
    std::iota(drafting.chunks, drafting.chunks + width, 0);
    const Pass* pass = &drafting.first;
    auto started = Clock::now();
    for (int64_t depth = 0; pass->assembly->num_chunks; ++depth) {
        if (!run_chunks(team, kernels, pass->instructions, *pass->assembly, refusal)) return;
        go_on(drafting, *pass, drafting.tokens + depth * width, depth + 1);
        pass = &drafting.further;
        auto ended = Clock::now();
        drafting.nanoseconds[depth] = std::chrono::nanoseconds(ended - started).count();
        started = ended;
    }
}

}  // namespace archerfish
