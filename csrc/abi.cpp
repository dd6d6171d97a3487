#include "abi.h"

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "program.h"

namespace archerfish {
namespace {

// -- fields of a structure --------------------------------------------------------------------------------------------

struct AnyValue {
    template <typename T>
    operator T() const;
};

template <typename S, typename Indices, typename = void>
struct IsInitializedBy : std::false_type {};
template <typename S, std::size_t... I>
struct IsInitializedBy<S, std::index_sequence<I...>, std::void_t<decltype(S{(void(I), AnyValue())...})>>
    : std::true_type {};

// The most values that the structure can be initialized by.
template <typename S, std::size_t N = 0>
constexpr std::size_t num_fields() {
    if constexpr (IsInitializedBy<S, std::make_index_sequence<N + 1>>::value)
        return num_fields<S, N + 1>();
    else
        return N;
}

struct Field {
    const char* name;
    std::size_t offset;
    std::size_t size;
    const char* kind;
};

template <typename T>
constexpr const char* kind_of() {
    if (std::is_pointer_v<T>) return "pointer";
    if (std::is_floating_point_v<T>) return "float";
    return std::is_integral_v<T> || std::is_enum_v<T> ? "integer" : "structure";
}

// -- lines ------------------------------------------------------------------------------------------------------------

std::string text_of(const char* word) { return word; }
std::string text_of(std::size_t number) { return std::to_string(number); }

template <typename... Words>
void add_line(std::string& lines, Words... words) {
    ((lines += text_of(words) + ' '), ...);
    lines.back() = '\n';
}

template <std::size_t N>
void add_structure(std::string& lines, const char* name, std::size_t size, const std::array<Field, N>& fields) {
    add_line(lines, "structure", name, size);
    for (const Field& field : fields) add_line(lines, "field", name, field.name, field.offset, field.size, field.kind);
}

#define FIELD(field) \
    Field { #field, offsetof(S, field), sizeof(S::field), kind_of<decltype(S::field)>() }

#define STRUCTURE(structure, ...)                                                                      \
    {                                                                                                  \
        using S = structure;                                                                           \
        constexpr std::array fields = {__VA_ARGS__};                                                   \
        static_assert(fields.size() == num_fields<S>(), #structure " has fields that are not listed"); \
        add_structure(lines, #structure, sizeof(S), fields);                                           \
    }

void add_operands(std::string& lines) {
    STRUCTURE(StridedRows, FIELD(data), FIELD(stride), FIELD(part_stride), FIELD(num_parts), FIELD(width))
    STRUCTURE(WeightMatrix, FIELD(format), FIELD(group), FIELD(num_outputs), FIELD(num_inputs), FIELD(padded_inputs),
              FIELD(panel_bytes), FIELD(data), FIELD(scales), FIELD(bias))
    STRUCTURE(PackedRows, FIELD(format), FIELD(group), FIELD(width), FIELD(stride), FIELD(data), FIELD(scales),
              FIELD(sums))
    STRUCTURE(ExpertRoutes, FIELD(expert_ids), FIELD(weights), FIELD(top_k), FIELD(num_experts))
    STRUCTURE(ExpertBlock, FIELD(expert), FIELD(first), FIELD(count))
    STRUCTURE(ExpertGroups, FIELD(sorted_indices), FIELD(blocks), FIELD(num_blocks))
    STRUCTURE(ExpertWeights, FIELD(first), FIELD(data_stride), FIELD(scale_stride))
    STRUCTURE(PagedCache, FIELD(keys), FIELD(values), FIELD(key_scales), FIELD(value_scales), FIELD(format),
              FIELD(block_size), FIELD(num_heads), FIELD(head_dim), FIELD(kv_group), FIELD(num_blocks))
    STRUCTURE(SplitStates, FIELD(accumulators), FIELD(max_scores), FIELD(exp_sums), FIELD(num_done))
}

void add_arguments(std::string& lines) {
    STRUCTURE(EmbedArgs, FIELD(out), FIELD(table), FIELD(index))
    STRUCTURE(AddArgs, FIELD(out), FIELD(left), FIELD(right), FIELD(factor))
    STRUCTURE(ScaleArgs, FIELD(out), FIELD(input), FIELD(factor))
    STRUCTURE(SoftcapArgs, FIELD(out), FIELD(input), FIELD(cap))
    STRUCTURE(NormArgs, FIELD(out), FIELD(input), FIELD(residual), FIELD(sum), FIELD(weight), FIELD(bias), FIELD(eps),
              FIELD(weight_offset), FIELD(factor), FIELD(has_residual), FIELD(packed), FIELD(has_packed))
    STRUCTURE(RotateArgs, FIELD(out), FIELD(input), FIELD(angles))
    STRUCTURE(ActivateArgs, FIELD(out), FIELD(input), FIELD(activation), FIELD(gated), FIELD(packed), FIELD(has_packed),
              FIELD(rows_per_token))
    STRUCTURE(PackArgs, FIELD(input), FIELD(packed))
    STRUCTURE(LinearArgs, FIELD(out), FIELD(input), FIELD(weight))
    STRUCTURE(WriteKvArgs, FIELD(keys), FIELD(values), FIELD(angles), FIELD(cache))
    STRUCTURE(AttendArgs, FIELD(out), FIELD(queries), FIELD(angles), FIELD(cache), FIELD(splits), FIELD(scale),
              FIELD(softcap), FIELD(window))
    STRUCTURE(RouteArgs, FIELD(logits), FIELD(out), FIELD(normalize))
    STRUCTURE(GroupArgs, FIELD(routes), FIELD(out))
    STRUCTURE(GatherArgs, FIELD(input), FIELD(out), FIELD(routes), FIELD(groups))
    STRUCTURE(ExpertLinearArgs, FIELD(out), FIELD(input), FIELD(weights), FIELD(groups))
    STRUCTURE(CombineArgs, FIELD(out), FIELD(input), FIELD(routes), FIELD(groups))
    STRUCTURE(DrawRow, FIELD(seed), FIELD(position), FIELD(temperature), FIELD(top_p), FIELD(min_p), FIELD(top_k))
    STRUCTURE(DrawArgs, FIELD(logits), FIELD(rows), FIELD(tokens), FIELD(max_logits))
    STRUCTURE(SelectArgs, FIELD(out), FIELD(input))
    STRUCTURE(ScatterArgs, FIELD(out), FIELD(input), FIELD(ids))
}

void add_steps(std::string& lines) {
    STRUCTURE(Instruction, FIELD(operation), FIELD(selected), FIELD(arguments))
    STRUCTURE(ProgramCapacity, FIELD(rows), FIELD(logits), FIELD(tokens), FIELD(positions), FIELD(kv_groups),
              FIELD(blocks), FIELD(block_size))
    STRUCTURE(Instructions, FIELD(first), FIELD(count), FIELD(capacity))
    STRUCTURE(StepView, FIELD(num_rows), FIELD(num_threads), FIELD(tokens), FIELD(positions), FIELD(num_kv_groups),
              FIELD(num_chunks), FIELD(query_starts), FIELD(ends), FIELD(tables), FIELD(slots), FIELD(table_width),
              FIELD(num_logits), FIELD(logit_indices), FIELD(tree_depths), FIELD(tree_paths))
    STRUCTURE(Chunk, FIELD(row), FIELD(start), FIELD(length), FIELD(num_logits))
    STRUCTURE(StepAssembly, FIELD(num_chunks), FIELD(chunks), FIELD(num_rows), FIELD(max_length), FIELD(row_tokens),
              FIELD(tokens_per_row), FIELD(row_tables), FIELD(blocks_per_row), FIELD(num_kv_groups), FIELD(block_size),
              FIELD(num_tree_depths), FIELD(tree_depths), FIELD(tree_paths), FIELD(max_tokens), FIELD(max_chunks),
              FIELD(max_logits), FIELD(tokens), FIELD(positions), FIELD(query_starts), FIELD(ends), FIELD(tables),
              FIELD(slots), FIELD(logit_indices))
    STRUCTURE(DraftingPass, FIELD(instructions), FIELD(assembly), FIELD(input_states), FIELD(output_states))
    STRUCTURE(Drafting, FIELD(first), FIELD(next), FIELD(max_chunks), FIELD(max_draft_tokens), FIELD(num_draft_tokens),
              FIELD(chunk_ids), FIELD(draw_rows), FIELD(drawn), FIELD(draft_tokens), FIELD(nanoseconds))
    STRUCTURE(BoundsError, FIELD(limit), FIELD(value), FIELD(min), FIELD(max))
}

#undef STRUCTURE
#undef FIELD

void add_numbers(std::string& lines) {
#define X(operation, arguments) \
    add_line(lines, "operation", #operation, static_cast<std::size_t>(Operation::operation), #arguments);
    ARCHERFISH_OPERATIONS(X)
#undef X
#define ENUMERATOR(enumeration, name) \
    add_line(lines, "enumerator", #enumeration, #name, static_cast<std::size_t>(enumeration::name));
#define X(limit) ENUMERATOR(Limit, limit)
    ARCHERFISH_LIMITS(X)
#undef X
    ENUMERATOR(CacheFormat, float32)
    ENUMERATOR(CacheFormat, bfloat16)
    ENUMERATOR(CacheFormat, int8)
    ENUMERATOR(Format, float32)
    ENUMERATOR(Format, bfloat16)
    ENUMERATOR(Format, int8)
    ENUMERATOR(Format, int4)
    ENUMERATOR(Format, int4_zeros)
    ENUMERATOR(IndexSource, tokens)
    ENUMERATOR(IndexSource, positions)
    ENUMERATOR(Activation, silu)
    ENUMERATOR(Activation, gelu)
    ENUMERATOR(Activation, gelu_tanh)
    ENUMERATOR(Activation, relu)
#undef ENUMERATOR
#define CONSTANT(name) add_line(lines, "constant", #name, static_cast<std::size_t>(name));
    CONSTANT(PANEL)
    CONSTANT(MAX_HEAD_DIM)
    CONSTANT(MAX_ATTENTION_SPLITS)
    CONSTANT(MAX_TREE_TOKENS)
    CONSTANT(MAX_VOCAB_SIZE)
    CONSTANT(MAX_ROW_WIDTH)
    CONSTANT(MAX_EXPERTS)
    CONSTANT(MAX_QUERIES_PER_KV_HEAD)
#undef CONSTANT
}

}  // namespace

std::string describe_abi() {
    std::string lines;
    add_operands(lines);
    add_arguments(lines);
    add_steps(lines);
    add_numbers(lines);
    return lines;
}

}  // namespace archerfish
