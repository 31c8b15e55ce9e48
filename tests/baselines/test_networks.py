"""Every registered network, and the model around it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from bench.data import load_dataset
from bench.errors import InputError, Unsupported
from bench.registry import MODELS, NETWORKS
from bench.types import Dataset


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_an_image_is_judged_by_itself(shape: tuple[int, int, int]) -> None:
    network = NETWORKS["resnet-tiny"](shape, 7)
    z = 2 * torch.rand(5, *shape, generator=torch.Generator().manual_seed(0)) - 1
    alone = torch.cat([network(row[None]) for row in z])
    torch.testing.assert_close(network(z), alone, atol=1e-5, rtol=0)
    assert network(z).shape == (5, 7)
    torch.testing.assert_close(network.head(network.features(z)), network(z))


def test_resnet_tiny_has_the_weights_that_its_documentation_says() -> None:
    network = NETWORKS["resnet-tiny"]((1, 8, 8), 10)
    count = sum(weight.numel() for weight in network.parameters())
    assert f"{count:,}" in (NETWORKS["resnet-tiny"].__doc__ or "")
    assert 4 * count < 500_000
    assert all(m.bias is not None for m in network.modules() if isinstance(m, nn.Conv2d))
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())


def test_images_too_small_for_the_widths_are_refused() -> None:
    with pytest.raises(InputError, match="at most 2 widths"):
        NETWORKS["resnet-tiny"]((1, 2, 2), 10)
    with pytest.raises(InputError, match="one positive channel count"):
        NETWORKS["resnet-tiny"]((1, 8, 8), 10, widths=())


def test_the_model_maps_its_images_to_z() -> None:
    data = load_dataset("digits", "validation", limit=4)
    model = MODELS["baseline"](data, "resnet-tiny")
    x = torch.from_numpy(data.images)
    torch.testing.assert_close(model(x), model.network(2 * x - 1), atol=0, rtol=0)
    torch.testing.assert_close(model.features(x), model.network.features(2 * x - 1))
    assert not model.training


def test_a_network_without_features_says_so() -> None:
    data = load_dataset("digits", "validation", limit=4)
    model = MODELS["baseline"](data, "resnet-tiny")
    model.network = nn.Flatten()
    with pytest.raises(Unsupported, match="Flatten has no features"):
        model.features(torch.zeros(1, 1, 8, 8))


def test_a_data_set_without_classes_is_refused() -> None:
    data = Dataset("folder:photos", "test", np.zeros((2, 1, 8, 8), np.uint8))
    with pytest.raises(InputError, match="names no classes"):
        MODELS["jem"](data, "resnet-tiny")


def test_each_form_of_hdge_keeps_its_own_name_and_trainer() -> None:
    names = ["baseline", "hdge", "hdge-eq13", "hdge-jem", "hdge-masked", "jem"]
    assert [MODELS.entry(name).facts["trainer"] for name in names] == names
    for one, other in itertools.combinations(names, 2):
        assert MODELS.entry(one).summary != MODELS.entry(other).summary
