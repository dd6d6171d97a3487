// What Python and the kernels agree on: a program is a list of instructions over rows of numbers, recorded once for a
// model; a step says how many rows there are this time and what they are. Mirrored in archerfish/ops/cpu/program.py.
#pragma once

#include <cstdint>

namespace archerfish {

// -- operands ---------------------------------------------------------------------------------------------------------

// Float32 rows of one width, one for each row of the step. A row is num_parts pieces of `width`, part_stride apart:
// heads, where a row has them.
struct Rows {
    float* data;
    int64_t stride;  // Numbers from one row to the next.
    int64_t part_stride;
    int32_t num_parts;
    int32_t width;
};

enum class Number : int32_t { float32 = 0, bfloat16 = 1, int8 = 2 };

enum class Format : int32_t { float32 = 0, bfloat16 = 1, int8 = 2, int4 = 3, int4_zeros = 4 };

constexpr int PANEL = 64;  // Outputs that lie together.

// A matrix [num_outputs, num_inputs], packed in panels of 64 outputs. Within a panel:
//   float32    [inputs][64]                          bfloat16  [inputs / 2][64][2]
//   int8       [inputs / 4][64][4], w + 128          int4      for each group: [64] float16 scales, [group / 8][64][4]
//                                                              bytes, the low nibble of four inputs, then the high one
//   int4_zeros as int4, with [64] uint8 zero points after the scales
// Inputs are filled up with zeros to whole groups, outputs to whole panels.
struct Weight {
    Format format;
    int32_t group;  // Inputs that share a scale: of int8 among the activations only.
    int64_t num_outputs;
    int64_t num_inputs;
    int64_t padded_inputs;
    int64_t panel_bytes;
    const uint8_t* data;
    const float* scales;  // int8: one for each output.
    const float* bias;    // Or null.
};

// Rows as a product wants them: int8 in groups with a scale and a sum each, bfloat16, or float32 as they are.
struct Packed {
    Format format;  // float32, bfloat16 or int8.
    int32_t group;
    int64_t width;   // Padded.
    int64_t stride;  // Bytes from one row to the next.
    uint8_t* data;   // [rows][width]
    float* scales;   // [rows][width / group]
    int32_t* sums;
};

// What each row has chosen among experts, best first.
struct Routes {
    int32_t* chosen;  // [rows][num_chosen]
    float* weights;   // [rows][num_chosen]
    int32_t num_chosen;
    int32_t num_experts;
};

// Consecutive places whose rows all go to one expert.
struct Block {
    int32_t expert;
    int32_t first;
    int32_t count;
};

// Rows sorted by expert: a row has one place for each expert that it chose.
struct Groups {
    int32_t* places;      // [rows][num_chosen]
    Block* blocks;        // As many as there are places, at most.
    int64_t* num_blocks;  // One number.
};

// One matrix for each expert, all of one shape and format.
struct ExpertWeights {
    Weight first;
    int64_t data_stride;   // Bytes from one expert's panels to the next one's.
    int64_t scale_stride;  // Numbers, likewise.
};

// -- instructions -----------------------------------------------------------------------------------------------------

// Every operation and the structure of its arguments, in the order of their numbers.
#define ARCHERFISH_OPERATIONS(X)   \
    X(embed, Embed)                \
    X(add, Add)                    \
    X(scale, Scale)                \
    X(softcap, Softcap)            \
    X(rms_norm, Norm)              \
    X(layer_norm, Norm)            \
    X(rotate, Rotate)              \
    X(activate, Activate)          \
    X(pack, Pack)                  \
    X(linear, Linear)              \
    X(write_kv, WriteKv)           \
    X(attend, Attend)              \
    X(route, Route)                \
    X(group, Group)                \
    X(gather, Gather)              \
    X(expert_linear, ExpertLinear) \
    X(combine, Combine)            \
    X(draw, Draw)                  \
    X(select, Select)              \
    X(spread, Spread)

enum class Operation : int32_t {
#define X(operation, arguments) operation,
    ARCHERFISH_OPERATIONS(X)
#undef X
};

#define X(operation, arguments) +1
constexpr int NUM_OPERATIONS = ARCHERFISH_OPERATIONS(X);
#undef X

enum class Index : int32_t { tokens = 0, positions = 1 };

struct Embed {
    Rows out;
    Weight table;
    Index index;
};
struct Add {  // out = left + right * factor
    Rows out, left, right;
    float factor;
};
struct Scale {  // out = in * factor
    Rows out, input;
    float factor;
};
struct Softcap {  // out = cap * tanh(in / cap)
    Rows out, input;
    float cap;
};
// Where rows are wanted packed only, `out` has no data.
struct Norm {  // Both kinds; with `added`, in + added * factor is stored in `sum` and normalized.
    Rows out, input, added, sum;
    const float* weight;
    const float* bias;
    float eps;
    float weight_offset;
    float factor;
    int32_t has_added;
    Packed packed;
    int32_t packs;
};
struct Rotate {
    Rows out, input;
    Rows angles;  // Cosines, then sines.
};
enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3 };
struct Activate {
    Rows out, input;
    Activation activation;
    int32_t gated;
    Packed packed;
    int32_t packs;
    int32_t times;  // Rows there are for each one of the step: more than one where it chose several experts.
};
struct Pack {
    Rows input;
    Packed packed;
};
struct Linear {
    Rows out;
    Packed input;
    Weight weight;
};
constexpr int64_t MOST_HEAD_DIM = 256;  // Of heads in the cache.

