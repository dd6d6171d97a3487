"""Fusion passes: neighbouring recorded operations become one where a kernel computes both."""

from typing import NamedTuple

from archerfish.ops.triton.graph.recording import BufferView, RecordedOp


def fuse_activation(ops: list[RecordedOp], outputs: set[int]) -> list[RecordedOp]:
    """Apply a gated activation in the epilogue of the GEMM that computes its input."""
    producers = _producers(ops)
    fused = list(ops)
    for op in ops:
        if op.operation != "activate" or not op.arguments[2]:
            continue
        producer = producers[op.arguments[0].buffer]
        if producer.operation == "linear" and _has_single_reader(producer.outputs[0], ops, outputs):
            fused[fused.index(op)] = RecordedOp("gated_linear", (*producer.arguments, op.arguments[1]), op.outputs)
            fused.remove(producer)
    return fused


def fuse_float_output(ops: list[RecordedOp], outputs: set[int]) -> list[RecordedOp]:
    """Store the output of a GEMM in float32 where it is cast to float32 next."""
    producers = _producers(ops)
    fused = list(ops)
    for op in ops:
        if op.operation != "widen":
            continue
        producer = producers[op.arguments[0].buffer]
        if producer.operation == "linear" and _has_single_reader(producer.outputs[0], ops, outputs):
            fused[fused.index(op)] = RecordedOp("wide_linear", producer.arguments, op.outputs)
            fused.remove(producer)
    return fused


def fuse_residual(ops: list[RecordedOp], outputs: set[int]) -> list[RecordedOp]:
    """Add a residual in the epilogue of the GEMM before it, together with the norm that follows, if there is one."""
    producers = _producers(ops)
    fused = list(ops)
    for op in ops:
        if op.operation != "add":
            continue
        residual, y, factor = op.arguments
        producer = producers.get(y.buffer)
        if producer is None or producer.operation != "linear" or not _has_single_reader(y.buffer, ops, outputs):
            continue
        fused.remove(producer)
        index = fused.index(op)
        following = fused[index + 1] if index + 1 < len(fused) else None
        arguments = (*producer.arguments, residual, factor)
        if following is not None and following.operation == "rms_norm" and _reads_rows(following, op.outputs[0]):
            both = (op.outputs[0], following.outputs[0])
            fused[index : index + 2] = [RecordedOp("linear_add_norm", (*arguments, *following.arguments[1:]), both)]
        else:
            fused[index] = RecordedOp("linear_add", arguments, op.outputs)
    return fused


def fuse_qk_norm_rope_kv_write(ops: list[RecordedOp], outputs: set[int]) -> list[RecordedOp]:
    """Normalize and rotate heads and store keys and values in one kernel, which reads the projection's output."""
    producers = _producers(ops)
    fused = list(ops)
    for op in ops:
        if op.operation != "attend":
            continue
        fusion = _qk_norm_rope_kv_write(op, ops, producers, outputs)
        if fusion is not None:
            fused.insert(fused.index(fusion.replaced[-1]) + 1, fusion.op)
            for replaced in fusion.replaced:
                fused.remove(replaced)
    used = {view.buffer for op in fused for view in op.inputs} | outputs
    # The fused kernel looks up angles itself: drop lookups that no operation reads any more.
    return [op for op in fused if op.operation != "embed" or op.outputs[0] in used]


class _QkNormRopeKvWrite(NamedTuple):
    op: RecordedOp
    replaced: list[RecordedOp]


def _qk_norm_rope_kv_write(
    attend: RecordedOp, ops: list[RecordedOp], producers: dict[int, RecordedOp], outputs: set[int]
) -> _QkNormRopeKvWrite | None:
    """Return the fused operation before an attention, or None where the layer does what the kernel cannot."""
    q = _trace(attend.arguments[0], producers)
    before = ops[ops.index(attend) - 1]
    write = before if before.operation == "write_kv" else None
    k = None if write is None else _trace(write.arguments[0], producers)
    if q is None or q.rotation is None or (write is not None and k is None):
        return None
    angles = producers.get(q.rotation.arguments[1].buffer)
    if angles is None or angles.operation != "embed":
        return None
    replaced = [op for heads in (q, k) if heads is not None for op in (heads.norm, heads.rotation) if op is not None]
    replaced += [] if write is None else [write]
    if any(not _has_single_reader(op.outputs[0], ops, outputs) for op in replaced if op.outputs):
        return None
    if k is not None and (
        k.source.buffer != q.source.buffer or k.rotation is None or (k.norm is None) != (q.norm is None)
    ):
        return None
    norms = [None if heads is None or heads.norm is None else heads.norm.arguments[1:] for heads in (q, k)]
    op = RecordedOp(
        "qk_norm_rope_kv_write",
        (
            _whole_rows(q.source),
            q.source.shape[0],
            None if write is None else write.arguments[2],
            None if write is None else write.arguments[3],
            *angles.arguments,
            *norms,
        ),
        (attend.arguments[0].buffer,),
    )
    return _QkNormRopeKvWrite(op, replaced)


def _whole_rows(view: BufferView) -> BufferView:
    """Return the whole rows that a view lies in."""
    return BufferView(view.buffer, (view.strides[0],), (view.strides[0], 1), 0)


class _Heads(NamedTuple):
    """Queries or keys, and what was done to them since the projection."""

    source: BufferView
    """[heads, D] of the projection."""
    norm: RecordedOp | None
    rotation: RecordedOp | None


def _trace(view: BufferView, producers: dict[int, RecordedOp]) -> _Heads | None:
    """Follow heads back through rotation and norm to the projection; None if they do not come from one."""
    norm = rotation = None
    producer = producers.get(view.buffer)
    if producer is not None and producer.operation == "rotate":
        rotation, view = producer, producer.arguments[0]
        producer = producers.get(view.buffer)
    if producer is not None and producer.operation == "rms_norm" and len(view.shape) == 2:
        norm, view = producer, producer.arguments[0]
        producer = producers.get(view.buffer)
    if producer is None or producer.operation != "linear" or len(view.shape) != 2:
        return None
    return _Heads(view, norm, rotation)


def _producers(ops: list[RecordedOp]) -> dict[int, RecordedOp]:
    """Return the operation that writes each buffer."""
    return {buffer: op for op in ops for buffer in op.outputs}


def _has_single_reader(buffer: int, ops: list[RecordedOp], outputs: set[int]) -> bool:
    return buffer not in outputs and sum(view.buffer == buffer for op in ops for view in op.inputs) == 1


def _reads_rows(op: RecordedOp, buffer: int) -> bool:
    """Return whether the first argument is the whole rows of a buffer."""
    view = op.arguments[0]
    return isinstance(view, BufferView) and view.buffer == buffer and len(view.shape) == 1
