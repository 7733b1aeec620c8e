"""Files of Dense modules: what they say, and what cannot be used."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import close, edit, editing, refused, write_tiny_model

import mha_text as mt


@pytest.fixture
def with_dense(tmp_path):
    """The function that writes a model with a Dense module of given settings and weights, and returns its directory."""
    from safetensors.numpy import save_file

    def write(weights=None, **settings):
        folder = write_tiny_model(tmp_path / "m", modules=("Transformer", "Pooling", "Dense", "Normalize"))
        (folder / "Dense").mkdir()
        edit(folder / "Dense" / "config.json", **({"in_features": 8, "out_features": 3} | settings))
        shapes = {"linear.weight": (3, 8), "linear.bias": (3,)} if weights is None else weights
        save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / "Dense/model.safetensors")
        return folder

    return write


def test_a_dense_module_without_an_activation_has_tanh(with_dense):
    encoder = mt.TextEncoder.from_pretrained(with_dense())
    mean = np.stack([x.mean(axis=0) for x in encoder.encode(["a bird", "dawn"], output="tokens")])
    expected = np.tanh(mean.sum(axis=1, keepdims=True) + 1) * np.ones(3)
    close(encoder.encode(["a bird", "dawn"], normalize=False), expected)


def test_an_encoder_with_other_dense_modules_than_its_directory_is_not_saved(with_dense, tmp_path):
    encoder = replace(mt.TextEncoder.from_pretrained(with_dense()), dense=())
    with pytest.raises(mt.ModelError, match=r"modules\.json has 1 Dense modules, but the encoder has 0"):
        encoder.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "torch.nn.Softsign"}, "activation_function is 'torch.nn.Softsign'; supported: torch.nn.Id"),
        ({"activation_function": "mine.Tanh"}, "activation_function is 'mine.Tanh'; supported: torch.nn.Identity, torch"),
        ({"activation_function": None}, "activation_function is None; supported"),
        ({"in_features": 7}, "in_features is 7, but the vectors before have 8 numbers"),
        ({"out_features": "3"}, "out_features is '3'; expected int"),
        ({"bias": "yes"}, "bias is 'yes'; expected bool"),
        ({"use_residual": True}, "use_residual is True; supported: false"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'; supported: sentence_embedding"),
    ],
)
def test_dense_modules_that_cannot_be_used_are_refused(with_dense, settings, message):
    refused(with_dense(**settings), f"Dense/config.json: {message}")


def test_dense_weights_that_do_not_fit_are_refused(with_dense):
    folder = with_dense({"linear.weight": (8, 3)})
    message = "Dense/model.safetensors does not fit its config.json: linear.weight has shape (8, 3), expected (3, 8); "
    refused(folder, message + "linear.bias is missing")
    (folder / "Dense/model.safetensors").unlink()
    refused(folder, "Dense/model.safetensors is missing: the directory holds config.json")


def test_modules_in_another_order_and_normalized_tokens_are_refused(tiny_model):
    (tiny_model / "2_Normalize").mkdir()
    edit(tiny_model / "2_Normalize/config.json", module_input_name="token_embeddings")
    refused(tiny_model, "2_Normalize/config.json: module_input_name is 'token_embeddings'")
    edit(tiny_model / "1_Pooling/config.json", include_prompt="no")
    (tiny_model / "2_Normalize/config.json").unlink()
    refused(tiny_model, "1_Pooling/config.json: include_prompt is 'no'; expected true or false")
    with editing(tiny_model / "modules.json") as modules:
        modules[1:] = reversed(modules[1:])
    refused(tiny_model, "has the modules Transformer, Normalize, Pooling; expected Transformer, Pooling, a")