// The cache of one layer: blocks of num_heads * head_dim * block_size numbers. Keys of a block are
// [heads][block_size / 16][head_dim][16 tokens], so that sixteen scores grow side by side; values
// [block_size][heads][head_dim]. int8 ones are whole multiples of a scale for each head and token, which lie
// [heads][block_size] in a block.
struct Cache {
    uint8_t* keys;
    uint8_t* values;
    float* key_scales;  // Null, like those of the values, where numbers are floats.
    float* value_scales;
    Number number;
    int32_t block_size;
    int32_t num_heads;
    int32_t head_dim;
    int32_t group;  // Whose tables and slots to use.
    int64_t num_blocks;
};
struct WriteKv {
    Rows keys, values;
    Rows angles;  // To rotate keys by first; without data: none.
    Cache cache;
};

constexpr int64_t MOST_PARTS = 8192;  // Of a step's attention: spans of keys, for each query.

// Room for what queries gather from single spans of keys, before it is put together.
struct Parts {
    float* sums;       // [MOST_PARTS][head_dim]
    float* peaks;      // [MOST_PARTS]
    float* totals;     // [MOST_PARTS]
    int32_t* arrived;  // [MOST_PARTS] spans that are done, of queries that are worked on; 0 between two steps.
};
struct Attend {
    Rows out, queries;
    Rows angles;  // To rotate queries by first; without data: none.
    Cache cache;
    Parts parts;
    float scale;
    float softcap;   // 0: none.
    int64_t window;  // 0: none.
};
struct Route {  // The likeliest experts of each row, with their shares of a softmax.
    Rows logits;
    Routes out;
    int32_t normalize;  // Shares of those chosen add up to 1.
};
struct Group {
    Routes routes;
    Groups out;
};
struct Gather {  // Every row to each of its places.
    Packed input, out;
    Routes routes;
    Groups groups;
};
struct ExpertLinear {  // Every place by the matrix of its expert.
    Rows out;
    Packed input;
    ExpertWeights weights;
    Groups groups;
};
struct Combine {  // out = the sum of a row's places, each times its weight.
    Rows out, input;
    Routes routes;
    Groups groups;
};

// What the next token of a row is drawn by.
struct DrawRow {
    uint64_t seed;
    int64_t position;
    float temperature;  // 0: the likeliest.
    float top_p;        // 1: idle.
    float min_p;        // 0: idle.
    int32_t top_k;      // 0: idle.
};
struct Draw {
    Rows logits;
    const DrawRow* rows;
    int64_t* tokens;
    float* peaks;  // The largest logit; where it is not finite, nothing was drawn.
};

struct Select {  // The rows that matter from here on: out = in[picked].
    Rows out, input;
};
struct Spread {  // Logits of some tokens among all: out[ids[i]] = in[i], and what has none is -inf.
    Rows out, input;
    const int64_t* ids;
};

struct Instruction {
    Operation operation;
    int32_t selected;  // Works on the rows that were picked, not on all of the step.
    const void* operands;
};

// What the operands of instructions have memory for, and what they look up by number.
struct Capacity {
    int64_t rows;        // Of a step.
    int64_t picked;      // Rows of a step, for those instructions that work on some only.
    int64_t tokens;      // Rows of the smallest table that is looked up by token; 0: there is none.
    int64_t positions;   // The same by position.
    int64_t groups;      // Of KV caches; 0: there is none.
    int64_t blocks;      // Of the smallest cache.
    int64_t block_size;  // Of all caches.
};

// A list of instructions that is run from its first to its last.
struct Instructions {
    const Instruction* first;
    int64_t count;
    Capacity capacity;
};

// -- a step -----------------------------------------------------------------------------------------------------------

constexpr int64_t MOST_TREE_TOKENS = 64;  // Of a chunk that is a tree.

struct Step {
    int64_t num_rows;
    int64_t num_threads;       // That work on it.
    const int64_t* tokens;     // [rows]
    const int64_t* positions;  // [rows]
    int64_t num_groups;        // Of tables and slots.
    int64_t num_chunks;
    const int32_t* query_starts;   // [chunks + 1]
    const int32_t* ends;           // [chunks]
    const int32_t* const* tables;  // For each group [chunks, table_width].
    const int64_t* const* slots;   // For each group [rows]; null where nothing is stored.
    int64_t table_width;
    int64_t num_picked;
    const int64_t* picked;  // Which rows, for those instructions that work on some only.
    // Null where no chunk is a tree. Else the depth of each row in its own, -1 if its chunk is none; and the line that
    // leads to it there, [rows][MOST_TREE_TOKENS], as numbers of the chunk's tokens: the key at the d-th position from
    // the chunk's start on is the one that was stored for token line[d].
    const int32_t* depths;
    const uint8_t* lines;
};

