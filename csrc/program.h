// The interface between Python and the kernels. A program is a list of instructions over rows of numbers, recorded once
// for a model; a step says how many rows there are this time and which tokens they belong to.
// archerfish/ops/cpu/program.py declares the same structures, and abi.cpp lists them so that the two can be compared.
#pragma once

#include <cstdint>

#include "scratch.h"

namespace archerfish {

// -- limits -----------------------------------------------------------------------------------------------------------

constexpr int PANEL = 64;                       // Outputs of a packed matrix that are stored together.
constexpr int64_t MAX_HEAD_DIM = 256;           // Of heads in the KV cache.
constexpr int64_t MAX_ATTENTION_SPLITS = 8192;  // Of a step: splits of keys times queries.
constexpr int64_t MAX_TREE_TOKENS = 64;         // Of a chunk that is a tree.
constexpr int64_t MAX_VOCAB_SIZE = 1 << 20;     // The draw has two floats for each token in scratch memory.
constexpr int64_t MAX_ROW_WIDTH = 1 << 20;      // A row that is only read packed is computed in scratch memory.
constexpr int64_t MAX_EXPERTS = 1 << 16;        // Counted in scratch memory.
constexpr int64_t MAX_QUERIES_PER_KV_HEAD =
    1024;  // Query heads that share a KV head: one thread attends with them all.

// -- operands ---------------------------------------------------------------------------------------------------------

// Float32 rows of one width, one for each row of the step. A row consists of num_parts parts (heads, where it has any)
// of `width` numbers, part_stride apart.
struct StridedRows {
    float* data;
    int64_t stride;  // Numbers from one row to the next.
    int64_t part_stride;
    int32_t num_parts;
    int32_t width;
};

enum class Format : int32_t { float32 = 0, bfloat16 = 1, int8 = 2, int4 = 3, int4_zeros = 4 };

// A matrix [num_outputs, num_inputs], packed in panels of 64 outputs. Within a panel:
//   float32    [inputs][64]                          bfloat16  [inputs / 2][64][2]
//   int8       [inputs / 4][64][4], w + 128          int4      for each group: [64] float16 scales, [group / 8][64][4]
//                                                              bytes, the low nibble of four inputs, then the high one
//   int4_zeros as int4, with [64] uint8 zero points after the scales
// Inputs are padded with zeros to whole groups, outputs to whole panels.
struct WeightMatrix {
    Format format;
    int32_t group;  // Inputs that share a scale. Of int8, whose weights have one for each output: of the activations.
    int64_t num_outputs;
    int64_t num_inputs;
    int64_t padded_inputs;
    int64_t panel_bytes;
    const uint8_t* data;
    const float* scales;  // int8: one for each output.
    const float* bias;    // Or null.
};

// Rows as a GEMM reads them: int8 in groups with a scale and a sum each, bfloat16, or float32 as they are.
struct PackedRows {
    Format format;  // float32, bfloat16 or int8.
    int32_t group;
    int64_t width;   // Padded.
    int64_t stride;  // Bytes from one row to the next.
    uint8_t* data;   // [rows][width]
    float* scales;   // [rows][width / group]
    int32_t* sums;   // [rows][width / group]
};

// The experts that each row is routed to, the likeliest first.
struct ExpertRoutes {
    int32_t* expert_ids;  // [rows][top_k]
    float* weights;       // [rows][top_k]
    int32_t top_k;
    int32_t num_experts;
};

// Consecutive sorted rows that all go to one expert.
struct ExpertBlock {
    int32_t expert;
    int32_t first;
    int32_t count;
};

// Rows sorted by expert. A row occurs once for each of its experts.
struct ExpertGroups {
    int32_t* sorted_indices;  // [rows][top_k]: where the row is among the sorted ones, for each of its experts.
    ExpertBlock* blocks;      // [num_blocks]: at most as many as there are sorted rows.
    int64_t* num_blocks;      // One number.
};

// One matrix for each expert, all of one shape and format.
struct ExpertWeights {
    WeightMatrix first;
    int64_t data_stride;   // Bytes from one expert's panels to the next one's.
    int64_t scale_stride;  // Numbers from one expert's scales to the next one's.
};

enum class CacheFormat : int32_t { float32 = 0, bfloat16 = 1, int8 = 2 };

// The KV cache of one layer: blocks of num_heads * head_dim * block_size numbers. Keys of a block are
// [heads][block_size / 16][head_dim][16 tokens], so that sixteen scores are summed up at once; values are
// [block_size][heads][head_dim]. int8 numbers have a scale for each head and token, [heads][block_size] in a block.
struct PagedCache {
    uint8_t* keys;
    uint8_t* values;
    float* key_scales;    // Null unless numbers are int8.
    float* value_scales;  // Null unless numbers are int8.
    CacheFormat format;
    int32_t block_size;
    int32_t num_heads;
    int32_t head_dim;
    int32_t kv_group;  // Whose block tables and slots apply.
    int64_t num_blocks;
};

// Softmax states of single splits of keys, before they are merged: [MAX_ATTENTION_SPLITS] of each.
struct SplitStates {
    float* accumulators;  // [..][head_dim]
    float* max_scores;
    float* exp_sums;
    int32_t* num_done;  // Splits that are done, of queries that are being computed; 0 between two steps.
};

// -- arguments of operations ------------------------------------------------------------------------------------------

enum class IndexSource : int32_t { tokens = 0, positions = 1 };

struct EmbedArgs {
    StridedRows out;
    WeightMatrix table;
    IndexSource index;
};
struct AddArgs {  // out = left + right * factor
    StridedRows out, left, right;
    float factor;
};
struct ScaleArgs {  // out = input * factor
    StridedRows out, input;
    float factor;
};
struct SoftcapArgs {  // out = cap * tanh(input / cap)
    StridedRows out, input;
    float cap;
};
// RMS norm or layer norm. With a residual, sum = input + residual * factor is stored and normalized. `out` has no data
// where only `packed` is read.
struct NormArgs {
    StridedRows out, input, residual, sum;
    const float* weight;
    const float* bias;
    float eps;
    float weight_offset;
    float factor;
    int32_t has_residual;
    PackedRows packed;
    int32_t has_packed;
};
struct RotateArgs {
    StridedRows out, input;
    StridedRows angles;  // Cosines, then sines.
};
enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3 };
struct ActivateArgs {
    StridedRows out, input;
    Activation activation;
    int32_t gated;
    PackedRows packed;
    int32_t has_packed;
    int32_t rows_per_token;  // More than one where rows are sorted by expert.
};
struct PackArgs {
    StridedRows input;
    PackedRows packed;
};
struct LinearArgs {
    StridedRows out;
    PackedRows input;
    WeightMatrix weight;
};
struct WriteKvArgs {
    StridedRows keys, values;
    StridedRows angles;  // To rotate keys by first; without data, they are stored as they are.
    PagedCache cache;
};
struct AttendArgs {
    StridedRows out, queries;
    StridedRows angles;  // To rotate queries by first; without data, they are used as they are.
    PagedCache cache;
    SplitStates splits;
    float scale;
    float softcap;   // 0: none.
    int64_t window;  // 0: none.
};
struct RouteArgs {  // The likeliest experts of each row, weighted by the softmax of its logits.
    StridedRows logits;
    ExpertRoutes out;
    int32_t normalize;  // Scale the weights of a row so that they add up to 1.
};
struct GroupArgs {
    ExpertRoutes routes;
    ExpertGroups out;
};
struct GatherArgs {  // Copies every row to each of its sorted indices.
    PackedRows input, out;
    ExpertRoutes routes;
    ExpertGroups groups;
};
struct ExpertLinearArgs {  // Multiplies every sorted row with the matrix of its expert.
    StridedRows out;
    PackedRows input;
    ExpertWeights weights;
    ExpertGroups groups;
};
struct CombineArgs {  // out = the sum of a row's sorted rows, each times its weight.
    StridedRows out, input;
    ExpertRoutes routes;
    ExpertGroups groups;
};

