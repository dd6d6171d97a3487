#include "drafting.h"

#include <chrono>
#include <cstring>
#include <numeric>

#include "assembly.h"
#include "bounds.h"

namespace archerfish {
namespace {

// Copies the state of a chunk's last token to the input of the next pass.
void copy_state(const DraftingPass& pass, int64_t chunk, const StridedRows& inputs, int64_t index) {
    int64_t last = pass.assembly->query_starts[chunk + 1] - 1;
    std::memcpy(inputs.data + index * inputs.stride, pass.output_states.data + last * pass.output_states.stride,
                inputs.width * sizeof(float));
}

// Stores the tokens that a pass drew, and writes the chunks of the next pass: those that need more tokens. A chunk's
// index never grows, so the chunks of both passes may share one buffer.
void advance(const Drafting& drafting, const DraftingPass& pass, int64_t* draft_tokens, int64_t num_drafted) {
    const StepAssembly& current = *pass.assembly;
    StepAssembly& next = *drafting.next.assembly;
    int64_t num_chunks = 0;
    for (int64_t c = 0; c < current.num_chunks; ++c) {
        int64_t id = drafting.chunk_ids[c], token = drafting.drawn[c];
        draft_tokens[id] = token;
        if (drafting.num_draft_tokens[id] == num_drafted) continue;
        int64_t row = current.chunks[c].row, position = current.chunks[c].start + current.chunks[c].length;
        current.row_tokens[row * current.tokens_per_row + position] = static_cast<int32_t>(token);
        if (drafting.next.input_states.data) copy_state(pass, c, drafting.next.input_states, num_chunks);
        next.chunks[num_chunks] = {row, position, 1, 1};
        drafting.chunk_ids[num_chunks] = id;
        drafting.draw_rows[num_chunks] = drafting.draw_rows[c];
        ++drafting.draw_rows[num_chunks].position;
        ++num_chunks;
    }
    next.num_chunks = num_chunks;
}

}  // namespace

void draft(Team& team, const KernelTable& kernels, const Drafting& drafting, BoundsError& error) {
    using Clock = std::chrono::steady_clock;
    if (!can_draft(drafting, error)) return;
    int64_t width = drafting.first.assembly->num_chunks;
    std::iota(drafting.chunk_ids, drafting.chunk_ids + width, 0);
    const DraftingPass* pass = &drafting.first;
    auto started = Clock::now();
    for (int64_t depth = 0; pass->assembly->num_chunks; ++depth) {
        if (!run_chunks(team, kernels, pass->instructions, *pass->assembly, error)) return;
        advance(drafting, *pass, drafting.draft_tokens + depth * width, depth + 1);
        pass = &drafting.next;
        auto ended = Clock::now();
        drafting.nanoseconds[depth] = std::chrono::nanoseconds(ended - started).count();
        started = ended;
    }
}

}  // namespace archerfish