struct Chunk {
    int64_t row;
    int64_t start;  // Its first position.
    int64_t length;
    int64_t num_logits;  // Computed of so many of its last tokens.
};

// What a step is made from: chunks of sequences, whose tokens and block tables are kept in rows. And room to make it
// in.
struct Assembly {
    int64_t num_chunks;
    Chunk* chunks;  // [max_chunks]
    int64_t num_rows;
    int64_t max_length;  // Tokens of a row that can be computed: it has tokens and blocks for so many.
    int32_t* row_tokens;
    int64_t tokens_per_row;            // Numbers from one row to the next.
    const int32_t* const* row_tables;  // For each group.
    int64_t blocks_per_row;
    int64_t num_groups;
    int64_t block_size;
    int64_t num_depths;     // Tokens that these are given for: 0, or all of the step.
    const int32_t* depths;  // As a step has them, or null.
    const uint8_t* lines;

    // Sizes of what follows.
    int64_t max_tokens;
    int64_t max_chunks;
    int64_t max_picked;
    int64_t* tokens;
    int64_t* positions;
    int32_t* query_starts;
    int32_t* ends;
    int32_t* const* tables;
    int64_t* const* slots;
    int64_t* picked;
};

// -- a draft ----------------------------------------------------------------------------------------------------------

// A pass of a network that guesses: a program that draws a token after each chunk, and where its rows lie.
struct Pass {
    Instructions instructions;
    Assembly* assembly;
    Rows given;   // What it takes beside each token; without data: nothing.
    Rows states;  // What it makes of each token.
};

// Guesses for some sequences, token after token. One pass reads what is new, further ones a guess each of whoever wants
// more. Both have the same rows of tokens, to which guesses are written that are read.
struct Drafting {
    Pass first;
    Pass further;  // Takes the states of the pass before, if anything.
    int64_t max_chunks;
    int64_t max_count;      // Draft tokens of a chunk at most.
    const int64_t* counts;  // [chunks of the first pass] guesses wanted, at least 1.
    int64_t* chunks;        // [chunks] room: which of those each chunk of a later pass belongs to.
    DrawRow* rows;          // [chunks] what the pass draws by.
    const int64_t* drawn;   // [chunks] what it drew.
    int64_t* tokens;        // [most wanted][chunks] the guesses. What nobody wanted is left as it was.
    int64_t* nanoseconds;   // [most wanted] that each pass took.
};

// -- bounds -----------------------------------------------------------------------------------------------------------

// What a call can exceed.
#define ARCHERFISH_LIMITS(X)                                          \
    X(none)                                                           \
    X(chunks)       /* Number of chunks. */                           \
    X(rows)         /* Tokens of a step. */                           \
    X(picked)       /* Tokens of a step whose logits are computed. */ \
    X(row)          /* Row of a chunk's sequence. */                  \
    X(start)        /* First position of a chunk. */                  \
    X(length)       /* Tokens of a chunk. */                          \
    X(chunk_picked) /* Of those, tokens whose logits are computed. */ \
    X(end)          /* Position after a chunk. */                     \
    X(token)        /* Token id. */                                   \
    X(position)     /* Position that a table is looked up by. */      \
    X(groups)       /* Number of KV groups. */                        \
    X(block_size)   /* Tokens of a block. */                          \
    X(block)        /* Id of a block. */                              \
    X(slot)         /* Slot of a token in the cache. */               \
    X(tree)         /* Tokens that have a depth in a tree. */         \
    X(depth)        /* Depth of a token in its tree. */               \
    X(line)         /* Token of a tree in the line of another. */     \
    X(count)        /* Number of draft tokens. */

enum class Limit : int32_t {
#define X(limit) limit,
    ARCHERFISH_LIMITS(X)
#undef X
};

// Why a call was refused: a number that is not from `least` to `most`. Nothing was computed then.
struct Refusal {
    Limit limit;  // none: it was not refused.
    int64_t given;
    int64_t least;
    int64_t most;
};

// -- kernels ----------------------------------------------------------------------------------------------------------

constexpr int64_t SCRATCH_BYTES = 8 << 20;  // Of each thread; memory that is not touched is not taken.

// How many pieces of work an instruction has for a step, and one of them.
using CountUnits = int64_t (*)(const void* operands, const Step& step);
using RunUnit = void (*)(const void* operands, const Step& step, int64_t unit, uint8_t* scratch);

struct Kernel {
    CountUnits count;
    RunUnit run;
};

struct KernelTable {
    Kernel kernels[NUM_OPERATIONS];

    constexpr Kernel& operator[](Operation operation) { return kernels[(int)operation]; }
    constexpr const Kernel& operator[](Operation operation) const { return kernels[(int)operation]; }
    constexpr bool is_complete() const {
        for (const Kernel& kernel : kernels)
            if (!kernel.count || !kernel.run) return false;
        return true;
    }
};

}  // namespace archerfish
