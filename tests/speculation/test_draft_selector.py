"""Each chunk gets the draft that gains most, of the length that pays or is fixed."""

from archerfish.execution.step.rows import Rows
from archerfish.scheduling.plan import Chunk, Plan
from archerfish.speculation.cost_model import SpeculationCostModel
from archerfish.speculation.draft import NO_DRAFT, ROOT, Draft
from archerfish.speculation.draft_selector import DraftSelector, SelectedDrafts
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.speculated_rows import SpeculatedRows
from tests.speculation.scripted import ScriptedProposer, sequence_start

LIKELY = Draft((1, 2, 3, 4), (ROOT, 0, 1, 2), (0.9, 0.8, 0.7, 0.6))
UNLIKELY = Draft((5, 6), (ROOT, 0), (0.05, 0.01))
TREE = Draft((7, 8, 9), (ROOT, ROOT, 1), (0.9, 0.8, 0.7))


class Bench:
    """Methods that propose these drafts, for two rows; steps of more tokens take a tenth longer for each."""

    def __init__(self, *drafts: Draft, num_speculative_tokens: int | None = None, is_measured: bool = True) -> None:
        rows = Rows(2, 64, 1, 16)
        self.methods = [
            SpeculationMethod(f"method {number}", ScriptedProposer(draft), max_draft_tokens=8)
            for number, draft in enumerate(drafts)
        ]
        cost_model = SpeculationCostModel()
        for num_tokens in range(1, 20) if is_measured else ():
            cost_model.expect_step(num_tokens, 1.0 + 0.1 * (num_tokens - 1))
        sequences = SpeculatedRows(self.methods, "auto", rows, lambda: 0.0, lambda seconds: None)
        for row in range(2):
            start = sequence_start(row, [3, 4, 5])
            rows.start(start)
            sequences.start(start)
        self._selector = DraftSelector(self.methods, sequences, cost_model, num_speculative_tokens)

    def select(self, *chunks: Chunk, takes_tree: bool = True) -> SelectedDrafts:
        return self._selector.select(self.methods, Plan(0, [], [], list(chunks), 8), 1, lambda _: takes_tree)


def decode(row: int, max_draft_tokens: int = 8) -> Chunk:
    return Chunk(row, 2, 1, samples=True, max_draft_tokens=max_draft_tokens)


def test_the_draft_that_gains_most_is_taken_for_each_chunk() -> None:
    bench = Bench(UNLIKELY, LIKELY)
    selected = bench.select(decode(0))
    assert selected == ([LIKELY], [bench.methods[1]])


def test_draft_tokens_that_do_not_pay_are_left_out() -> None:
    assert Bench(UNLIKELY).select(decode(0)) == ([NO_DRAFT], [None])


def test_before_anything_is_known_one_token_is_tried() -> None:
    assert Bench(LIKELY, is_measured=False).select(decode(0)).drafts == [LIKELY.truncated(1)]


def test_a_fixed_length_is_taken_whether_it_pays_or_not() -> None:
    assert Bench(UNLIKELY, num_speculative_tokens=2).select(decode(0), decode(1, 1)).drafts == [
        UNLIKELY,
        UNLIKELY.truncated(1),
    ]


def test_chunks_without_draft_tokens_get_none() -> None:
    assert Bench(LIKELY, num_speculative_tokens=4).select(decode(0, 0), decode(1)).drafts == [NO_DRAFT, LIKELY]


def test_copies_follow_prompts_only_where_their_length_is_fixed() -> None:
    prompt = Chunk(0, 0, 3, samples=True, max_draft_tokens=8)
    assert Bench(LIKELY).select(prompt).drafts == [NO_DRAFT]
    assert Bench(LIKELY, num_speculative_tokens=4).select(prompt).drafts == [LIKELY]


def test_where_a_tree_is_not_possible_its_main_chain_is_drafted() -> None:
    bench = Bench(TREE, num_speculative_tokens=3)
    assert bench.select(decode(0)).drafts == [TREE]
    assert bench.select(decode(0), takes_tree=False).drafts == [TREE.main_chain()]