// The parameters that the next token of a row is drawn by.
struct DrawRow {
    uint64_t seed;
    int64_t position;
    float temperature;  // 0: the likeliest token.
    float top_p;        // 1: off.
    float min_p;        // 0: off.
    int32_t top_k;      // 0: off.
};
struct DrawArgs {
    StridedRows logits;
    const DrawRow* rows;
    int64_t* tokens;
    float* max_logits;  // Where it is not finite, no token was drawn.
};

struct SelectArgs {  // out = input[logit_indices]
    StridedRows out, input;
};
struct ScatterArgs {  // out[ids[i]] = input[i], and -inf everywhere else: the logits of some tokens among all.
    StridedRows out, input;
    const int64_t* ids;
};

// Every operation and the structure of its arguments, in the order of their numbers.
#define ARCHERFISH_OPERATIONS(X)       \
    X(embed, EmbedArgs)                \
    X(add, AddArgs)                    \
    X(scale, ScaleArgs)                \
    X(softcap, SoftcapArgs)            \
    X(rms_norm, NormArgs)              \
    X(layer_norm, NormArgs)            \
    X(rotate, RotateArgs)              \
    X(activate, ActivateArgs)          \
    X(pack, PackArgs)                  \
    X(linear, LinearArgs)              \
    X(write_kv, WriteKvArgs)           \
    X(attend, AttendArgs)              \
    X(route, RouteArgs)                \
    X(group, GroupArgs)                \
    X(gather, GatherArgs)              \
    X(expert_linear, ExpertLinearArgs) \
    X(combine, CombineArgs)            \
    X(draw, DrawArgs)                  \
    X(select, SelectArgs)              \
    X(scatter, ScatterArgs)

