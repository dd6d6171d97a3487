"""What a step needs besides a model: updates of rows, tokens and slots gathered, drawn tokens stored."""

import torch

from archerfish.ops.triton.graph import step_kernels as steps


def ints(values: list[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def test_news_reach_their_places_and_no_others(device: str) -> None:
    memory = torch.full((1000,), -5, dtype=torch.int32, device=device)
    places = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:600]
    pairs = torch.stack((places, places * 3), 1).to(device, torch.int32)
    steps.scatter(memory, ints([512], device), pairs)
    expected = torch.full((1000,), -5, dtype=torch.int32)
    expected[places[:512]] = (places[:512] * 3).int()
    assert torch.equal(memory.cpu(), expected)


def test_tokens_and_slots_are_those_of_rows_at_positions(device: str) -> None:
    num_rows, length, num_blocks, block_size = 3, 40, 3, 16
    tokens = torch.arange(num_rows * length, dtype=torch.int32)
    tables = torch.randperm(2 * num_rows * num_blocks, generator=torch.Generator().manual_seed(1)).int()
    memory = torch.cat((tokens, tables)).to(device)
    rows, positions = [2, 0, -1, 1], [39, 17, 0, 15]
    found = torch.empty(4, dtype=torch.int32, device=device)
    slots = torch.empty((2, 4), dtype=torch.int64, device=device)
    starts = torch.tensor([len(tokens), len(tokens) + num_rows * num_blocks], device=device)
    strides = (length, num_blocks, block_size)
    steps.gather_tokens(found, slots, memory, starts, ints(rows, device), ints(positions, device), strides)
    assert found.tolist() == [2 * 40 + 39, 17, 0, 40 + 15]
    blocks = tables.view(2, num_rows, num_blocks)
    for group in range(2):
        wanted = [
            -1 if row < 0 else int(blocks[group, row, place // block_size]) * block_size + place % block_size
            for row, place in zip(rows, positions, strict=True)
        ]
        assert slots[group].tolist() == wanted


def test_drawn_tokens_are_stored_and_returned_with_their_peaks(device: str) -> None:
    memory = torch.zeros(30, dtype=torch.int32, device=device)
    tokens, peaks = torch.tensor([7, 8, 9], device=device), torch.tensor([1.5, torch.nan, -torch.inf], device=device)
    results = torch.empty((2, 3), dtype=torch.int32, device=device)
    steps.store_tokens(results, memory, tokens, peaks, ints([1, -1, 2], device), ints([4, 0, 9], device), 10)
    assert results[0].tolist() == [7, 8, 9]
    assert torch.equal(results[1].view(torch.float32).nan_to_num(nan=99.0), peaks.nan_to_num(nan=99.0))
    assert {place: int(memory[place]) for place in memory.nonzero().flatten().tolist()} == {14: 7, 29: 9}


def test_rows_are_selected(device: str) -> None:
    x = torch.randn(6, 1500, device=device).half()
    out = torch.empty(3, 1500, dtype=torch.float16, device=device)
    steps.select_into(out, x, ints([5, 0, 5], device))
    assert torch.equal(out, x[[5, 0, 5]])
