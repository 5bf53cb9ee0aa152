from __future__ import annotations

import torch

from kernels.upload import ALIGNMENT, pack, upload, view

TENSORS = [
    torch.arange(5, dtype=torch.int32).reshape(1, 5),
    torch.tensor([3, -1]),
    torch.empty(0, dtype=torch.int64),
    torch.rand(2, 3, dtype=torch.float64),
    torch.tensor([True, False, True]),
]


def test_packed_tensors_come_out_as_they_went_in():
    packed, offsets = pack(TENSORS)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for tensor, offset in zip(TENSORS, offsets, strict=True):
        out = view(packed, tensor, offset)
        assert out.dtype == tensor.dtype
        assert torch.equal(out, tensor)


def test_what_is_packed_may_be_strided():
    tensor = torch.arange(12).reshape(3, 4)[:, 1:3]
    packed, offsets = pack([tensor])
    assert torch.equal(view(packed, tensor, offsets[0]), tensor)


def test_on_the_cpu_nothing_is_copied():
    found = upload(TENSORS, torch.device("cpu"))
    assert all(one is other for one, other in zip(found, TENSORS, strict=True))


def test_other_devices_get_shapes_and_dtypes():
    for found, tensor in zip(upload(TENSORS, torch.device("meta")), TENSORS, strict=True):
        assert (found.device.type, found.shape, found.dtype) == ("meta", tensor.shape, tensor.dtype)