enum class Operation : int32_t {
#define X(operation, arguments) operation,
    ARCHERFISH_OPERATIONS(X)
#undef X
};

#define X(operation, arguments) +1
constexpr int NUM_OPERATIONS = ARCHERFISH_OPERATIONS(X);
#undef X

// -- programs ---------------------------------------------------------------------------------------------------------

struct Instruction {
    Operation operation;
    int32_t selected;  // Works on the rows at the step's logit indices instead of all rows.
    const void* arguments;
};

// How much the arguments of a program's instructions have memory for, and how large the tables are that they look up.
struct ProgramCapacity {
    int64_t rows;        // Of a step.
    int64_t logits;      // Rows at logit indices, for instructions that work on those.
    int64_t tokens;      // Rows of the smallest table that is looked up by token; 0: there is none.
    int64_t positions;   // Rows of the smallest table that is looked up by position; 0: there is none.
    int64_t kv_groups;   // 0: there is no KV cache.
    int64_t blocks;      // Of the smallest cache.
    int64_t block_size;  // Of all caches.
};

struct Instructions {
    const Instruction* first;
    int64_t count;
    ProgramCapacity capacity;
};

// -- a step -----------------------------------------------------------------------------------------------------------

struct StepView {
    int64_t num_rows;
    int64_t num_threads;       // That work on it.
    const int64_t* tokens;     // [rows]
    const int64_t* positions;  // [rows]
    int64_t num_kv_groups;     // Of tables and slots.
    int64_t num_chunks;
    const int32_t* query_starts;   // [chunks + 1]
    const int32_t* ends;           // [chunks] the context of each chunk, its own tokens included.
    const int32_t* const* tables;  // For each KV group [chunks, table_width].
    const int64_t* const* slots;   // For each KV group [rows]; null where nothing is stored.
    int64_t table_width;
    int64_t num_logits;
    const int64_t* logit_indices;  // [num_logits] rows whose logits are computed.
    // Null where no chunk is a tree. Else the depth of each row in its tree, -1 if its chunk is none; and the path that
    // leads to it there, [rows][MAX_TREE_TOKENS], as numbers of the chunk's tokens: the key at the d-th position from
    // the chunk's start on is the one that was stored for token path[d].
    const int32_t* tree_depths;
    const uint8_t* tree_paths;
};

// The tokens of one sequence that a step computes.
struct Chunk {
    int64_t row;    // Of the sequence.
    int64_t start;  // First position.
    int64_t length;
    int64_t num_logits;  // Of the last so many tokens.
};

// What a step is assembled from: chunks of sequences whose tokens and block tables are stored in rows. And buffers for
// the step.
struct StepAssembly {
    int64_t num_chunks;
    Chunk* chunks;  // [max_chunks]
    int64_t num_rows;
    int64_t max_length;  // Positions of a row that can be computed: it has tokens and blocks for so many.
    int32_t* row_tokens;
    int64_t tokens_per_row;            // Numbers from one row to the next.
    const int32_t* const* row_tables;  // For each KV group.
    int64_t blocks_per_row;
    int64_t num_kv_groups;
    int64_t block_size;
    int64_t num_tree_depths;  // 0, or as many as the step has tokens.
    const int32_t* tree_depths;
    const uint8_t* tree_paths;

