"""A convolution gives a prompt one score in any batch, and is read again from its folder."""

import numpy as np
import torch
from transformers import AutoModel

from training.data.buckets import pad
from training.ranker.convolution import build_convolution

EMBEDDINGS = np.random.default_rng(0).normal(size=(50, 24)).astype(np.float32) * 9 + 5


def test_vectors_ignore_padding_and_layers_see_neighbours_only(tmp_path):
    torch.manual_seed(0)
    model = build_convolution(EMBEDDINGS, width=8, layers=2).eval()
    ids, mask = map(torch.from_numpy, pad([[7, 8, 9, 10, 11, 12], [7, 8, 9]], 0))
    both = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(both[1:, :3], model(ids[1:, :3], mask[1:, :3]).last_hidden_state)
    assert not both[1, 3:].any()
    ids[0, 0] = 20
    changed = model(ids, mask).last_hidden_state
    assert (changed != both)[0].any(1).all()
    torch.testing.assert_close(changed[1], both[1])
    with torch.no_grad():
        model.whole.weight.zero_()
    near = [model(rows, mask).last_hidden_state for rows in (ids, torch.where(ids == 20, 7, ids))]
    assert [bool(row) for row in (near[0] != near[1])[0].any(1)] == [True] * 3 + [False] * 3
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(ids, mask).last_hidden_state, near[0])


def test_embeddings_keep_the_distances_of_the_larger_ones():
    whole = build_convolution(EMBEDDINGS, width=24, layers=None)
    assert len(whole.layers) == 3
    found = whole.embeddings.weight.detach().numpy()
    near = np.linalg.norm(found[1:] - found[0], axis=1)
    true = np.linalg.norm(EMBEDDINGS[1:] - EMBEDDINGS[0], axis=1)
    np.testing.assert_allclose(near / near[0], true / true[0], rtol=1e-3)
    small = build_convolution(EMBEDDINGS, width=8, layers=1).embeddings.weight
    torch.testing.assert_close(small.std(), torch.tensor(1.0), rtol=0.01, atol=0)