    // The buffers and their sizes.
    int64_t max_tokens;
    int64_t max_chunks;
    int64_t max_logits;
    int64_t* tokens;
    int64_t* positions;
    int32_t* query_starts;
    int32_t* ends;
    int32_t* const* tables;
    int64_t* const* slots;
    int64_t* logit_indices;
};

// -- drafting ---------------------------------------------------------------------------------------------------------

// One forward pass of a drafter: a program that draws a token after each chunk, and the states that it reads and
// writes.
struct DraftingPass {
    Instructions instructions;
    StepAssembly* assembly;
    StridedRows input_states;   // Read alongside each token; without data: none.
    StridedRows output_states;  // Written for each token.
};

// Drafts tokens for several sequences, pass after pass. The first pass computes what is new; each of the next ones
// computes one draft token of every sequence that needs more. Both have the same rows of tokens, to which draft tokens
// are written before they are computed.
struct Drafting {
    DraftingPass first;
    DraftingPass next;  // Reads the states that the pass before has written, if any.
    int64_t max_chunks;
    int64_t max_draft_tokens;         // Of a chunk.
    const int64_t* num_draft_tokens;  // [chunks of the first pass] at least 1.
    int64_t* chunk_ids;               // [chunks] buffer: the chunk of the first pass that each one continues.
    DrawRow* draw_rows;               // [chunks] the parameters that the pass draws by.
    const int64_t* drawn;             // [chunks] the tokens that it drew.
    int64_t* draft_tokens;  // [max_draft_tokens][chunks] the result. Entries beyond a chunk's number are untouched.
    int64_t* nanoseconds;   // [max_draft_tokens] duration of each pass.
};

// -- bounds -----------------------------------------------------------------------------------------------------------

// The limits that a call can exceed.
#define ARCHERFISH_LIMITS(X)                                           \
    X(none)                                                            \
    X(chunks)       /* Number of chunks. */                            \
    X(rows)         /* Tokens of a step. */                            \
    X(logits)       /* Tokens of a step whose logits are computed. */  \
    X(row)          /* Row of a chunk's sequence. */                   \
    X(start)        /* First position of a chunk. */                   \
    X(length)       /* Tokens of a chunk. */                           \
    X(chunk_logits) /* Tokens of a chunk whose logits are computed. */ \
    X(end)          /* Position after a chunk. */                      \
    X(token)        /* Token id. */                                    \
    X(position)     /* Position that a table is looked up by. */       \
    X(kv_groups)    /* Number of KV groups. */                         \
    X(block_size)   /* Tokens of a block. */                           \
    X(block)        /* Id of a block. */                               \
    X(slot)         /* Slot of a token in the cache. */                \
    X(tree_depths)  /* Tokens that have a depth in a tree. */          \
    X(depth)        /* Depth of a token in its tree. */                \
    X(tree_path)    /* Token of a tree in the path of another. */      \
    X(draft_tokens) /* Number of draft tokens. */

enum class Limit : int32_t {
#define X(limit) limit,
    ARCHERFISH_LIMITS(X)
#undef X
};

// Why a call was rejected: a value that is not from `min` to `max`. Nothing was computed then.
struct BoundsError {
    Limit limit;  // none: it was not rejected.
    int64_t value;
    int64_t min;
    int64_t max;
};

// -- kernels ----------------------------------------------------------------------------------------------------------

// How many units of work an instruction has in a step, and running one of them.
using CountUnits = int64_t (*)(const void* arguments, const StepView& step);
using RunUnit = void (*)(const void* arguments, const StepView& step, int64_t unit, Scratch scratch);

struct Kernel {
    CountUnits count;
    RunUnit run;
};

struct KernelTable {
    Kernel kernels[NUM_OPERATIONS];
    uint64_t filled;  // One bit for each operation that has a kernel.

    constexpr void set(Operation operation, Kernel kernel) {
        kernels[static_cast<int>(operation)] = kernel;
        filled |= 1ull << static_cast<int>(operation);
    }
    constexpr const Kernel& operator[](Operation operation) const { return kernels[static_cast<int>(operation)]; }
    constexpr bool is_complete() const { return filled == (1ull << NUM_OPERATIONS) - 1; }
};

}  // namespace archerfish
